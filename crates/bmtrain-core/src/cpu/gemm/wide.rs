//! Products of many rows: threads pack panels of B together, then take tasks as they get free, phase by phase.
//!
//! Large tasks come first and small ones last, so a slow neighbour costs little.
#![allow(unsafe_code)]

use std::ops::Range;

use super::block::{self, Pass, Sums};
use super::cut::{Cut, Limits, Phase};
use super::job::GemmJob;
use super::kernel::Kernel;
use super::left::{self, Left};
use super::operand::Target;
use super::right;
use super::shared::Shared;
use super::walk::Walk;
use crate::cpu::scratch::Region;

/// Scratch memory and place of one thread.
pub(super) struct Own<'s> {
    pub(super) left: &'s mut Region,
    pub(super) lines: &'s mut Region,
    pub(super) sums: &'s mut Region,
}

/// A product that some threads compute together.
pub(super) struct Wide<'p, 'a> {
    kernel: &'p Kernel,
    job: &'p GemmJob<'a>,
    walk: Walk,
    /// Panels of this phase and the next.
    panels: Shared<'p>,
    /// Sums of a 16-bit result from phase to phase.
    sums: Option<Shared<'p>>,
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
        let panels = panels.take(cut.panels_len());
        let sums = (cut.is_deep() && !job.c.is_f32()).then(|| Shared::new(Target::F32(sums.take(cut.sums_len()))));
        Wide {
            kernel,
            job,
            walk: Walk::new(cut, workers, right::SIDE_BY_SIDE),
            panels: Shared::new(Target::F32(panels)),
            sums,
        }
    }

    /// Work of one thread.
    pub(super) fn work(&self, mut own: Own<'_>) {
        let pack = |phase: &Phase, half, index, own: &mut Own<'_>| self.pack(phase, half, index, own.lines);
        self.walk.run(&mut own, pack, |phase, half, part, own| self.task(phase, half, part, own));
    }

    fn pack(&self, phase: &Phase, half: usize, index: usize, lines: &mut Region) {
        let (stretch, columns) = self.walk.cut.run(phase, right::SIDE_BY_SIDE, index);
        let k = self.walk.cut.stretches.range(stretch);
        let start = half * self.walk.cut.panel_len() + self.walk.cut.panel_at(phase, stretch, columns.start);
        // SAFETY: a ticket is given to one thread; panels of different tickets do not overlap, and no thread reads them
        // before all are packed.
        let to = unsafe { self.panels.part(start, k.len() * self.walk.cut.padded(&columns)) };
        right::pack(self.kernel, &self.job.b, k, columns, lines, to);
    }

    fn task(&self, phase: &Phase, half: usize, (rows, columns): (Range<usize>, Range<usize>), own: &mut Own<'_>) {
        let Wide { kernel, job, .. } = self;
        let cut = &self.walk.cut;
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
        let start = half * self.walk.cut.panel_len();
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
