//! The names under which files and directories are prepared, and what killed processes left under them.
//!
//! A preparation is locked as long as its process lives, so that another process can tell a leftover from it. Called by
//! [`AtomicFile`](super::AtomicFile), [`StagedDirectory`](super::StagedDirectory) and the output directory of runs.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// A hidden neighbour under which a file or directory is prepared: `.NAME.tmp-PROCESS-NUMBER`, another one at each
/// call.
pub fn temporary_name(path: &Path) -> PathBuf {
    let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name().unwrap_or_default());
    hidden.push(format!(".tmp-{}-{number}", std::process::id()));
    path.with_file_name(hidden)
}

/// Final name of a file that is prepared under a name that [`temporary_name`] made, here or in a process that was
/// killed; `None` for any other name.
pub fn prepared_name(name: &str) -> Option<&str> {
    let (front, id) = name.rsplit_once(".tmp-")?;
    let (process, number) = id.split_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    front.strip_prefix('.').filter(|name| !name.is_empty() && digits(process) && digits(number))
}

/// Locks a preparation that was just made, until `file` is closed; false if it is no longer there, because another
/// process took it for a leftover. A file system without locks has no leftovers removed either.
pub(super) fn claim(file: &File, path: &Path) -> bool {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => true,
        Ok(()) => fs::metadata(path).is_ok_and(|there| file.metadata().is_ok_and(|own| own.ino() == there.ino())),
    }
}

/// Removes what killed processes were preparing under the name `target`. Best effort: nothing reads such names.
pub(crate) fn remove_leftovers(target: &Path) {
    let Some(name) = target.file_name().and_then(|name| name.to_str()) else { return };
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_str().and_then(prepared_name) == Some(name) {
            remove_if_left(&entry.path());
        }
    }
}

/// Removes a preparation unless a process has it locked.
fn remove_if_left(path: &Path) {
    let Ok(kind) = fs::symlink_metadata(path) else { return };
    // Of a pipe without a writer, opening would wait for one.
    if !(kind.is_file() || kind.is_dir()) {
        return;
    }
    let Ok(file) = File::open(path) else { return };
    if file.try_lock().is_ok() {
        let _ = if kind.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{AtomicFile, StagedDirectory};

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

    #[test]
    fn leftovers_of_the_same_name_are_removed_and_what_is_being_prepared_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let at_work = AtomicFile::create(&path("a")).unwrap();
        let staged_at_work = StagedDirectory::create(path("b")).unwrap();
        for name in [".a.tmp-1-0", ".c.tmp-1-0"] {
            fs::write(path(name), "half").unwrap();
        }
        fs::create_dir_all(path(".b.tmp-1-0/inside")).unwrap();
        AtomicFile::create(&path("a")).unwrap().commit().unwrap();
        StagedDirectory::create(path("b")).unwrap().commit().unwrap();
        let left = |name: &str| path(name).exists();
        assert_eq!([".a.tmp-1-0", ".b.tmp-1-0", ".c.tmp-1-0"].map(left), [false, false, true]);
        at_work.commit().unwrap();
        staged_at_work.commit().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
