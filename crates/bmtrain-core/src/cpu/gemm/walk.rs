//! Threads that compute a product of many rows together: phase by phase they pack panels of B, then take tasks as they
//! get free.
//!
//! Large tasks come first and small ones last, so a slow neighbour costs little.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cut::{Cut, Phase};
use super::schedule::Tickets;

/// The phases of a product and what threads have done of them.
///
/// Each thread walks through the same phases. Counters run through all of them, so that a thread that is late finds
/// nothing left of a phase and none has to be reset.
pub(super) struct Walk {
    pub(super) cut: Cut,
    workers: usize,
    /// Panels that are packed at a time.
    side_by_side: usize,
    to_pack: Tickets,
    packed: AtomicUsize,
    to_compute: Tickets,
    /// Counts of even phases and odd ones.
    computed: [AtomicUsize; 2],
}

impl Walk {
    pub(super) fn new(cut: Cut, workers: usize, side_by_side: usize) -> Self {
        let (to_pack, to_compute) = (Tickets::default(), Tickets::default());
        let (packed, computed) = (AtomicUsize::new(0), Default::default());
        Walk { cut, workers, side_by_side, to_pack, packed, to_compute, computed }
    }

    /// Work of one thread, with what it has of its own: `pack(phase, half, run, own)` packs a run of panels into a half
    /// of the room for them, `task(phase, half, (rows, columns), own)` computes with the panels of that half.
    pub(super) fn run<O>(
        &self,
        own: &mut O,
        pack: impl Fn(&Phase, usize, usize, &mut O),
        task: impl Fn(&Phase, usize, (Range<usize>, Range<usize>), &mut O),
    ) {
        let Walk { cut, workers, .. } = self;
        let (mut packs, mut tasks, mut finished) = (0, 0, [0; 2]);
        for (index, phase) in cut.phases().enumerate() {
            let half = index % 2;
            // The panels that are written over belong to the phase before the last.
            wait(&self.computed[half], finished[half]);
            let end = packs + cut.runs(&phase, self.side_by_side);
            while let Some(ticket) = self.to_pack.one(packs..end) {
                let _done = Done(&self.packed, 1);
                pack(&phase, half, ticket - packs, own);
            }
            packs = end;
            wait(&self.packed, packs);
            if cut.is_deep() {
                // The phase before this one began the sums, or works where these are kept.
                wait(&self.computed[1 - half], finished[1 - half]);
            }
            let grid = cut.grid(&phase, *workers);
            let end = tasks + grid.count();
            let share = |first: usize, left: usize| grid.within(first - tasks, cut.share(left, *workers));
            while let Some(run) = self.to_compute.run(tasks..end, share) {
                let _done = Done(&self.computed[half], run.len());
                task(&phase, half, grid.task(&phase, run.start - tasks..run.end - tasks), own);
            }
            tasks = end;
            finished[half] += grid.count();
        }
    }
}

/// Counts work as done when it is dropped: after a panic too, so that no thread waits for ever.
struct Done<'c>(&'c AtomicUsize, usize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(self.1, Ordering::Release);
    }
}

/// Waits until others, who have begun, have counted so far.
fn wait(counter: &AtomicUsize, goal: usize) {
    const SPINS: usize = 2000;
    let mut spins = 0;
    while counter.load(Ordering::Acquire) < goal {
        spins += 1;
        if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}
