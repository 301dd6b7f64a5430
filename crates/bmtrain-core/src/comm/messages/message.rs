//! Messages between ranks: a header of six `u64`s, then `u64`s or bytes.
//!
//! Messages are vectors of `u64`s, so that the numbers in them are aligned. What comes from other ranks is compared or
//! shown; lengths are checked before anything is read.

use super::job::Channel;

/// `u64`s of the header.
pub(crate) const HEAD: usize = 6;
/// Longest message about the job itself, in `u64`s: short enough for MPI to send it whatever its receiver does.
pub(crate) const SHORT: usize = 400;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Identity of a rank: the first message to everybody.
    Hello,
    /// A call of a rank.
    Record,
    /// Values of a collective or a message.
    Piece,
    /// A piece of a message was taken.
    Taken,
    /// A rank has left a group.
    Left,
    /// A rank has left the job.
    Bye,
    /// Something is wrong with the job.
    Failure,
    /// Are you there, and whom do you wait for?
    Ask,
    /// The answer.
    Answer,
    /// A rank has told its user what went wrong.
    Spoken,
}

const KINDS: [Kind; 10] = [
    Kind::Hello,
    Kind::Record,
    Kind::Piece,
    Kind::Taken,
    Kind::Left,
    Kind::Bye,
    Kind::Failure,
    Kind::Ask,
    Kind::Answer,
    Kind::Spoken,
];

impl Kind {
    /// Whether it goes on the tag of its own, past whatever is stuck.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_urgent(self) -> bool {
        matches!(self, Kind::Failure | Kind::Ask | Kind::Answer | Kind::Spoken)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MessageKey {
    pub(crate) group: u64,
    /// Sequence of calls that it belongs to.
    pub(crate) channel: Channel,
    /// The rank it is from, in the numbering of the job.
    pub(crate) from: usize,
    pub(crate) sequence: u64,
    pub(crate) piece: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    words: Vec<u64>,
}

impl Message {
    pub(crate) fn of_words(kind: Kind, place: MessageKey, content: &[u64]) -> Self {
        let mut words = Vec::with_capacity(HEAD + content.len());
        words.extend(head(kind, &place, content.len() * 8));
        words.extend(content);
        Message { words }
    }

    /// A message with bytes; `room` is a vector that is no longer used.
    pub(crate) fn of_bytes(kind: Kind, place: MessageKey, content: &[u8], mut room: Vec<u64>) -> Self {
        room.clear();
        room.extend(head(kind, &place, content.len()));
        room.resize(HEAD + content.len().div_ceil(8), 0);
        bytemuck::cast_slice_mut(&mut room[HEAD..])[..content.len()].copy_from_slice(content);
        Message { words: room }
    }

    /// A message from what was received, if it is one.
    pub(crate) fn read(mut words: Vec<u64>, received: usize) -> Option<Self> {
        words.truncate(received);
        let message = Message { words };
        let fits = message.words.len() >= HEAD && message.words[5] <= 8 * (message.words.len() - HEAD) as u64;
        (fits && message.kind().is_some()).then_some(message)
    }

    /// The number of the message among those from one rank to another.
    #[cfg(feature = "mpi")]
    pub(crate) fn set_serial(&mut self, serial: u64) {
        self.words[1] = serial;
    }

    #[cfg(feature = "mpi")]
    pub(crate) fn serial(&self) -> u64 {
        self.words[1]
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        KINDS.get(usize::try_from(self.words[0] & 0xff).ok()?).copied()
    }

    pub(crate) fn place(&self, from: usize) -> MessageKey {
        let channel = Channel::of_number(self.words[0] >> 8 & 0xff);
        MessageKey { group: self.words[2], channel, from, sequence: self.words[3], piece: self.words[4] }
    }

    pub(crate) fn content(&self) -> &[u64] {
        &self.words[HEAD..][..self.words[5] as usize / 8]
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words[HEAD..])[..self.words[5] as usize]
    }

    pub(crate) fn into_words(self) -> Vec<u64> {
        self.words
    }
}

fn head(kind: Kind, place: &MessageKey, bytes: usize) -> [u64; HEAD] {
    let number = KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u64;
    [number | place.channel.number() << 8, 0, place.group, place.sequence, place.piece, bytes as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let place = MessageKey { group: 7, channel: Channel::Host, from: 3, sequence: 9, piece: 2 };
        for kind in KINDS {
            for bytes in [0, 1, 7, 8, 9, 4096] {
                let content: Vec<u8> = (0..bytes).map(|byte| byte as u8).collect();
                let sent = Message::of_bytes(kind, place, &content, vec![5; 3]).into_words();
                let length = sent.len();
                let read = Message::read([sent, vec![1; 9]].concat(), length).unwrap();
                assert_eq!((read.kind(), read.place(3), read.bytes()), (Some(kind), place, &content[..]));
            }
        }
        assert_eq!(Message::of_words(Kind::Ask, place, &[1, 2]).content(), [1, 2]);
    }

    #[test]
    fn what_is_no_message_is_not_read() {
        assert_eq!(Message::read(vec![0; 5], 5), None);
        assert_eq!(Message::read(vec![77, 0, 0, 0, 0, 0], 6), None, "an unknown kind");
        assert_eq!(Message::read(vec![0, 0, 0, 0, 0, 9, 1], 7), None, "more content than there is");
        assert_eq!(Message::read(vec![0; 9], 2), None, "shorter than a header");
    }
}
