//! Recipes from settings of other systems ([`import`]) and from the user's data ([`starter`]).
//!
//! The name to depend on is `model-center`, which re-exports this crate's modules.
#![forbid(unsafe_code)]

pub mod import;
pub mod starter;

pub use model_center_base::{Error, Result};

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
