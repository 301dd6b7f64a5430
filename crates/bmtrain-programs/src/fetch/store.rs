//! Writing the hub's cache: contents arrive in `blobs`, snapshots link to them, references come last.
//!
//! A file is known to be whole by its name: until then it is called `*.incomplete`, which a later command continues.
//! One process at a time writes it; a lock that ends with the process tells which, as Hugging Face's libraries do.

use super::contents::{Growing, is_whole};
use super::hub::{About, Hub};
use super::place::{create_directories, free_bytes, in_the_way, kind, open_lock, refused, sync_directory};
use super::transfer::LEAST;
use crate::cli::terminal;
use model_center_base::file::{printable, write_atomic};
use model_center_base::{Error, Result};
use model_center_formats::pretrained::{CachedModel, Revision};
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time between two questions whether another process is done.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// A process that has written nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(600);
/// Maximum number of times that a server may begin a file again from its first byte.
const MAX_RESTARTS: u32 = 5;

pub(super) struct Store<'a> {
    cache: &'a Path,
    model: &'a CachedModel,
    commit: &'a str,
}

impl<'a> Store<'a> {
    pub(super) fn new(cache: &'a Path, model: &'a CachedModel, commit: &'a str) -> Self {
        Self { cache, model, commit }
    }

    pub(super) fn snapshot(&self) -> PathBuf {
        self.model.snapshot(self.commit)
    }

    /// Fetch a file of the snapshot, of at most `limit` bytes, unless its contents are there.
    pub(super) fn take(&self, hub: &Hub<'_>, name: &str, limit: u64) -> Result<()> {
        let about = hub.about(self.commit, name, limit)?;
        let blobs = create_directories(self.model.root(), Path::new("blobs"))?;
        let own = self.model.root().file_name().unwrap_or_default();
        let locks = create_directories(self.cache, &Path::new(".locks").join(own))?;
        let (blob, partial) = (blobs.join(&about.etag), blobs.join(format!("{}.incomplete", about.etag)));
        let shown = printable(name, 120);
        let _lock = lock(&locks.join(format!("{}.lock", about.etag)), &partial, &shown)?;
        if !is_whole(&blob, &about)? {
            download(hub, self.commit, name, &about, &partial)?;
            fs::rename(&partial, &blob).map_err(|e| refused(&blob, e))?;
            sync_directory(&blobs)?;
        }
        self.link(name, &about.etag)
    }

    /// A relative link from the snapshot to the contents, so that a cache may be moved.
    fn link(&self, name: &str, etag: &str) -> Result<()> {
        let inside = Path::new("snapshots").join(self.commit).join(name);
        let directory = create_directories(self.model.root(), inside.parent().unwrap_or(Path::new("")))?;
        let file = inside.file_name().unwrap_or_default();
        let path = directory.join(file);
        let target = format!("{}blobs/{etag}", "../".repeat(2 + name.matches('/').count()));
        match kind(&path)? {
            Some(found) if found.is_dir() => return Err(in_the_way(&path, "a directory where the cache has a link")),
            Some(_) if fs::read_link(&path).is_ok_and(|there| there == Path::new(&target)) => return Ok(()),
            _ => {}
        }
        let temporary = directory.join(format!(".{}.tmp-{}", file.to_string_lossy(), std::process::id()));
        match fs::remove_file(&temporary) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(refused(&temporary, e)),
            _ => {}
        }
        symlink(&target, &temporary).map_err(|e| refused(&path, e))?;
        fs::rename(&temporary, &path).map_err(|e| refused(&path, e))?;
        sync_directory(&directory)
    }

    /// Let a branch or tag name this commit.
    pub(super) fn refer(&self, revision: &Revision) -> Result<()> {
        let inside = Path::new("refs").join(revision.as_str());
        let directory = create_directories(self.model.root(), inside.parent().unwrap_or(Path::new("")))?;
        let reference = directory.join(inside.file_name().unwrap_or_default());
        if kind(&reference)?.is_some_and(|found| found.is_dir()) {
            return Err(in_the_way(&reference, "a directory where the cache has the commit of a revision"));
        }
        write_atomic(&reference, self.commit.as_bytes())
    }
}

/// Fetch contents into `partial`, from where it ends.
pub(super) fn download(hub: &Hub<'_>, commit: &str, name: &str, about: &About, partial: &Path) -> Result<()> {
    let shown = printable(name, 120);
    let mut growing = Growing::open(partial, &shown, about)?;
    require_room(partial, about.size - growing.length)?;
    terminal::note(&format!("{shown}: {}", growing.progress()));
    // Attempts in a row without [`LEAST`] bytes more than ever before: a byte in each would go on for ever.
    let (mut failed, mut best, mut restarts) = (0, growing.length, 0);
    while growing.length < about.size {
        let trouble = match hub.bytes(commit, name, about, growing.length) {
            Err(trouble) => trouble,
            Ok((begin, answer)) => {
                if begin != growing.length {
                    restarts += 1;
                    growing.begin_anew()?;
                }
                match growing.receive(answer)? {
                    Ok(()) => break,
                    Err(trouble) => trouble,
                }
            }
        };
        if restarts >= MAX_RESTARTS {
            let reason = format!("the server breaks off, and begins anew each time ({MAX_RESTARTS} times)");
            return Err(Error::model(shown.as_str(), reason, "check the network, or give another --endpoint"));
        }
        if growing.length >= best.saturating_add(LEAST) {
            (failed, best) = (0, growing.length);
        }
        hub.rest(trouble, &mut failed)?;
    }
    growing.finish()
}

/// Refuse what the disk has no room for before any of it arrives.
fn require_room(partial: &Path, bytes: u64) -> Result<()> {
    let directory = partial.parent().unwrap_or(partial);
    match free_bytes(directory) {
        Some(free) if free < bytes => {
            let gigabytes = |bytes: u64| bytes as f64 / 1e9;
            let reason = format!("{:.2} GB are needed, {:.2} GB are free", gigabytes(bytes), gigabytes(free));
            let error = std::io::Error::new(ErrorKind::StorageFull, reason);
            Err(Error::file("write", directory, error, "make room, or set HF_HOME to a directory on another disk"))
        }
        _ => Ok(()),
    }
}

/// Wait until no other process writes these contents. One that dies releases the lock.
pub(super) fn lock(path: &Path, partial: &Path, name: &str) -> Result<File> {
    let file = open_lock(path)?;
    let length = || fs::symlink_metadata(partial).map_or(0, |there| there.len());
    let (mut seen, mut since, mut is_said) = (length(), Instant::now(), false);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(e)) => return Err(refused(path, e)),
            Err(TryLockError::WouldBlock) => {}
        }
        if !is_said {
            terminal::note(&format!("{name}: another process is fetching it"));
            is_said = true;
        }
        if length() != seen {
            (seen, since) = (length(), Instant::now());
        }
        if since.elapsed() > PATIENCE {
            let reason = format!("another process holds the lock of {name}, and has written nothing for a while");
            let fix = "end that process; the next one continues what it wrote";
            return Err(Error::model(path.display().to_string(), reason, fix));
        }
        sleep(ASK_EVERY);
    }
}
