//! The order of a rank's own calls: whatever lanes they were given to, they run one after the other as they were
//! launched.
//!
//! Defines [`Turns`], [`CallTurns`] and [`Ordered`]. All ranks launch the calls of a group in the same order, and so
//! they also make them in the same order, even from several lanes that run as they like. It cannot be a circle: a lane
//! waits for what was launched before.

use super::call::{Call, What};
use crate::error::{Error, Result};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait without a look at the group.
const SLICE: Duration = Duration::from_millis(50);

/// What a group is asked about while one of its calls waits for its turn.
pub(super) trait Ordered {
    /// Nothing has failed so far.
    ///
    /// # Errors
    /// The first failure.
    fn healthy(&self, call: &Call) -> Result<()>;

    /// How long to wait for an earlier call that makes no progress.
    fn deadline(&self) -> Duration;

    /// This rank in words.
    fn own_label(&self) -> String;

    /// This rank is to blame: every rank will know.
    fn fail_here(&self, call: &Call, reason: String) -> Error;
}

/// Numbers for calls, and whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Calls launched so far.
    launched: Mutex<u64>,
    /// Calls that have ended.
    ended: Mutex<u64>,
    changed: Condvar,
}

/// The right to run. It ends when the value is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    number: u64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The orders of a rank's calls in one group: of collectives, and of messages with each other rank.
#[derive(Debug)]
pub(super) struct CallTurns {
    collectives: Turns,
    sends: Vec<Turns>,
    receives: Vec<Turns>,
}

impl CallTurns {
    /// For a group of so many ranks.
    pub(super) fn new(size: usize) -> Self {
        let turns = || (0..size).map(|_| Turns::default()).collect();
        CallTurns { collectives: Turns::default(), sends: turns(), receives: turns() }
    }

    /// The one that a call belongs to.
    pub(super) fn of(&self, what: &What) -> &Turns {
        match what {
            What::Send(_, to) => &self.sends[*to],
            What::Recv(_, from) => &self.receives[*from],
            _ => &self.collectives,
        }
    }
}

impl Turns {
    /// Launch a call with the next number. A launch that fails before the call has run takes no number.
    ///
    /// # Errors
    /// What `launch` returns.
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
    pub(super) fn wait<'a>(&'a self, group: &impl Ordered, call: &Call) -> Result<Turn<'a>> {
        let turn = Turn { turns: self, number: call.sequence };
        let (mut ended, mut begin) = (lock(&self.ended), Instant::now());
        while *ended < call.sequence {
            group.healthy(call)?;
            if begin.elapsed() >= group.deadline() {
                let reason = format!(
                    "{} launched number {ended} before, on another lane, which has not run for {:.1?}",
                    group.own_label(),
                    group.deadline()
                );
                drop(ended);
                return Err(group.fail_here(call, reason));
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
        let mut ended = lock(&self.turns.ended);
        *ended = (*ended).max(self.number + 1);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;
    use std::sync::mpsc::channel;

    /// A group of this rank alone.
    struct Alone {
        deadline: Duration,
        failure: OnceLock<Error>,
    }

    impl Ordered for Alone {
        fn healthy(&self, _: &Call) -> Result<()> {
            self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
        }

        fn deadline(&self) -> Duration {
            self.deadline
        }

        fn own_label(&self) -> String {
            "rank 0".into()
        }

        fn fail_here(&self, _: &Call, reason: String) -> Error {
            self.failure.get_or_init(|| Error::argument("test", reason)).clone()
        }
    }

    fn group(deadline: Duration) -> Alone {
        Alone { deadline, failure: OnceLock::new() }
    }

    fn call(sequence: u64) -> Call {
        Call { what: What::Barrier, sequence }
    }

    #[test]
    fn a_later_call_runs_after_an_earlier_one_whoever_comes_first() {
        let (turns, group) = (Turns::default(), group(Duration::from_secs(20)));
        let (done, order) = channel();
        std::thread::scope(|scope| {
            // Given to lanes in this order, and run by them in the other one.
            let mut numbers = Vec::new();
            for _ in 0..3 {
                let note = |number| {
                    numbers.push(number);
                    Ok(())
                };
                turns.launch(note).unwrap();
            }
            for number in numbers.into_iter().rev() {
                let (turns, group, done) = (&turns, &group, done.clone());
                scope.spawn(move || {
                    let _turn = turns.wait(group, &call(number)).unwrap();
                    done.send(number).unwrap();
                });
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_launch_that_fails_before_it_runs_takes_no_number() {
        let (turns, group) = (Turns::default(), group(Duration::from_secs(20)));
        let refused = |_| Err(Error::argument("test", "refused"));
        assert!(turns.launch(refused).is_err());
        // One that ran and failed has taken its number.
        let failed = |number| turns.wait(&group, &call(number)).and_then(|_turn| refused(number));
        assert!(turns.launch(failed).is_err());
        let mut taken = None;
        let note = |number| {
            taken = Some(number);
            Ok(())
        };
        turns.launch(note).unwrap();
        assert_eq!(taken, Some(1));
    }

    #[test]
    fn an_earlier_call_that_never_runs_is_named_at_the_deadline() {
        let (turns, group) = (Turns::default(), group(Duration::from_millis(150)));
        turns.launch(|_| Ok(())).unwrap();
        let error = turns.launch(|number| turns.wait(&group, &call(number)).map(|_turn| ())).unwrap_err();
        assert!(error.to_string().contains("launched number 0 before, on another lane"), "{error}");
        // And all later ones fail.
        assert!(group.healthy(&call(2)).is_err());
    }
}
