//! Files of text: lines, records of JSONL, CSV and TSV, and plain text in chunks, read with bounded memory.

pub(crate) mod chunks;
pub(crate) mod delimited;
pub(crate) mod flaws;
pub(crate) mod input;
pub(crate) mod json_lines;
pub(crate) mod lines;
pub(crate) mod record;
pub(crate) mod record_reader;
pub(crate) mod texts;
