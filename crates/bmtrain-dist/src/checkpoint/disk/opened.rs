//! A checkpoint that was opened: its contents, and any range of any tensor, from any number of files.
//!
//! No byte is returned before the hash of its piece was verified. Defines [`Checkpoint`]; made by [`Store`], read when
//! state is restored, by the digest and by resharding.

use super::coverage::{LogicalTensor, TensorRuns, logical_tensors};
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

/// Neighbouring elements of a tensor, flattened row by row, and where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementRun {
    /// The first of them in the tensor.
    pub start: u64,
    /// Their number.
    pub length: u64,
    /// The place of the first one in the memory they are read into, in elements.
    pub at: u64,
}

impl ElementRun {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }
}

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
        let run = ElementRun { start: range.start, length: range.end - range.start, at: 0 };
        self.read_sorted(tensor, &[run], out)
    }

    /// Read several runs of a tensor, which share no elements: each piece that holds wanted elements is read once. What
    /// no run fills stays as it is; after an error `out` holds zeros.
    pub fn read_runs(&self, name: &str, kind: &Kind, runs: &[ElementRun], out: &mut [u8]) -> Result<()> {
        let tensor = self.find(name, kind)?;
        let room = (out.len() / tensor.dtype.size()) as u64;
        for run in runs {
            self.range_bytes(tensor, &(run.start..run.end()))?;
            if run.at.checked_add(run.length).is_none_or(|end| end > room) {
                let reason = format!("{}: {run:?} leaves the room for {room} elements", tensor.title());
                return Err(request(&self.directory, reason, "give room for all elements"));
            }
        }
        let mut sorted: Vec<ElementRun> = runs.iter().copied().filter(|run| run.length > 0).collect();
        sorted.sort_by_key(|run| run.start);
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].end() > pair[1].start) {
            let reason = format!("{}: {:?} and {:?} share elements", tensor.title(), pair[0], pair[1]);
            return Err(request(&self.directory, reason, "ask for each element once"));
        }
        self.read_sorted(tensor, &sorted, out)
    }

    fn read_sorted(&self, tensor: &LogicalTensor, wanted: &[ElementRun], out: &mut [u8]) -> Result<()> {
        let read = tensor.parts.iter().try_for_each(|part| self.read_part(tensor, part, wanted, out));
        if read.is_err() {
            out.fill(0);
        }
        read
    }

    /// Read the wanted elements that a piece holds, the whole piece being hashed in the same pass if it was not yet.
    fn read_part(
        &self,
        tensor: &LogicalTensor,
        part: &TensorRuns,
        wanted: &[ElementRun],
        out: &mut [u8],
    ) -> Result<()> {
        let met = wanted.iter().filter_map(|run| part.meet(&(run.start..run.end())));
        let Some(met) = met.reduce(|all, one| all.start.min(one.start)..all.end.max(one.end)) else { return Ok(()) };
        let (size, (record, file)) = (tensor.dtype.size() as u64, self.open_piece(part)?);
        let flag = &self.checked[part.file][part.piece];
        let is_checked = flag.load(Ordering::Acquire);
        let span = if is_checked { met } else { 0..part.length * part.runs };
        let bytes = record.offset + span.start * size..record.offset + span.end * size;
        let mut hash = blake3::Hasher::new();
        let mut at = span.start;
        self.each_chunk(&*file, part.file, bytes, &mut Vec::new(), &mut |bytes| {
            if !is_checked {
                hash.update(bytes);
            }
            scatter(part, at, bytes, size as usize, wanted, out);
            // A chunk has whole elements: its length is a multiple of every size.
            at += bytes.len() as u64 / size;
            Ok(())
        })?;
        if !is_checked {
            self.require(part, record, &hash)?;
            flag.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Read a whole tensor in the order of its elements, a chunk at a time. Hashes are verified only when this returns
    /// `Ok`: after an error the caller discards the chunks.
    pub(super) fn stream(&self, tensor: &LogicalTensor, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if !tensor.is_strided() {
            return tensor.parts.iter().try_for_each(|part| self.stream_run(part, sink));
        }
        let (size, mut start) = (tensor.dtype.size() as u64, 0);
        let mut buffer = vec![0; CHUNK];
        while start < tensor.elements {
            let length = (tensor.elements - start).min(CHUNK as u64 / size);
            let chunk = &mut buffer[..(length * size) as usize];
            self.read_sorted(tensor, &[ElementRun { start, length, at: 0 }], chunk)?;
            sink(chunk)?;
            start += length;
        }
        Ok(())
    }

    fn stream_run(&self, part: &TensorRuns, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
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

    fn open_piece(&self, part: &TensorRuns) -> Result<(&PieceRecord, Box<dyn ReadFile>)> {
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

    fn require(&self, part: &TensorRuns, record: &PieceRecord, hash: &blake3::Hasher) -> Result<()> {
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

/// Copy the wanted elements that are in `bytes`, a piece's elements from `first` on, to their places.
fn scatter(part: &TensorRuns, first: u64, bytes: &[u8], size: usize, wanted: &[ElementRun], out: &mut [u8]) {
    let mut from = first;
    let end = first + (bytes.len() / size) as u64;
    while from < end {
        let run = from / part.length;
        let until = end.min((run + 1) * part.length);
        // These elements are neighbours in the tensor too.
        let (start, stop) = (part.begin(run) + from - run * part.length, part.begin(run) + until - run * part.length);
        let next = wanted.partition_point(|wanted| wanted.end() <= start);
        for wanted in wanted.iter().skip(next).take_while(|wanted| wanted.start < stop) {
            let (begin, end) = (wanted.start.max(start), wanted.end().min(stop));
            let source = (begin - start + from - first) as usize * size;
            let target = (begin - wanted.start + wanted.at) as usize * size;
            let length = (end - begin) as usize * size;
            if let (Some(source), Some(target)) =
                (bytes.get(source..source + length), out.get_mut(target..target + length))
            {
                target.copy_from_slice(source);
            }
        }
        from = until;
    }
}
