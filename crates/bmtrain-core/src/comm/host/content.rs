//! Content of the table of a job: a seat for each rank, and why the start has failed, as one page of bytes.
//!
//! Malformed bytes are refused or shown, never used as a length without a bound.

use super::layout::MAX_RANKS;
use crate::comm::processes::{Identity, TICKS};
use crate::error::Error;
use rustix::time::{ClockId, clock_gettime};

/// Bytes of a table.
pub(super) const BYTES: usize = 4096;

const MAGIC: u64 = 0x31_736b_6e61_7262;
const HEAD_WORDS: usize = 8;
const SEAT_WORDS: usize = 5;
const TEXT: usize = 8 * (HEAD_WORDS + SEAT_WORDS * MAX_RANKS);
const TEXT_BYTES: usize = BYTES - TEXT;
/// Between place, reason and fix.
const SEPARATOR: char = '\u{1f}';

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// Its process has not come yet.
    Absent,
    /// Its process has come and prepares.
    Here,
    /// It has joined the other ranks, or waits for them.
    Joined,
    /// Its process has left without joining.
    Left,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Seat {
    pub(super) whom: Identity,
    pub(super) presence: Presence,
    /// Time at which it came so far, in ticks since the machine was booted.
    pub(super) at: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct StartFailure {
    /// The exit code for every rank.
    pub(super) code: u8,
    pub(super) rank: usize,
    /// When, in ticks since the machine was booted.
    pub(super) at: u64,
    /// Place and fix of a wrong launch; none for a rank that ended.
    pub(super) launch: Option<[String; 2]>,
    pub(super) reason: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Content {
    pub(super) seats: Vec<Seat>,
    pub(super) failure: Option<StartFailure>,
}

const NO_PROCESS: Identity = Identity { process: 0, namespace: 0, start: 0 };

/// The exit code of a lost rank, after which another start can succeed.
const PEER: u8 = 6;
/// The exit code of a wrong launch.
const USAGE: u8 = 2;

/// Ticks since the machine was booted, in which the system counts when processes were started.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * TICKS + time.tv_nsec as u64 / (1_000_000_000 / TICKS)
}

impl StartFailure {
    pub(super) fn launch(rank: usize, place: String, reason: String, fix: String) -> Self {
        StartFailure { code: USAGE, rank, at: now(), launch: Some([place, fix]), reason }
    }

    /// A rank that ended with an exit code before it joined.
    pub(super) fn ended(rank: usize, whom: Identity, code: u8, reason: &str) -> Self {
        let reason = format!("rank {rank} (process {}) ended before all ranks had joined: {reason}", whom.process);
        StartFailure { code, rank, at: now(), launch: None, reason }
    }

    /// A rank whose process ended without a report.
    pub(super) fn lost(rank: usize, whom: Identity) -> Self {
        let reason = format!("the process of rank {rank} ({}) ended before all ranks had joined", whom.process);
        StartFailure { code: PEER, rank, at: now(), launch: None, reason }
    }

    pub(super) fn error(&self) -> Error {
        let (rank, reason) = (self.rank, self.reason.clone());
        match &self.launch {
            Some([place, fix]) => Error::Launch { place: place.clone(), reason, fix: fix.clone() },
            None if self.code == PEER => {
                Error::Communication { operation: "join".into(), sequence: 0, reason, ranks: vec![rank] }
            }
            None => Error::RankEnded { rank, code: self.code, reason },
        }
    }

    fn text(&self) -> String {
        let [place, fix] = self.launch.clone().unwrap_or_default();
        // The reason is last: it is the one that may be too long.
        let text = [place, fix, self.reason.clone()].join(&SEPARATOR.to_string());
        text[..text.floor_char_boundary(TEXT_BYTES)].to_owned()
    }
}

impl Content {
    pub(super) fn new(size: usize) -> Self {
        Content { seats: vec![Seat { whom: NO_PROCESS, presence: Presence::Absent, at: 0 }; size], failure: None }
    }

    /// Note how far a process has come; a rank that is none of the table's is passed over.
    pub(super) fn set(&mut self, rank: usize, whom: Identity, presence: Presence) {
        if let Some(seat) = self.seats.get_mut(rank) {
            *seat = Seat { whom, presence, at: now() };
        }
    }

    pub(super) fn is_absent(&self, rank: usize) -> bool {
        self.seats.get(rank).is_some_and(|seat| seat.presence == Presence::Absent)
    }

    pub(super) fn whom(&self, rank: usize) -> Identity {
        self.seats.get(rank).map_or(NO_PROCESS, |seat| seat.whom)
    }

    pub(super) fn fail(&mut self, failure: StartFailure) {
        self.failure.get_or_insert(failure);
    }

    /// The failure, if `rank` reported it from a process that was started at `started`: later ones belong to another
    /// start. After a lost process another start comes at once, so that only who was there before that process is of
    /// the same start.
    pub(super) fn failure_of(&self, rank: usize, started: u64) -> Option<&StartFailure> {
        let is_of_start = |failure: &&StartFailure| match (failure.code, self.seats.get(failure.rank)) {
            (PEER, lost) => rank != failure.rank && lost.is_some_and(|seat| started < seat.at),
            _ => started <= failure.at,
        };
        self.failure.as_ref().filter(|_| started != 0).filter(is_of_start)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.failure.is_none() && self.seats.iter().all(|seat| seat.presence == Presence::Joined)
    }

    /// A rank whose process had come, and not left, when a process was already there that was started at `started`.
    /// (One that was started in the same tick may be a later one.)
    pub(super) fn seen_by(&self, started: u64) -> Option<usize> {
        let seen = |seat: &Seat| matches!(seat.presence, Presence::Here | Presence::Joined) && started < seat.at;
        self.seats.iter().position(|seat| started != 0 && seen(seat))
    }

    /// Whether a failure is still to be told to ranks that have not come.
    pub(super) fn awaits_ranks(&self) -> bool {
        self.failure.is_some() && self.has_absent()
    }

    pub(super) fn has_absent(&self) -> bool {
        self.seats.iter().any(|seat| seat.presence == Presence::Absent)
    }

    pub(super) fn to_bytes(&self) -> [u8; BYTES] {
        let failure = self.failure.as_ref();
        let text = failure.map(StartFailure::text).unwrap_or_default();
        let kind = failure.map_or(0, |failure| if failure.launch.is_some() { 2 } else { 1 });
        let of_failure = |value: fn(&StartFailure) -> u64| failure.map_or(0, value);
        let head: [u64; HEAD_WORDS] = [
            MAGIC,
            self.seats.len() as u64,
            kind,
            of_failure(|failure| u64::from(failure.code)),
            of_failure(|failure| failure.rank as u64),
            of_failure(|failure| failure.at),
            text.len() as u64,
            0,
        ];
        let seats = self.seats.iter().flat_map(|seat| {
            let Identity { process, namespace, start } = seat.whom;
            [process, namespace, start, seat.presence as u64, seat.at]
        });
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(head.into_iter().chain(seats)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[TEXT..TEXT + text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    /// A table from its bytes; nothing if they are not one.
    pub(super) fn of_bytes(bytes: &[u8; BYTES]) -> Option<Self> {
        let mut words =
            bytes.chunks_exact(8).map(|eight| eight.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b)));
        let head: Vec<u64> = words.by_ref().take(HEAD_WORDS).collect();
        let [MAGIC, size, kind, code, rank, at, length, 0] = head[..] else { return None };
        let size = usize::try_from(size).ok().filter(|size| (1..=MAX_RANKS).contains(size))?;
        let mut seats = Vec::with_capacity(size);
        for _ in 0..size {
            let mut word = || words.next();
            let [process, namespace, start, presence, at] = [word()?, word()?, word()?, word()?, word()?];
            let presence = match presence {
                0 => Presence::Absent,
                1 => Presence::Here,
                2 => Presence::Joined,
                3 => Presence::Left,
                _ => return None,
            };
            seats.push(Seat { whom: Identity { process, namespace, start }, presence, at });
        }
        let length = usize::try_from(length).ok().filter(|length| *length <= TEXT_BYTES)?;
        let text = String::from_utf8_lossy(&bytes[TEXT..TEXT + length]);
        let mut texts = text.splitn(3, SEPARATOR).map(|text| text.replace(char::is_control, " "));
        let failure = match kind {
            0 => None,
            1 | 2 => {
                let (place, fix) = (texts.next()?, texts.next()?);
                let reason = texts.next()?;
                let launch = (kind == 2).then_some([place, fix]);
                let code = u8::try_from(code).ok()?;
                Some(StartFailure { code, rank: usize::try_from(rank).ok()?, at, launch, reason })
            }
            _ => return None,
        };
        Some(Content { seats, failure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let whom = |process| Identity { process, namespace: 7, start: 99 };
        let failures = [
            None,
            Some(StartFailure::lost(1, whom(6))),
            Some(StartFailure::ended(2, whom(8), 3, "a label is missing")),
            Some(StartFailure::launch(0, "rank 0".into(), "twice".into(), "once".into())),
        ];
        for failure in failures {
            let mut content = Content::new(MAX_RANKS);
            content.set(3, whom(5), Presence::Joined);
            content.set(63, whom(6), Presence::Left);
            content.set(64, whom(7), Presence::Here);
            content.failure = failure;
            assert_eq!(Content::of_bytes(&content.to_bytes()), Some(content));
        }
    }

    #[test]
    fn a_long_reason_is_cut_and_place_and_fix_stay() {
        let mut content = Content::new(2);
        content.fail(StartFailure::launch(1, "place".into(), "é".repeat(BYTES), "fix".into()));
        let read = Content::of_bytes(&content.to_bytes()).unwrap().failure.unwrap();
        assert_eq!(read.launch, Some(["place".to_owned(), "fix".to_owned()]));
        assert!(read.reason.len() > TEXT_BYTES / 2 && read.reason.starts_with("éé"));
    }

    #[test]
    fn malformed_tables_are_refused() {
        let good = Content::new(2).to_bytes();
        assert!(Content::of_bytes(&good).is_some());
        for (index, value) in
            [(0, 1), (1, 0), (1, 65), (1, u64::MAX), (2, 3), (2, 1), (6, u64::MAX), (7, 1), (11, 4), (16, 4)]
        {
            let mut bytes = good;
            bytes[8 * index..][..8].copy_from_slice(&u64::to_le_bytes(value));
            assert_eq!(Content::of_bytes(&bytes), None, "integer {index} of {value}");
        }
        assert_eq!(Content::of_bytes(&[0xa5; BYTES]), None);
    }

    #[test]
    fn errors_have_the_kind_of_the_failure() {
        let whom = Identity { process: 5, namespace: 7, start: 99 };
        assert!(matches!(StartFailure::lost(1, whom).error(), Error::Communication { ranks, .. } if ranks == [1]));
        let ended = StartFailure::ended(1, whom, 3, "bad data").error();
        assert!(matches!(&ended, Error::RankEnded { rank: 1, code: 3, .. }), "{ended}");
        assert!(ended.to_string().contains("bad data"));
        let launch = StartFailure::launch(1, String::new(), String::new(), String::new());
        assert!(matches!(launch.error(), Error::Launch { .. }));
    }
}
