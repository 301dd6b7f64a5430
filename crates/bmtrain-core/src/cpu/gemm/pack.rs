//! Packing of B: a panel holds, row after row, a stretch of k by the columns of one tile, padded with zeros, as f32.
//!
//! Defines [`pack_panel`], called by `block.rs` for every panel and stretch.
#![allow(unsafe_code)]

use super::kernel::Kernel;
use super::operand::{Matrix, Source};
use super::scratch::Region;

/// Which part of B a panel holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    /// First row.
    pub(super) p: usize,
    /// Number of rows.
    pub(super) k: usize,
    /// First column.
    pub(super) j: usize,
    /// Number of columns.
    pub(super) columns: usize,
    /// Columns with padding: a multiple of the kernel's lanes.
    pub(super) width: usize,
}

/// Fills `to` (`k * width` elements) with `to[p * width + j] = b[panel.p + p, panel.j + j]`.
pub(super) fn pack_panel(kernel: &Kernel, b: &Matrix<'_>, panel: Panel, rows: &mut Region, to: &mut [f32]) {
    let Panel { p, k, j, columns, width } = panel;
    let start = b.start + p * b.row_stride + j * b.col_stride;
    if b.col_stride == 1 {
        for (q, row) in to.chunks_exact_mut(width).enumerate() {
            b.data.widen(start + q * b.row_stride, &mut row[..columns]);
            row[columns..].fill(0.0);
        }
        return;
    }
    let mut group = 0;
    while group < width {
        let lanes = kernel.lanes.min(columns.saturating_sub(group));
        let from = start + group * b.col_stride;
        match b.data {
            Source::F32(data) if lanes == kernel.lanes => {
                transpose(kernel, &data[from..], b.col_stride, k, &mut to[group..], width);
            }
            // 16-bit rows are widened first; a group of fewer rows than lanes is padded with rows of zeros.
            _ => {
                let wide = rows.take(kernel.lanes * k);
                for lane in 0..kernel.lanes {
                    let row = &mut wide[lane * k..(lane + 1) * k];
                    if lane < lanes {
                        b.data.widen(from + lane * b.col_stride, row);
                    } else {
                        row.fill(0.0);
                    }
                }
                transpose(kernel, wide, k, k, &mut to[group..], width);
            }
        }
        group += kernel.lanes;
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
