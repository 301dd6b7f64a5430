//! Writing a file so that it is there whole or not at all, even when the machine loses power.
//!
//! Defines [`write_atomic`] and the syncing of folders. Called by the output folder and by whoever writes small files.

use crate::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

const FIX: &str = "check that the folder is writable and the disk has room";

/// The hidden neighbour a file or folder is prepared under: `.NAME.tmp-PID`.
pub(super) fn temporary_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp-{}", std::process::id()))
}

/// Whether a name is that of a preparation, possibly left by a process that was killed.
pub(super) fn is_temporary(name: &str) -> bool {
    let Some((front, id)) = name.rsplit_once(".tmp-") else { return false };
    front.len() > 1 && front.starts_with('.') && !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())
}

/// Writes `bytes` to `path`, replacing a file of that name.
///
/// The bytes go to a hidden file beside it and reach the disk before that file takes the name, so readers see the old
/// content or the new one.
///
/// # Errors
/// What the operating system refuses; then the old file is untouched and the hidden one removed.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_name(path);
    let written = write_and_sync(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if let Err(source) = written {
        // The first error is the one to report; a leftover is recognised by its name.
        let _ = fs::remove_file(&temporary);
        return Err(Error::file("write", path, source, FIX));
    }
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

fn write_and_sync(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes the names in a folder survive a power cut.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let synced = File::open(folder).and_then(|file| file.sync_all());
    synced.map_err(|source| Error::file("write", folder, source, FIX))
}

/// [`sync_folder`] for a folder, all files and all folders in it, `depth` levels down.
pub(super) fn sync_tree(folder: &Path, depth: usize) -> Result<()> {
    let failed = |path: &Path, source| Error::file("write", path, source, FIX);
    for entry in fs::read_dir(folder).map_err(|e| failed(folder, e))? {
        let entry = entry.map_err(|e| failed(folder, e))?;
        let kind = entry.file_type().map_err(|e| failed(&entry.path(), e))?;
        if kind.is_dir() && depth > 0 {
            sync_tree(&entry.path(), depth - 1)?;
        } else if kind.is_file() {
            let synced = File::open(entry.path()).and_then(|file| file.sync_all());
            synced.map_err(|e| failed(&entry.path(), e))?;
        }
    }
    sync_folder(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_replaces_the_file_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        write_atomic(&path, b"first, and longer").unwrap();
        write_atomic(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_refused_write_keeps_the_old_file_and_no_leftover() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), b"kept").unwrap();
        let error = write_atomic(&path, b"new").unwrap_err().to_string();
        assert!(error.starts_with("error[file]: cannot write: "), "{error}");
        assert_eq!(fs::read(path.join("inside")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_our_own_preparations_are_taken_for_leftovers() {
        assert!(is_temporary(".run.json.tmp-123"));
        for name in ["run.json.tmp-123", ".tmp-1", ".a.tmp-", ".a.tmp-x1", ".bashrc", ""] {
            assert!(!is_temporary(name), "{name}");
        }
    }
}
