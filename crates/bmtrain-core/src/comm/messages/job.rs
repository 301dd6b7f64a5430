//! State shared by the threads of this process: messages received, messages to be sent, and what is known of the other
//! ranks.
//!
//! The threads that carry messages fill it and empty it; ranks' threads and lanes wait on it.

use super::message::{HEAD, Kind, Message, MessageKey, SHORT};
use crate::comm::call;
use crate::comm::engine::{Failure, WORLD};
use crate::comm::processes::Watch;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The sequences of calls of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// Collectives, on lanes.
    Lanes,
    /// Barriers and splits, on the rank's own thread.
    Host,
    /// Messages from one rank to another.
    Messages,
}

impl From<call::Channel> for Channel {
    fn from(channel: call::Channel) -> Self {
        match channel {
            call::Channel::Lanes => Channel::Lanes,
            call::Channel::Host => Channel::Host,
        }
    }
}

impl Channel {
    pub(crate) fn number(self) -> u64 {
        match self {
            Channel::Lanes => 0,
            Channel::Host => 1,
            Channel::Messages => 2,
        }
    }

    pub(crate) fn of_number(number: u64) -> Self {
        match number {
            0 => Channel::Lanes,
            1 => Channel::Host,
            _ => Channel::Messages,
        }
    }
}

/// Last task of the threads that carry messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Send everything, and end in order: all ranks have left.
    Finalize,
    /// The job has failed or a rank is lost: give the last messages a moment to leave, and wait for nothing else.
    Park,
    /// Let MPI end all processes, with this exit code.
    #[cfg(feature = "mpi")]
    Abort(i32),
}

/// This process's part of the job.
#[derive(Debug)]
pub(crate) struct MessageJob {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Wait for other ranks before a rank gives up.
    pub(crate) deadline: Duration,
    /// Bytes of values in a message; more are several messages.
    pub(crate) chunk: usize,
    /// The host of each rank, for messages to users; empty where it is not known.
    pub(crate) hosts: Arc<[String]>,
    /// Watches that show whether a process still lives; set when all have come.
    pub(crate) watch: OnceLock<Vec<Watch>>,
    state: Mutex<State>,
    pub(crate) arrived: Condvar,
    pub(crate) work: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Messages to be sent, with their receivers.
    pub(crate) outgoing: VecDeque<(usize, Message)>,
    /// Records and pieces that came and were not asked for yet.
    pub(crate) messages: HashMap<MessageKey, Message>,
    /// Pieces of messages that a rank has taken, in all.
    pub(crate) taken: HashMap<(u64, usize), u64>,
    /// Number of calls of a group's channel that a rank has come to.
    pub(crate) calls: HashMap<(u64, Channel, usize), u64>,
    pub(crate) left: HashSet<(u64, usize)>,
    /// Integers that each rank sent about itself when it joined.
    pub(crate) hello: HashMap<usize, Vec<u64>>,
    pub(crate) gone: HashSet<usize>,
    /// Ranks whose users know of the failure.
    pub(crate) spoken: HashSet<usize>,
    /// The last question that each rank has answered, and whom it waited for.
    pub(crate) answers: HashMap<usize, (u64, Vec<usize>)>,
    pub(crate) questions: u64,
    /// Whom the waits of this process wait for, by number of the wait.
    pub(crate) waits: HashMap<u64, Vec<usize>>,
    pub(crate) waited: u64,
    pub(crate) failure: Option<Failure>,
    /// Vectors that are used again.
    pub(crate) spare: Vec<Vec<u64>>,
    pub(crate) end: Option<End>,
    /// The threads that carry messages have done what `end` asks for.
    pub(crate) ended: bool,
}

/// Vectors that are kept for later messages.
const SPARE: usize = 32;

impl State {
    /// Whether a rank has left the group, or the whole job.
    pub(crate) fn has_left(&self, (group, rank): (u64, usize)) -> bool {
        self.left.contains(&(group, rank)) || self.gone.contains(&rank)
    }

    /// Keep the memory of a message that is no longer needed.
    pub(crate) fn keep(&mut self, words: Vec<u64>) {
        if words.capacity() > SHORT && self.spare.len() < SPARE {
            self.spare.push(words);
        }
    }
}

impl MessageJob {
    pub(crate) fn new(
        (rank, size): (usize, usize),
        deadline: Duration,
        chunk: usize,
        hosts: impl Into<Arc<[String]>>,
    ) -> Self {
        MessageJob {
            rank,
            size,
            deadline,
            chunk,
            hosts: hosts.into(),
            watch: OnceLock::new(),
            state: Mutex::default(),
            arrived: Condvar::new(),
            work: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every other process.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.rank;
        (0..self.size).filter(move |rank| *rank != own)
    }

    pub(crate) fn post(&self, to: usize, message: Message) {
        self.lock().outgoing.push_back((to, message));
        self.work.notify_all();
    }

    pub(crate) fn tell_all(&self, kind: Kind, content: &[u64]) {
        self.queue_for_all(&mut self.lock(), kind, content);
        self.work.notify_all();
    }

    fn queue_for_all(&self, state: &mut State, kind: Kind, content: &[u64]) {
        let place = MessageKey { group: WORLD, channel: Channel::Host, from: self.rank, sequence: 0, piece: 0 };
        let messages = self.others().map(|other| (other, Message::of_words(kind, place, content)));
        state.outgoing.extend(messages);
    }

    /// Write a failure down and tell everybody, unless there is one already. Both at once: a caller that finds the
    /// failure may leave, and what is queued by then is the last that is sent.
    pub(crate) fn fail(&self, failure: Failure) {
        let mut state = self.lock();
        if state.failure.is_some() {
            return;
        }
        state.failure = Some(failure);
        self.tell_failure(&mut state);
        drop(state);
        self.arrived.notify_all();
        self.work.notify_all();
    }

    /// Tell everybody of the failure that there has been, if any, whichever rank reported it.
    pub(crate) fn tell_failure(&self, state: &mut State) {
        if let Some(failure) = &state.failure {
            let words = failure.words(SHORT - HEAD);
            self.queue_for_all(state, Kind::Failure, &words);
        }
    }

    /// A message came: put it where it is waited for. Returns the answer to a question.
    pub(crate) fn deliver(&self, from: usize, message: Message) -> Option<Message> {
        let (kind, place) = (message.kind()?, message.place(from));
        let mut state = self.lock();
        let mut answer = None;
        match kind {
            Kind::Hello => drop(state.hello.insert(from, message.content().to_vec())),
            Kind::Record | Kind::Piece => {
                if kind == Kind::Record {
                    state.calls.insert((place.group, place.channel, from), place.sequence + 1);
                }
                // A record is piece 0 of its call, values begin at 1.
                state.messages.insert(place, message);
            }
            Kind::Taken => *state.taken.entry((place.group, from)).or_default() += 1,
            Kind::Left => drop(state.left.insert((place.group, from))),
            Kind::Bye => drop(state.gone.insert(from)),
            Kind::Spoken => drop(state.spoken.insert(from)),
            Kind::Failure => {
                let failure = Failure::read(message.content());
                state.failure.get_or_insert(failure);
            }
            Kind::Ask => {
                let mut ranks: Vec<u64> = state.waits.values().flatten().map(|rank| *rank as u64).collect();
                ranks.sort_unstable();
                ranks.dedup();
                ranks.truncate(SHORT / 2);
                answer = Some(Message::of_words(Kind::Answer, MessageKey { from: self.rank, ..place }, &ranks));
            }
            Kind::Answer => {
                let ranks = message.content().iter().map(|rank| *rank as usize).collect();
                state.answers.insert(from, (place.sequence, ranks));
            }
        }
        drop(state);
        self.arrived.notify_all();
        answer
    }
}
