//! State shared by the threads of a rank: they take messages to their connections, and to this rank. Rank 0 passes on
//! what the others send each other.

use super::link::{Frame, Link, Lost, SLICE};
use crate::comm::engine::{Failure, WORLD};
use crate::comm::messages::job::{End, MessageJob};
use crate::comm::messages::message::Message;
use crate::error::{Error, Result};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for the last messages to leave.
const LAST: Duration = Duration::from_secs(1);
/// Messages that may wait for calls of this rank: many more than its groups have under way.
const WAITING: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Carrier {
    job: MessageJob,
    /// By rank; on ranks other than 0 the one to rank 0.
    links: Vec<Option<Arc<Link>>>,
}

impl Carrier {
    pub(super) fn new(job: MessageJob, streams: Vec<(usize, TcpStream)>) -> Result<Self> {
        let mut links = vec![None; job.size];
        for (rank, stream) in streams {
            let refused = |error: std::io::Error| {
                let call = "connection between ranks";
                Error::Device { backend: "TCP".into(), call, reason: error.to_string() }
            };
            if let Some(place) = links.get_mut(rank) {
                *place = Some(Arc::new(Link::new(rank, stream).map_err(refused)?));
            }
        }
        Ok(Carrier { job, links })
    }

    pub(super) fn job(&self) -> &MessageJob {
        &self.job
    }

    pub(super) fn links(&self) -> impl Iterator<Item = Arc<Link>> + use<> {
        self.links.clone().into_iter().flatten()
    }

    fn is_relay(&self) -> bool {
        self.job.rank == 0
    }

    /// Take this rank's messages to their connections until the job ends, and close these.
    pub(super) fn run(&self) {
        // A rank's report of a failure comes to rank 0 before what it sends the others by way of it, and rank 0 may end
        // between the two: these would find that rank 0 has ended. So they hear of the failure from it too.
        let mut has_told = !self.is_relay();
        let end = loop {
            let mut state = self.job.lock();
            if let Some((to, message)) = state.outgoing.pop_front() {
                drop(state);
                let words = message.into_words();
                if self.is_relay() {
                    self.give(to, 0, &words)
                } else {
                    self.give(0, to, &words)
                }
                self.job.lock().keep(words);
                continue;
            }
            match state.end {
                Some(end) if has_told => break end,
                Some(_) => {
                    self.job.tell_failure(&mut state);
                    has_told = true;
                }
                None => drop(self.job.work.wait_timeout(state, SLICE)),
            }
        };
        let patience = if end == End::Finalize { self.job.deadline.max(LAST) } else { LAST };
        let until = Instant::now() + patience;
        self.links().for_each(|link| link.close());
        self.links().for_each(|link| link.end(until));
        self.job.lock().ended = true;
        self.job.arrived.notify_all();
    }

    /// A thread of this rank was refused, so that none may serve its connections.
    pub(super) fn give_up(&self, error: &Error) {
        self.fail(format!("{} failed: {error}", self.label(self.job.rank)), vec![self.job.rank]);
        self.links().for_each(|link| link.end(Instant::now()));
        self.job.lock().ended = true;
    }

    /// Queue the integers of a message at the connection of a rank; `rank` is the other end of their way, beyond it.
    fn give(&self, link: usize, rank: usize, words: &[u64]) {
        let Some(link) = self.links.get(link).and_then(Option::as_ref) else { return };
        if !link.push(rank, words) {
            let reason = format!("{} does not take what it is sent", self.label(link.rank));
            self.fail(reason, vec![link.rank]);
        }
    }

    /// Write to a connection as long as it lasts.
    pub(super) fn write(&self, link: &Link) {
        if let Err(lost) = link.write(self.job.deadline) {
            self.lost(link, lost);
        }
    }

    /// Read from a connection as long as it lasts.
    pub(super) fn read(&self, link: &Link) {
        // After its own end this rank reads what the other end still sends, but it does not wait for it.
        let is_wanted = || !self.job.lock().ended;
        let lost = loop {
            match link.read(self.job.deadline, is_wanted) {
                Ok(Frame::SignOfLife) => {}
                Ok(Frame::Unwanted) => break None,
                Ok(Frame::Message(rank, words)) => {
                    if !self.receive(link.rank, rank, words) {
                        break Some(Lost::Foreign);
                    }
                }
                Err(lost) => break Some(lost),
            }
        };
        link.has_read();
        if let Some(lost) = lost {
            self.lost(link, lost);
        }
    }

    /// Deliver the integers of a message from a connection, or pass them on. False if they are not from this program.
    fn receive(&self, from: usize, rank: usize, words: Vec<u64>) -> bool {
        if rank >= self.job.size || rank == if self.is_relay() { from } else { self.job.rank } {
            return false;
        }
        if self.is_relay() && rank != 0 {
            self.give(rank, from, &words);
            return true;
        }
        let from = if self.is_relay() { from } else { rank };
        let count = words.len();
        let Some(message) = Message::read(words, count) else { return false };
        if let Some(answer) = self.job.deliver(from, message) {
            self.job.post(from, answer);
        }
        self.job.lock().messages.len() <= WAITING
    }

    /// A connection is lost: a failure, unless the rank at its other end has left, or this one ends.
    fn lost(&self, link: &Link, lost: Lost) {
        let mut state = self.job.lock();
        if state.gone.contains(&link.rank) {
            // Before rank 0 all others have left, though their messages about it may not have come.
            if !self.is_relay() {
                state.gone.extend(0..self.job.size);
                self.job.arrived.notify_all();
            }
            return;
        }
        if state.end.is_some() || state.failure.is_some() {
            return;
        }
        drop(state);
        let who = self.label(link.rank);
        let reason = match lost {
            Lost::Closed => format!("the process of {who} has ended"),
            Lost::Silent(time) => {
                format!("nothing from {who} for {time:.1?}: its host or network is down, or its process is stopped")
            }
            Lost::Foreign => format!("{who} sent something that is not from this program, or more than it may"),
            Lost::Failed(kind) => format!("the connection to {who} is lost: {kind}"),
        };
        self.fail(reason, vec![link.rank]);
    }

    fn fail(&self, reason: String, ranks: Vec<usize>) {
        self.job.fail(Failure { group: WORLD, reason, ranks, ..Failure::default() });
    }

    /// A rank with its host.
    fn label(&self, rank: usize) -> String {
        match self.job.hosts.get(rank).filter(|host| !host.is_empty()) {
            Some(host) => format!("rank {rank} on {host}"),
            None => format!("rank {rank}"),
        }
    }
}
