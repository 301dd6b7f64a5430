//! The one thread of a process that calls MPI: it starts messages, looks whether they have ended, and waits for none.
//!
//! Receives of any sender are always started, some for values and some for urgent messages, which are so short that MPI
//! delivers them whatever else is stuck. Persistent requests own their buffers, so that one whose message never ends
//! can be abandoned.

use crate::comm::engine::{Failure, WORLD};
use crate::comm::messages::job::{Channel, End, MessageJob};
use crate::comm::messages::message::{HEAD, Kind, Message, MessageKey, SHORT};
use ferrompi::{Communicator, Mpi, PersistentRequest, Source, Status};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages of values, in the order of each sender.
const VALUES: i32 = 1;
const URGENT: i32 = 2;
/// Started receives of each kind.
const RECEIVES: usize = 6;
/// Messages of fewer `u64`s are copied out of the receive's vector, which is used again at once.
const COPIED: usize = 512;
/// Looks in a row without news before the thread sleeps between looks.
const LOOKS: u32 = 200;
/// Sleep while a thread waits, and while none does.
const NAP: Duration = Duration::from_micros(50);
const REST: Duration = Duration::from_millis(1);
/// Time for the last messages to leave.
const LAST: Duration = Duration::from_secs(1);

/// A message that was started.
struct Started {
    request: PersistentRequest<u64>,
    tag: i32,
    to: Option<usize>,
}

pub(super) struct Progress {
    job: Arc<MessageJob>,
    world: Communicator,
    receives: Vec<Started>,
    sends: Vec<Started>,
    next: Vec<u64>,
    /// Number of the next message from each rank, and those that came before it.
    expected: Vec<u64>,
    early: Vec<BTreeMap<u64, Message>>,
}

impl Progress {
    pub(super) fn new(job: Arc<MessageJob>, mpi: &Mpi) -> Self {
        let size = job.size;
        let early = (0..size).map(|_| BTreeMap::new()).collect();
        let (receives, sends) = (Vec::new(), Vec::new());
        Progress { job, world: mpi.world(), receives, sends, next: vec![0; size], expected: vec![0; size], early }
    }

    /// Work until the job ends, and end MPI as asked.
    pub(super) fn run(mut self, mpi: Mpi) {
        for tag in [VALUES, URGENT] {
            for _ in 0..RECEIVES {
                let room = self.room(tag);
                self.receive(room, tag);
            }
        }
        let mut idle = 0;
        let end = loop {
            let moved = self.look(true);
            idle = if moved { 0 } else { idle + 1 };
            if let Some(end) = self.pause(idle) {
                break end;
            }
        };
        let job = Arc::clone(&self.job);
        let begin = Instant::now();
        while end != End::Finalize && !self.sends.is_empty() && begin.elapsed() < LAST {
            if !self.look(true) {
                std::thread::sleep(NAP);
            }
        }
        match end {
            End::Abort(code) => self.world.abort(code),
            End::Finalize if self.close() => {
                drop(self);
                drop(mpi);
            }
            End::Finalize | End::Park => {
                // Freeing a message that has not ended would wait for it.
                std::mem::forget(self);
                std::mem::forget(mpi);
            }
        }
        job.lock().ended = true;
        job.arrived.notify_all();
    }

    /// Let time pass if there was nothing to do; what to do at the end, once that is known.
    fn pause(&mut self, idle: u32) -> Option<End> {
        let state = self.job.lock();
        let busy = !state.waits.is_empty() || !self.sends.is_empty();
        if !state.outgoing.is_empty() || idle == 0 {
            return None;
        }
        match state.end {
            Some(End::Finalize) if !self.sends.is_empty() => {}
            Some(end) => return Some(end),
            None => {}
        }
        if busy && idle < LOOKS {
            drop(state);
            std::thread::yield_now();
            return None;
        }
        // New messages wake it up; what comes from MPI does not.
        drop(self.job.work.wait_timeout(state, if busy { NAP } else { REST }));
        None
    }

    /// Start what is to be sent and see what has ended. Whether anything happened.
    fn look(&mut self, again: bool) -> bool {
        let mut moved = false;
        loop {
            let Some((to, message)) = self.job.lock().outgoing.pop_front() else { break };
            moved = true;
            self.send(to, message);
        }
        for index in (0..self.sends.len()).rev() {
            match self.sends[index].request.test() {
                Ok(None) => {}
                Ok(Some(_)) => {
                    moved = true;
                    let ended = self.sends.swap_remove(index);
                    self.keep(ended.request);
                }
                Err(error) => {
                    let failed = self.sends.swap_remove(index);
                    self.trouble(failed, &error);
                }
            }
        }
        for index in (0..self.receives.len()).rev() {
            match self.receives[index].request.test() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    moved = true;
                    let came = self.receives.swap_remove(index);
                    self.received(came, &status, again);
                }
                Err(error) => {
                    let failed = self.receives.swap_remove(index);
                    self.trouble(failed, &error);
                }
            }
        }
        moved
    }

    fn send(&mut self, to: usize, mut message: Message) {
        let tag = if message.kind().is_some_and(Kind::is_urgent) { URGENT } else { VALUES };
        if tag == VALUES {
            message.set_serial(self.next[to]);
            self.next[to] += 1;
        }
        let request = self.world.send_init(message.into_words(), to as i32, tag).and_then(started);
        match request {
            Ok(request) => self.sends.push(Started { request, tag, to: Some(to) }),
            Err(error) => self.fail(&format!("a message to rank {to} cannot be sent: {error}"), vec![to]),
        }
    }

    fn receive(&mut self, room: Vec<u64>, tag: i32) {
        match self.world.recv_init(room, Source::Any, tag).and_then(started) {
            Ok(request) => self.receives.push(Started { request, tag, to: None }),
            Err(error) => self.fail(&format!("messages cannot be received: {error}"), vec![self.job.rank]),
        }
    }

    fn room(&self, tag: i32) -> Vec<u64> {
        let mut room = self.job.lock().spare.pop().unwrap_or_default();
        room.resize(if tag == URGENT { SHORT } else { HEAD + self.job.chunk / 8 }, 0);
        room
    }

    /// A receive has ended: deliver its message and start another one.
    fn received(&mut self, came: Started, status: &Status, again: bool) {
        let from = if let Source::Rank(rank) = status.source { usize::try_from(rank).ok() } else { None };
        let (count, tag) = (status.count.unwrap_or(0), came.tag);
        let mut request = came.request;
        let message = if count < COPIED {
            let words = request.buffer().map(|words| words[..count.min(words.len())].to_vec()).unwrap_or_default();
            if again {
                match request.start() {
                    Ok(()) => self.receives.push(Started { request, tag, to: None }),
                    Err(error) => self.fail(&format!("messages cannot be received: {error}"), vec![self.job.rank]),
                }
            }
            Message::read(words, count)
        } else {
            let words = request.into_buffer().unwrap_or_default();
            if again {
                let room = self.room(tag);
                self.receive(room, tag);
            }
            Message::read(words, count)
        };
        let (Some(from), Some(message)) = (from.filter(|from| *from < self.job.size), message) else {
            let who = from.map_or("an unknown rank".into(), |from| format!("rank {from}"));
            self.fail(&format!("{who} sent a message of {count} integers that is not from this program"), vec![]);
            return;
        };
        if tag == URGENT {
            return self.deliver(from, message);
        }
        // A long message may end after a short one that was sent later.
        self.early[from].insert(message.serial(), message);
        while let Some(message) = self.early[from].remove(&self.expected[from]) {
            self.expected[from] += 1;
            self.deliver(from, message);
        }
    }

    fn deliver(&self, from: usize, message: Message) {
        if let Some(answer) = self.job.deliver(from, message) {
            self.job.post(from, answer);
        }
    }

    /// Keep the memory of a message that was sent.
    fn keep(&self, request: PersistentRequest<u64>) {
        if let Ok(words) = request.into_buffer() {
            self.job.lock().keep(words);
        }
    }

    /// A message failed: leave it where it is, and let everybody know.
    fn trouble(&self, failed: Started, error: &ferrompi::Error) {
        std::mem::forget(failed.request);
        match failed.to {
            Some(to) => self.fail(&format!("a message to rank {to} was lost: {error}"), vec![to]),
            None => self.fail(&format!("a message was lost: {error}"), vec![]),
        }
    }

    fn fail(&self, reason: &str, ranks: Vec<usize>) {
        let reason = format!("MPI on rank {}: {reason}", self.job.rank);
        self.job.fail(Failure { group: WORLD, operation: String::new(), sequence: 0, code: 0, reason, ranks });
    }

    /// End all receives: each gets a message from this very process. Whether that went well.
    fn close(&mut self) -> bool {
        let place = MessageKey { group: WORLD, channel: Channel::Host, from: self.job.rank, sequence: 0, piece: 0 };
        let tags: Vec<i32> = self.receives.iter().map(|receive| receive.tag).collect();
        for tag in tags {
            let kind = if tag == URGENT { Kind::Spoken } else { Kind::Bye };
            self.send(self.job.rank, Message::of_words(kind, place, &[]));
        }
        let begin = Instant::now();
        while !(self.receives.is_empty() && self.sends.is_empty()) {
            if begin.elapsed() > LAST {
                return false;
            }
            if !self.look(false) {
                std::thread::yield_now();
            }
        }
        true
    }
}

fn started(mut request: PersistentRequest<u64>) -> ferrompi::Result<PersistentRequest<u64>> {
    request.start()?;
    Ok(request)
}
