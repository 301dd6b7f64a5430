//! The table of a job: which processes are its ranks and whether its start has failed, in a named file that one process
//! at a time reads and changes.
//!
//! Beside the table each rank has an empty file, `NAME@RANK`, which it keeps locked: the kernel releases the lock when
//! the process ends, however that happens, whichever container it runs in and whichever process gets its pid next.

use super::content::{BYTES, Content, Presence, StartFailure};
use super::join::exhausted;
use super::layout::MAX_RANKS;
use super::mapping::{SharedFile, require_own_file};
use crate::comm::processes::{Identity, is_unlocked};
use crate::error::{Error, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(2);

/// A locked table that has its name. It is unlocked when it is dropped.
#[derive(Debug)]
pub(super) struct Table {
    path: PathBuf,
    file: File,
    /// Nothing in a new file.
    pub(super) content: Option<Content>,
}

/// Answer of the table to a process that wants to be a rank.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// No table yet.
    New,
    /// A table without a living process.
    Stale,
    Free,
    /// The start that this process belongs to has failed.
    Failed(StartFailure),
    /// The process of this rank ended before all ranks had joined.
    Lost,
    /// The process of this other rank ended before all ranks had joined, and no other process lives.
    LostAlone(usize),
    /// An earlier start whose last ranks have not ended yet.
    Ending(Vec<usize>),
    Taken,
    OtherSize,
}

fn refused(path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let reason = format!("{}: {error}", path.display());
    match exhausted(&error) {
        Some(resource) => Error::refused("a file of the ranks", resource, reason),
        None => Error::Device { backend: "ranks of one machine".into(), call: "open", reason },
    }
}

impl Table {
    /// Open and lock the table of this name, making it if it does not exist.
    ///
    /// # Errors
    /// A name that cannot be used; a process that keeps the table locked until `limit`.
    pub(super) fn open(path: &Path, limit: Instant) -> Result<Self> {
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
                Errno::ACCESS | Errno::PERM | Errno::ROFS if !is_there(path) => unwritable(path, error),
                Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::ISDIR => foreign(path, &error.to_string()),
                error => refused(path, error),
            })?;
            require_own_file(&file).map_err(|error| foreign(path, &error.to_string()))?;
            let file = File::from(file);
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The process that had it may have removed the name, or another one may have made a new table.
                Ok(()) if has_name(&file, path) => {
                    let content = read(&file, path)?;
                    return Ok(Table { path: path.to_path_buf(), file, content });
                }
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() >= limit => {
                    let reason = format!("another process keeps {} locked", path.display());
                    return Err(Error::Communication { operation: "join".into(), sequence: 0, reason, ranks: vec![] });
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
                Err(error) => return Err(refused(path, error)),
            }
        }
    }

    /// Tells this table from others of the same name.
    pub(super) fn number(&self) -> Result<(u64, u64)> {
        let facts = self.file.metadata().map_err(|error| refused(&self.path, error))?;
        Ok((facts.dev(), facts.ino()))
    }

    /// Whether the process of a rank lives and has not left.
    fn is_living(&self, rank: usize) -> Result<bool> {
        let path = seat(&self.path, rank);
        match File::open(&path) {
            Ok(file) => Ok(!is_unlocked(&file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(refused(&path, error)),
        }
    }

    pub(super) fn living(&self) -> Result<Vec<usize>> {
        let size = self.content.as_ref().map_or(0, |content| content.seats.len());
        let mut living = Vec::new();
        for rank in 0..size {
            if self.is_living(rank)? {
                living.push(rank);
            }
        }
        Ok(living)
    }

    /// Answer to `rank` of `size` in a process that was started at `started`.
    pub(super) fn assess(&self, (rank, size): (usize, usize), started: u64) -> Result<Verdict> {
        Ok(match &self.content {
            None if self.is_living(rank)? => Verdict::Taken,
            None => Verdict::New,
            Some(content) => assess(content, &self.living()?, (rank, size), started),
        })
    }

    /// Make this process the rank: its lock, which lasts as long as the file that is returned.
    pub(super) fn sit(&mut self, (rank, size): (usize, usize), own: Identity) -> Result<File> {
        if self.content.is_none() {
            // Memory of another table, which may have other content.
            remove_file(&memory_path(&self.path))?;
        }
        // Before the lock: a process that is killed between the two has been here and does not live.
        self.content.get_or_insert_with(|| Content::new(size)).set(rank, own, Presence::Here);
        self.write()?;
        let path = seat(&self.path, rank);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| refused(&path, error))?;
        // Who looks whether it is locked locks it for a moment.
        let limit = Instant::now() + Duration::from_secs(1);
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK || Instant::now() >= limit {
                return Err(refused(&path, error));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(File::from(file))
    }

    pub(super) fn write(&self) -> Result<()> {
        let Some(content) = &self.content else { return Ok(()) };
        // One page in one call: a process that is killed leaves the old content or the new one.
        self.file.write_all_at(&content.to_bytes(), 0).map_err(|error| refused(&self.path, error))
    }

    /// Write what has been changed, or remove the table if no process needs it any more.
    pub(super) fn close(self) -> Result<()> {
        let is_needed = self.content.as_ref().is_some_and(Content::awaits_ranks);
        if is_needed || !self.living()?.is_empty() { self.write() } else { self.remove() }
    }

    pub(super) fn remove(self) -> Result<()> {
        let of_ranks = (0..MAX_RANKS).map(|rank| seat(&self.path, rank));
        for path in of_ranks.chain([memory_path(&self.path), self.path.clone()]) {
            remove_file(&path)?;
        }
        Ok(())
    }

    /// The file of the memory that the ranks share, made by the first of them that asks.
    pub(super) fn memory(&self) -> Result<SharedFile> {
        let path = memory_path(&self.path);
        SharedFile::of_name(&path).map_err(|error| refused(&path, error))
    }

    /// The file that a rank keeps locked, to watch it.
    pub(super) fn watch(&self, rank: usize) -> Option<File> {
        File::open(seat(&self.path, rank)).ok()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

/// Release the lock on a file. Closing it is not enough while a process that is being started by this one has a copy.
pub(super) fn unlock(file: &File) {
    if let Err(error) = flock(file, FlockOperation::Unlock) {
        tracing::debug!(%error, "a file of the ranks stays locked until its process ends");
    }
}

/// The name of the ranks' memory until all have joined.
pub(super) fn memory_path(path: &Path) -> PathBuf {
    beside(path, "memory")
}

fn seat(path: &Path, rank: usize) -> PathBuf {
    beside(path, &rank.to_string())
}

/// Names of jobs have no `@`.
fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("@");
    name.push(what);
    PathBuf::from(name)
}

fn has_name(file: &File, path: &Path) -> bool {
    let number = |facts: std::fs::Metadata| (facts.dev(), facts.ino());
    let (own, named) = (file.metadata().map(number), std::fs::symlink_metadata(path).map(number));
    matches!((own, named), (Ok(own), Ok(named)) if own == named)
}

fn read(file: &File, path: &Path) -> Result<Option<Content>> {
    let bytes = file.metadata().map_err(|error| refused(path, error))?.len();
    if bytes < BYTES as u64 {
        // New, or a first write that was interrupted, as by a limit on the size of files.
        return Ok(None);
    }
    let mut block = [0; BYTES];
    let content = match bytes == BYTES as u64 {
        true => file.read_exact_at(&mut block, 0).ok().and_then(|()| Content::of_bytes(&block)),
        false => None,
    };
    content.map(Some).ok_or_else(|| foreign(path, "it is not a table of ranks, or one of another version"))
}

fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(refused(path, error)),
        _ => Ok(()),
    }
}

/// A directory in which this user can make no file.
fn unwritable(path: &Path, error: Errno) -> Error {
    let directory = path.parent().unwrap_or(path).display();
    Error::Launch {
        place: path.display().to_string(),
        reason: format!("the ranks cannot meet at this file, which {directory} does not let this user make: {error}"),
        fix: format!("make {directory} writable for this user"),
    }
}

fn foreign(path: &Path, reason: &str) -> Error {
    Error::Launch {
        place: path.display().to_string(),
        reason: format!("the ranks cannot meet at this file: {reason}"),
        fix: "remove the file, or set another MASTER_PORT or BMTRAIN_JOB".into(),
    }
}

/// Answer of a table to `rank` of `size`, where the processes of the ranks `living` still run.
fn assess(content: &Content, living: &[usize], (rank, size): (usize, usize), started: u64) -> Verdict {
    if let Some(failure) = content.failure_of(rank, started) {
        return Verdict::Failed(failure.clone());
    }
    if living.is_empty() {
        return match content.seen_by(started) {
            // All had joined: if this process is one of the same start, it comes twice.
            Some(lost) if !content.is_complete() && lost != rank => Verdict::LostAlone(lost),
            _ => Verdict::Stale,
        };
    }
    let is_complete = content.is_complete();
    if content.failure.is_some() || (is_complete && living.len() < content.seats.len()) {
        return Verdict::Ending(living.to_vec());
    }
    if size != content.seats.len() {
        return Verdict::OtherSize;
    }
    match content.seats.get(rank).map(|seat| seat.presence) {
        _ if living.contains(&rank) => Verdict::Taken,
        None | Some(Presence::Absent) => Verdict::Free,
        Some(Presence::Here | Presence::Joined | Presence::Left) => Verdict::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(process: u64) -> Identity {
        Identity { process, namespace: 1, start: 1 }
    }

    fn content(seats: &[Presence]) -> Content {
        let mut content = Content::new(seats.len());
        for (rank, presence) in seats.iter().enumerate() {
            content.set(rank, identity(rank as u64 + 10), *presence);
        }
        content.seats.iter_mut().for_each(|seat| seat.at = 50);
        content
    }

    #[test]
    fn what_a_process_finds_depends_on_who_lives() {
        use Presence::{Absent, Here, Joined, Left};
        let cases = [
            // The processes that waited were killed.
            (&[Here, Absent][..], &[][..], (0, 2), Verdict::Stale),
            (&[Joined, Joined], &[], (1, 2), Verdict::Stale),
            (&[Joined, Joined], &[], (1, 4), Verdict::Stale),
            // The start that this process is a part of.
            (&[Here, Absent], &[0], (1, 2), Verdict::Free),
            (&[Joined, Absent, Here], &[0, 2], (1, 3), Verdict::Free),
            // Mistakes.
            (&[Here, Absent], &[0], (0, 2), Verdict::Taken),
            (&[Joined, Joined], &[0, 1], (1, 2), Verdict::Taken),
            (&[Here, Absent], &[0], (1, 4), Verdict::OtherSize),
            (&[Here, Absent], &[0], (3, 4), Verdict::OtherSize),
            // One was killed before all were there, the other does not know yet.
            (&[Here, Joined], &[1], (0, 2), Verdict::Lost),
            (&[Left, Here, Absent], &[1], (0, 3), Verdict::Lost),
            (&[Left, Joined], &[1], (0, 2), Verdict::Lost),
            // A run that ends.
            (&[Joined, Joined], &[0], (1, 2), Verdict::Ending(vec![0])),
            (&[Joined, Joined], &[1], (0, 4), Verdict::Ending(vec![1])),
        ];
        for (seats, living, who, verdict) in cases {
            assert_eq!(assess(&content(seats), living, who, 100), verdict, "{seats:?} {living:?} {who:?}");
        }
    }

    #[test]
    fn a_process_that_died_before_the_others_came_is_theirs_if_they_were_started_before() {
        use Presence::{Absent, Here, Joined, Left};
        let found = |seats: &[Presence], rank, started| assess(&content(seats), &[], (rank, seats.len()), started);
        assert_eq!(found(&[Absent, Here, Left], 0, 49), Verdict::LostAlone(1));
        assert_eq!(found(&[Joined, Absent], 1, 1), Verdict::LostAlone(0));
        // Later starts, a rank that was started again, an unknown start, a run that was killed, one that left.
        assert_eq!(found(&[Absent, Here], 0, 50), Verdict::Stale);
        assert_eq!(found(&[Absent, Here], 1, 49), Verdict::Stale);
        assert_eq!(found(&[Absent, Here], 0, 0), Verdict::Stale);
        assert_eq!(found(&[Joined, Joined], 0, 49), Verdict::Stale);
        assert_eq!(found(&[Absent, Left], 0, 49), Verdict::Stale);
    }

    #[test]
    fn a_failed_start_concerns_those_that_were_started_before_it_failed() {
        let mut content = content(&[Presence::Left, Presence::Absent]);
        let failure = StartFailure { at: 100, ..StartFailure::ended(0, identity(10), 3, "a label is missing") };
        content.failure = Some(failure.clone());
        assert_eq!(assess(&content, &[], (1, 2), 100), Verdict::Failed(failure.clone()));
        assert_eq!(assess(&content, &[0], (1, 2), 99), Verdict::Failed(failure.clone()));
        // A later start, and a process whose start is unknown.
        assert_eq!(assess(&content, &[], (1, 2), 101), Verdict::Stale);
        assert_eq!(assess(&content, &[0], (1, 2), 101), Verdict::Ending(vec![0]));
        assert_eq!(assess(&content, &[], (1, 2), 0), Verdict::Stale);
        // A lost process concerns the others that were started before it came.
        content.failure = Some(StartFailure { at: 100, ..StartFailure::lost(0, identity(10)) });
        assert!(matches!(assess(&content, &[], (1, 2), 49), Verdict::Failed(_)));
        assert_eq!(assess(&content, &[], (1, 2), 50), Verdict::Stale);
        assert_eq!(assess(&content, &[], (0, 2), 49), Verdict::Stale);
        // It is of no concern to who comes after the survivors.
        assert_eq!(assess(&content, &[], (1, 2), 99), Verdict::Stale);
        assert_eq!(assess(&content, &[1], (0, 2), 99), Verdict::Ending(vec![1]));
    }
}
