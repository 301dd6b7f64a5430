//! Products of many rows: threads pack panels of B together, then take tasks as they get free, phase by phase.
//!
//! Large tasks come first and small ones last, so a slow neighbour costs little.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::block::{self, Pass, Sums};
use super::cut::{Cut, Limits, Phase};
use super::job::GemmJob;
use super::kernel::Kernel;
use super::left::{self, Left};
use super::operand::Target;
use super::right;
use super::schedule::Tickets;
use super::shared::Shared;
use crate::cpu::scratch::Region;

/// Scratch memory and place of one thread.
pub(super) struct Own<'s> {
    pub(super) left: &'s mut Region,
    pub(super) lines: &'s mut Region,
    pub(super) sums: &'s mut Region,
}

/// A product that some threads compute together.
///
/// Each walks through the same phases. Counters run through all of them, so that a thread that is late finds nothing
/// left of a phase and none has to be reset.
pub(super) struct Wide<'p, 'a> {
    kernel: &'p Kernel,
    job: &'p GemmJob<'a>,
    cut: Cut,
    workers: usize,
    /// Panels of this phase and the next.
    panels: Shared<'p>,
    /// Sums of a 16-bit result from phase to phase.
    sums: Option<Shared<'p>>,
    to_pack: Tickets,
    packed: AtomicUsize,
    to_compute: Tickets,
    /// Counts of even phases and odd ones.
    computed: [AtomicUsize; 2],
}

impl<'p, 'a> Wide<'p, 'a> {
    /// A product for `workers` threads, whose panels and sums are in `panels` and `sums`.
    pub(super) fn new(
        kernel: &'p Kernel,
        limits: &Limits,
        job: &'p GemmJob<'a>,
        workers: usize,
        (panels, sums): (&'p mut Region, &'p mut Region),
    ) -> Self {
        let cut = Cut::new(kernel, limits, job);
        let panels = panels.take(if cut.is_whole() { 1 } else { 2 } * cut.panel_len());
        let sums = (cut.is_deep() && !job.c.is_f32()).then(|| Shared::new(Target::F32(sums.take(cut.sums_len()))));
        Wide {
            kernel,
            job,
            cut,
            workers,
            panels: Shared::new(Target::F32(panels)),
            sums,
            to_pack: Tickets::default(),
            packed: AtomicUsize::new(0),
            to_compute: Tickets::default(),
            computed: Default::default(),
        }
    }

    /// Work of one thread.
    pub(super) fn work(&self, mut own: Own<'_>) {
        let Wide { cut, workers, .. } = self;
        let (mut packs, mut tasks, mut finished) = (0, 0, [0; 2]);
        for (index, phase) in cut.phases().enumerate() {
            let half = index % 2;
            // The panels that are written over belong to the phase before the last.
            wait(&self.computed[half], finished[half]);
            let end = packs + cut.runs(&phase, right::SIDE_BY_SIDE);
            while let Some(ticket) = self.to_pack.one(packs..end) {
                let _done = Done(&self.packed, 1);
                self.pack(&phase, half, ticket - packs, own.lines);
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
                let (rows, columns) = grid.task(&phase, run.start - tasks..run.end - tasks);
                self.task(&phase, half, (rows, columns), &mut own);
            }
            tasks = end;
            finished[half] += grid.count();
        }
    }

    fn pack(&self, phase: &Phase, half: usize, index: usize, lines: &mut Region) {
        let (stretch, columns) = self.cut.run(phase, right::SIDE_BY_SIDE, index);
        let k = self.cut.stretches.range(stretch);
        let start = half * self.cut.panel_len() + self.cut.panel_at(phase, stretch, columns.start);
        // SAFETY: a ticket is given to one thread; panels of different tickets do not overlap, and no thread reads them
        // before all are packed.
        let to = unsafe { self.panels.part(start, k.len() * self.cut.padded(&columns)) };
        right::pack(self.kernel, &self.job.b, k, columns, lines, to);
    }

    fn task(&self, phase: &Phase, half: usize, (rows, columns): (Range<usize>, Range<usize>), own: &mut Own<'_>) {
        let Wide { kernel, job, cut, .. } = self;
        let sums = match self.sums {
            Some(data) => {
                Some(Sums { data, leading: cut.padded(&phase.columns), i: phase.rows.start, j: phase.columns.start })
            }
            None if cut.stretches.count > 1 && !job.c.is_f32() => {
                let leading = cut.padded(&columns);
                let data = Shared::new(Target::F32(own.sums.take(rows.len() * leading)));
                Some(Sums { data, leading, i: rows.start, j: columns.start })
            }
            None => None,
        };
        let start = half * self.cut.panel_len();
        let panels = |stretch: usize, j: usize, len: usize| {
            // SAFETY: the panels of the phase are packed, and are written again only when its tasks are done.
            &*unsafe { self.panels.part(start + cut.panel_at(phase, stretch, j), len) }
        };
        for stretch in phase.stretches.clone() {
            let k = cut.stretches.range(stretch);
            let a = Left::in_place(kernel, job, &rows, &k).unwrap_or_else(|| {
                let to = own.left.take(left::packed_len(kernel, rows.len(), k.len()));
                (kernel.pack_left)(&job.a, rows.clone(), k.clone(), own.lines, to);
                Left::packed(to, (kernel.rows(), kernel.rows()), k.len())
            });
            let pass = Pass::new(kernel, job, &cut.stretches, stretch, sums);
            block::run(&pass, &a, (rows.clone(), columns.clone()), |j, len| panels(stretch, j, len));
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
