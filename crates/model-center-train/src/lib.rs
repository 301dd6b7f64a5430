//! Training of a model as a recipe specifies ([`train`]), and what is done with a trained one: [`evaluate`],
//! [`predict`], [`inference`]; memory of a run before it starts ([`plan`], [`formula`]).
//!
//! The name to depend on is `model-center`, which re-exports this crate's modules.
#![forbid(unsafe_code)]

pub mod evaluate;
pub mod formula;
pub mod inference;
pub mod plan;
pub mod predict;
pub mod train;

pub use model_center_base::{Error, Result};

pub use train::*;

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
