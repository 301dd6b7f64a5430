//! Parameters, blocks, optimizers and schedules of BMTrain for Rust.
#![forbid(unsafe_code)]
pub mod error;
pub use error::{Error, Result};
