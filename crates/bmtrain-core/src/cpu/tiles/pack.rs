//! Operands of products of tiles, packed by steps as `mod.rs` lays them out.
//!
//! Whole steps, 32 rows or columns by 32 terms, are copied where they are; what is at an edge goes through a square
//! that is filled up with zeros. Numbers in f32 are rounded to bf16 on the way.
#![allow(unsafe_code)]

use super::term::Term;
use super::{BLOCK, STEP, STEP_LEN, TILE};
#[cfg(target_arch = "x86_64")]
use crate::simd::InstructionSet;
use half::bf16;
use std::ops::Range;

/// An operand in memory: `lines` of the result's rows or columns, by `terms`.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Source<'s> {
    /// The elements, from line 0 and term 0 on.
    pub(in crate::cpu) data: Numbers<'s>,
    /// Distance between lines; between terms if `across`.
    pub(in crate::cpu) stride: usize,
    /// Whether lines are adjacent in memory and terms `stride` apart, and not the other way round.
    pub(in crate::cpu) across: bool,
}

/// Elements of an operand.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) enum Numbers<'s> {
    /// As tiles multiply them.
    Bf16(&'s [bf16]),
    /// Rounded to nearest even; subnormal numbers become zeros, as which tiles would count them.
    F32(&'s [f32]),
}

/// A [`Source`] with elements of one type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lines<'s, T> {
    data: &'s [T],
    stride: usize,
    across: bool,
}

impl<T> Lines<'_, T> {
    /// Every element that is read is between the first and the last one.
    fn check(&self, lines: &Range<usize>, terms: &Range<usize>) {
        let last = self.at(lines.end - 1, terms.end - 1);
        assert!(last < self.data.len(), "tiles: {lines:?} by {terms:?} out of range");
    }

    fn at(&self, line: usize, term: usize) -> usize {
        if self.across { term * self.stride + line } else { line * self.stride + term }
    }
}

/// A whole step as it is packed.
pub(super) type Step = [bf16; STEP_LEN];

/// Packing of whole steps; `from` has 32 runs of 32 elements, `stride` apart.
///
/// # Safety
/// The instructions of the type must be there, and `from` valid for `31 * stride + 32` reads.
pub(super) trait Steps {
    /// Lines become rows.
    unsafe fn rows<T: Term>(from: *const T, stride: usize, to: &mut Step);
    /// Lines become columns of pairs: a transpose of pairs.
    unsafe fn columns<T: Term>(from: *const T, stride: usize, to: &mut Step);
    /// Runs are terms, and their elements become columns: two runs are interleaved.
    unsafe fn columns_across<T: Term>(from: *const T, stride: usize, to: &mut Step);
    /// Runs are terms, and their elements become rows: a transpose.
    unsafe fn rows_across<T: Term>(from: *const T, stride: usize, to: &mut Step);
}

/// Packs lines of the left operand over some terms: for every 32 lines a panel of `terms.len().div_ceil(32)` steps.
pub(in crate::cpu) fn left(from: Source<'_>, lines: Range<usize>, terms: Range<usize>, to: &mut [bf16]) {
    pack::<true>(from, lines, terms, to);
}

/// As [`left`], of the right operand: columns of the result.
pub(in crate::cpu) fn right(from: Source<'_>, lines: Range<usize>, terms: Range<usize>, to: &mut [bf16]) {
    pack::<false>(from, lines, terms, to);
}

fn pack<const LEFT: bool>(from: Source<'_>, lines: Range<usize>, terms: Range<usize>, to: &mut [bf16]) {
    let steps = terms.len().div_ceil(STEP);
    assert!(to.len() >= lines.len().div_ceil(BLOCK) * steps * STEP_LEN, "tiles: no room for {lines:?} by {terms:?}");
    if lines.is_empty() || terms.is_empty() {
        return;
    }
    let Source { data, stride, across } = from;
    match data {
        Numbers::Bf16(data) => pack_lines::<_, LEFT>(Lines { data, stride, across }, lines, terms, to),
        Numbers::F32(data) => pack_lines::<_, LEFT>(Lines { data, stride, across }, lines, terms, to),
    }
}

fn pack_lines<T: Term, const LEFT: bool>(
    from: Lines<'_, T>,
    lines: Range<usize>,
    terms: Range<usize>,
    to: &mut [bf16],
) {
    from.check(&lines, &terms);
    #[cfg(target_arch = "x86_64")]
    if InstructionSet::current().vectors() == InstructionSet::Avx512 && T::has_vectors() {
        // SAFETY: the current set is available, and what the elements need besides was found.
        return unsafe { T::pack::<LEFT>(from, lines, terms, to) };
    }
    // SAFETY: plain Rust, on any processor.
    unsafe { pack_with::<Plain, _, LEFT>(from, lines, terms, to) }
}

/// # Safety
/// The instructions of `S` must be there, and the last element of lines and terms inside the source.
#[inline(always)]
pub(super) unsafe fn pack_with<S: Steps, T: Term, const LEFT: bool>(
    from: Lines<'_, T>,
    lines: Range<usize>,
    terms: Range<usize>,
    to: &mut [bf16],
) {
    let steps = terms.len().div_ceil(STEP);
    let (whole_panels, whole_steps) = (lines.len() / BLOCK, terms.len() / STEP);
    let (to, _) = to.as_chunks_mut::<STEP_LEN>();
    // Runs of memory that continue are packed one after the other.
    let (outer, inner) = if from.across { (steps, whole_panels) } else { (whole_panels, steps) };
    for first in 0..outer {
        for second in 0..inner {
            let (panel, step) = if from.across { (second, first) } else { (first, second) };
            let to = &mut to[panel * steps + step];
            let (line, term) = (lines.start + panel * BLOCK, terms.start + step * STEP);
            if step < whole_steps {
                let start = from.at(line, term);
                let data = from.data.as_ptr().wrapping_add(start);
                // SAFETY: the step is whole, and its last element inside the source.
                unsafe {
                    from.prefetch(start, terms.end - term);
                    whole::<S, T, LEFT>(data, from, to);
                }
            } else {
                // SAFETY: as above, of the terms that are left.
                unsafe { edge::<S, T, LEFT>(from, line..line + BLOCK, term..terms.end, to) };
            }
        }
    }
    if whole_panels * BLOCK < lines.len() {
        let lines = lines.start + whole_panels * BLOCK..lines.end;
        for (step, to) in to[whole_panels * steps..][..steps].iter_mut().enumerate() {
            let term = terms.start + step * STEP;
            // SAFETY: as above, of the lines that are left.
            unsafe { edge::<S, T, LEFT>(from, lines.clone(), term..terms.end.min(term + STEP), to) };
        }
    }
}

/// # Safety
/// As for [`Steps`].
#[inline(always)]
unsafe fn whole<S: Steps, T: Term, const LEFT: bool>(data: *const T, from: Lines<'_, T>, to: &mut Step) {
    // SAFETY: by the caller.
    unsafe {
        match (LEFT, from.across) {
            (true, false) => S::rows(data, from.stride, to),
            (true, true) => S::rows_across(data, from.stride, to),
            (false, false) => S::columns(data, from.stride, to),
            (false, true) => S::columns_across(data, from.stride, to),
        }
    }
}

/// Packs a step of fewer than 32 lines or terms.
///
/// # Safety
/// The instructions of `S` must be there.
#[inline(always)]
unsafe fn edge<S: Steps, T: Term, const LEFT: bool>(
    from: Lines<'_, T>,
    lines: Range<usize>,
    terms: Range<usize>,
    to: &mut Step,
) {
    let mut square = [T::ZERO; STEP_LEN];
    let (runs, length) = if from.across { (terms.len(), lines.len()) } else { (lines.len(), terms.len()) };
    let start = from.at(lines.start, terms.start);
    for (run, to) in square.chunks_exact_mut(STEP).take(runs).enumerate() {
        to[..length].copy_from_slice(&from.data[start + run * from.stride..][..length]);
    }
    // SAFETY: the square has 32 runs of 32 elements.
    unsafe { whole::<S, T, LEFT>(square.as_ptr(), Lines { data: &[], stride: STEP, ..from }, to) }
}

impl<T> Lines<'_, T> {
    /// Fetches the runs of a step that is packed soon, if it is one of the `terms` that are left: runs are short, each
    /// on another page, and the hardware does not see that they go on.
    #[inline(always)]
    fn prefetch(&self, start: usize, terms: usize) {
        use crate::cpu::vector::{LINE, NEAREST, fetch};
        /// Steps ahead, along runs of memory.
        const AHEAD: usize = 8;
        let ahead = match self.across {
            true if terms > STEP => STEP * self.stride,
            false if terms > AHEAD * STEP => AHEAD * STEP,
            _ => return,
        };
        for run in 0..STEP {
            let at: *const f32 = self.data.as_ptr().wrapping_add(start + ahead + run * self.stride).cast();
            fetch::<NEAREST>(at);
            if size_of::<T>() == size_of::<f32>() {
                fetch::<NEAREST>(at.wrapping_add(LINE));
            }
        }
    }
}

/// Steps in plain Rust: nested loops over places that the compiler knows, so that it copies and interleaves by vectors.
pub(super) struct Plain;

/// The elements of a step.
///
/// # Safety
/// As for [`Steps`].
#[inline(always)]
unsafe fn read<T: Term>(from: *const T, stride: usize) -> impl Fn(usize, usize) -> bf16 {
    // SAFETY: by the caller.
    move |run, element| unsafe { *from.add(run * stride + element) }.narrow()
}

/// A step of the right operand: `read(p, j)` is element (p, j).
#[inline(always)]
fn in_pairs(to: &mut Step, read: impl Fn(usize, usize) -> bf16) {
    for (tile, to) in to.as_chunks_mut::<{ STEP_LEN / 2 }>().0.iter_mut().enumerate() {
        for (pair, to) in to.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
            for (column, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let j = TILE * tile + column;
                *to = [read(2 * pair, j), read(2 * pair + 1, j)];
            }
        }
    }
}

/// A step of the left operand: `read(i, p)` is element (i, p).
#[inline(always)]
fn in_rows(to: &mut Step, read: impl Fn(usize, usize) -> bf16) {
    for (i, to) in to.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
        for (p, to) in to.iter_mut().enumerate() {
            *to = read(i, p);
        }
    }
}

impl Steps for Plain {
    unsafe fn rows<T: Term>(from: *const T, stride: usize, to: &mut Step) {
        // SAFETY: by the caller, as below.
        let read = unsafe { read(from, stride) };
        in_rows(to, read);
    }

    unsafe fn columns<T: Term>(from: *const T, stride: usize, to: &mut Step) {
        // SAFETY: as above.
        let read = unsafe { read(from, stride) };
        in_pairs(to, |p, j| read(j, p));
    }

    unsafe fn columns_across<T: Term>(from: *const T, stride: usize, to: &mut Step) {
        // SAFETY: as above.
        let read = unsafe { read(from, stride) };
        in_pairs(to, read);
    }

    unsafe fn rows_across<T: Term>(from: *const T, stride: usize, to: &mut Step) {
        // SAFETY: as above.
        let read = unsafe { read(from, stride) };
        in_rows(to, |i, p| read(p, i));
    }
}
