//! Optimizer.
pub(super) use super::simple::{adam, clip_factor};
