//! Datasets and batches: file formats, templates, hostile files, order and padding.

mod columns;
mod hostile;
mod loader;
mod superglue;
mod words;
