//! Waiting for other ranks, never longer than the deadline; who is to blame is asked before that.
//!
//! Who waits wakes up some times a second to see whether the job has failed, whether the ranks it waits for have left
//! or ended, and what time it is.

use super::Session;
use super::group::MessageGroup;
use super::job::{Channel, MessageJob, State};
use super::message::{Kind, Message, MessageKey};
use crate::comm::call::Call;
use crate::comm::engine::{Group, WORLD, blamed};
use crate::error::{Error, Result};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Longest sleep between two checks.
const SLICE: Duration = Duration::from_millis(50);

impl<S: Session> MessageGroup<S> {
    /// Wait until no rank is missing.
    ///
    /// # Errors
    /// The job has failed; a missing rank has left or ended; the deadline has passed, with the names of the missing.
    pub(crate) fn wait(&self, call: &Call, missing: impl Fn(&State) -> Vec<usize>) -> Result<()> {
        let job = self.job();
        let mut state = job.lock();
        let absent = missing(&state);
        if absent.is_empty() {
            return Ok(());
        }
        state.waited += 1;
        let number = state.waited;
        state.waits.insert(number, absent.iter().map(|rank| self.members.world[*rank]).collect());
        drop(state);
        job.work.notify_all();
        let result = self.sleep(call, number, &missing);
        job.lock().waits.remove(&number);
        result
    }

    fn sleep(&self, call: &Call, number: u64, missing: &dyn Fn(&State) -> Vec<usize>) -> Result<()> {
        let job = self.job();
        let deadline = job.deadline;
        let begin = Instant::now();
        let mut next_look = begin;
        // Time for answers is part of the deadline, but for a process that was itself stopped when it passed.
        let to_answer = (deadline / 4).min(Duration::from_millis(500));
        let (mut question, mut ended_before) = (None, Vec::new());
        let mut state = job.lock();
        loop {
            let absent = missing(&state);
            if absent.is_empty() {
                return Ok(());
            }
            if state.failure.is_some() {
                drop(state);
                // The failure as this group sees it.
                self.healthy(call)?;
                return Err(self.fail(call, &absent, "the job has failed".into()));
            }
            // Messages of a rank come in their order: a rank that left has not done its part before.
            let left: Vec<usize> = absent.iter().copied().filter(|rank| state.has_left(self.rank_key(*rank))).collect();
            if !left.is_empty() {
                drop(state);
                return Err(self.fail_left(call, &left));
            }
            let now = Instant::now();
            if now >= next_look {
                next_look = now + SLICE;
                let ended: Vec<usize> = absent.iter().copied().filter(|rank| self.has_ended(*rank)).collect();
                // Its last messages may still be on their way: not before the second look.
                let certain: Vec<usize> = ended.iter().copied().filter(|rank| ended_before.contains(rank)).collect();
                if !certain.is_empty() {
                    drop(state);
                    return Err(self.fail_ended(call, &certain));
                }
                ended_before = ended;
            }
            match question {
                Some((question, until)) if now >= until => {
                    drop(state);
                    return Err(self.blame(call, &absent, question));
                }
                None if now - begin >= deadline - to_answer => {
                    state.questions += 1;
                    let asked = state.questions;
                    question = Some((asked, (begin + deadline).max(now + to_answer)));
                    drop(state);
                    job.ask(&job.others().collect::<Vec<_>>(), asked);
                    state = job.lock();
                    continue;
                }
                _ => {}
            }
            state.waits.insert(number, absent.iter().map(|rank| self.members.world[*rank]).collect());
            let until = question.map_or(begin + deadline - to_answer, |(_, until)| until);
            let rest = until.saturating_duration_since(Instant::now()).min(SLICE);
            state = job.arrived.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn has_ended(&self, rank: usize) -> bool {
        self.job().watch.get().is_some_and(|watch| watch[self.members.world[rank]].has_ended())
    }

    /// The deadline has passed. A rank that waits is not to blame, whom it waits for is; and who does not answer.
    fn blame(&self, call: &Call, absent: &[usize], question: u64) -> Error {
        let answers = self.job().lock().answers.clone();
        let answer = |rank: usize| answers.get(&rank).filter(|(number, _)| *number >= question).map(|(_, ranks)| ranks);
        let absent: Vec<usize> = absent.iter().map(|rank| self.members.world[*rank]).collect();
        let own = self.members.world[self.members.rank];
        let blamed = blamed(&absent, own, |rank| answer(rank).cloned());
        let here = |rank: &usize| self.members.rank_of(*rank);
        let whereabouts = |rank: &usize| {
            let label = here(rank).map_or_else(|| format!("rank {rank} of all"), |rank| self.progress_of(call, rank));
            if answer(*rank).is_some() { label } else { format!("{label}, whose process does not answer,") }
        };
        let who: Vec<String> = blamed.iter().map(whereabouts).collect();
        let reason = format!("nothing from {} for {:.1?}", who.join(" and "), self.job().deadline);
        self.fail(call, &blamed.iter().filter_map(here).collect::<Vec<_>>(), reason)
    }
}

impl MessageJob {
    /// Ask processes whether they are there and whom they wait for.
    pub(crate) fn ask(&self, ranks: &[usize], question: u64) {
        let place = MessageKey { group: WORLD, channel: Channel::Host, from: self.rank, sequence: question, piece: 0 };
        for rank in ranks {
            self.post(*rank, Message::of_words(Kind::Ask, place, &[]));
        }
    }
}
