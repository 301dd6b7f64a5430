//! Partition of a product: stretches of the sum, phases that share packed panels of B, tasks for threads.
//!
//! - A *stretch* is what a tile sums in registers before it adds to C. Stretches follow from k and the instruction set
//!   alone, so results do not depend on the rest of this file.
//! - A *phase* is a block of columns over some stretches, so large that its panels fit the third-level cache. Its
//!   panels are packed once for all threads.
//! - A *task* is a run of rows of a phase by all of its columns (or a part of them, where there are few rows). A thread
//!   packs its rows of A into its second-level cache and meets them with panel after panel.

use std::ops::Range;

use super::job::GemmJob;
use super::kernel::Kernel;
use crate::cpu::caches::Caches;

/// Tiles of the smallest task.
const TILES: usize = 4;

/// Tasks per thread that rows and columns are cut into, so that none waits long for the last one.
const TASKS_PER_THREAD: usize = 4;

/// Bounds of phases and tasks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Elements of packed panels. A panel is read once per task, so slowly that it may come from memory; the limit is
    /// for the sake of memory.
    pub(super) panels: usize,
    /// Terms of the sum in a phase of a B that is too large for one: enough that C is seldom read again, few enough
    /// that phases are wide, since A is packed again for each.
    pub(super) depth: usize,
    /// Elements of a task's packed rows of A.
    pub(super) left: usize,
    /// Rows of a task.
    pub(super) tallest: usize,
    /// Most rows of a product that is not cut into phases.
    pub(super) narrow: usize,
    /// Rows of a phase whose f32 sums are kept outside of a 16-bit C until the next phase.
    pub(super) rows_of_sums: usize,
}

/// Units of the cut of a product.
pub(super) struct Grain {
    /// Columns are padded to multiples of this.
    pub(super) lanes: usize,
    /// Columns of a panel.
    pub(super) panel: usize,
    /// Rows of the smallest task.
    pub(super) step: usize,
    pub(super) stretches: Stretches,
    /// Whether a task packs its rows of A over all stretches of a phase at once, and sums outside of C are kept from
    /// phase to phase whatever C's dtype is.
    pub(super) is_deep: bool,
}

impl Limits {
    /// Those that fit the caches of this machine.
    pub(super) fn of_this_machine() -> Self {
        let Caches { l2, l3 } = Caches::of_this_machine();
        let panels = (l3 / 4 * 3).clamp(3 << 20, 12 << 20) / size_of::<f32>();
        Limits { panels, depth: 2048, left: l2 / 2 / size_of::<f32>(), tallest: 192, narrow: 96, rows_of_sums: 1024 }
    }

    /// The bounds where operands are packed as bf16, half as large: twice the elements. Phases have fewer terms, so
    /// that rows of A stay in the second-level cache beside the sums, and tasks are taller, since what limits tiles is
    /// how often B is read.
    pub(super) fn of_tiles(&self) -> Self {
        let Limits { panels, depth, left, tallest, .. } = *self;
        Limits { panels: 2 * panels, depth: depth / 4 * 3, left: 2 * left, tallest: tallest / 3 * 4, ..*self }
    }
}

/// The stretches of a sum: of equal length but for the last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretches {
    pub(super) k: usize,
    pub(super) length: usize,
    pub(super) count: usize,
}

impl Stretches {
    /// One empty stretch if k is 0.
    pub(super) fn new(kernel: &Kernel, k: usize) -> Self {
        let count = k.div_ceil(kernel.stretch).max(1);
        Stretches { k, length: k.div_ceil(count), count }
    }

    /// The terms of stretch `index`.
    pub(super) fn range(&self, index: usize) -> Range<usize> {
        (index * self.length).min(self.k)..((index + 1) * self.length).min(self.k)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Cut {
    m: usize,
    n: usize,
    lanes: usize,
    panel: usize,
    pub(super) stretches: Stretches,
    /// Rows, columns and stretches of a phase.
    rows: usize,
    columns: usize,
    depth: usize,
    /// Rows of the smallest task, and of how many such the largest consists.
    step: usize,
    tallest: usize,
}

/// Some columns of a product over some stretches.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Phase {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    /// Numbers of stretches.
    pub(super) stretches: Range<usize>,
}

/// The tasks of a phase are numbered: steps of rows count fastest, then parts of the columns.
#[derive(Debug)]
pub(super) struct Grid {
    steps: usize,
    parts: usize,
    panels: usize,
    step: usize,
    panel: usize,
}

impl Cut {
    pub(super) fn new(kernel: &Kernel, limits: &Limits, job: &GemmJob<'_>) -> Self {
        let stretches = Stretches::new(kernel, job.k);
        let (lanes, panel, step) = (kernel.lanes, kernel.columns(), TILES * kernel.rows());
        Cut::along(Grain { lanes, panel, step, stretches, is_deep: false }, limits, job)
    }

    pub(super) fn along(grain: Grain, limits: &Limits, job: &GemmJob<'_>) -> Self {
        let Grain { lanes, panel, step, stretches, is_deep } = grain;
        let (m, n, k) = (job.m, job.n, stretches.k);
        let stretch = stretches.length.max(1);
        let (mut columns, mut depth) = (n, stretches.count);
        if n.next_multiple_of(panel) * k > limits.panels || is_deep && k > limits.depth {
            // Two phases are in memory at a time: one is packed while another is finished.
            let half = limits.panels / 2;
            depth = (limits.depth / stretch).clamp(1, stretches.count);
            depth = stretches.count.div_ceil(stretches.count.div_ceil(depth));
            let widest = (half / (depth * stretch) / panel * panel).max(panel);
            columns = n.div_ceil(n.div_ceil(widest)).next_multiple_of(panel);
        }
        let keeps_sums = depth < stretches.count && (is_deep || !job.c.is_f32());
        let rows = if keeps_sums { m.min(limits.rows_of_sums) } else { m };
        let terms = if is_deep { depth * stretch } else { stretch };
        let tallest = (limits.tallest.min(limits.left / terms) / step).max(1);
        Cut { m, n, lanes, panel, stretches, rows, columns, depth, step, tallest }
    }

    /// The phases, in the order in which every thread meets them.
    pub(super) fn phases(&self) -> impl Iterator<Item = Phase> {
        let blocks = |len: usize, of: usize| (0..len).step_by(of.max(1)).map(move |at| at..(at + of).min(len));
        blocks(self.m, self.rows).flat_map(move |rows| {
            blocks(self.n, self.columns).flat_map(move |columns| {
                let rows = rows.clone();
                blocks(self.stretches.count, self.depth).map(move |stretches| Phase {
                    rows: rows.clone(),
                    columns: columns.clone(),
                    stretches,
                })
            })
        })
    }

    /// Whether there is one phase only.
    fn is_whole(&self) -> bool {
        self.rows >= self.m && self.columns >= self.n && self.depth >= self.stretches.count
    }

    /// Whether elements of C are summed in more than one phase.
    pub(super) fn is_deep(&self) -> bool {
        self.depth < self.stretches.count
    }

    /// Columns with padding.
    pub(super) fn padded(&self, columns: &Range<usize>) -> usize {
        columns.len().next_multiple_of(self.lanes)
    }

    /// Elements of the panels of a phase.
    pub(super) fn panel_len(&self) -> usize {
        (self.depth * self.stretches.length).min(self.stretches.k) * self.columns.next_multiple_of(self.lanes)
    }

    /// Elements of the panels of two phases, or of the only one.
    pub(super) fn panels_len(&self) -> usize {
        if self.is_whole() { self.panel_len() } else { 2 * self.panel_len() }
    }

    /// Elements of the sums of a phase.
    pub(super) fn sums_len(&self) -> usize {
        self.rows * self.columns.next_multiple_of(self.lanes)
    }

    /// Elements of the sums of a phase, with padding for whole tasks.
    pub(super) fn padded_sums_len(&self) -> usize {
        self.rows.next_multiple_of(self.step) * self.columns.next_multiple_of(self.panel)
    }

    /// Start of the panel of column `j` among the panels of a phase, for a stretch of it.
    pub(super) fn panel_at(&self, phase: &Phase, stretch: usize, j: usize) -> usize {
        let (first, k) = (self.stretches.range(phase.stretches.start), self.stretches.range(stretch));
        (k.start - first.start) * self.padded(&phase.columns) + (j - phase.columns.start) * k.len()
    }

    /// Number of runs of `panels` panels over one stretch in which packing a phase is handed out.
    pub(super) fn runs(&self, phase: &Phase, panels: usize) -> usize {
        phase.columns.len().div_ceil(panels * self.panel) * phase.stretches.len()
    }

    /// The stretch and columns of run `index`.
    pub(super) fn run(&self, phase: &Phase, panels: usize, index: usize) -> (usize, Range<usize>) {
        let width = panels * self.panel;
        let across = phase.columns.len().div_ceil(width);
        let start = phase.columns.start + index % across * width;
        (phase.stretches.start + index / across, start..(start + width).min(phase.columns.end))
    }

    /// The tasks of a phase for a number of threads.
    pub(super) fn grid(&self, phase: &Phase, threads: usize) -> Grid {
        let steps = phase.rows.len().div_ceil(self.step);
        let panels = phase.columns.len().div_ceil(self.panel);
        let parts = if threads == 1 { 1 } else { (TASKS_PER_THREAD * threads).div_ceil(steps).min(panels) };
        Grid { steps, parts, panels, step: self.step, panel: self.panel }
    }

    /// Number of steps that a thread takes at once of `left` ones: many at first, so that packed rows are used by many
    /// tiles and threads meet seldom, few at last.
    pub(super) fn share(&self, left: usize, threads: usize) -> usize {
        let even = if threads == 1 { left } else { left.div_ceil(2 * threads) };
        even.clamp(1, self.tallest)
    }
}

impl Grid {
    /// Number of tasks of one step.
    pub(super) fn count(&self) -> usize {
        self.steps * self.parts
    }

    /// Number of the `run` tasks from `first` on that are rows of the same columns.
    pub(super) fn within(&self, first: usize, run: usize) -> usize {
        run.min(self.steps - first % self.steps)
    }

    /// Rows and columns of such a run.
    pub(super) fn task(&self, phase: &Phase, run: Range<usize>) -> (Range<usize>, Range<usize>) {
        let (part, first) = (run.start / self.steps, run.start % self.steps);
        let row = |step: usize| (phase.rows.start + step * self.step).min(phase.rows.end);
        let column =
            |part: usize| (phase.columns.start + part * self.panels / self.parts * self.panel).min(phase.columns.end);
        (row(first)..row(first + run.len()), column(part)..column(part + 1))
    }
}
