//! The integration tests of this crate, one module per topic. One program, because linking costs more than most tests.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod autograd;
mod cached_attention;
mod conformance;
mod fp8;
mod head_shards;
mod host_work;
mod kernels;
mod lanes;
mod observe;
mod ops;
mod quantised;
