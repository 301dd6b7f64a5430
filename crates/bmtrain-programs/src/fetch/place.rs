//! Directories and files of the cache as they are before anything is written to them: a cache may be shared, or
//! prepared.
//!
//! Defines [`create_directories`], [`open_partial`], [`open_lock`] and the errors of writing, called by
//! [`super::store`] and [`super::contents`]. Above a model's own directory links are the user's business; from there on
//! nothing is written through one.

use crate::cli::terminal;
use bmtrain_core::limits::reached;
use model_center_base::{Error, Result};
use rustix::fs::OFlags;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

const ROOM: &str = "check that the disk has room left and that you may write there; what has arrived is kept, and \
                    the same command continues the download";

pub(super) fn refused(path: &Path, error: io::Error) -> Error {
    // The error then has the fix of the limit in place of this one.
    if reached(&error).is_some() {
        terminal::note("what has arrived is kept, and the same command continues the download");
    }
    Error::file("write", path, error, ROOM)
}

/// The error for something else where the cache has a file or directory of its own.
pub(super) fn in_the_way(path: &Path, what: &str) -> Error {
    Error::model(path.display().to_string(), format!("this is {what}"), "remove it, and give the same command again")
}

/// Create `root` and the directories of `below` in it; none of the latter may be a link, which could lead anywhere.
pub(super) fn create_directories(root: &Path, below: &Path) -> Result<PathBuf> {
    fs::create_dir_all(root).map_err(|e| refused(root, e))?;
    let mut path = root.to_owned();
    for part in below.components() {
        let Component::Normal(part) = part else { return Err(in_the_way(below, "no path within the cache")) };
        path.push(part);
        match fs::create_dir(&path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(refused(&path, e)),
            _ => {}
        }
        if !kind(&path)?.is_some_and(|found| found.is_dir()) {
            return Err(in_the_way(&path, "a link or a file where the cache has a directory"));
        }
    }
    Ok(path)
}

/// Metadata of a path itself rather than of a link's target.
pub(super) fn kind(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(refused(path, e)),
    }
}

/// Open for reading and writing what an earlier process left of a download, or a new file. Only a regular file of this
/// user's that has no other name is continued: a link, a pipe or a second name would let the bytes arrive in another
/// place. Anything else under this name is removed.
pub(super) fn open_partial(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags());
    if let Some(found) = kind(path)? {
        if found.is_dir() {
            return Err(in_the_way(path, "a directory where the cache has a file"));
        }
        if is_ours(&found) {
            let file = options.open(path).map_err(|e| refused(path, e))?;
            if file.metadata().is_ok_and(|opened| is_ours(&opened)) {
                return Ok(file);
            }
        }
        terminal::note(&format!("{}: not a file that can be continued, it is removed", path.display()));
        fs::remove_file(path).map_err(|e| refused(path, e))?;
    }
    options.create_new(true).open(path).map_err(|e| refused(path, e))
}

/// Open the file that processes lock.
pub(super) fn open_lock(path: &Path) -> Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).custom_flags(flags()).open(path);
    let is_file = |file: &File| file.metadata().is_ok_and(|opened| opened.is_file());
    match file {
        Ok(file) if is_file(&file) => Ok(file),
        Ok(_) => Err(in_the_way(path, "a pipe or a device where the cache has a lock")),
        Err(_) if kind(path)?.is_some_and(|found| !found.is_file()) => {
            Err(in_the_way(path, "a link, a directory or a pipe where the cache has a lock"))
        }
        Err(e) => Err(refused(path, e)),
    }
}

/// Open a file for reading if it is one, and not a link to one.
pub(super) fn open_blob(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags()).open(path)
}

/// Never through a link at the end of a path, and never waiting for the other end of a pipe.
fn flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed()
}

fn is_ours(found: &Metadata) -> bool {
    found.is_file() && found.nlink() == 1 && found.uid() == rustix::process::geteuid().as_raw()
}

/// The bytes that a directory's disk has room for; `None` where the file system does not tell.
pub(super) fn free_bytes(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok().filter(|found| found.f_blocks > 0)?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Flush a directory's entries to the disk, so that the names in it survive a power cut.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory).and_then(|opened| opened.sync_all()).map_err(|e| refused(directory, e))
}
