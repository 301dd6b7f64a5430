//! The end of a process's membership in its job: together with the other ranks, or at once after a failure.

use super::job::{End, MessageJob};
use super::message::Kind;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Interval of the checks for the end.
const SLICE: Duration = Duration::from_millis(50);

impl MessageJob {
    /// Tell the others that this rank leaves, and wait until all of them have left too, as long as they answer. What is
    /// to be done then.
    pub(crate) fn leave(&self) -> End {
        if self.lock().failure.is_some() {
            return End::Park;
        }
        self.tell_all(Kind::Bye, &[]);
        let (mut asked, mut question) = (Instant::now(), None);
        loop {
            let mut state = self.lock();
            if state.failure.is_some() {
                return End::Park;
            }
            let missing: Vec<usize> = self.others().filter(|rank| !state.gone.contains(rank)).collect();
            if missing.is_empty() {
                return End::Finalize;
            }
            if asked.elapsed() >= self.deadline {
                let answered =
                    |rank: &usize| question.is_none() || state.answers.get(rank).map(|answer| answer.0) == question;
                if !missing.iter().all(answered) {
                    tracing::warn!(?missing, "ranks have not come to the end of the job: it ends without them");
                    return End::Park;
                }
                state.questions += 1;
                question = Some(state.questions);
                drop(state);
                self.ask(&missing, question.unwrap_or_default());
                asked = Instant::now();
                continue;
            }
            drop(self.arrived.wait_timeout(state, SLICE));
            let ended = |rank: &usize| self.watch.get().is_some_and(|watch| watch[*rank].has_ended());
            let ended: Vec<usize> = missing.iter().copied().filter(ended).collect();
            if ended.iter().any(|rank| !self.lock().gone.contains(rank)) {
                tracing::warn!(?ended, "processes of ranks have ended: the job ends without them");
                return End::Park;
            }
        }
    }

    /// Let the threads that carry messages do it, and wait for that, but not for ever.
    pub(crate) fn end(&self, end: End) {
        self.lock().end = Some(end);
        self.work.notify_all();
        let begin = Instant::now();
        let mut state = self.lock();
        while !state.ended && begin.elapsed() < self.deadline {
            state = self.arrived.wait_timeout(state, SLICE).unwrap_or_else(PoisonError::into_inner).0;
        }
        if !state.ended {
            tracing::warn!("the connections of this rank have not ended within {:.1?}", self.deadline);
        }
    }
}
