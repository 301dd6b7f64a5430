//! Tasks: how a record becomes the examples of a sample.

pub(crate) mod columns;
pub(crate) mod embedding;
pub(crate) mod language_modeling;
pub(crate) mod multi_label;
mod packed;
mod passages;
pub(crate) mod prompts;
pub(crate) mod published;
pub(crate) mod spans;
pub(crate) mod squad;
pub(crate) mod superglue;
pub(crate) mod tags;
pub(crate) mod template;
