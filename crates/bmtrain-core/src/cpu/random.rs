//! Random.
pub(super) use super::simple::{dropout, fill_random};
