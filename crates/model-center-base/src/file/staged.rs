//! A directory in preparation, which appears under its name only once it is complete.
//!
//! Defines [`StagedDirectory`]. Called by runs for their models and by the programs that write a directory.

use super::atomic::{FIX, OpenDirectory, sync_tree};
use super::preparation::{claim, remove_leftovers, temporary_name};
use crate::{Error, Result};
use rustix::fs::{CWD, RenameFlags};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Model directories are flat; this only bounds the walk.
const MAX_STAGED_DEPTH: usize = 8;
/// The name of a preparation inside of the directory that it fills.
const INSIDE: &str = "result";

/// A directory in preparation. Dropped without [`commit`](StagedDirectory::commit), it vanishes; what a killed process
/// was preparing under the same name is removed by the next one.
#[derive(Debug)]
pub struct StagedDirectory {
    temporary: PathBuf,
    target: PathBuf,
    /// For a target that is there, is empty, and is filled: the file that comes last.
    last: Option<&'static str>,
    is_committed: bool,
    /// Whether nothing may be under the name.
    is_new: bool,
    /// Locked as long as it is open.
    _lock: File,
}

impl StagedDirectory {
    /// Creates a directory beside `target`, whose place it takes.
    ///
    /// # Errors
    /// What the disk refuses.
    pub fn create(target: PathBuf) -> Result<Self> {
        remove_leftovers(&target);
        let temporary = temporary_name(&target);
        Self::prepare(temporary, target, None)
    }

    /// Creates a directory for a result that is not there yet. A directory `target` that is there is empty, and stays:
    /// the entries of the result are moved into it, `last` after all others, without which they are no result.
    ///
    /// # Errors
    /// As [`StagedDirectory::require_free`]; what the disk refuses.
    pub fn for_result(target: &Path, last: &'static str) -> Result<Self> {
        Self::require_free(target)?;
        if target.is_dir() {
            return Self::prepare(temporary_name(&target.join(INSIDE)), target.to_owned(), Some(last));
        }
        let mut staged = Self::create(target.to_owned())?;
        staged.is_new = true;
        Ok(staged)
    }

    /// As [`StagedDirectory::for_result`], where the directory around a new one is made, too.
    ///
    /// # Errors
    /// As [`StagedDirectory::for_result`].
    pub fn for_result_anywhere(target: &Path, last: &'static str) -> Result<Self> {
        Self::require_free(target)?;
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(|e| Error::file("create", parent, e, FIX))?;
        Self::for_result(target, last)
    }

    /// Whether a result can have the name `target`: nothing is there, or an empty directory. Leftovers of killed
    /// processes in it are removed.
    ///
    /// # Errors
    /// [`Error::Argument`] for anything else.
    pub fn require_free(target: &Path) -> Result<()> {
        let place = || target.display().to_string();
        remove_leftovers(&target.join(INSIDE));
        let is_free = match fs::read_dir(target) {
            Ok(mut entries) => entries.next().is_none(),
            Err(_) if target.symlink_metadata().is_ok() => false,
            Err(_) if target.file_name().is_none() => {
                let reason = "this is not the name of a directory to make";
                return Err(Error::argument(place(), reason, "name a new directory"));
            }
            Err(_) => true,
        };
        if is_free {
            return Ok(());
        }
        let reason = match target.is_dir() {
            true => "the directory is not empty, and nothing in it is overwritten",
            false => "it is not a directory, and nothing is overwritten",
        };
        Err(Error::argument(place(), reason, "name an empty or a new directory"))
    }

    fn prepare(temporary: PathBuf, target: PathBuf, last: Option<&'static str>) -> Result<Self> {
        let failed = |e| Error::file("create", &temporary, e, FIX);
        remove(&temporary)?;
        fs::create_dir(&temporary).map_err(failed)?;
        let lock = File::open(&temporary).map_err(failed)?;
        if !claim(&lock, &temporary) {
            return Err(failed(std::io::Error::other("another process removed it")));
        }
        Ok(StagedDirectory { temporary, target, last, is_committed: false, is_new: false, _lock: lock })
    }

    /// Directory for the files.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Flushes the files to the disk, as [`commit`](StagedDirectory::commit) does first.
    ///
    /// # Errors
    /// What the disk refuses.
    pub fn flush(&self) -> Result<()> {
        sync_tree(&self.temporary, MAX_STAGED_DEPTH)
    }

    /// Makes the directory appear under its name, in place of an earlier one; returns its path.
    ///
    /// Everything reaches the disk first, and the two directories change places in one step. On an error the earlier
    /// directory is still there.
    ///
    /// # Errors
    /// What the disk refuses.
    pub fn commit(mut self) -> Result<PathBuf> {
        self.flush()?;
        match self.last {
            Some(last) => self.fill(last)?,
            None => self.replace()?,
        }
        self.is_committed = true;
        Ok(self.target.clone())
    }

    fn replace(&self) -> Result<()> {
        let failed = |e: std::io::Error| Error::file("replace", &self.target, e, FIX);
        let parent = OpenDirectory::of(&self.target)?;
        // Renaming fails where another process has put something there since.
        if self.is_new || self.target.symlink_metadata().is_err() {
            fs::rename(&self.temporary, &self.target).map_err(failed)?;
            return parent.sync();
        }
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
        parent.sync()?;
        remove(&self.temporary)
    }

    /// Moves the entries into the target, the last one last; after a failure none of them is there.
    fn fill(&self, last: &str) -> Result<()> {
        let failed = |e: std::io::Error| Error::file("write", &self.target, e, FIX);
        let entries = fs::read_dir(&self.temporary).map_err(failed)?;
        let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        names.sort_by_key(|name| (name == last, name.clone()));
        let target = OpenDirectory::of(&self.target.join(last))?;
        for (at, name) in names.iter().enumerate() {
            if let Err(error) = fs::rename(self.temporary.join(name), self.target.join(name)) {
                names.iter().take(at).for_each(|name| _ = remove(&self.target.join(name)));
                return Err(failed(error));
            }
        }
        // The result is whole, whatever becomes of the empty directory.
        let _ = remove(&self.temporary);
        target.sync()
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
pub fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => Err(e),
        Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(|e| Error::file("remove", path, e, FIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_result_appears_whole_in_a_new_and_in_an_empty_directory() {
        let temp = tempfile::tempdir().unwrap();
        let (new, empty) = (temp.path().join("some/new"), temp.path().join("empty"));
        fs::create_dir(&empty).unwrap();
        for target in [&new, &empty] {
            // A killed process's.
            let left =
                if target.is_dir() { target.join(".result.tmp-1-0") } else { target.with_file_name(".new.tmp-1-0") };
            fs::create_dir_all(&left).unwrap();
            let dropped = StagedDirectory::for_result_anywhere(target, "config.json").unwrap();
            fs::write(dropped.path().join("weights"), "half").unwrap();
            drop(dropped);
            assert!(!target.exists() || names(target).is_empty());
            let staged = StagedDirectory::for_result(target, "config.json").unwrap();
            for name in ["config.json", "weights"] {
                fs::write(staged.path().join(name), name).unwrap();
            }
            assert!(!target.join("weights").exists() && !left.exists());
            assert_eq!(staged.commit().unwrap(), *target);
            assert_eq!(names(target), ["config.json", "weights"]);
            let again = StagedDirectory::for_result(target, "config.json").unwrap_err().to_string();
            assert!(again.contains("not empty"), "{again}");
        }
        // What has come under the name meanwhile stays.
        let staged = StagedDirectory::for_result(&temp.path().join("late"), "config.json").unwrap();
        fs::write(staged.path().join("config.json"), "").unwrap();
        fs::create_dir(temp.path().join("late")).unwrap();
        fs::write(temp.path().join("late/mine"), "").unwrap();
        staged.commit().unwrap_err();
        assert_eq!(names(&temp.path().join("late")), ["mine"]);
        fs::remove_dir_all(temp.path().join("late")).unwrap();
        fs::write(temp.path().join("file"), "").unwrap();
        assert!(StagedDirectory::require_free(&temp.path().join("file")).is_err());
        assert!(StagedDirectory::require_free(Path::new("/")).is_err());
        assert_eq!(
            (names(temp.path()), names(&temp.path().join("some"))),
            (vec!["empty".to_owned(), "file".to_owned(), "some".to_owned()], vec!["new".to_owned()],)
        );
    }
}
