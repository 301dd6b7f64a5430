//! Flat storages and how they are cut over data-parallel ranks.

pub mod layout;

pub use layout::{ShardLayout, Span};
