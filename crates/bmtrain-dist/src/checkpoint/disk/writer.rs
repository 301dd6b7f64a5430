//! Save a checkpoint atomically: it is complete or does not exist.
//!
//! Every rank writes its file into `step-N.tmp-ID/`, flushes and closes it, and reports a [`FileRecord`]. One rank then
//! writes the manifest, flushes it, flushes the directory, renames it, and flushes the directory above. Until the
//! rename the previous checkpoint is the newest; from then on this one is.
//!
//! Called mostly on a [`SaveThread`](super::SaveThread).

use super::coverage::logical_tensors;
use super::fail_point::{FailPoint, FailPoints};
use super::fault::{printable, refused, request};
use super::filesystem::{Disk, EntryKind};
use super::manifest::{Facts, Manifest};
use super::name::{self, CheckpointName, MANIFEST_FILE};
use super::piece::{FileRecord, PieceSpec, TensorPiece};
use super::shard::ShardWriter;
use super::store::Store;
use crate::error::{Error, Fault, Result};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

/// A save in progress. Every rank has one, with the same step and id; all write to one directory.
#[derive(Debug, Clone)]
pub struct Writer {
    store: Store,
    step: u64,
    directory: String,
}

/// A committed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The name of its directory.
    pub name: CheckpointName,
    /// Bytes of its files, without the manifest.
    pub bytes: u64,
}

impl Writer {
    /// Create or open the temporary directory of a save of optimizer step `step`. `id` is the same on all ranks and
    /// different for every attempt: 1 to 64 letters, digits, hyphens and underscores.
    pub fn begin(store: &Store, step: u64, id: &str) -> Result<Self> {
        if !name::is_id(id) {
            let reason = format!("invalid id of a save: {:?}", printable(id, 80));
            return Err(request(store.place(), reason, "use 1 to 64 letters, digits, - and _"));
        }
        let writer = Writer { store: store.clone(), step, directory: name::temporary(step, id) };
        writer.fail_points().reach(FailPoint::SaveBeforeDirectory)?;
        match writer.disk().create_directory(&writer.directory) {
            Ok(()) => Ok(writer),
            // Another rank was faster.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(writer),
            Err(e) => Err(refused(writer.place(""), "make this directory", &e)),
        }
    }

    /// The step that is saved.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Store to which it is saved.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Write all pieces that `rank` holds to its file.
    pub fn write_shard<B: AsRef<[u8]>>(&self, rank: usize, pieces: &[TensorPiece<B>]) -> Result<FileRecord> {
        for piece in pieces {
            let got = piece.bytes.as_ref().len() as u64;
            if piece.spec.bytes() != Some(got) {
                let (spec, place) = (&piece.spec, self.place(&name::shard_file(rank)));
                let count = spec.count().unwrap_or(u64::MAX);
                let reason = format!("{} {}: {got} bytes for {count} x {}", spec.kind, spec.name, spec.dtype);
                return Err(request(place, reason, "give each piece exactly its elements"));
            }
        }
        // The same stable order as the writer's own.
        let mut order: Vec<&TensorPiece<B>> = pieces.iter().collect();
        order.sort_by_key(|piece| std::cmp::Reverse(piece.spec.dtype.size()));
        let write = || {
            let mut shard = self.shard(rank, order.iter().map(|piece| piece.spec.clone()).collect())?;
            order.iter().try_for_each(|piece| shard.write(piece.bytes.as_ref()))?;
            shard.finish()
        };
        write().inspect_err(|_| {
            let _ = self.disk().remove_file(&self.directory, &name::shard_file(rank));
        })
    }

    /// Start the file of `rank` for pieces whose bytes come later, for callers that do not hold them all at once.
    pub fn shard(&self, rank: usize, specs: Vec<PieceSpec>) -> Result<ShardWriter> {
        self.fail_points().reach(FailPoint::SaveBeforeShard)?;
        let file_name = name::shard_file(rank);
        let place = self.place(&file_name);
        let file =
            self.disk().create(&self.directory, &file_name).map_err(|e| refused(&place, "make this file", &e))?;
        ShardWriter::start(file, file_name, place, self.fail_points().clone(), specs)
    }

    /// Make the files of all ranks a checkpoint. One rank calls this, when all records are there.
    ///
    /// If a checkpoint with the same contents exists already, it is returned if intact and replaced if damaged.
    ///
    /// # Errors
    /// Files that are not there or not as recorded (ranks that do not share this disk), tensors that are not covered
    /// exactly once, facts that cannot be stored. The temporary directory is then removed as far as possible.
    pub fn commit(self, records: Vec<FileRecord>, facts: Facts) -> Result<Committed> {
        let committed = self.commit_as(records, facts);
        if committed.is_err() {
            self.abandon();
        }
        committed
    }

    /// Abandon the save and remove its directory, as far as the disk permits; the rest is removed as a leftover at the
    /// next start. One rank calls this, when no other writes any more.
    pub fn abandon(self) {
        if let Err(error) = self.store.remove_directory(&self.directory) {
            tracing::warn!("an abandoned save stays until the next start: {error}");
        }
    }

    fn commit_as(&self, mut records: Vec<FileRecord>, facts: Facts) -> Result<Committed> {
        self.fail_points().reach(FailPoint::SaveBeforeManifest)?;
        records.sort_by(|a, b| a.name.cmp(&b.name));
        let manifest = Manifest { step: self.step, facts, files: records };
        let wrong = |reason| request(self.place(""), reason, "let every rank report what it wrote, once");
        let (text, hash) = manifest.encode().map_err(wrong)?;
        logical_tensors(&manifest.files).map_err(wrong)?;
        self.check_files(&manifest.files)?;
        self.write_manifest(&text)?;
        self.fail_points().reach(FailPoint::SaveBeforeDirectoryFsync)?;
        self.disk()
            .sync_directory(Some(&self.directory))
            .map_err(|e| refused(self.place(""), "flush this directory", &e))?;
        self.fail_points().reach(FailPoint::SaveBeforeRename)?;
        let committed = Committed { name: CheckpointName::new(self.step, &hash), bytes: manifest.bytes() };
        if self.is_there(&committed.name)? {
            self.store.remove_directory(&self.directory)?;
            return Ok(committed);
        }
        let target = committed.name.to_string();
        let renamed = self.disk().rename(&self.directory, &target);
        renamed.map_err(|e| refused(self.place(""), &format!("rename this directory to {target}"), &e))?;
        self.fail_points().reach(FailPoint::SaveAfterRename)?;
        self.disk().sync_directory(None).map_err(|e| refused(self.store.place(), "flush this directory", &e))?;
        self.fail_points().reach(FailPoint::SaveAfterCommit)?;
        Ok(committed)
    }

    /// The directory holds the recorded files with the recorded lengths and nothing else.
    fn check_files(&self, records: &[FileRecord]) -> Result<()> {
        let entries =
            self.disk().list(Some(&self.directory)).map_err(|e| refused(self.place(""), "list this directory", &e))?;
        let recorded: BTreeSet<&str> = records.iter().map(|record| record.name.as_str()).collect();
        if let Some((other, _)) =
            entries.iter().find(|(name, kind)| *kind != EntryKind::File || !recorded.contains(name.as_str()))
        {
            let reason = "no rank reported this file";
            return Err(request(self.place(other), reason, "use a new id for every save, and a directory of its own"));
        }
        for record in records {
            let place = self.place(&record.name);
            let fix = "let all ranks save to one shared disk";
            let file = self.disk().open(&self.directory, &record.name).map_err(|e| match e.kind() {
                ErrorKind::NotFound => request(&place, "a rank wrote this file, but it is not here", fix),
                _ => refused(&place, "open this file", &e),
            })?;
            if file.size() != record.bytes {
                let reason = format!("a rank wrote {} bytes, here are {}", record.bytes, file.size());
                return Err(request(place, reason, fix));
            }
        }
        Ok(())
    }

    fn write_manifest(&self, text: &[u8]) -> Result<()> {
        let place = self.place(MANIFEST_FILE);
        let mut file =
            self.disk().create(&self.directory, MANIFEST_FILE).map_err(|e| refused(&place, "make this file", &e))?;
        let (first, second) = text.split_at(text.len() / 2);
        file.write_all(first).map_err(|e| refused(&place, "write", &e))?;
        self.fail_points().reach(FailPoint::SaveMidManifest)?;
        file.write_all(second).map_err(|e| refused(&place, "write", &e))?;
        self.fail_points().reach(FailPoint::SaveBeforeManifestFsync)?;
        file.sync().map_err(|e| refused(&place, "flush", &e))
    }

    /// Whether this checkpoint is there and whole; if it is there and damaged, it is set aside.
    fn is_there(&self, name: &CheckpointName) -> Result<bool> {
        if !self.store.list()?.contains(name) {
            return Ok(false);
        }
        match self.store.verify(name) {
            Ok(_) => Ok(true),
            Err(Error::Checkpoint { fault: Fault::Damaged, .. }) => self.store.remove(name).map(|()| false),
            Err(error) => Err(error),
        }
    }

    fn disk(&self) -> &Arc<dyn Disk> {
        self.store.disk()
    }

    fn fail_points(&self) -> &FailPoints {
        self.store.fail_points()
    }

    fn place(&self, file: &str) -> String {
        self.store.place_of(&self.directory, file)
    }
}
