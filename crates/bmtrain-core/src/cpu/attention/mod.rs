//! Streaming attention on the CPU: the kernels `attention_forward` and `attention_backward`.
//!
//! Called by the kernel table of the CPU backend.

mod backward;
mod forward;
mod operand;
mod score;

use super::threads::Threads;
use crate::error::Result;
use crate::kernel::{AttentionBackward, AttentionForward};

/// See [`AttentionForward`].
///
/// # Errors
/// Views of a wrong type.
pub(super) fn forward(threads: &Threads, a: AttentionForward<'_>) -> Result<()> {
    forward::run(threads, a)
}

/// See [`AttentionBackward`].
///
/// # Errors
/// Views of a wrong type.
pub(super) fn backward(threads: &Threads, a: AttentionBackward<'_>) -> Result<()> {
    backward::run(threads, a)
}
