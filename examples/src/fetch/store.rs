//! Writing the hub's cache: contents arrive in `blobs`, snapshots link to them, references come last.
//!
//! A file is known to be whole by its name: until then it is called `*.incomplete`, which a later command goes on with. One
//! process at a time writes it; which one is said by a lock that ends with the process, as Hugging Face's libraries do.

use super::hub::{About, Hub, Trouble};
use crate::terminal;
use model_center::file::write_atomic;
use model_center::hf::pretrained::CachedModel;
use model_center::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// How often another process is asked whether it is done.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// A process that has written nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often a long download says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(10);
const ROOM: &str = "check that the disk has room left and that you may write there";

/// One snapshot that is being written.
pub(super) struct Store<'a> {
    model: &'a CachedModel,
    commit: &'a str,
    locks: PathBuf,
}

impl<'a> Store<'a> {
    pub(super) fn new(cache: &Path, model: &'a CachedModel, commit: &'a str) -> Self {
        let locks = cache.join(".locks").join(model.root().file_name().unwrap_or_default());
        Self { model, commit, locks }
    }

    pub(super) fn snapshot(&self) -> PathBuf {
        self.model.snapshot(self.commit)
    }

    /// Fetch a file of the snapshot, unless its contents are there.
    pub(super) fn take(&self, hub: &Hub, name: &str) -> Result<()> {
        let about = hub.about(self.commit, name)?;
        let blob = self.model.blobs().join(&about.etag);
        create_folder(&self.model.blobs())?;
        create_folder(&self.locks)?;
        let partial = blob.with_file_name(format!("{}.incomplete", about.etag));
        let _lock = lock(&self.locks.join(format!("{}.lock", about.etag)), &partial, name)?;
        if !is_whole(&blob, &about)? {
            self.download(hub, name, &about, &partial)?;
            fs::rename(&partial, &blob).map_err(|e| refused(&blob, e))?;
            sync_folder(&self.model.blobs())?;
        }
        self.link(name, &about.etag)
    }

    /// Fetch contents into `partial`, from where it ends.
    fn download(&self, hub: &Hub, name: &str, about: &About, partial: &Path) -> Result<()> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(partial);
        let mut growing =
            Growing { file: file.map_err(|e| refused(partial, e))?, path: partial, length: 0, hash: Sha256::new() };
        growing.take_up(about)?;
        terminal::note(&format!("{name}: {}", progress(growing.length, about.size)));
        let mut failed = 0;
        // A file without bytes is whole before the first request; of one of unknown length only the end of an answer tells.
        while about.size.is_none_or(|size| growing.length < size) {
            let before = growing.length;
            match growing.receive(hub, self.commit, name, about)? {
                Ok(()) if about.size.is_none() => break,
                Ok(()) if growing.length > before => {}
                Ok(()) => hub.rest(Trouble::Passing(format!("{name}: the answer was empty")), &mut failed)?,
                Err(trouble) => {
                    failed = if growing.length > before { 0 } else { failed };
                    hub.rest(trouble, &mut failed)?;
                }
            }
        }
        growing.finish(name, about)
    }

    /// A relative link from the snapshot to the contents, so that a cache may be moved.
    fn link(&self, name: &str, etag: &str) -> Result<()> {
        let path = self.snapshot().join(name);
        let target = format!("{}blobs/{etag}", "../".repeat(2 + name.matches('/').count()));
        if fs::read_link(&path).is_ok_and(|there| there == Path::new(&target)) {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&path);
        create_folder(folder)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = folder.join(format!(".{file}.tmp-{}", std::process::id()));
        let _ = fs::remove_file(&temporary);
        symlink(&target, &temporary).map_err(|e| refused(&path, e))?;
        fs::rename(&temporary, &path).map_err(|e| refused(&path, e))?;
        sync_folder(folder)
    }

    /// Let a branch or tag name this commit.
    pub(super) fn refer(&self, reference: &Path) -> Result<()> {
        if let Some(folder) = reference.parent() {
            create_folder(folder)?;
        }
        write_atomic(reference, self.commit.as_bytes())
    }
}

/// Contents that are arriving.
struct Growing<'a> {
    file: File,
    path: &'a Path,
    length: u64,
    hash: Sha256,
}

impl Growing<'_> {
    /// Go on after what an earlier process left, unless that is more than there should be.
    fn take_up(&mut self, about: &About) -> Result<()> {
        let there = self.file.metadata().map_err(|e| refused(self.path, e))?.len();
        if about.size.is_none_or(|size| there > size) {
            return self.begin_anew();
        }
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = self.file.read(&mut chunk).map_err(|e| refused(self.path, e))?;
            if read == 0 {
                return Ok(());
            }
            self.hash.update(&chunk[..read]);
            self.length += read as u64;
        }
    }

    fn begin_anew(&mut self) -> Result<()> {
        self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0))).map_err(|e| refused(self.path, e))?;
        self.length = 0;
        self.hash = Sha256::new();
        Ok(())
    }

    /// Take in one answer: the outer error is ours, the inner one the server's.
    fn receive(&mut self, hub: &Hub, commit: &str, name: &str, about: &About) -> Result<Result<(), Trouble>> {
        let (begin, mut bytes) = match hub.bytes(commit, name, self.length) {
            Ok(answer) => answer,
            Err(trouble) => return Ok(Err(trouble)),
        };
        if begin != self.length {
            self.begin_anew()?;
        }
        let (mut chunk, mut said) = (vec![0; CHUNK], Instant::now());
        loop {
            let read = match bytes.read(&mut chunk) {
                Ok(0) => return Ok(Ok(())),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Err(Trouble::Passing(format!("{name}: {error}")))),
            };
            if about.size.is_some_and(|size| self.length + read as u64 > size) {
                self.begin_anew()?;
                let reason = format!("the server sends more than the {} bytes it announced", about.size.unwrap_or(0));
                return Err(Error::model(name, reason, "try again later, or another revision"));
            }
            self.file.write_all(&chunk[..read]).map_err(|e| refused(self.path, e))?;
            self.hash.update(&chunk[..read]);
            self.length += read as u64;
            if said.elapsed() >= SAY_EVERY {
                terminal::note(&format!("{name}: {}", progress(self.length, about.size)));
                said = Instant::now();
            }
        }
    }

    /// Check what has arrived and flush it to the disk.
    fn finish(self, name: &str, about: &About) -> Result<()> {
        let hash: String = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if let Some(expected) = about.sha256().filter(|expected| !expected.eq_ignore_ascii_case(&hash)) {
            // It would be gone on with for ever.
            fs::remove_file(self.path).map_err(|e| refused(self.path, e))?;
            let reason = format!("what arrived has the SHA-256 {hash}, the server announced {expected}");
            return Err(Error::model(
                name,
                reason,
                "the download was damaged and is removed: give the same command again",
            ));
        }
        self.file.sync_all().map_err(|e| refused(self.path, e))
    }
}

/// Whether contents are there; a blob of another size is not what its name says.
fn is_whole(blob: &Path, about: &About) -> Result<bool> {
    match fs::metadata(blob) {
        Ok(there) if there.is_file() => Ok(about.size.is_none_or(|size| there.len() == size)),
        Ok(_) => Err(refused(blob, ErrorKind::IsADirectory.into())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(refused(blob, e)),
    }
}

/// Wait until no other process writes these contents. One that dies lets go of the lock.
fn lock(path: &Path, partial: &Path, name: &str) -> Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(|e| refused(path, e))?;
    let length = || fs::metadata(partial).map_or(0, |there| there.len());
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
            return Err(Error::model(
                path.display().to_string(),
                reason,
                "end that process; what it wrote is gone on with",
            ));
        }
        sleep(ASK_EVERY);
    }
}

fn create_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| refused(folder, e))
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| refused(folder, e))
}

fn refused(path: &Path, error: std::io::Error) -> Error {
    Error::file("write", path, error, ROOM)
}

fn progress(length: u64, size: Option<u64>) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    match size {
        Some(size) if length > 0 => format!("{:.1} of {:.1} MB are there", megabytes(length), megabytes(size)),
        Some(size) => format!("{:.1} MB", megabytes(size)),
        None => format!("{:.1} MB so far", megabytes(length)),
    }
}
