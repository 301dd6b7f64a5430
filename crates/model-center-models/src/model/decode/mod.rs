//! Incremental decoding with a KV cache, of a batch ([`decoding`]) or of sequences that join and leave ([`packed`]).

pub mod decoding;
pub(in crate::model) mod incremental;
pub(in crate::model) mod packed;
