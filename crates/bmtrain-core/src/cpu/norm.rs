//! Norms.
pub(super) use super::simple::{norm_backward as backward, norm_forward as forward};
