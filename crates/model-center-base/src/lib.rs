//! Foundation of all crates of model-center: [`Error`] with exit codes, guarded [files](mod@file), [`batch`]es and
//! their labels.
//!
//! The name to depend on is `model-center`, which re-exports this crate's modules.
#![forbid(unsafe_code)]

pub mod batch;
pub mod error;
pub mod file;
pub mod json;
pub mod stop_flag;
pub mod suggest;
pub mod units;

pub use error::{Error, Result};

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
