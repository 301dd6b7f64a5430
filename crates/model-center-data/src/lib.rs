//! Datasets of tasks ([`data`]), token files and the samples in them ([`corpus`]), samples of pretraining
//! ([`pretraining`]), and [`metrics`]. Nothing here knows a model.
//!
//! The name to depend on is `model-center`, which re-exports this crate's modules.
#![forbid(unsafe_code)]

pub mod corpus;
pub mod data;
pub mod metrics;
pub mod pretraining;

pub use model_center_base::{Error, Result};

pub use data::*;

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
