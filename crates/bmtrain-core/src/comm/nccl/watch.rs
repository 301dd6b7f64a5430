//! The thread of a rank that sees to it that nothing on the device waits for ever, and what it finds out when something
//! does.
//!
//! The host may wait for the device in many places, where it hears nothing of the other ranks; so it is not the host
//! that looks.

use super::job::NcclJob;
use super::join;
use super::rank::{Member, Route};
use crate::comm::call::{Call, CallKind, describe};
use crate::comm::queue::lock;
use crate::cuda::Span;
use crate::error::{Error, Result};
use crate::lane::Lane;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks.
pub(super) const SLICE: Duration = Duration::from_millis(20);

/// Time for the control plane to hear of a rank whose loss NCCL has noticed.
const HEARSAY: Duration = Duration::from_millis(500);

/// Calls in flight on the device.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// In the order of each lane.
    lanes: [VecDeque<UnderWay>; Lane::ALL.len()],
    spare: Vec<Span>,
}

#[derive(Debug)]
struct UnderWay {
    call: Call,
    span: Span,
    /// Time at which the device was first seen to have come to it.
    begun: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum Trouble {
    Library(Error),
    Control(Error),
    Deadline,
}

pub(super) fn run(job: &Arc<NcclJob>) {
    if let Err(error) = job.backend.make_current() {
        tracing::warn!(%error, "the watch of a rank has no device");
    }
    let mut has_broken_off = false;
    while job.pause(SLICE) {
        for member in job.members() {
            if job.has_failed() {
                break;
            }
            if let Some((call, trouble)) = member.look() {
                member.fail(&call, trouble);
            }
        }
        if job.has_failed() && !has_broken_off {
            job.break_off();
            has_broken_off = true;
        }
    }
    if job.has_failed() && !has_broken_off {
        job.break_off();
    }
    job.has_ended();
}

impl Watched {
    pub(super) fn add(&mut self, call: Call, on: Lane, span: Span) {
        self.lanes[on as usize].push_back(UnderWay { call, span, begun: None });
    }

    pub(super) fn spare(&mut self, on: Lane) -> Result<Option<Span>> {
        self.retire(on)?;
        Ok(self.spare.pop())
    }

    pub(super) fn is_busy(&mut self) -> bool {
        // A lane of a failing device counts as busy.
        Lane::ALL.into_iter().any(|lane| self.retire(lane).is_err() || !self.lanes[lane as usize].is_empty())
    }

    fn retire(&mut self, on: Lane) -> Result<()> {
        let lane = &mut self.lanes[on as usize];
        while let Some(first) = lane.front() {
            if !first.span.has_ended()? {
                break;
            }
            self.spare.extend(lane.pop_front().map(|ended| ended.span));
        }
        Ok(())
    }

    /// The call that the device has been at for the longest time, and for how long; else the next one. None if nothing
    /// is under way.
    fn longest(&mut self) -> Result<Option<(Call, Duration)>> {
        let mut longest = None;
        for lane in Lane::ALL {
            self.retire(lane)?;
            let Some(first) = self.lanes[lane as usize].front_mut() else { continue };
            if first.begun.is_none() && first.span.has_begun()? {
                first.begun = Some(Instant::now());
            }
            let time = first.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
            if longest.is_none_or(|(_, most)| time > most) {
                longest = Some((first.call, time));
            }
        }
        Ok(longest)
    }
}

impl Member {
    /// Look at what is under way. Without any, there is no wait.
    fn look(&self) -> Option<(Call, Trouble)> {
        let longest = lock(&self.watched).longest();
        let (call, time) = match longest {
            Ok(longest) => longest?,
            Err(error) => return Some((Call { kind: CallKind::Join, sequence: 0 }, Trouble::Library(error))),
        };
        for way in [Route::All, Route::Up, Route::Down] {
            let failed = lock(&self.connections)
                .as_ref()
                .and_then(|connections| connections.get(way as usize))
                .and_then(|connection| connection.progress().err());
            if let Some(error) = failed {
                return Some((call, Trouble::Library(error)));
            }
        }
        if let Some(error) = self.control.failure() {
            return Some((call, Trouble::Control(error)));
        }
        (time >= self.job.options.deadline).then_some((call, Trouble::Deadline))
    }

    /// Account of a failure, and the ranks of the group that it concerns.
    pub(super) fn examine(&self, call: &Call, trouble: Trouble) -> (String, Vec<usize>) {
        match trouble {
            Trouble::Control(error) => parts(error),
            Trouble::Library(error) => {
                // For a lost rank NCCL reports that a connection was closed; the control plane knows whose.
                let begin = Instant::now();
                while begin.elapsed() < HEARSAY {
                    if let Some(known) = self.control.failure() {
                        return parts(known);
                    }
                    std::thread::sleep(SLICE);
                }
                (error.to_string(), vec![])
            }
            Trouble::Deadline => match call.kind {
                CallKind::Send(_, other) | CallKind::Recv(_, other) => {
                    (format!("nothing from {} for {:.1?}", self.label(other), self.job.options.deadline), vec![other])
                }
                _ => self.ask_around(call),
            },
        }
    }

    /// Ask the watches of the other ranks what they wait in. They come when they have waited as long as this one.
    fn ask_around(&self, call: &Call) -> (String, Vec<usize>) {
        let deadline = self.job.options.deadline;
        let own = [call.kind.encoded()[0], call.kind.encoded()[1], call.sequence];
        let bytes: Vec<u8> = own.into_iter().flat_map(u64::to_le_bytes).collect();
        let answers = match join::gather(&*self.inquest, &bytes) {
            Ok(answers) => answers,
            Err(Error::Communication { ranks, .. }) if !ranks.is_empty() => {
                let who: Vec<String> = ranks.iter().map(|rank| self.label(*rank)).collect();
                let reason = format!(
                    "nothing from {} for {deadline:.1?}: not in a call of this group, stopped, or lost",
                    who.join(" and ")
                );
                return (reason, ranks);
            }
            Err(error) => return parts(error),
        };
        let calls = answers.iter().map(|answer| {
            let mut words = answer
                .chunks_exact(8)
                .map(|eight| eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
            [(); 3].map(|()| words.next().unwrap_or(0))
        });
        let calls: Vec<[u64; 3]> = calls.collect();
        if calls.iter().all(|other| *other == own) {
            return (format!("all ranks are in this call and it has not ended for {deadline:.1?}"), vec![]);
        }
        let pending = |(rank, [first, second, sequence]): (usize, &[u64; 3])| {
            format!("{} waits in {} (number {sequence})", self.label(rank), describe([*first, *second]))
        };
        let who: Vec<String> = calls.iter().enumerate().map(pending).collect();
        let differ = (0..calls.len()).filter(|rank| calls[*rank] != own).chain([self.rank]).collect();
        (format!("{}; all ranks have to make the same calls in the same order", who.join(", ")), differ)
    }
}

fn parts(error: Error) -> (String, Vec<usize>) {
    match error {
        Error::Communication { reason, ranks, .. } => (reason, ranks),
        other => (other.to_string(), vec![]),
    }
}
