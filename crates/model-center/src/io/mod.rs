//! Data files: lines, records of JSONL, CSV, TSV, Arrow and Parquet, and plain text in chunks, with bounded memory.

pub(crate) mod arrow;
pub(crate) mod chunks;
pub(crate) mod delimited;
pub(crate) mod flaws;
pub(crate) mod input;
pub(crate) mod json_lines;
pub(crate) mod lines;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "parquet_absent.rs"]
pub(crate) mod parquet;
pub(crate) mod record;
pub(crate) mod record_reader;
pub(crate) mod texts;
