//! A disk that is full, or broken, from a chosen change on.

use crate::checkpoint::disk::{Disk, EntryKind, ReadFile, WriteFile};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Way in which a [`FailingDisk`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `ENOSPC` at the chosen change and at everything after it that needs room; removing and renaming still work.
    Full,
    /// `EIO` at the chosen change alone, whatever it is.
    Broken,
}

/// Passes everything on to another disk, but for changes that fail: making files and directories, writing, flushing,
/// renaming, removing. A write that fails has written half.
#[derive(Debug, Clone)]
pub struct FailingDisk {
    inner: Arc<dyn Disk>,
    plan: Arc<FailurePlan>,
}

#[derive(Debug)]
struct FailurePlan {
    failure: Failure,
    at: u64,
    changes: AtomicU64,
}

impl FailurePlan {
    /// Count a change; whether it fails.
    fn fails(&self, needs_room: bool) -> io::Result<()> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        match self.failure {
            Failure::Full if number >= self.at && needs_room => Err(Errno::NOSPC.into()),
            Failure::Broken if number == self.at => Err(Errno::IO.into()),
            _ => Ok(()),
        }
    }
}

impl FailingDisk {
    /// Fails at change number `at`, counted from 0.
    pub fn new(inner: Arc<dyn Disk>, failure: Failure, at: u64) -> Self {
        FailingDisk { inner, plan: Arc::new(FailurePlan { failure, at, changes: AtomicU64::new(0) }) }
    }

    /// Number of changes; those that failed count.
    pub fn changes(&self) -> u64 {
        self.plan.changes.load(Ordering::Relaxed)
    }
}

impl Disk for FailingDisk {
    fn place(&self) -> String {
        self.inner.place()
    }

    fn list(&self, directory: Option<&str>) -> io::Result<Vec<(String, EntryKind)>> {
        self.inner.list(directory)
    }

    fn create_directory(&self, directory: &str) -> io::Result<()> {
        self.plan.fails(true)?;
        self.inner.create_directory(directory)
    }

    fn create(&self, directory: &str, file: &str) -> io::Result<Box<dyn WriteFile>> {
        self.plan.fails(true)?;
        let file = self.inner.create(directory, file)?;
        Ok(Box::new(FailingFile { file, plan: self.plan.clone() }))
    }

    fn open(&self, directory: &str, file: &str) -> io::Result<Box<dyn ReadFile>> {
        self.inner.open(directory, file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.plan.fails(false)?;
        self.inner.rename(from, to)
    }

    fn sync_directory(&self, directory: Option<&str>) -> io::Result<()> {
        self.plan.fails(true)?;
        self.inner.sync_directory(directory)
    }

    fn remove_file(&self, directory: &str, file: &str) -> io::Result<()> {
        self.plan.fails(false)?;
        self.inner.remove_file(directory, file)
    }

    fn remove_directory(&self, directory: &str) -> io::Result<()> {
        self.plan.fails(false)?;
        self.inner.remove_directory(directory)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
}

#[derive(Debug)]
struct FailingFile {
    file: Box<dyn WriteFile>,
    plan: Arc<FailurePlan>,
}

impl WriteFile for FailingFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.plan.fails(true) {
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.plan.fails(true)?;
        self.file.sync()
    }
}
