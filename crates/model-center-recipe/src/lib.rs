//! The settings of a run, from TOML and `KEY=VALUE` ([`recipe`]), and its output directory ([`run`]).
//!
//! The name to depend on is `model-center`, which re-exports this crate's modules.
#![forbid(unsafe_code)]

pub mod recipe;
pub mod run;

pub use model_center_base::{Error, Result};

pub use recipe::*;

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
