//! Rows.
pub(super) use super::simple::{embedding_backward, embedding_forward, permute, row_copy};
