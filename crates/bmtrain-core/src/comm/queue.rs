//! The order of a rank's own calls: on whatever lanes, they run one after the other in the order of their launches.
//!
//! All ranks launch the calls of a group in the same order, so they also run them in the same order, even on several
//! lanes. There is no deadlock: a lane only waits for earlier launches.

use super::call::{Call, CallKind};
use super::engine::Group;
use crate::error::Result;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait without a look at the group.
const SLICE: Duration = Duration::from_millis(50);

/// Numbers calls and lets one after the other run.
#[derive(Debug, Default)]
pub(super) struct CallQueue {
    launched: Mutex<u64>,
    ended: Mutex<u64>,
    changed: Condvar,
}

/// The right to run. It ends when the value is dropped.
pub(super) struct Turn<'a> {
    queue: &'a CallQueue,
    number: u64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank's calls in one group: a queue of collectives, and one of messages to and from each other rank.
#[derive(Debug)]
pub(super) struct CallQueues {
    collectives: CallQueue,
    sends: Vec<CallQueue>,
    receives: Vec<CallQueue>,
}

impl CallQueues {
    pub(super) fn new(size: usize) -> Self {
        let queue = || (0..size).map(|_| CallQueue::default()).collect();
        CallQueues { collectives: CallQueue::default(), sends: queue(), receives: queue() }
    }

    pub(super) fn of(&self, kind: &CallKind) -> &CallQueue {
        match kind {
            CallKind::Send(_, to) => &self.sends[*to],
            CallKind::Recv(_, from) => &self.receives[*from],
            _ => &self.collectives,
        }
    }
}

impl CallQueue {
    /// Launch a call with the next number. A launch that fails before the call has run takes no number.
    pub(super) fn launch(&self, launch: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let mut launched = lock(&self.launched);
        let number = *launched;
        let result = launch(number);
        if result.is_ok() || *lock(&self.ended) > number {
            *launched = number + 1;
        }
        result
    }

    /// Wait until all calls launched before this one have ended.
    ///
    /// # Errors
    /// The group has failed; an earlier call has not run within the deadline.
    pub(super) fn wait<'a>(&'a self, group: &impl Group, call: &Call) -> Result<Turn<'a>> {
        let members = group.members();
        let turn = Turn { queue: self, number: call.sequence };
        let (mut ended, mut begin) = (lock(&self.ended), Instant::now());
        while *ended < call.sequence {
            group.healthy(call)?;
            if begin.elapsed() >= group.deadline() {
                let reason = format!(
                    "{} launched number {ended} before, on another lane, which has not run for {:.1?}",
                    members.label(members.rank),
                    group.deadline()
                );
                drop(ended);
                return Err(group.fail(call, &[members.rank], reason));
            }
            let before = *ended;
            ended = self.changed.wait_timeout(ended, SLICE).unwrap_or_else(PoisonError::into_inner).0;
            if *ended != before {
                begin = Instant::now();
            }
        }
        drop(ended);
        Ok(turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A call that gave up waiting for its turn ends before earlier ones; the group is broken then, and nothing
        // runs.
        let mut ended = lock(&self.queue.ended);
        *ended = (*ended).max(self.number + 1);
        self.queue.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::host::group_of_one;
    use crate::error::Error;
    use std::sync::mpsc::channel;

    fn call(sequence: u64) -> Call {
        Call { kind: CallKind::Barrier, sequence }
    }

    #[test]
    fn a_later_call_runs_after_an_earlier_one_whichever_comes_first() {
        let (queue, group) = (CallQueue::default(), group_of_one(Duration::from_secs(20)));
        let (done, order) = channel();
        std::thread::scope(|scope| {
            // Given to lanes in this order, and run by them in the other one.
            let mut numbers = Vec::new();
            for _ in 0..3 {
                let note = |number| {
                    numbers.push(number);
                    Ok(())
                };
                queue.launch(note).unwrap();
            }
            for number in numbers.into_iter().rev() {
                let (queue, group, done) = (&queue, &group, done.clone());
                scope.spawn(move || {
                    let _turn = queue.wait(group, &call(number)).unwrap();
                    done.send(number).unwrap();
                });
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_launch_that_fails_before_it_runs_takes_no_number() {
        let (queue, group) = (CallQueue::default(), group_of_one(Duration::from_secs(20)));
        let refused = |_| Err(Error::argument("test", "refused"));
        assert!(queue.launch(refused).is_err());
        // One that ran and failed has taken its number.
        let failed = |number| queue.wait(&group, &call(number)).and_then(|_turn| refused(number));
        assert!(queue.launch(failed).is_err());
        let mut taken = None;
        let note = |number| {
            taken = Some(number);
            Ok(())
        };
        queue.launch(note).unwrap();
        assert_eq!(taken, Some(1));
    }

    #[test]
    fn an_earlier_call_that_never_runs_is_named_at_the_deadline() {
        let (queue, group) = (CallQueue::default(), group_of_one(Duration::from_millis(150)));
        queue.launch(|_| Ok(())).unwrap();
        let error = queue.launch(|number| queue.wait(&group, &call(number)).map(|_turn| ())).unwrap_err();
        assert!(error.to_string().contains("launched number 0 before, on another lane"), "{error}");
        // And all later ones fail.
        assert!(group.healthy(&call(2)).is_err());
    }
}
