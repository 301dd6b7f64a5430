//! The lock of an output directory: as long as a run lasts, no other process may use its directory.
//!
//! Defines [`take_lock`]. Called by [`OutputDirectory`](super::OutputDirectory).

use super::model_files::kind_name;
use super::output::WRITABLE;
use crate::{Error, Result};
use model_center_base::error::OutputFault;
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// The file that is locked.
pub const LOCK: &str = ".lock";

/// Number of further attempts at a lock that is held, and the time before each.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(10);

/// Whether a process holds the lock of `dir`, as a run in progress does.
pub fn is_locked(dir: &Path) -> bool {
    let path = dir.join(LOCK);
    // Only a regular file is a lock; of a pipe without a writer, opening would wait for one.
    if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let opened = File::open(&path);
    opened.is_ok_and(|file| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

/// Lock `dir`; the lock ends when the file is closed.
pub(super) fn take_lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let failed = |e: std::io::Error| Error::file("lock the output directory", dir, e, WRITABLE);
    if let Ok(found) = fs::symlink_metadata(&path)
        && !found.is_file()
    {
        let reason = format!("the lock is {}, not a regular file", kind_name(found.file_type()));
        return Err(Error::file("lock the output directory", &path, std::io::Error::other(reason), "remove it"));
    }
    // Of a pipe without a reader, opening would wait for one.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().write(true).create(true).truncate(false).custom_flags(flags).open(&path);
    let file = file.map_err(failed)?;
    let mut tries = 0;
    let locked = loop {
        match file.try_lock() {
            // A program that looks whether a run is in progress holds it for an instant.
            Err(fs::TryLockError::WouldBlock) if tries < LOOKS => tries += 1,
            other => break other,
        }
        std::thread::sleep(LOOK);
    };
    match locked {
        Ok(()) => {
            // The process that had it before may have removed the file between the two calls: then another one is the
            // lock.
            let is_same =
                fs::metadata(&path).is_ok_and(|there| file.metadata().is_ok_and(|own| own.ino() == there.ino()));
            if is_same { Ok(file) } else { take_lock(dir) }
        }
        Err(fs::TryLockError::WouldBlock) => Err(Error::output(
            OutputFault::InUse,
            dir.display().to_string(),
            "the output directory is in use by another process",
            "wait for it to end, or set output.dir to another directory",
        )),
        Err(fs::TryLockError::Error(e)) => Err(failed(e)),
    }
}
