//! Transformer [`layer`]s, families of models and their registry ([`model`]), [`adapter`]s, losses between models, and
//! decoding ([`generate`]).
//!
//! The name to depend on is `model-center`, which re-exports this crate's modules.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod contrastive;
pub mod distillation;
pub mod generate;
pub mod layer;
pub mod model;
pub mod preference;

pub use model_center_base::{Error, Result};

pub use model::*;

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
