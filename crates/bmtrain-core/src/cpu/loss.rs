//! Losses.
pub(super) use super::simple::{cross_entropy_backward, cross_entropy_forward, squared_error_backward, squared_error_forward};
