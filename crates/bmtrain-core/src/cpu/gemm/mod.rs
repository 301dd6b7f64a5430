//! Matrix products on the CPU: `C = alpha * A·B + beta * C` for f32, f16 and bf16, every transpose, with a fused
//! epilogue.
//!
//! Defines [`Product`] and [`product`] (one product, split over threads), [`BatchedProduct`] and [`product_batch`]
//! (many small ones of one shape, such as the heads of attention), [`measure_peak`], [`measure_bf16_peak`] and
//! [`scratch_bytes`]. The CPU
//! backend's `gemm` and `linear` kernels call them; attention calls [`product`] with [`Threads::Calling`] inside its
//! own loops.
//!
//! # How it works
//! B is packed into panels as wide as a tile, for all threads together; 16-bit numbers are widened on the way. Each
//! thread packs rows of A, and sums of a tile (6 x 64 with AVX-512, 6 x 16 with AVX2 and NEON) are kept in registers
//! (`tile.rs`); on the last stretch of the sum the epilogue runs while the tile is hot. `schedule.rs` chooses one of
//! six ways: `wide.rs` for many rows, cut as `cut.rs` defines; `narrow.rs` for some, where each thread packs its part
//! of B; `in_place.rs` and `skinny.rs` for few, which read B once and in place, as fast as memory is read; `short.rs`
//! for sums of some terms, which writes rows of C from end to end; `outer.rs` for sums of a few terms, which
//! writes C as fast as memory is written. With a set that multiplies bf16, its products of some rows are a
//! seventh way, `tiled.rs`, which shares phases and tasks with `wide.rs` (`walk.rs`); for its products of few rows by
//! the weights of a layer there is an eighth, `transposed.rs`.
//!
//! # Numerics
//! Sums are accumulated in f32, whatever the operands hold, over stretches of at most 768 terms (384 with AVX2 and
//! NEON), one after the other; in `skinny.rs` of at most 2048, fewer for more rows. The stretches follow from the shape
//! and the instruction set; whether `skinny.rs` computes a product follows from its shape and strides. Each element of
//! C is summed separately, in the same order at every position of a tile. So the bits of a result depend on shape,
//! strides and instruction set, never on the number of threads or on which thread did what. Nothing is skipped: NaN and
//! infinities propagate, zero times infinity is NaN. With `beta == 0`, C is not read.
//!
//! In tiles the order is another: `cpu::tiles` defines it, one chain over the whole sum.
//!
//! Rows that start at multiples of 64 bytes are read fastest.

mod block;
mod cut;
mod in_place;
mod job;
mod kernel;
pub(super) mod launch;
mod left;
mod narrow;
mod operand;
mod outer;
mod peak;
mod portable;
mod right;
mod schedule;
mod scratch;
mod shared;
mod short;
mod skinny;
mod table;
mod tile;
mod tiled;
mod transposed;
mod walk;
mod wide;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use operand::{Operand, Source, Target};
pub use peak::{measure_bf16_peak, measure_peak};
pub(super) use schedule::Tickets;
pub use scratch::bytes as scratch_bytes;
pub(super) use tiled::LEAST_COLUMNS;

use crate::error::Result;
use crate::simd::InstructionSet;
use crate::threads;
use cut::Limits;
use job::{Batch, GemmJob};

/// The threads of a product.
#[derive(Debug, Clone, Copy)]
pub enum Threads<'a> {
    /// The calling thread alone, for callers that are parallel themselves.
    Calling,
    /// The threads of a pool. Small products still run on the calling thread. The result has the same bits as with
    /// [`Threads::Calling`].
    Pool(&'a threads::Threads),
}

impl Threads<'_> {
    /// Number of threads.
    pub fn count(&self) -> usize {
        match self {
            Threads::Calling => 1,
            Threads::Pool(threads) => threads.count(),
        }
    }

    /// The instruction set of these threads.
    fn instruction_set(&self) -> InstructionSet {
        match self {
            Threads::Calling => InstructionSet::current(),
            Threads::Pool(threads) => threads.instruction_set(),
        }
    }
}

/// A function applied in place to finished f32 values, element by element.
///
/// It is called on short runs (at most 512 values) in the first-level cache, so write it so that the compiler
/// vectorises it. What it does to a value must not depend on the value's place in the slice. The length is always a
/// multiple of 8; some of the values may be padding, whose results are dropped.
pub type Activation<'a> = &'a (dyn Fn(&mut [f32]) + Sync);

/// A function of a result (first slice, in place) and another matrix (second slice, same length): a gradient times the
/// derivative at an activation's saved input, or the sum with a residual. The rules of [`Activation`] apply.
pub type Combination<'a> = &'a (dyn Fn(&mut [f32], &[f32]) + Sync);

/// Operations on each element of C after the whole sum, in this order: `x += bias[column]`, store x as the
/// pre-activation, `x = activation(x)`, `x = combination(x, other)`; then x is rounded to C's type.
///
/// [`Epilogue::default`] does nothing.
#[derive(Default)]
pub struct Epilogue<'a> {
    /// One value per column of C.
    pub bias: Option<Source<'a>>,
    /// Destination of the values before the activation, and the distance between rows there.
    pub pre_activation: Option<(Target<'a>, usize)>,
    /// The activation.
    pub activation: Option<Activation<'a>>,
    /// Another matrix (with the distance between rows) and how its values change the result.
    pub combination: Option<(Source<'a>, usize, Combination<'a>)>,
}

/// `C = epilogue(alpha * A·B + beta * C)`.
///
/// # Shapes
/// A is `m x k`, B is `k x n`, C is `m x n` with row i at `c[i * ldc..]`.
pub struct Product<'a> {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A and rows of B; 0 is allowed and gives a sum of zero.
    pub k: usize,
    /// Factor of the product.
    pub alpha: f32,
    /// Left operand.
    pub a: Operand<'a>,
    /// Right operand.
    pub b: Operand<'a>,
    /// Factor of what C holds. With 0, C is not read and may hold anything.
    pub beta: f32,
    /// Result; f16 and bf16 are rounded once, from the f32 sum.
    pub c: Target<'a>,
    /// Distance between rows of C.
    pub ldc: usize,
    /// Epilogue of the finished sums.
    pub epilogue: Epilogue<'a>,
}

/// `count[0] * count[1] * count[2]` products of one shape; product (x, y, z) starts at element
/// `x * stride[0] + y * stride[1] + z * stride[2]` of each operand.
///
/// A stride of 0 shares an operand of A or B (a key head between query heads). Unused levels have count 1.
pub struct BatchedProduct<'a> {
    /// The first product, whose slices reach over the whole batch. Its epilogue may not store or read other matrices.
    pub first: Product<'a>,
    /// Number of products on each level.
    pub count: [usize; 3],
    /// Distances in A.
    pub a_stride: [usize; 3],
    /// Distances in B.
    pub b_stride: [usize; 3],
    /// Distances in C; no two products may share an element.
    pub c_stride: [usize; 3],
}

/// Computes one [`Product`].
///
/// # Errors
/// [`crate::Error::Shape`] if a slice is shorter than its shape and strides need, or no stride of an operand is 1.
/// Nothing is written then.
pub fn product(threads: Threads<'_>, product: Product<'_>) -> Result<()> {
    let job = GemmJob::new(product)?;
    schedule::run_one(threads, &Limits::of_this_machine(), &job);
    Ok(())
}

/// Computes every product of a [`BatchedProduct`], each on one thread if there are at least enough products for all
/// threads.
///
/// # Errors
/// [`crate::Error::Shape`] as for [`product`], and if products of the batch would write the same element.
/// [`crate::Error::Argument`] if the epilogue holds matrices.
pub fn product_batch(threads: Threads<'_>, batch: BatchedProduct<'_>) -> Result<()> {
    let batch = Batch::new(batch)?;
    schedule::run_batch(threads, &Limits::of_this_machine(), &batch);
    Ok(())
}
