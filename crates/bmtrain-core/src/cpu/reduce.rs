//! Reductions.
pub(super) use super::simple::{column_sum, grad_norm, non_finite, softmax, softmax_backward};
