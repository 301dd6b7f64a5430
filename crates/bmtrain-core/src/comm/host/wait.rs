//! Waiting for other ranks: look for a moment, let others have the core, then sleep; and never longer than the
//! deadline.
//!
//! A rank that changes a control slot rings the bell of its group if any rank sleeps. A sleeper wakes up some times a
//! second to see whether the group has failed, whether the ranks it waits for have left or ended, and what time it is.

use super::group::{SharedGroup, ranks_in, ranks_where};
use super::layout::{BELL, SLEEPERS};
use crate::comm::call::{Call, CallKind};
use crate::comm::engine::{Group, blamed};
use crate::error::Result;
use crate::threads::Processors;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

/// Longest sleep between two checks.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// Number of times that a core is offered to others before the thread sleeps.
const YIELDS: usize = 2;
/// Fewest looks at a slot before that: about a microsecond.
const LEAST_LOOKS: u32 = 50;
/// Most looks, about as long as falling asleep and waking up.
const MAX_POLLS: u32 = 2000;
/// One of this many waits is a patient one, to find out whether patience pays again.
const PROBE: u32 = 16;

/// Number of polls that are worthwhile before sleeping. Where the other ranks run at the same time, an answer comes
/// soon, and sleeping would take longer; where they need this very core, looking keeps them from answering.
#[derive(Debug)]
pub(super) struct Patience {
    most: u32,
    looks: AtomicU32,
    waits: AtomicU32,
}

impl Patience {
    pub(super) fn new(ranks: usize) -> Self {
        let cores = Processors::of_this_process().parallelism();
        let most = if ranks <= cores { MAX_POLLS } else { LEAST_LOOKS };
        Patience { most, looks: AtomicU32::new(most), waits: AtomicU32::new(0) }
    }

    fn looks(&self) -> u32 {
        match self.waits.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE) {
            true => self.most,
            false => self.looks.load(Ordering::Relaxed),
        }
    }

    /// Adapts the number of polls to whether the last ones paid off.
    fn learn(&self, looks: u32, paid: bool) {
        let next = if paid { looks.saturating_mul(2).min(self.most) } else { (looks / 2).max(LEAST_LOOKS) };
        self.looks.store(next, Ordering::Relaxed);
    }
}

impl SharedGroup {
    /// Wait until no rank is missing.
    ///
    /// # Errors
    /// The group has failed; a missing rank has left or ended; the deadline has passed, with the names of the missing.
    pub(super) fn wait(&self, call: &Call, missing: impl Fn() -> u64) -> Result<()> {
        if missing() == 0 {
            return Ok(());
        }
        let looks = self.patience.looks();
        for _ in 0..looks {
            std::hint::spin_loop();
            if missing() == 0 {
                self.patience.learn(looks, true);
                return Ok(());
            }
        }
        self.patience.learn(looks, false);
        for _ in 0..YIELDS {
            std::thread::yield_now();
            if missing() == 0 {
                return Ok(());
            }
        }
        let waits_for = self.region.slot(self.layout.waits_for(self.members.rank));
        let result = self.sleep(call, &missing);
        waits_for.store(0, Ordering::Relaxed);
        result
    }

    fn sleep(&self, call: &Call, missing: &dyn Fn() -> u64) -> Result<()> {
        let (bell, sleepers) = (self.region.short(BELL), self.region.short(SLEEPERS));
        let waits_for = self.region.slot(self.layout.waits_for(self.members.rank));
        let begin = Instant::now();
        let mut next_look = begin;
        loop {
            // Announced before the last look: `notify` changes a slot before it looks for sleepers, so that at least
            // one of the two sees what the other did.
            sleepers.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let rung = bell.load(Ordering::Acquire);
            let absent = missing();
            let trouble = match absent {
                0 => Ok(()),
                _ => self.check_absent(call, absent, missing, (begin, &mut next_look)),
            };
            if absent != 0 && trouble.is_ok() {
                waits_for.store(absent, Ordering::Relaxed);
                let limit = futex::Timespec { tv_sec: 0, tv_nsec: i64::from(SLICE.subsec_nanos()) };
                // However it ends (the bell, the time, a signal, a bell before the sleep), the next round looks again.
                let _ = futex::wait(bell, futex::Flags::empty(), rung, Some(&limit));
            }
            sleepers.fetch_sub(1, Ordering::Relaxed);
            if absent == 0 || trouble.is_err() {
                return trouble;
            }
        }
    }

    /// See whether waiting still makes sense.
    fn check_absent(
        &self,
        call: &Call,
        absent: u64,
        missing: &dyn Fn() -> u64,
        (begin, next_look): (Instant, &mut Instant),
    ) -> Result<()> {
        self.healthy(call)?;
        let left = self.left(absent);
        // A rank that left may have done its part before.
        let left = if left == 0 { 0 } else { left & missing() };
        if left != 0 {
            return Err(self.fail_left(call, &ranks_in(left).collect::<Vec<_>>()));
        }
        let now = Instant::now();
        if now < *next_look {
            return Ok(());
        }
        *next_look = now + SLICE;
        if let (CallKind::Join, Some(meeting)) = (call.kind, &self.job.meeting) {
            meeting.look(missing)?;
        }
        let ended = self.ended(absent);
        let ended = if ended == 0 { 0 } else { ended & missing() };
        if ended != 0 {
            return Err(self.fail_ended(call, &ranks_in(ended).collect::<Vec<_>>()));
        }
        if now - begin < self.job.options.deadline {
            return Ok(());
        }
        let waits_for = |rank| {
            let waits_for = self.region.slot(self.layout.waits_for(rank)).load(Ordering::Relaxed);
            Some(ranks_in(waits_for & ranks_where(self.members.size, |_| true)).collect())
        };
        let blamed = blamed(&ranks_in(absent).collect::<Vec<_>>(), self.members.rank, waits_for);
        let who: Vec<String> = blamed.iter().map(|rank| self.progress_of(call, *rank)).collect();
        let reason = format!("nothing from {} for {:.1?}", who.join(" and "), self.job.options.deadline);
        Err(self.fail(call, &blamed, reason))
    }

    /// Tell sleepers that a slot has changed. Costs next to nothing without sleepers.
    pub(super) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.region.short(SLEEPERS).load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    pub(super) fn wake_all(&self) {
        let bell = self.region.short(BELL);
        bell.fetch_add(1, Ordering::Release);
        // Nothing is lost with an error: sleepers check by themselves.
        let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
    }

    pub(super) fn pause(&self, call: &Call, time: Duration) -> Result<()> {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let until = Instant::now() + time.min(DAY);
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(());
            }
            self.healthy(call)?;
            std::thread::sleep(rest.min(SLICE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_goes_where_it_does_not_pay_and_comes_back_where_it_does() {
        let patience = Patience { most: MAX_POLLS, looks: AtomicU32::new(MAX_POLLS), waits: AtomicU32::new(1) };
        let after = |waits: u32, paid: bool| {
            (0..waits).map(|_| patience.looks()).fold(0, |patient, looks| {
                patience.learn(looks, paid);
                patient + u32::from(looks == MAX_POLLS)
            })
        };
        after(PROBE - 1, false);
        assert_eq!(patience.looks.load(Ordering::Relaxed), LEAST_LOOKS);
        // Without success only the probes are patient.
        assert!(after(4 * PROBE, false) <= 8);
        after(2 * PROBE, true);
        assert_eq!(patience.looks.load(Ordering::Relaxed), MAX_POLLS);
    }
}
