//! Device memory, kernels, tape and ops of BMTrain for Rust.
pub mod cpu;
pub mod dtype;
pub mod error;

pub use dtype::{DType, Element, Float};
pub use error::{Error, Result};
