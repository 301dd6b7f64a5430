//! The small matrix products of attention: tiles in the caches, sums in registers.
//!
//! Called by `forward.rs` and `backward.rs`. The packed products of `cpu::gemm` copy and check more than operands of
//! this size can repay; here the operands are already compact f32 tiles.
//!
//! Numerics: every element of the result is one chain of multiply-adds in the order of k, started from what the result
//! holds when adding. So how a long sum is cut into calls does not change its bits.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
use crate::cpu::vector::Pair;
use crate::cpu::vector::{Eight, Vector};
use crate::simd::InstructionSet;

/// Columns of a panel of [`Right`], and the width of the widest register tile.
pub(super) const PANEL: usize = 64;
/// Columns of a result come in multiples of this.
pub(super) const STRIP: usize = 16;

/// Left operand: element (i, p) at `data[i * row + p * step]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left<'a> {
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) step: usize,
}

/// Right operand: element (p, j) at `data[(j / PANEL) * panel + p * step + j % PANEL]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Right<'a> {
    pub(super) data: &'a [f32],
    pub(super) panel: usize,
    pub(super) step: usize,
}

impl<'a> Right<'a> {
    /// Rows of `width` elements.
    pub(super) fn rows(data: &'a [f32], width: usize) -> Self {
        Right { data, panel: PANEL, step: width }
    }

    /// Panels that [`transpose_panels`] made from rows of `length` elements.
    pub(super) fn panels(data: &'a [f32], length: usize) -> Self {
        Right { data, panel: length * PANEL, step: PANEL }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) m: usize,
    /// A multiple of [`STRIP`].
    pub(super) n: usize,
    pub(super) k: usize,
    /// Start from what the result holds instead of zero.
    pub(super) add: bool,
}

/// `c (+)= a b`, rows of `c` being `c_row` elements apart.
pub(super) fn multiply(size: Size, a: Left<'_>, b: Right<'_>, c: &mut [f32], c_row: usize) {
    let Size { m, n, k, add } = size;
    assert!(n.is_multiple_of(STRIP), "{n} columns");
    if m == 0 || n == 0 {
        return;
    }
    assert!((m - 1) * c_row + n <= c.len(), "result of {m} x {n}, rows {c_row} apart, in {}", c.len());
    if k > 0 {
        assert!((m - 1) * a.row + (k - 1) * a.step < a.data.len(), "left operand {m} x {k} in {}", a.data.len());
        let last = (n - 1) / PANEL * b.panel + (k - 1) * b.step + (n - 1) % PANEL;
        // Widths are multiples of a strip, so panels before the last are whole.
        let before = if n > PANEL { ((n - 1) / PANEL - 1) * b.panel + (k - 1) * b.step + PANEL - 1 } else { 0 };
        assert!(last.max(before) < b.data.len(), "right operand {k} x {n} in {}", b.data.len());
    }
    let whole = Whole {
        m,
        n,
        b_panel: b.panel,
        tile: Tile {
            k,
            a: a.data.as_ptr(),
            a_row: a.row,
            a_step: a.step,
            b: b.data.as_ptr(),
            b_step: b.step,
            c: c.as_mut_ptr(),
            c_row,
            add,
        },
    };
    // SAFETY: the assertions cover every index of the operands and the result; the machine has the current set.
    unsafe {
        match InstructionSet::current().vectors() {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => x86::avx512(&whole),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => x86::avx2(&whole),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => all_tiles::<Pair>(&whole),
            _ => all_tiles::<Eight>(&whole),
        }
    }
}

struct Whole {
    m: usize,
    n: usize,
    b_panel: usize,
    tile: Tile,
}

#[derive(Clone, Copy)]
struct Tile {
    k: usize,
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const f32,
    b_step: usize,
    c: *mut f32,
    c_row: usize,
    add: bool,
}

/// A vector register, and the largest tile whose sums fit the registers beside its operands.
trait Sums: Vector {
    const ROWS: usize;
    const VECTORS: usize;
}

/// # Safety
/// The instructions of `V` must be there and every address of the operands valid.
#[inline(always)]
unsafe fn all_tiles<V: Sums>(whole: &Whole) {
    for column in (0..whole.n).step_by(V::LANES * V::VECTORS) {
        let vectors = ((whole.n - column) / V::LANES).min(V::VECTORS);
        let mut row = 0;
        while row < whole.m {
            let rows = (whole.m - row).min(V::ROWS);
            // SAFETY: offsets inside the matrices, for which the caller vouches.
            unsafe {
                let tile = Tile {
                    a: whole.tile.a.add(row * whole.tile.a_row),
                    b: whole.tile.b.add(column / PANEL * whole.b_panel + column % PANEL),
                    c: whole.tile.c.add(row * whole.tile.c_row + column),
                    ..whole.tile
                };
                match vectors {
                    1 => one_column::<V, 1>(rows, &tile),
                    2 => one_column::<V, 2>(rows, &tile),
                    3 => one_column::<V, 3>(rows, &tile),
                    _ => one_column::<V, 4>(rows, &tile),
                }
            }
            row += rows;
        }
    }
}

#[inline(always)]
unsafe fn one_column<V: Sums, const VECTORS: usize>(rows: usize, tile: &Tile) {
    if VECTORS > V::VECTORS {
        return;
    }
    // SAFETY: by the caller.
    unsafe {
        match rows {
            1 => one_tile::<V, 1, VECTORS>(tile),
            2 => one_tile::<V, 2, VECTORS>(tile),
            3 => one_tile::<V, 3, VECTORS>(tile),
            4 => one_tile::<V, 4, VECTORS>(tile),
            5 => one_tile::<V, 5, VECTORS>(tile),
            _ => one_tile::<V, 6, VECTORS>(tile),
        }
    }
}

#[inline(always)]
unsafe fn one_tile<V: Sums, const ROWS: usize, const VECTORS: usize>(t: &Tile) {
    if ROWS > V::ROWS {
        return;
    }
    // SAFETY: the caller vouches for ROWS x (VECTORS * LANES) elements of the result and the operands they need.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        if t.add {
            for (i, row) in sums.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = V::load(t.c.add(i * t.c_row + v * V::LANES));
                }
            }
        }
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.k {
            let mut right = [V::splat(0.0); VECTORS];
            for (v, right) in right.iter_mut().enumerate() {
                *right = V::load(b.add(v * V::LANES));
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let left = V::splat(*a.add(i * t.a_row));
                for (sum, right) in row.iter_mut().zip(&right) {
                    *sum = sum.multiply_add(left, *right);
                }
            }
            a = a.wrapping_add(t.a_step);
            b = b.wrapping_add(t.b_step);
        }
        for (i, row) in sums.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                sum.store(t.c.add(i * t.c_row + v * V::LANES));
            }
        }
    }
}

impl Sums for Eight {
    const ROWS: usize = 2;
    const VECTORS: usize = 2;
}

#[cfg(target_arch = "aarch64")]
impl Sums for Pair {
    const ROWS: usize = 6;
    const VECTORS: usize = 2;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Sums, Whole, all_tiles};
    use std::arch::x86_64::*;

    impl Sums for __m512 {
        const ROWS: usize = 6;
        const VECTORS: usize = 4;
    }

    impl Sums for __m256 {
        const ROWS: usize = 6;
        const VECTORS: usize = 2;
    }

    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(whole: &Whole) {
        // SAFETY: by the caller.
        unsafe { all_tiles::<__m512>(whole) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(whole: &Whole) {
        // SAFETY: by the caller.
        unsafe { all_tiles::<__m256>(whole) }
    }
}

/// Turn `count` rows of `length` numbers, `stride` apart, into panels of [`PANEL`] columns each: the right operand of a
/// product with the transpose. Columns that fill up the last panel keep what was there.
pub(super) fn transpose_panels(rows: &[f32], stride: usize, (count, length): (usize, usize), panels: &mut [f32]) {
    for (panel, first) in panels.chunks_exact_mut(length * PANEL).zip((0..count).step_by(PANEL)) {
        let width = PANEL.min(count - first);
        let rows = &rows[first * stride..];
        let (whole_columns, whole_rows) = (width / 4 * 4, length / 4 * 4);
        for j in (0..whole_columns).step_by(4) {
            for p in (0..whole_rows).step_by(4) {
                transpose_4(&rows[j * stride + p..], stride, &mut panel[p * PANEL + j..]);
            }
        }
        for j in 0..width {
            for p in if j < whole_columns { whole_rows } else { 0 }..length {
                panel[p * PANEL + j] = rows[j * stride + p];
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transpose_4(from: &[f32], stride: usize, to: &mut [f32]) {
    use std::arch::x86_64::*;
    assert!(3 * stride + 4 <= from.len() && 3 * PANEL + 4 <= to.len());
    // SAFETY: four numbers from each of four rows, inside both slices by the assertion; the instructions are in the
    // baseline.
    unsafe {
        let load = |j: usize| _mm_loadu_ps(from.as_ptr().add(j * stride));
        let (mut r0, mut r1, mut r2, mut r3) = (load(0), load(1), load(2), load(3));
        _MM_TRANSPOSE4_PS(&mut r0, &mut r1, &mut r2, &mut r3);
        for (p, row) in [r0, r1, r2, r3].into_iter().enumerate() {
            _mm_storeu_ps(to.as_mut_ptr().add(p * PANEL), row);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transpose_4(from: &[f32], stride: usize, to: &mut [f32]) {
    for j in 0..4 {
        for p in 0..4 {
            to[p * PANEL + j] = from[j * stride + p];
        }
    }
}
