//! Writing shards of documents as NumPy arrays of objects, and `sizes.txt` last: a directory without it is not whole.
//! The directory appears with all of them.
//!
//! Defines [`NpyShards`]; `npy_shards` reads them.

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use super::npy_shards::SIZES;
use super::numpy::{global, integer, text};
use super::{DocumentWriter, require_free};
use crate::{Error, Result};
use model_center_base::file::{AtomicFile, StagedDirectory, write_atomic};
use model_center_data::corpus::npy::header;
use model_center_data::corpus::token_type::TokenType;
use model_center_formats::pickle::opcode;

/// Writes shards of documents.
#[derive(Debug)]
pub(super) struct NpyShards {
    directory: StagedDirectory,
    token: TokenType,
    shard_documents: u64,
    sizes: serde_json::Map<String, serde_json::Value>,
    open: Option<ShardWriter>,
    document: Vec<u32>,
}

impl NpyShards {
    pub(super) fn create(directory: &Path, token: TokenType, shard_documents: u64) -> Result<NpyShards> {
        require_free(directory)?;
        if shard_documents == 0 {
            return Err(Error::argument("--shard-documents", "shards of 0 documents", "use 1 or more"));
        }
        let directory = StagedDirectory::create(directory.to_owned())?;
        let (open, sizes, document) = (None, serde_json::Map::new(), Vec::new());
        Ok(NpyShards { directory, token, shard_documents, sizes, open, document })
    }

    fn end_shard(&mut self) -> Result<()> {
        let Some(shard) = self.open.take() else { return Ok(()) };
        let name = shard.file.target().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tokens = shard.finish()?;
        self.sizes.insert(name, tokens.into());
        Ok(())
    }
}

impl DocumentWriter for NpyShards {
    fn add_sequence(&mut self, ids: &[u32]) -> Result<()> {
        self.document.extend_from_slice(ids);
        Ok(())
    }

    fn end_document(&mut self) -> Result<()> {
        if self.open.as_ref().is_some_and(|shard| shard.documents == self.shard_documents) {
            self.end_shard()?;
        }
        if self.open.is_none() {
            let name = format!("Data16-{}.npy", self.sizes.len());
            self.open = Some(ShardWriter::create(&self.directory.path().join(name), self.token)?);
        }
        if let Some(shard) = &mut self.open {
            shard.add(&self.document)?;
        }
        self.document.clear();
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.end_shard()?;
        let text = serde_json::Value::Object(self.sizes).to_string();
        write_atomic(&self.directory.path().join(SIZES), text.as_bytes())?;
        self.directory.commit().map(drop)
    }
}

/// Writes one shard: the header, and the pickle of an array of objects as NumPy writes it. The number of documents,
/// which both begin with, is filled in at the end.
#[derive(Debug)]
struct ShardWriter {
    file: AtomicFile,
    out: BufWriter<std::fs::File>,
    token: TokenType,
    documents: u64,
    tokens: u64,
    /// Position of the number in the pickle.
    count_at: u64,
    bytes: Vec<u8>,
}

/// Module of NumPy that makes an array: the name of the versions before 2, which later ones know.
const MULTIARRAY: &str = "numpy.core.multiarray";
/// The number under which the pickle remembers the type of the ids.
const TYPE_MEMO: u8 = 0;

impl ShardWriter {
    fn create(path: &Path, token: TokenType) -> Result<ShardWriter> {
        let file = AtomicFile::create(path)?;
        let out = BufWriter::with_capacity(1 << 20, file.file().try_clone().map_err(|error| file.refused(error))?);
        let mut bytes = header("|O", 0, 1);
        bytes.extend([opcode::PROTO, 4]);
        reconstruct(&mut bytes);
        // The state: version, shape, type, order, objects.
        bytes.extend([opcode::MARK, opcode::BININT1, 1, opcode::BININT]);
        let count_at = bytes.len() as u64;
        bytes.extend([0; 4]);
        bytes.push(opcode::TUPLE1);
        dtype("O8", "|", &mut bytes);
        bytes.extend([opcode::NEWFALSE, opcode::EMPTY_LIST]);
        let mut shard = ShardWriter { file, out, token, documents: 0, tokens: 0, count_at, bytes };
        shard.put()?;
        Ok(shard)
    }

    fn put(&mut self) -> Result<()> {
        let written = self.out.write_all(&self.bytes);
        self.bytes.clear();
        written.map_err(|error| self.file.refused(error))
    }

    /// Appends an array of ids.
    fn add(&mut self, ids: &[u32]) -> Result<()> {
        let mut stored = Vec::with_capacity(ids.len() * self.token.bytes() as usize);
        self.token.encode(ids, &mut stored)?;
        let bytes = &mut self.bytes;
        reconstruct(bytes);
        bytes.extend([opcode::MARK, opcode::BININT1, 1]);
        integer(ids.len() as u64, bytes);
        bytes.push(opcode::TUPLE1);
        if self.documents == 0 {
            dtype(stored_name(self.token), "<", bytes);
            bytes.extend([opcode::BINPUT, TYPE_MEMO]);
        } else {
            bytes.extend([opcode::BINGET, TYPE_MEMO]);
        }
        bytes.extend([opcode::NEWFALSE, opcode::BINBYTES8]);
        bytes.extend((stored.len() as u64).to_le_bytes());
        bytes.extend(&stored);
        bytes.extend([opcode::TUPLE, opcode::BUILD, opcode::APPEND]);
        self.documents += 1;
        self.tokens += ids.len() as u64;
        self.put()
    }

    /// The tokens of the shard.
    fn finish(mut self) -> Result<u64> {
        self.bytes.extend([opcode::TUPLE, opcode::BUILD, opcode::STOP]);
        self.put()?;
        let count = i32::try_from(self.documents).map_err(|_| {
            Error::argument("--shard-documents", "more than 2^31 - 1 documents in a file", "use a smaller number")
        })?;
        let (start, at) = (header("|O", self.documents, 1), self.count_at);
        let out = &mut self.out;
        let written = out.seek(SeekFrom::Start(0)).and_then(|_| out.write_all(&start));
        let written =
            written.and_then(|()| out.seek(SeekFrom::Start(at))).and_then(|_| out.write_all(&count.to_le_bytes()));
        written.and_then(|()| out.flush()).map_err(|error| self.file.refused(error))?;
        self.file.commit()?;
        Ok(self.tokens)
    }
}

/// The call that makes an empty array, whose state follows.
fn reconstruct(out: &mut Vec<u8>) {
    global(MULTIARRAY, "_reconstruct", out);
    global("numpy", "ndarray", out);
    out.extend([opcode::BININT1, 0, opcode::TUPLE1, opcode::SHORT_BINBYTES, 1, b'b', opcode::TUPLE3, opcode::REDUCE]);
}

/// A type of NumPy.
fn dtype(name: &str, order: &str, out: &mut Vec<u8>) {
    global("numpy", "dtype", out);
    text(name, out);
    out.extend([opcode::NEWFALSE, opcode::NEWTRUE, opcode::TUPLE3, opcode::REDUCE]);
    // The state: version, order of bytes, no fields, sizes that are implied, flags.
    out.extend([opcode::MARK, opcode::BININT1, 3]);
    text(order, out);
    out.extend([opcode::NONE, opcode::NONE, opcode::NONE]);
    for implied in [-1_i32, -1] {
        out.push(opcode::BININT);
        out.extend(implied.to_le_bytes());
    }
    let flags = if name == "O8" { 63 } else { 0 };
    out.extend([opcode::BININT1, flags, opcode::TUPLE, opcode::BUILD]);
}

fn stored_name(token: TokenType) -> &'static str {
    match token {
        TokenType::U8 => "u1",
        TokenType::I8 => "i1",
        TokenType::I16 => "i2",
        TokenType::U16 => "u2",
        TokenType::I32 => "i4",
        TokenType::I64 => "i8",
    }
}
