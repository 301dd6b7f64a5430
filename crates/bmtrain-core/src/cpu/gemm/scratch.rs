//! "GEMM scratch": the memory that products pack and widen their operands into, kept between products.
//!
//! The thread that starts a product lends the packed panels of B (at most 12 MiB, see `cut.rs`) to all that compute it.
//! Beside them each thread holds its packed rows of A (at most about twice the second-level cache, see `narrow.rs`; as
//! much in `skinny.rs`, which widens them), widened lines (0.2 MiB) and sums that are not final or not rounded.

crate::cpu::scratch::scratch! {
    /// Packed panels of B, in `wide.rs` for all threads of a product.
    panels,
    /// f32 sums of a 16-bit result between phases, for all threads of a product; in `in_place.rs` results before the
    /// epilogue.
    phase_sums,
    /// Packed rows of A.
    left,
    /// Widened lines on their way to a panel or a tile.
    lines,
    /// f32 sums of a 16-bit result between stretches; in `in_place.rs` the sums of tiles.
    sums,
}
