//! Elementwise kernels.
pub(super) use super::simple::{activation_backward, activation_forward, activation_split, add_scaled, cast, fill, gated_backward, gated_forward, multiply};
