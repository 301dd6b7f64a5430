//! "GEMM scratch": the memory that products pack and widen their operands into, one per thread, kept between products.
//!
//! A thread's scratch grows to at most about 4 MiB: 2.25 MiB of packed B, 0.3 MiB of widened A, 0.2 MiB of widened B, 1
//! MiB of sums for 16-bit results.

crate::cpu::scratch::scratch! {
    /// Packed panels of B.
    panels,
    /// Widened rows of A.
    left,
    /// Widened lines of B on their way to a panel.
    lines,
    /// f32 sums of a 16-bit result.
    sums,
}
