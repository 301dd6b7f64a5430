//! Other formats of tokenised corpora, one document at a time.
//!
//! Defines [`CorpusFormat`], [`TokenDocuments`], which reads any of them, and [`DocumentWriter`], which writes most;
//! `npy_shards`, `blocks`, `tfrecord` and `spans` have the formats. Called by `super::convert` and by programs. A
//! [`TokenFile`](model_center_data::corpus::TokenFile) is what training reads.

mod block_files;
mod block_tools;
mod blocks;
mod npy_shards;
mod npy_writer;
mod numpy;
mod spans;
mod tfrecord;
mod token_documents;

use std::path::{Path, PathBuf};

use crate::{Error, Result};
use model_center_data::corpus::token_type::TokenType;
use model_center_data::corpus::writer::{index_path, prefix_of, with_suffix};

pub use block_files::{BlockFile, BlockFiles};
pub use block_tools::{compact_blocks, mask_blocks, shuffle_blocks};
pub use blocks::DEFAULT_BLOCK_BYTES;
pub use tfrecord::{BertRecord, Example, Feature, TfRecordReader, TfRecordWriter};

/// A format of tokenised corpora.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum CorpusFormat {
    /// Megatron-LM's token files, PREFIX.bin and PREFIX.idx.
    Megatron,
    /// A directory of NumPy arrays of documents, with their numbers of tokens in sizes.txt.
    Npy,
    /// A directory of BMTrain's block files, with meta.bin.
    Blocks,
    /// Files of TensorFlow's records, which gzip may have compressed.
    Tfrecord,
    /// CPM-2's masked documents: PREFIX_context, PREFIX_target and PREFIX_target_offset, which are read alone.
    Cpm2,
}

impl CorpusFormat {
    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            CorpusFormat::Megatron => "megatron",
            CorpusFormat::Npy => "npy",
            CorpusFormat::Blocks => "blocks",
            CorpusFormat::Tfrecord => "tfrecord",
            CorpusFormat::Cpm2 => "cpm2",
        }
    }

    /// The format of what is at a path, by the names of its files.
    ///
    /// # Errors
    /// [`Error::Data`] if there is nothing of a known format.
    pub fn detect(path: &Path) -> Result<CorpusFormat> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if path.join(blocks::META).exists() {
                return Ok(CorpusFormat::Blocks);
            }
            if path.join(npy_shards::SIZES).exists() {
                return Ok(CorpusFormat::Npy);
            }
        } else if name.ends_with(".npy") {
            return Ok(CorpusFormat::Npy);
        } else if path.is_file() && (name.contains("tfrecord") || tfrecord::is_record_file(path)) {
            return Ok(CorpusFormat::Tfrecord);
        }
        if index_path(&prefix_of(path)).exists() {
            return Ok(CorpusFormat::Megatron);
        }
        if index_path(&with_suffix(path, spans::CONTEXT)).exists() {
            return Ok(CorpusFormat::Cpm2);
        }
        let looked = format!(
            "there is no {}, no directory with {} or {}, no .npy file and no file of records",
            index_path(&prefix_of(path)).display(),
            blocks::META,
            npy_shards::SIZES
        );
        Err(Error::data(path.display().to_string(), looked, "check the path, or name the format with --from"))
    }
}

/// Part of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentPart {
    /// A sequence of the present document.
    Sequence,
    /// The end of the present document.
    End,
}

/// Counts that a corpus states of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatedCounts {
    /// Documents.
    pub documents: Option<u64>,
    /// Token ids.
    pub tokens: Option<u64>,
}

/// Reads the documents of a corpus in their order, one sequence in memory at a time.
pub trait TokenDocuments: std::fmt::Debug {
    /// Puts the next sequence into `ids`, or ends a document; `None` after the last one.
    ///
    /// # Errors
    /// [`Error::Data`] with the file for contents that contradict themselves; [`Error::File`] if reading fails.
    fn advance(&mut self, ids: &mut Vec<u32>) -> Result<Option<DocumentPart>>;

    /// Bytes of all files.
    fn total_bytes(&self) -> u64;

    /// Bytes that were read of them.
    fn read_bytes(&self) -> u64;

    /// Numbers of documents and token ids that the corpus states, where it does.
    fn stated(&self) -> StatedCounts {
        StatedCounts::default()
    }
}

/// Writes documents; nothing of the result can be taken for whole before [`DocumentWriter::finish`].
pub trait DocumentWriter: std::fmt::Debug {
    /// Appends a sequence to the present document. Formats without sequences join a document's.
    ///
    /// # Errors
    /// [`Error::Argument`] for ids that the format cannot hold, [`Error::File`] if writing fails.
    fn add_sequence(&mut self, ids: &[u32]) -> Result<()>;

    /// Ends the present document.
    ///
    /// # Errors
    /// As [`DocumentWriter::add_sequence`].
    fn end_document(&mut self) -> Result<()>;

    /// Completes the corpus.
    ///
    /// # Errors
    /// [`Error::File`] if writing fails.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Options of reading a corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// The format; by default what [`CorpusFormat::detect`] finds.
    pub format: Option<CorpusFormat>,
    /// Key of the ids in dictionaries and records.
    pub key: String,
    /// For CPM-2: placeholders of spans begin with this id.
    pub first_placeholder: Option<u32>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { format: None, key: "input_ids".into(), first_placeholder: None }
    }
}

/// Options of writing a corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// Storage type of ids, in token files and arrays.
    pub token: TokenType,
    /// Documents of an array file.
    pub shard_documents: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// The key of the ids in records.
    pub key: String,
}

impl Default for WriteOptions {
    fn default() -> Self {
        let token = TokenType::U16;
        WriteOptions { token, shard_documents: 50_000, block_bytes: DEFAULT_BLOCK_BYTES, key: "input_ids".into() }
    }
}

/// Opens a corpus of any format.
///
/// # Errors
/// [`Error::Data`] if nothing of the format is there, or it is damaged; [`Error::Argument`] for CPM-2 without the first
/// placeholder.
pub fn open_documents(path: &Path, options: &ReadOptions) -> Result<Box<dyn TokenDocuments>> {
    let format = match options.format {
        Some(format) => format,
        None => CorpusFormat::detect(path)?,
    };
    Ok(match format {
        CorpusFormat::Megatron => Box::new(token_documents::FileDocuments::open(path)?),
        CorpusFormat::Npy => Box::new(npy_shards::NpyDocuments::open(path, &options.key)?),
        CorpusFormat::Blocks => Box::new(blocks::BlockDocuments::open(path, &options.key)?),
        CorpusFormat::Tfrecord => Box::new(tfrecord::RecordDocuments::open(path, &options.key)?),
        CorpusFormat::Cpm2 => {
            let first = options.first_placeholder.ok_or_else(|| {
                let reason = "the placeholders of CPM-2's spans begin after the vocabulary";
                Error::argument("--first-placeholder", reason, "give the number of tokens of the vocabulary")
            })?;
            Box::new(spans::SpanDocuments::open(path, first)?)
        }
    })
}

/// Begins a corpus at a path where there is none.
///
/// # Errors
/// [`Error::Argument`] if something is there, or for a format that is not written; [`Error::File`] if writing fails.
pub fn create_documents(path: &Path, format: CorpusFormat, options: &WriteOptions) -> Result<Box<dyn DocumentWriter>> {
    Ok(match format {
        CorpusFormat::Megatron => Box::new(model_center_data::corpus::TokenFileWriter::create(path, options.token)?),
        CorpusFormat::Npy => Box::new(npy_writer::NpyShards::create(path, options.token, options.shard_documents)?),
        CorpusFormat::Blocks => Box::new(blocks::BlockWriter::create(path, options.block_bytes)?),
        CorpusFormat::Tfrecord => Box::new(tfrecord::DocumentRecords::create(path, &options.key)?),
        CorpusFormat::Cpm2 => {
            let fix = "write token files: CPM-2's masks are chosen while training";
            return Err(Error::argument("--to", "the format cpm2 is read, not written", fix));
        }
    })
}

/// A path at which nothing is, for a result.
fn require_free(path: &Path) -> Result<()> {
    if path.file_name().is_none() {
        let reason = format!("\"{}\" has no file name", path.display());
        return Err(Error::argument("out", reason, "give a path that ends in a name"));
    }
    if path.symlink_metadata().is_ok() {
        let reason = format!("{} is there already", path.display());
        return Err(Error::argument("out", reason, "choose another path, or remove it"));
    }
    Ok(())
}

/// The paths that a file or directory stands for, with the bytes of each.
fn sized(paths: Vec<PathBuf>) -> Result<Vec<(PathBuf, u64)>> {
    let length = |path: PathBuf| {
        let bytes = std::fs::metadata(&path).map_err(|error| model_center_base::file::unreadable(&path, error));
        Ok((path, bytes.map_err(model_center_formats::io::input::of_data)?.len()))
    };
    paths.into_iter().map(length).collect()
}
