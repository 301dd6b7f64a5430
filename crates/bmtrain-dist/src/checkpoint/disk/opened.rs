//! A checkpoint that was opened: its contents, and any range of any tensor, from any number of files.
//!
//! No byte is returned before the hash of its piece was verified. Defines [`Checkpoint`]; made by [`Store`], read when
//! state is restored, by the digest and by resharding.

use super::coverage::{LogicalTensor, TensorRun, logical_tensors};
use super::fault::{damaged, missing, printable, request, unreadable};
use super::filesystem::ReadFile;
use super::hash::ContentHash;
use super::manifest::Manifest;
use super::name::CheckpointName;
use super::piece::{Kind, PieceRecord};
use super::shard::CHUNK;
use super::store::{Contents, Store};
use crate::error::{Error, Result};
use bmtrain_core::limits::make_room;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open checkpoint. Holds no file open; threads may read through one at the same time.
#[derive(Debug)]
pub struct Checkpoint {
    store: Store,
    name: CheckpointName,
    directory: String,
    manifest: Manifest,
    tensors: Vec<LogicalTensor>,
    /// For every file, which pieces were verified.
    checked: Vec<Vec<AtomicBool>>,
}

impl Checkpoint {
    pub(super) fn new(store: Store, name: CheckpointName, manifest: Manifest) -> Result<Self, String> {
        let tensors = logical_tensors(&manifest.files)?;
        let flags = |pieces: &[PieceRecord]| pieces.iter().map(|_| AtomicBool::new(false)).collect();
        let checked = manifest.files.iter().map(|file| flags(&file.pieces)).collect();
        Ok(Checkpoint { store, directory: name.to_string(), name, manifest, tensors, checked })
    }

    /// Its name.
    pub fn name(&self) -> &CheckpointName {
        &self.name
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All tensors, sorted by name and kind.
    pub fn tensors(&self) -> &[LogicalTensor] {
        &self.tensors
    }

    /// A tensor, if the checkpoint has it.
    pub fn tensor(&self, name: &str, kind: &Kind) -> Option<&LogicalTensor> {
        let found = self.tensors.binary_search_by(|tensor| (tensor.name.as_str(), &tensor.kind).cmp(&(name, kind)));
        found.ok().and_then(|at| self.tensors.get(at))
    }

    /// The size of its contents.
    pub fn contents(&self) -> Contents {
        Contents { files: self.manifest.files.len(), tensors: self.tensors.len(), bytes: self.manifest.bytes() }
    }

    /// Elements `range` of a tensor, flattened row by row, as little-endian bytes.
    ///
    /// # Errors
    /// No such tensor or range; [`Fault::Damaged`](super::Fault::Damaged) if a piece is not as it was written.
    pub fn read_range(&self, name: &str, kind: &Kind, range: Range<u64>) -> Result<Vec<u8>> {
        let length = self.range_bytes(self.find(name, kind)?, &range)?;
        let mut bytes = Vec::new();
        make_room(&mut bytes, length, format_args!("{kind} {name} of {}", self.directory))?;
        bytes.resize(length, 0);
        self.read_range_into(name, kind, range, &mut bytes)?;
        Ok(bytes)
    }

    /// As [`read_range`](Checkpoint::read_range), into memory of exactly the right length. After an error it holds
    /// zeros.
    pub fn read_range_into(&self, name: &str, kind: &Kind, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let tensor = self.find(name, kind)?;
        let length = self.range_bytes(tensor, &range)?;
        if out.len() != length {
            let reason =
                format!("{}: elements {range:?} have {length} bytes, got room for {}", tensor.title(), out.len());
            return Err(request(&self.directory, reason, "give room for exactly these elements"));
        }
        let read = self.read_parts(tensor, &range, out);
        if read.is_err() {
            out.fill(0);
        }
        read
    }

    fn read_parts(&self, tensor: &LogicalTensor, range: &Range<u64>, mut out: &mut [u8]) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let size = tensor.dtype.size();
        let first = tensor.parts.partition_point(|part| part.start + part.length <= range.start);
        for part in tensor.parts.iter().skip(first).take_while(|part| part.start < range.end) {
            let from = range.start.max(part.start) - part.start;
            let to = range.end.min(part.start + part.length) - part.start;
            // No more than `out` has bytes, which is a length of memory.
            let (here, rest) = out.split_at_mut((to - from) as usize * size);
            self.read_part(part, from * size as u64, here)?;
            out = rest;
        }
        Ok(())
    }

    /// Bytes of one piece from byte `from` on, the whole piece being hashed in the same pass if it was not yet.
    fn read_part(&self, part: &TensorRun, from: u64, out: &mut [u8]) -> Result<()> {
        let (record, file) = self.open_piece(part)?;
        let flag = &self.checked[part.file][part.piece];
        let read = |bytes: &mut [u8], at: u64| {
            let answer = file.read_exact_at(bytes, record.offset + at);
            answer.map_err(|e| unreadable(self.place(part.file), &e))
        };
        if flag.load(Ordering::Acquire) {
            return read(out, from);
        }
        let mut hash = blake3::Hasher::new();
        let mut scratch = Vec::new();
        let mut pass_by = |span: Range<u64>, hash: &mut blake3::Hasher| {
            let span = record.offset + span.start..record.offset + span.end;
            self.each_chunk(&*file, part.file, span, &mut scratch, &mut |bytes| {
                hash.update(bytes);
                Ok(())
            })
        };
        pass_by(0..from, &mut hash)?;
        let mut at = from;
        for now in out.chunks_mut(CHUNK) {
            read(now, at)?;
            hash.update(now);
            at += now.len() as u64;
        }
        pass_by(at..record.spec.bytes().unwrap_or(0), &mut hash)?;
        self.require(part, record, &hash)?;
        flag.store(true, Ordering::Release);
        Ok(())
    }

    /// Read a piece in order, a chunk at a time. Its hash is verified only when this returns `Ok`: after an error the
    /// caller discards the chunks.
    pub(super) fn stream(&self, part: &TensorRun, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (record, file) = self.open_piece(part)?;
        let mut hash = blake3::Hasher::new();
        let span = record.offset..record.offset + record.spec.bytes().unwrap_or(0);
        self.each_chunk(&*file, part.file, span, &mut Vec::new(), &mut |bytes| {
            hash.update(bytes);
            sink(bytes)
        })?;
        self.require(part, record, &hash)
    }

    /// Read these bytes of a file in order, no more than [`CHUNK`] of them at a time.
    fn each_chunk(
        &self,
        file: &dyn ReadFile,
        number: usize,
        span: Range<u64>,
        buffer: &mut Vec<u8>,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = span.start;
        while at < span.end {
            let count = (span.end - at).min(CHUNK as u64) as usize;
            if buffer.len() < count {
                buffer.resize(count, 0);
            }
            let now = &mut buffer[..count];
            file.read_exact_at(now, at).map_err(|e| unreadable(self.place(number), &e))?;
            sink(now)?;
            at += count as u64;
        }
        Ok(())
    }

    fn open_piece(&self, part: &TensorRun) -> Result<(&PieceRecord, Box<dyn ReadFile>)> {
        Ok((&self.manifest.files[part.file].pieces[part.piece], self.open(part.file)?))
    }

    fn open(&self, file: usize) -> Result<Box<dyn ReadFile>> {
        let record = &self.manifest.files[file];
        let opened =
            self.store.disk().open(&self.directory, &record.name).map_err(|e| unreadable(self.place(file), &e))?;
        if opened.size() != record.bytes {
            let reason = format!("the file has {} bytes, written were {}", opened.size(), record.bytes);
            return Err(damaged(self.place(file), reason));
        }
        Ok(opened)
    }

    pub(super) fn check_sizes(&self) -> Result<()> {
        (0..self.manifest.files.len()).try_for_each(|file| self.open(file).map(drop))
    }

    /// Read every file once and compare its hash and the hashes of its pieces.
    pub(super) fn verify_files(&self) -> Result<()> {
        let mut buffer = Vec::new();
        (0..self.manifest.files.len()).try_for_each(|number| self.verify_file(number, &mut buffer))
    }

    fn verify_file(&self, number: usize, buffer: &mut Vec<u8>) -> Result<()> {
        let record = &self.manifest.files[number];
        let file = self.open(number)?;
        let mut whole = blake3::Hasher::new();
        let mut at = 0;
        let mut wrong = None;
        for piece in &record.pieces {
            self.each_chunk(&*file, number, at..piece.offset, buffer, &mut |bytes| {
                whole.update(bytes);
                Ok(())
            })?;
            at = piece.offset + piece.spec.bytes().unwrap_or(0);
            let mut hash = blake3::Hasher::new();
            self.each_chunk(&*file, number, piece.offset..at, buffer, &mut |bytes| {
                whole.update(bytes);
                hash.update(bytes);
                Ok(())
            })?;
            wrong = wrong.or((ContentHash::from(hash.finalize()) != piece.hash).then_some(piece));
        }
        self.each_chunk(&*file, number, at..record.bytes, buffer, &mut |bytes| {
            whole.update(bytes);
            Ok(())
        })?;
        match wrong {
            // The more precise answer of the two.
            Some(piece) => Err(self.differs(number, piece)),
            None if ContentHash::from(whole.finalize()) == record.hash => Ok(()),
            None => Err(damaged(self.place(number), "the file is not as it was written: its hash differs")),
        }
    }

    fn require(&self, part: &TensorRun, record: &PieceRecord, hash: &blake3::Hasher) -> Result<()> {
        let right = ContentHash::from(hash.finalize()) == record.hash;
        if right { Ok(()) } else { Err(self.differs(part.file, record)) }
    }

    fn differs(&self, file: usize, piece: &PieceRecord) -> Error {
        let (spec, place) = (&piece.spec, self.place(file));
        let reason = format!("{} {} is not as it was written: its hash differs", spec.kind, spec.name);
        damaged(place, reason)
    }

    fn find(&self, name: &str, kind: &Kind) -> Result<&LogicalTensor> {
        self.tensor(name, kind)
            .ok_or_else(|| missing(&self.directory, format!("there is no {kind} {}", printable(name, 200))))
    }

    fn range_bytes(&self, tensor: &LogicalTensor, range: &Range<u64>) -> Result<usize> {
        if range.start > range.end || range.end > tensor.elements {
            let reason = format!("{}: elements {range:?} of {}", tensor.title(), tensor.elements);
            return Err(missing(&self.directory, reason));
        }
        let bytes = (range.end - range.start).saturating_mul(tensor.dtype.size() as u64);
        usize::try_from(bytes).map_err(|_| missing(&self.directory, "a range larger than memory"))
    }

    pub(super) fn place(&self, file: usize) -> String {
        self.store.place_of(&self.directory, &self.manifest.files[file].name)
    }
}
