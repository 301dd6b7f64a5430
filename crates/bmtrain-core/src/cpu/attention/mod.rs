//! Streaming attention on the CPU: the kernels `attention_forward` and `attention_backward`.
//!
//! Called by the kernel table of the CPU backend. Scores exist one tile at a time (at most 128 x 128, 64 KiB), in
//! scratch that each thread keeps:
//!
//! - `forward.rs`: online softmax over blocks of keys; `backward.rs` and `gradients.rs`: the gradients.
//! - `extent.rs`: sequences, or the documents packed into them, each computed apart from the others.
//! - `tiles.rs`: sizes of tiles. `score.rs`: masks and bias. `rows.rs`: softmax, its gradient and dropout, row by row.
//! - `product.rs`: products of tiles in registers. `blocks.rs`: of bf16, where the processor multiplies it.
//! - `operand.rs`: strided heads of any dtype. `scratch.rs`: memory for tiles.
//!
//! # Numerics
//! Everything is f32 between reading and writing, but for factors in `blocks.rs`: probabilities and gradients of scores
//! are rounded to bf16 there. The order of every sum follows from sizes and masks alone: the bits
//! of a result do not depend on the number of threads. NaN and infinities in what a query sees propagate to its result;
//! keys that padding hides at the start and the end of a sequence are not read at all, other hidden keys are multiplied
//! by zero, in `blocks.rs` up to 31 of those that come after all queries of a tile, too.

mod backward;
mod blocks;
mod extent;
mod forward;
mod gradients;
mod operand;
mod product;
mod rows;
mod score;
mod scratch;
mod tiles;

#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::kernel::{AttentionBackward, AttentionForward};
use crate::threads::Threads;
use tiles::Settings;

pub(in crate::cpu) use scratch::bytes as scratch_bytes;

pub(super) fn forward(threads: &Threads, a: AttentionForward<'_>) -> Result<()> {
    forward::run(threads, a, Settings::default())
}

pub(super) fn backward(threads: &Threads, a: AttentionBackward<'_>) -> Result<()> {
    backward::run(threads, a, Settings::default())
}
