//! BMTrain's block files: pickled records in blocks of one size, so that ranks read blocks of their own.
//!
//! A directory has `meta.bin`, the list of its files ([`BlockFiles`](super::BlockFiles)), and these files. A block
//! begins with records, each a byte 0x1F and a pickle, and is filled with zero bytes, at least one.
//! Defines [`Records`], which walks over the records of a file, [`BlockDocuments`] and [`BlockWriter`]. Records are
//! written as lists of ids.

use std::collections::VecDeque;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::block_files::{BlockFile, BlockFiles};
use super::numpy::{Pickled, list, read_pickle};
use super::{DocumentPart, DocumentWriter, StatedCounts, TokenDocuments, require_free};
use crate::{Error, Result};
use model_center_base::file::{AtomicFile, StagedDirectory};
use model_center_data::corpus::positioned::PositionedFile;
use model_center_formats::pickle::PlainPickle;

/// The file with the list of files.
pub(super) const META: &str = "meta.bin";
/// Default size of BMTrain's blocks.
pub const DEFAULT_BLOCK_BYTES: u64 = 16 << 20;
/// First byte of a record.
const RECORD: u8 = 0x1F;
/// Byte after the last record of a block.
const END: u8 = 0;
/// Zero bytes after the last block of a file are written in pieces of this many.
const ZEROS: [u8; 1 << 12] = [0; 1 << 12];

/// Walks over the records of a file.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) file: PositionedFile,
    block_bytes: u64,
    at: u64,
    records: u64,
    bytes: u64,
    entry: BlockFile,
}

impl Records {
    /// Opens a file of a directory, and compares its length with its number of blocks.
    pub(super) fn open(directory: &Path, entry: &BlockFile) -> Result<Records> {
        let file = PositionedFile::open(&directory.join(&entry.name))?;
        let blocks = entry.blocks.end - entry.blocks.start;
        if blocks == 0 || !file.length().is_multiple_of(blocks) || file.length() < 2 * blocks {
            let reason = format!("{META} states {blocks} blocks, and the file has {} bytes", file.length());
            return Err(file.corrupt(reason));
        }
        let block_bytes = file.length() / blocks;
        Ok(Records { file, block_bytes, at: 0, records: 0, bytes: 0, entry: entry.clone() })
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Read position in the file.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// The next record, and where its pickle is in the file.
    pub(super) fn advance(&mut self) -> Result<Option<(PlainPickle, Range<u64>)>> {
        while self.at < self.file.length() {
            let block_end = (self.at / self.block_bytes + 1) * self.block_bytes;
            let mut kind = [0];
            self.file.read_at(self.at, &mut kind)?;
            match kind[0] {
                END => self.at = block_end,
                RECORD => {
                    let start = self.at + 1;
                    let (pickle, end) = read_pickle(&self.file, start, block_end)?;
                    if end == block_end {
                        return Err(self.file.corrupt(format!("the block before byte {end} has no end")));
                    }
                    self.at = end;
                    self.records += 1;
                    self.bytes += end - start;
                    return Ok(Some((pickle, start..end)));
                }
                other => {
                    let reason = format!("byte {} is 0x{other:02X}, neither a record nor the end of a block", self.at);
                    return Err(self.file.corrupt(reason));
                }
            }
        }
        let BlockFile { records, bytes, .. } = self.entry;
        if (records, bytes) != (self.records, self.bytes) {
            let found = format!("{} records of {} bytes", self.records, self.bytes);
            return Err(self.file.corrupt(format!("{found}, and {META} states {records} of {bytes}")));
        }
        Ok(None)
    }
}

/// The documents of the block files that are not masked, each record a document.
#[derive(Debug)]
pub(super) struct BlockDocuments {
    directory: PathBuf,
    key: String,
    files: VecDeque<BlockFile>,
    open: Option<Records>,
    total: u64,
    read: u64,
    in_document: bool,
}

impl BlockDocuments {
    pub(super) fn open(directory: &Path, key: &str) -> Result<BlockDocuments> {
        let files: VecDeque<BlockFile> = BlockFiles::read(directory)?.readable(directory).cloned().collect();
        let mut total = 0;
        for file in &files {
            total += Records::open(directory, file)?.file.length();
        }
        let (open, read, in_document) = (None, 0, false);
        Ok(BlockDocuments {
            directory: directory.to_owned(),
            key: key.to_owned(),
            files,
            open,
            total,
            read,
            in_document,
        })
    }
}

impl TokenDocuments for BlockDocuments {
    fn advance(&mut self, ids: &mut Vec<u32>) -> Result<Option<DocumentPart>> {
        if std::mem::take(&mut self.in_document) {
            return Ok(Some(DocumentPart::End));
        }
        loop {
            if let Some(records) = &mut self.open {
                if let Some((pickle, _)) = records.advance()? {
                    ids.clear();
                    Pickled { file: &records.file, pickle: &pickle }.ids(pickle.root(), &self.key, ids)?;
                    self.in_document = true;
                    return Ok(Some(DocumentPart::Sequence));
                }
                self.read += records.file.length();
            }
            self.open = match self.files.pop_front() {
                Some(file) => Some(Records::open(&self.directory, &file)?),
                None => return Ok(None),
            };
        }
    }

    fn total_bytes(&self) -> u64 {
        self.total
    }

    fn stated(&self) -> StatedCounts {
        StatedCounts { documents: Some(self.files.iter().map(|file| file.records).sum()), tokens: None }
    }

    fn read_bytes(&self) -> u64 {
        (self.read + self.open.as_ref().map_or(0, Records::position)).min(self.total)
    }
}

/// Writes a block file, and then its entry in `meta.bin`.
#[derive(Debug)]
pub(super) struct BlockWriter {
    directory: PathBuf,
    /// Staged directory of a dataset of its own.
    staged: Option<StagedDirectory>,
    name: String,
    file: AtomicFile,
    out: BufWriter<std::fs::File>,
    block_bytes: u64,
    in_block: u64,
    blocks: u64,
    records: u64,
    bytes: u64,
    document: Vec<u32>,
    record: Vec<u8>,
}

impl BlockWriter {
    /// Begins a dataset of its own, whose directory appears when it is whole.
    pub(super) fn create(directory: &Path, block_bytes: u64) -> Result<BlockWriter> {
        require_free(directory)?;
        let staged = StagedDirectory::create(directory.to_owned())?;
        let begun = BlockWriter::add_to(staged.path(), "data", block_bytes)?;
        Ok(BlockWriter { staged: Some(staged), ..begun })
    }

    /// Directory of the files while they are written.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Begins a file of a dataset, which must not have one of this name.
    pub(super) fn add_to(directory: &Path, name: &str, block_bytes: u64) -> Result<BlockWriter> {
        if block_bytes < 16 {
            return Err(Error::argument("--block-bytes", format!("blocks of {block_bytes} bytes"), "use 16 or more"));
        }
        let path = directory.join(name);
        require_free(&path)?;
        let file = AtomicFile::create(&path)?;
        let out = BufWriter::with_capacity(1 << 20, file.file().try_clone().map_err(|error| file.refused(error))?);
        Ok(BlockWriter {
            directory: directory.to_owned(),
            staged: None,
            name: name.to_owned(),
            file,
            out,
            block_bytes,
            in_block: 0,
            blocks: 1,
            records: 0,
            bytes: 0,
            document: Vec::new(),
            record: Vec::new(),
        })
    }

    /// Appends a record by its pickle.
    pub(super) fn add_record(&mut self, pickle: &[u8]) -> Result<()> {
        // Its first byte, and the zero that follows.
        let needed = pickle.len() as u64 + 2;
        if needed > self.block_bytes {
            let reason = format!("a record of {} bytes does not fit a block of {}", pickle.len(), self.block_bytes);
            return Err(Error::argument("--block-bytes", reason, "use larger blocks, or split the document"));
        }
        if self.in_block + needed > self.block_bytes {
            self.fill_block()?;
            self.in_block = 0;
            self.blocks += 1;
        }
        let written = self.out.write_all(&[RECORD]).and_then(|()| self.out.write_all(pickle));
        written.map_err(|error| self.file.refused(error))?;
        self.in_block += needed - 1;
        self.bytes += pickle.len() as u64;
        self.records += 1;
        Ok(())
    }

    fn fill_block(&mut self) -> Result<()> {
        let mut left = self.block_bytes - self.in_block;
        while left > 0 {
            let part = left.min(ZEROS.len() as u64);
            self.out.write_all(&ZEROS[..part as usize]).map_err(|error| self.file.refused(error))?;
            left -= part;
        }
        Ok(())
    }

    /// Completes the file and names it in `meta.bin`.
    pub(super) fn complete(mut self) -> Result<()> {
        self.fill_block()?;
        self.out.flush().map_err(|error| self.file.refused(error))?;
        drop(self.out);
        self.file.commit()?;
        let mut files = match self.directory.join(META).exists() {
            true => BlockFiles::read(&self.directory)?,
            false => BlockFiles::default(),
        };
        files.append(self.name, self.blocks, self.records, self.bytes);
        files.write(&self.directory)?;
        self.staged.map_or(Ok(()), |staged| staged.commit().map(drop))
    }
}

impl DocumentWriter for BlockWriter {
    fn add_sequence(&mut self, ids: &[u32]) -> Result<()> {
        self.document.extend_from_slice(ids);
        Ok(())
    }

    fn end_document(&mut self) -> Result<()> {
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        list(&self.document, &mut record);
        self.document.clear();
        let added = self.add_record(&record);
        self.record = record;
        added
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.complete()
    }
}
