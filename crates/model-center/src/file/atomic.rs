//! Writing a file so that it is there whole or not at all, even when the machine loses power.
//!
//! Defines [`AtomicFile`], [`write_atomic`] for contents that are at hand, and what the output directory shares with
//! them: the names of preparations and the syncing of directories.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

const FIX: &str = "choose a directory that exists, that you may write, on a disk with room left";

static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// A hidden neighbour under which a file or directory is prepared: `.NAME.tmp-PROCESS-NUMBER`, another one at each
/// call.
pub(crate) fn temporary_name(path: &Path) -> PathBuf {
    let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name().unwrap_or_default());
    hidden.push(format!(".tmp-{}-{number}", std::process::id()));
    path.with_file_name(hidden)
}

/// What is prepared under a name that [`temporary_name`] made, here or in a process that was killed; `None` for any
/// other name.
pub(crate) fn prepared_name(name: &str) -> Option<&str> {
    let (front, id) = name.rsplit_once(".tmp-")?;
    let (process, number) = id.split_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    front.strip_prefix('.').filter(|name| !name.is_empty() && digits(process) && digits(number))
}

/// A file that appears under its name complete or not at all.
///
/// Written under a temporary name beside the target; [`AtomicFile::commit`] flushes it to the disk, renames it and
/// flushes the directory. Dropped without commit, the temporary file is removed.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    committed: bool,
}

impl AtomicFile {
    /// Start writing `target`.
    pub fn create(target: &Path) -> Result<Self> {
        let refused = |e| Error::file("write", target, e, FIX);
        if target.file_name().is_none() {
            return Err(refused(std::io::Error::from(ErrorKind::InvalidInput)));
        }
        loop {
            let temporary = temporary_name(target);
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => return Ok(Self { file, temporary, target: target.to_path_buf(), committed: false }),
                // Left by a process that died with the same id.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(refused(e)),
            }
        }
    }

    /// The open file, for writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The name that the file will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The error for a failed write to this file.
    pub(crate) fn refused(&self, source: std::io::Error) -> Error {
        Error::file("write", &self.target, source, "check that the disk has room left and that you may write there")
    }

    /// Flush the contents to the disk; the file keeps its temporary name.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| self.refused(e))
    }

    /// Flush, give the file its name, and flush the directory so that the name survives a power cut. On an error the
    /// temporary file is removed and an existing file is untouched.
    pub fn commit(mut self) -> Result<()> {
        self.sync()?;
        fs::rename(&self.temporary, &self.target).map_err(|e| self.refused(e))?;
        self.committed = true;
        sync_directory(self.target.parent())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // Best effort: the name starts with a dot and is never read.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Writes `bytes` to `path`, replacing a file of that name: readers see the old content or the new one. On an error the
/// old file is untouched and nothing else is left.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = AtomicFile::create(path)?;
    file.file().write_all(bytes).map_err(|e| file.refused(e))?;
    file.commit()
}

/// Flush a directory's entries to the disk, so that the names in it survive a power cut; `None` for the current one.
pub(crate) fn sync_directory(directory: Option<&Path>) -> Result<()> {
    let directory = directory.filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|f| f.sync_all());
    synced.map_err(|e| Error::file("flush", directory, e, "check that the disk has room left"))
}

/// [`sync_directory`] for a directory, all files and all directories in it, `depth` levels down.
pub(crate) fn sync_tree(directory: &Path, depth: usize) -> Result<()> {
    let failed = |path: &Path, source| Error::file("write", path, source, FIX);
    for entry in fs::read_dir(directory).map_err(|e| failed(directory, e))? {
        let entry = entry.map_err(|e| failed(directory, e))?;
        let kind = entry.file_type().map_err(|e| failed(&entry.path(), e))?;
        if kind.is_dir() && depth > 0 {
            sync_tree(&entry.path(), depth - 1)?;
        } else if kind.is_file() {
            let synced = File::open(entry.path()).and_then(|file| file.sync_all());
            synced.map_err(|e| failed(&entry.path(), e))?;
        }
    }
    sync_directory(Some(directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::layout_error;

    #[test]
    fn an_uncommitted_file_leaves_nothing_behind_and_a_committed_one_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "old").unwrap();
        AtomicFile::create(&path).unwrap().file().write_all(b"half").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let file = AtomicFile::create(&path).unwrap();
        file.file().write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_refused_write_keeps_what_stood_there_and_no_leftover() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), b"kept").unwrap();
        let error = layout_error(&write_atomic(&path, b"new").unwrap_err());
        assert!(error.starts_with("error[file]: cannot write: "), "{error}");
        assert_eq!(fs::read(path.join("inside")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_our_own_preparations_are_taken_for_leftovers() {
        let made = temporary_name(Path::new("a/run.json"));
        assert_eq!(prepared_name(made.file_name().unwrap().to_str().unwrap()), Some("run.json"));
        assert_eq!(made.parent(), Some(Path::new("a")));
        assert_eq!(prepared_name(".a.tmp-1-2.tmp-123-4"), Some("a.tmp-1-2"));
        for name in ["run.json.tmp-1-2", ".tmp-1-2", "..tmp-1-2", ".a.tmp-", ".a.tmp-1", ".a.tmp-1-x", ".a.tmp-1-", ""]
        {
            assert_eq!(prepared_name(name), None, "{name}");
        }
    }
}
