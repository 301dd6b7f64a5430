//! A directory in preparation, which appears under its name only once it is complete.

use super::model_files::FileHashes;
use super::output::WRITABLE;
use crate::file::{sync_directory, sync_tree, temporary_name};
use crate::{Error, Result};
use rustix::fs::{CWD, RenameFlags};
use std::fs;
use std::path::{Path, PathBuf};

/// Model directories are flat; this only bounds the walk.
const MAX_STAGED_DEPTH: usize = 8;

/// A directory in preparation. Dropped without [`commit`](StagedDirectory::commit), it vanishes.
#[derive(Debug)]
pub struct StagedDirectory {
    temporary: PathBuf,
    target: PathBuf,
    is_committed: bool,
}

impl StagedDirectory {
    /// Creates the directory in preparation for `target`.
    pub(crate) fn create(target: PathBuf) -> Result<Self> {
        let temporary = temporary_name(&target);
        remove(&temporary)?;
        fs::create_dir(&temporary).map_err(|e| Error::file("create", &temporary, e, WRITABLE))?;
        Ok(StagedDirectory { temporary, target, is_committed: false })
    }

    /// Where to write the files.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// The hashes of what was written so far; reads every byte of it.
    pub fn hashes(&self) -> Result<FileHashes> {
        FileHashes::of(&self.temporary)
    }

    /// Flushes the files to the disk, as [`commit`](StagedDirectory::commit) does first.
    pub fn flush(&self) -> Result<()> {
        sync_tree(&self.temporary, MAX_STAGED_DEPTH)
    }

    /// Makes the directory appear under its name, in place of an earlier one; returns its path.
    ///
    /// Everything reaches the disk first, and the two directories change places in one step. On an error the earlier
    /// directory is still there.
    pub fn commit(mut self) -> Result<PathBuf> {
        self.flush()?;
        let failed = |e: std::io::Error| Error::file("replace", &self.target, e, WRITABLE);
        if self.target.symlink_metadata().is_ok() {
            match rustix::fs::renameat_with(CWD, &self.temporary, CWD, &self.target, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                // Some network and FUSE file systems lack the atomic swap; there the name is free for a moment.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
                    let earlier = temporary_name(&self.target);
                    remove(&earlier)?;
                    fs::rename(&self.target, &earlier).map_err(failed)?;
                    fs::rename(&self.temporary, &self.target).map_err(failed)?;
                    remove(&earlier)?;
                }
                Err(e) => return Err(failed(e.into())),
            }
            sync_directory(self.target.parent())?;
            remove(&self.temporary)?;
        } else {
            fs::rename(&self.temporary, &self.target).map_err(failed)?;
            sync_directory(self.target.parent())?;
        }
        self.is_committed = true;
        Ok(self.target.clone())
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        if !self.is_committed {
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Removes a file, a link itself, or a directory with all in it; absent is fine.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => Err(e),
        Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(|e| Error::file("remove", path, e, WRITABLE))
}
