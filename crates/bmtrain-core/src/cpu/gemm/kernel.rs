//! The table of innermost routines of one instruction set.
//!
//! The routines themselves are in `tile.rs`, for the vectors of `x86.rs`, `neon.rs` and `portable.rs`.

use super::left::PackRoutine;
use super::operand::Source;
use super::portable;
use crate::simd::InstructionSet;

pub(super) const MAX_TILE: usize = 512;

/// Tiles of a product, one below another: `C = alpha * A·B + beta * C`, each with `ROWS x (VECTORS * lanes)` elements
/// of C.
///
/// A is read one element at a time and may have any strides.
pub(super) struct Strip {
    /// Number of tiles.
    pub(super) tiles: usize,
    /// Length of the sums.
    pub(super) k: usize,
    /// Element (0, 0) of the first tile's rows of A.
    pub(super) a: *const f32,
    /// Distance between the first rows of two tiles.
    pub(super) a_tile: usize,
    /// Distance between rows of A in a tile.
    pub(super) a_row: usize,
    /// Distance between columns of A.
    pub(super) a_step: usize,
    /// A packed panel of B: rows of `VECTORS * lanes` elements, one after the other.
    pub(super) b: *const f32,
    /// Element (0, 0) of C.
    pub(super) c: *mut f32,
    /// Distance between rows of C.
    pub(super) c_row: usize,
    /// Factor of the product.
    pub(super) alpha: f32,
    /// Factor of what C holds; with 0 C is never read.
    pub(super) beta: f32,
    /// Bias added to every row of the result in the end, or null.
    pub(super) bias: *const f32,
    /// Memory to prefetch into the second-level cache: any address, and a number of cache lines.
    pub(super) next: *const f32,
    pub(super) lines: usize,
}

/// Computes one [`Strip`].
///
/// # Safety
/// The instruction set of the table must be present; for its rows and columns every address of A, B, C and the bias
/// named in [`Strip`] must be valid, and no other thread may access these elements of C meanwhile.
pub(super) type StripRoutine = unsafe fn(&Strip);

/// Tiles as of [`Strip`], several side by side, with rows of B where the caller has them instead of packed panels: some
/// rows of a sum, between which tiles keep what they have.
pub(super) struct RowStrip {
    /// The rest, of an A packed by `pack_left_in_place`; `b`, `next`, `lines`, `a_row` and `a_step` are not read.
    pub(super) strip: Strip,
    /// Row 0 of B, of the dtype of the routine.
    pub(super) b: *const u8,
    /// Distance between rows of B.
    pub(super) b_row: usize,
    /// Number of tiles side by side.
    pub(super) panels: usize,
    /// Room for as many f32 as all tiles have, where sums are kept: not if these rows begin and end the sum.
    pub(super) sums: *mut f32,
    /// Whether these are the first rows of the sum.
    pub(super) begins: bool,
    /// Whether they are the last, after which the sums are stored in C.
    pub(super) ends: bool,
    /// Rows to prefetch into the second-level cache.
    pub(super) next: Rows,
}

/// Rows of memory: any address, and sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) at: *const u8,
    /// Distance between rows.
    pub(super) stride: usize,
    /// Length of a row.
    pub(super) len: usize,
    pub(super) rows: usize,
}

/// Computes one [`RowStrip`].
///
/// # Safety
/// As for [`StripRoutine`], for the addresses named in [`RowStrip`].
pub(super) type RowStripRoutine = unsafe fn(&RowStrip);

/// Tiles that read rows of B of one dtype: for each number of rows the widths in vectors, ascending from 1, with their
/// routines.
pub(super) type RowStripRoutines = &'static [&'static [(usize, RowStripRoutine)]];

/// Writes the transpose of a `lanes x k` block: `to[p * width + j] = from[j * stride + p]`.
///
/// # Safety
/// The instruction set must be present, `from` valid for `(lanes - 1) * stride + k` reads, `to` valid for
/// `(k - 1) * width + lanes` writes.
pub(super) type TransposeRoutine = unsafe fn(from: *const f32, stride: usize, k: usize, to: *mut f32, width: usize);

/// Copies k rows, `stride` apart, into panels: column j of row p goes to panel `j / C` at `p * C + j % C`, where C is
/// [`Kernel::columns`] and panels are `k * C` apart.
///
/// # Safety
/// The instruction set must be present, `from` valid for `(k - 1) * stride + panels * C` reads, `to` for
/// `k * panels * C` writes.
pub(super) type CopyRoutine = unsafe fn(from: *const f32, stride: usize, k: usize, to: *mut f32, panels: usize);

/// Sums `x[i * x_row + p] * y[j * y_row + p]` over p for a fixed number of rows of x and y and writes them to
/// `out[i * out_row + j]`.
pub(super) struct Dots {
    /// Length of the sums.
    pub(super) k: usize,
    /// Row 0 of x.
    pub(super) x: *const f32,
    /// Distance between rows of x.
    pub(super) x_row: usize,
    /// Row 0 of y, of the dtype of the routine.
    pub(super) y: *const u8,
    /// Distance between rows of y.
    pub(super) y_row: usize,
    /// Result (0, 0).
    pub(super) out: *mut f32,
    /// Distance between rows of the result.
    pub(super) out_row: usize,
    /// Rows of y whose elements are prefetched, a bit each, and the prefetch distance in elements.
    pub(super) fetched: u8,
    pub(super) ahead: usize,
}

/// Computes one [`Dots`].
///
/// # Safety
/// As for [`StripRoutine`], for the addresses named in [`Dots`].
pub(super) type DotsRoutine = unsafe fn(&Dots);

/// Dot products with rows of y of one dtype.
pub(super) struct DotRoutines {
    /// `several[rows of x - 1]` takes [`Kernel::dot_columns`] rows of y.
    pub(super) several: &'static [DotsRoutine],
    /// Like `several`, for one row of y.
    pub(super) single: &'static [DotsRoutine],
    /// For one row of x alone, which takes [`ALONE`] rows of y.
    pub(super) alone: DotsRoutine,
}

/// Rows of y that a single row of x meets at a time. They are far apart, so that the hardware follows each as a stream
/// of its own; with more streams memory is read no faster.
pub(super) const ALONE: usize = 4;

/// The innermost routines of one instruction set.
pub(super) struct Kernel {
    pub(super) lanes: usize,
    /// Most terms summed in registers. With more, a panel of B crowds the first-level cache beside the tiles of A; with
    /// fewer, C is read and written more often. It is fixed for an instruction set because results depend on it.
    pub(super) stretch: usize,
    /// `strips[rows of a tile - 1][vectors of a tile - 1]`.
    pub(super) strips: &'static [&'static [StripRoutine]],
    /// As `strips`, for an A packed by `pack_left`: `a_row` and `a_step` are not read.
    pub(super) packed_strips: &'static [&'static [StripRoutine]],
    /// Tiles that read B in place, of each dtype.
    pub(super) row_strips_f32: RowStripRoutines,
    pub(super) row_strips_f16: RowStripRoutines,
    pub(super) row_strips_bf16: RowStripRoutines,
    /// Packs A for `packed_strips`.
    pub(super) pack_left: PackRoutine,
    /// Packs A for the tiles that read B in place, which are as tall as their list is long.
    pub(super) pack_left_in_place: PackRoutine,
    /// Transposes `lanes` rows.
    pub(super) transpose: TransposeRoutine,
    /// Packs rows whose elements are adjacent.
    pub(super) copy: CopyRoutine,
    /// Dot products with rows of y of each dtype.
    pub(super) dots_f32: DotRoutines,
    pub(super) dots_f16: DotRoutines,
    pub(super) dots_bf16: DotRoutines,
    /// Rows of y in one call of [`DotRoutines::several`].
    pub(super) dot_columns: usize,
    /// Runs fused multiply-adds in registers `rounds` times; returns a value so that they are not removed.
    pub(super) spin: unsafe fn(rounds: usize) -> f32,
    /// Floating-point operations of one round of `spin`.
    pub(super) spin_operations: usize,
}

impl Kernel {
    pub(super) fn rows(&self) -> usize {
        self.strips.len()
    }

    /// Columns of the widest tile: the width of a packed panel.
    pub(super) fn columns(&self) -> usize {
        self.strips[0].len() * self.lanes
    }

    /// Dot products with rows as `data` holds them.
    pub(super) fn dots(&self, data: Source<'_>) -> &DotRoutines {
        match data {
            Source::F32(_) => &self.dots_f32,
            Source::F16(_) => &self.dots_f16,
            Source::Bf16(_) => &self.dots_bf16,
        }
    }

    /// Tiles that read rows of B as `data` holds them.
    pub(super) fn row_strips(&self, data: Source<'_>) -> RowStripRoutines {
        match data {
            Source::F32(_) => self.row_strips_f32,
            Source::F16(_) => self.row_strips_f16,
            Source::Bf16(_) => self.row_strips_bf16,
        }
    }

    /// The table of the vectors of an instruction set.
    pub(super) fn of(set: InstructionSet) -> &'static Kernel {
        match set.vectors() {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => &super::x86::AVX512,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => &super::x86::AVX2,
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => &super::neon::NEON,
            _ => &portable::KERNEL,
        }
    }
}
