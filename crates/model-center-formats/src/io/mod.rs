//! Data files: lines, records of JSONL, CSV, TSV, Arrow and Parquet, and plain text in chunks, with bounded memory.

pub mod arrow;
pub mod chunks;
pub mod delimited;
pub mod flaws;
pub mod input;
pub mod json_lines;
mod json_place;
pub mod lines;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "parquet_absent.rs"]
pub mod parquet;
pub mod record;
pub mod record_reader;
pub mod texts;
mod zstandard;
