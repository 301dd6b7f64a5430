//! Packing of B: a panel holds, row after row, a stretch of k by the columns of one tile, padded with zeros, as f32.
#![allow(unsafe_code)]

use std::ops::Range;

use super::kernel::Kernel;
use super::operand::{Matrix, Source, widen};
use crate::cpu::scratch::Region;

/// Panels whose rows are copied side by side: longer runs of memory at a time, but no more targets than the first-level
/// cache has ways, since panels tend to be a multiple of its size apart.
pub(super) const SIDE_BY_SIDE: usize = 4;

/// Packs rows `rows` and columns `columns` of B: panel after panel of `kernel.columns()` columns, the last one padded
/// to a multiple of the lanes, each with `to[p * width + j]` for its row p and column j.
pub(super) fn pack(
    kernel: &Kernel,
    b: &Matrix<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    lines: &mut Region,
    to: &mut [f32],
) {
    let (k, width) = (rows.len(), kernel.columns());
    if k == 0 {
        return;
    }
    let start = |j: usize| b.start + rows.start * b.row_stride + j * b.col_stride;
    let mut j = columns.start;
    if let (Source::F32(data), 1) = (b.data, b.col_stride) {
        while j + width <= columns.end {
            let panels = ((columns.end - j) / width).min(SIDE_BY_SIDE);
            let to = &mut to[(j - columns.start) * k..];
            copy(kernel, &data[start(j)..], b.row_stride, k, to, panels);
            j += panels * width;
        }
    }
    while j < columns.end {
        let count = width.min(columns.end - j);
        let width = count.next_multiple_of(kernel.lanes);
        let to = &mut to[(j - columns.start) * k..][..width * k];
        if b.col_stride == 1 {
            for (p, line) in to.chunks_exact_mut(width).enumerate() {
                widen(b.data, start(j) + p * b.row_stride, &mut line[..count]);
                line[count..].fill(0.0);
            }
        } else {
            pack_transposed(kernel, b, start(j), (k, count), lines, to);
        }
        j += count;
    }
}

/// One panel of a B whose rows are adjacent: `k` rows, `count` columns from `start` on.
fn pack_transposed(
    kernel: &Kernel,
    b: &Matrix<'_>,
    start: usize,
    (k, count): (usize, usize),
    lines: &mut Region,
    to: &mut [f32],
) {
    let width = count.next_multiple_of(kernel.lanes);
    for group in (0..width).step_by(kernel.lanes) {
        let lanes = kernel.lanes.min(count - group);
        let from = start + group * b.col_stride;
        match b.data {
            Source::F32(data) if lanes == kernel.lanes => {
                transpose(kernel, &data[from..], b.col_stride, k, &mut to[group..], width);
            }
            // 16-bit numbers are widened first; a group of fewer columns than lanes is padded with zeros.
            _ => {
                let wide = lines.take(kernel.lanes * k);
                for lane in 0..kernel.lanes {
                    let line = &mut wide[lane * k..(lane + 1) * k];
                    if lane < lanes {
                        widen(b.data, from + lane * b.col_stride, line);
                    } else {
                        line.fill(0.0);
                    }
                }
                transpose(kernel, wide, k, k, &mut to[group..], width);
            }
        }
    }
}

/// `to[p * width + lane] = from[lane * stride + p]` for every lane.
fn transpose(kernel: &Kernel, from: &[f32], stride: usize, k: usize, to: &mut [f32], width: usize) {
    if k == 0 {
        return;
    }
    assert!((kernel.lanes - 1) * stride + k <= from.len() && (k - 1) * width + kernel.lanes <= to.len());
    // SAFETY: the kernel was chosen for this machine, and the assertion above is its condition on lengths.
    unsafe { (kernel.transpose)(from.as_ptr(), stride, k, to.as_mut_ptr(), width) }
}

/// Packs the first `panels` whole panels of k rows that are `stride` apart.
fn copy(kernel: &Kernel, from: &[f32], stride: usize, k: usize, to: &mut [f32], panels: usize) {
    if k == 0 {
        return;
    }
    let width = kernel.columns();
    assert!((k - 1) * stride + panels * width <= from.len() && k * width * panels <= to.len());
    // SAFETY: the kernel was chosen for this machine, and the assertion above is its condition on lengths.
    unsafe { (kernel.copy)(from.as_ptr(), stride, k, to.as_mut_ptr(), panels) }
}
