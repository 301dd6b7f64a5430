//! The programs of BMTrain for Rust as functions, over `model-center`'s crates: command lines ([`cli`]), the server
//! ([`serve`]), reports of runs ([`runs`]).
#![forbid(unsafe_code)]

pub mod cli;
mod http;
pub mod runs;
pub mod serve;

pub use model_center_base::{Error, Result};

/// The crates that [`program!`] names.
pub use {bmtrain_core, bmtrain_dist};

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
