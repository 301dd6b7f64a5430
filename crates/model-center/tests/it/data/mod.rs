//! Datasets and batches: file formats, templates, hostile files, order and padding.

mod columns;
mod conversations;
mod hostile;
mod loader;
mod mixture;
mod order;
mod own_records;
mod preference;
mod prompts;
mod prose;
mod published;
mod records;
mod sft;
mod squad;
mod superglue;
mod tags;
mod texts;
pub mod words;
