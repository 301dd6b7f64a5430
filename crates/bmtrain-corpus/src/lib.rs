//! Pretraining corpora: raw text to token files, cleaned, split into sentences, converted and verified.
//!
//! ```text
//! raw text ─▶ documents ─▶ clean, sentences (if asked for) ─▶ build ─▶ token file ─▶ verify, convert, merge, split
//! ```
//!
//! What a training reads, token files and their samples, is in `model_center_data::corpus`. `docs/corpus.md` explains
//! the formats. Nothing here knows a model or a trainer. The program `corpus` is the caller.
#![forbid(unsafe_code)]

pub mod build;
pub mod clean;
mod convert;
mod fixed_split;
pub mod formats;
mod merge;
mod output;
mod pipeline;
pub mod sentences;
mod verify;

pub use convert::{ConvertOptions, ConvertReport, convert, verify_documents};
pub use fixed_split::{FixedSplit, split_lines};
pub use merge::merge;
pub use model_center_base::{Error, Result};
pub use verify::{FileReport, ShowChecked, verify, verify_showing};

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
