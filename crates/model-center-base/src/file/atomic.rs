//! Writing a file so that it is there whole or not at all, even when the machine loses power.
//!
//! Defines [`AtomicFile`], [`write_atomic`] for contents that are at hand, [`commit_together`] for results of several
//! files, and the syncing of directories, which the output directory shares with them.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::preparation::{claim, remove_leftovers, temporary_name};
use crate::{Error, Result};

pub(super) const FIX: &str = "choose a directory that exists, that you may write, on a disk with room left";

/// A file that appears under its name complete or not at all.
///
/// Written under a temporary name beside the target; [`AtomicFile::commit`] flushes it to the disk, renames it and
/// flushes the directory. Dropped without commit, the temporary file is removed; what a killed process was preparing
/// under the same name is removed by the next one.
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
        remove_leftovers(target);
        loop {
            let temporary = temporary_name(target);
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) if claim(&file, &temporary) => {
                    return Ok(Self { file, temporary, target: target.to_path_buf(), committed: false });
                }
                // Another process took it for a leftover in the instant before it was claimed.
                Ok(_) => {}
                // Left by a process that died with the same id.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(refused(e)),
            }
        }
    }

    /// A file with these contents, which is not under its name yet.
    ///
    /// # Errors
    /// What the disk refuses.
    pub fn with(target: &Path, bytes: &[u8]) -> Result<Self> {
        let file = Self::create(target)?;
        file.file().write_all(bytes).map_err(|e| file.refused(e))?;
        Ok(file)
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
    pub fn refused(&self, source: std::io::Error) -> Error {
        Error::file("write", &self.target, source, "check that the disk has room left and that you may write there")
    }

    /// Flush the contents to the disk; the file keeps its temporary name.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| self.refused(e))
    }

    /// Flush, give the file its name, and flush the directory so that the name survives a power cut. On an error the
    /// temporary file is removed and an existing file is untouched.
    pub fn commit(self) -> Result<()> {
        self.sync()?;
        // Before the file has its name: a process that may open no more files leaves nothing.
        let directory = OpenDirectory::of(&self.target)?;
        self.rename()?;
        directory.sync()
    }

    fn rename(mut self) -> Result<()> {
        fs::rename(&self.temporary, &self.target).map_err(|e| self.refused(e))?;
        self.committed = true;
        Ok(())
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
    AtomicFile::with(path, bytes)?.commit()
}

/// Gives the files of one result their names, one after the other, once the contents of all are on the disk. The last
/// one is the file without which the others are no result.
///
/// # Errors
/// What the disk refuses; then no name is new.
pub fn commit_together(files: Vec<AtomicFile>) -> Result<()> {
    files.iter().try_for_each(AtomicFile::sync)?;
    let directories = files.iter().map(|file| OpenDirectory::of(&file.target)).collect::<Result<Vec<_>>>()?;
    let mut named: Vec<PathBuf> = Vec::new();
    for file in files {
        let (target, is_new) = (file.target.clone(), file.target.symlink_metadata().is_err());
        if let Err(error) = file.rename() {
            // Best effort: the error that is reported is the reason.
            named.iter().for_each(|path| _ = fs::remove_file(path));
            return Err(error);
        }
        named.extend(is_new.then_some(target));
    }
    directories.iter().try_for_each(OpenDirectory::sync)
}

/// A directory that is open before names in it change, so that they can be flushed afterwards.
pub struct OpenDirectory {
    path: PathBuf,
    file: File,
}

impl OpenDirectory {
    /// The directory that a file or directory is in.
    pub fn of(path: &Path) -> Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = File::open(parent).map_err(|e| Error::file("flush", parent, e, FIX))?;
        Ok(OpenDirectory { path: parent.to_owned(), file })
    }

    /// Flushes its entries to the disk, so that the names in it survive a power cut.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::file("flush", &self.path, e, "check that the disk has room left"))
    }
}

/// Flush a directory's entries to the disk, so that the names in it survive a power cut; `None` for the current one.
pub fn sync_directory(directory: Option<&Path>) -> Result<()> {
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
    use crate::error::layout_error;

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
    fn files_of_one_result_get_their_names_together_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let files = |names: &[&str]| -> Vec<AtomicFile> {
            names.iter().map(|name| AtomicFile::create(&dir.path().join(name)).unwrap()).collect()
        };
        let names = || {
            let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        fs::create_dir_all(dir.path().join("taken/inside")).unwrap();
        commit_together(files(&["a", "taken"])).unwrap_err();
        assert_eq!(names(), ["taken"]);
        commit_together(files(&["a", "b"])).unwrap();
        assert_eq!(names(), ["a", "b", "taken"]);
        // What was there before stays.
        commit_together(files(&["a", "c", "taken"])).unwrap_err();
        assert_eq!(names(), ["a", "b", "taken"]);
    }
}
