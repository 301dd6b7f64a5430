//! Models, Hugging Face interchange, tokenizers, datasets, metrics, recipes and run reports.
//!
//! A model is one file below [`model`], a line in its registry and a golden test.
//! Nothing here knows about CUDA, communication or lanes: those belong to `bmtrain-core` and `bmtrain-dist`.
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod data;
pub mod error;
pub mod file;
pub mod formats;
pub mod generate;
pub mod inference;
pub mod layer;
pub mod metrics;
pub mod model;
pub mod plan;
pub mod recipe;
pub mod run;
pub mod tokenizer;
pub mod train;

/// The crates below, so that a program needs this one only.
pub use {bmtrain_core, bmtrain_dist};

pub use error::{Error, Result};
