//! The table of innermost routines of one instruction set, and the choice of the table for this machine.
//!
//! The routines themselves live in `x86.rs` and `portable.rs`.

use std::sync::OnceLock;

use super::portable;

pub(super) const MAX_TILE: usize = 512;

/// One tile of a product: `C = alpha * A·B + beta * C` with `ROWS x (VECTORS * lanes)` elements of C.
///
/// A is read one element at a time (`a + i * a_row + p * a_step`), B in vectors (`b + p * b_step + j`), so A may have
/// any strides and only B must have adjacent columns.
pub(super) struct Tile {
    /// Length of the sum.
    pub(super) k: usize,
    /// Element (0, 0) of A.
    pub(super) a: *const f32,
    /// Distance between rows of A.
    pub(super) a_row: usize,
    /// Distance between columns of A.
    pub(super) a_step: usize,
    /// Element (0, 0) of B.
    pub(super) b: *const f32,
    /// Distance between rows of B.
    pub(super) b_step: usize,
    /// Element (0, 0) of C.
    pub(super) c: *mut f32,
    /// Distance between rows of C.
    pub(super) c_row: usize,
    /// Factor of the product.
    pub(super) alpha: f32,
    /// Factor of what C holds; with 0 C is never read.
    pub(super) beta: f32,
}

/// Computes one [`Tile`].
///
/// # Safety
/// The instruction set of the table must be present; for its rows and columns every address of A, B and C named in
/// [`Tile`] must be valid, and no other thread may access these elements of C meanwhile.
pub(super) type TileRoutine = unsafe fn(&Tile);

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
    /// Row 0 of y.
    pub(super) y: *const f32,
    /// Distance between rows of y.
    pub(super) y_row: usize,
    /// Result (0, 0).
    pub(super) out: *mut f32,
    /// Distance between rows of the result.
    pub(super) out_row: usize,
}

#[cfg(target_arch = "x86_64")]
impl Dots {
    /// How far ahead in y it pays to look: where rows are short the hardware, which sees a stream end with each of
    /// them, does not find the next ones; of long rows it is the same row.
    pub(super) fn ahead(&self, columns: usize) -> usize {
        /// What fits beside x in the first-level cache, in elements.
        const MOST: usize = 4096;
        /// 512 bytes.
        const WITHIN: usize = 128;
        let next = columns * self.y_row;
        if next <= MOST { next } else { WITHIN }
    }
}

/// Computes one [`Dots`].
///
/// # Safety
/// As for [`TileRoutine`], for the addresses named in [`Dots`].
pub(super) type DotsRoutine = unsafe fn(&Dots);

/// The innermost routines of one instruction set.
pub(super) struct Kernel {
    pub(super) name: &'static str,
    pub(super) lanes: usize,
    /// `tiles[rows - 1][vectors - 1]`.
    pub(super) tiles: &'static [&'static [TileRoutine]],
    /// Transposes `lanes` rows.
    pub(super) transpose: TransposeRoutine,
    /// Packs rows whose elements are adjacent.
    pub(super) copy: CopyRoutine,
    /// `dots[rows of x - 1]` takes [`Kernel::dot_columns`] rows of y.
    pub(super) dots: &'static [DotsRoutine],
    /// Like `dots`, for one row of y.
    pub(super) single_dots: &'static [DotsRoutine],
    /// Rows of y in one call of `dots`.
    pub(super) dot_columns: usize,
    /// Runs fused multiply-adds in registers `rounds` times; returns a value so that they are not removed.
    pub(super) spin: unsafe fn(rounds: usize) -> f32,
    /// Floating-point operations of one round of `spin`.
    pub(super) spin_operations: usize,
}

impl Kernel {
    pub(super) fn rows(&self) -> usize {
        self.tiles.len()
    }

    /// Columns of the widest tile: the width of a packed panel.
    pub(super) fn columns(&self) -> usize {
        self.tiles[0].len() * self.lanes
    }

    /// The best table for this machine, chosen once.
    pub(super) fn of_this_machine() -> &'static Kernel {
        static CHOSEN: OnceLock<&'static Kernel> = OnceLock::new();
        CHOSEN.get_or_init(|| Self::available()[0])
    }

    pub(super) fn available() -> Vec<&'static Kernel> {
        let mut tables: Vec<&'static Kernel> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                tables.push(&super::x86::AVX512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                tables.push(&super::x86::AVX2);
            }
        }
        tables.push(&portable::KERNEL);
        tables
    }
}
