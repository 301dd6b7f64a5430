//! Files of models, read and written without a model: weights in safetensors, pickles and GGUF ([`formats`]),
//! configurations ([`config`]), tokenizers and chat templates ([`tokenizer`]), complete model directories
//! ([`directory`]), and records of data files ([`io`]).
//!
//! Every file is hostile: lengths are checked before memory is allocated, and what cannot be read is refused with its
//! place. The name to depend on is `model-center`, which re-exports this crate's modules.
#![forbid(unsafe_code)]

pub mod account;
pub mod config;
pub mod directory;
pub mod formats;
pub mod io;
pub mod rotary;
pub mod tokenizer;

pub use model_center_base::{Error, Result};

pub use directory::{
    COMPANION_FILES, DirectoryLayout, ModelDirectory, RankedReport, gguf_to_directory, ranked_to_directory,
};
pub use formats::*;

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
