//! Meeting of the processes of one machine as the ranks of a job, which they join or learn at once that they cannot.
//!
//! A program enters before it prepares its work, so that others see a rank that fails or dies before it
//! [joins](super::HostRank::join). What is known of a start is in its [`Table`], which has its name until the last rank
//! has left: a process that comes to a running job is told so. A table without a living process is replaced by the next
//! start.

use super::content::{Content, Presence, StartFailure, now};
use super::layout::MAX_RANKS;
use super::mapping::SharedFile;
use super::table::{Table, Verdict, memory_path, unlock};
use crate::comm::processes::{Identity, Watch};
use crate::error::{Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Wait of a process that contradicts a rank: that one may have been killed a moment ago.
const GRACE: Duration = Duration::from_millis(500);
/// Wait for a process that is ending: the kernel keeps a killed process's locks until it has returned its memory.
const ENDING: Duration = Duration::from_secs(10);
/// Wait of a process for the ranks of an earlier start to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which others may keep the table locked.
const LOCKED: Duration = Duration::from_secs(5);
/// The exit code of a rank that panicked.
const DEFECT: u8 = 1;
/// Pause between two looks at a table that is about to change.
const PAUSE: Duration = Duration::from_millis(10);

/// This process as a rank of a job. Clones are the same membership, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct Meeting(Arc<Member>);

#[derive(Debug)]
struct Member {
    path: PathBuf,
    rank: usize,
    size: usize,
    own: Identity,
    /// Number of the table's file.
    number: (u64, u64),
    /// Locked as long as this process is the rank.
    seat: Mutex<Option<File>>,
    has_joined: AtomicBool,
}

impl Meeting {
    /// Become rank `rank` of `size` at `path`, a place that [`HostGroup::place`](super::HostGroup::place) makes of the
    /// job's name.
    ///
    /// # Errors
    /// [`Error::Launch`] if a living process has this rank, or the ranks have another world size: the ranks that have
    /// come end with the same error. [`Error::RankEnded`] and others with which this start has failed. Ranks of an
    /// earlier start that do not end.
    pub fn enter(path: impl AsRef<Path>, rank: usize, size: usize) -> Result<Self> {
        require_ranks(rank, size)?;
        let (path, own, begin) = (path.as_ref(), Identity::own(), Instant::now());
        loop {
            let mut table = Table::open(path, Instant::now() + LOCKED)?;
            match table.assess((rank, size), own.start)? {
                Verdict::New | Verdict::Free => {
                    let seat = Mutex::new(Some(table.sit((rank, size), own)?));
                    let (number, path) = (table.number()?, path.to_path_buf());
                    let has_joined = AtomicBool::new(false);
                    return Ok(Meeting(Arc::new(Member { path, rank, size, own, number, seat, has_joined })));
                }
                Verdict::Stale => {
                    table.remove()?;
                    continue;
                }
                Verdict::Failed(failure) => {
                    if let Some(content) = table.content.as_mut().filter(|content| content.is_absent(rank)) {
                        content.set(rank, own, Presence::Left);
                    }
                    table.close()?;
                    return Err(failure.error());
                }
                Verdict::LostAlone(lost) => {
                    let content = table.content.get_or_insert_with(|| Content::new(size));
                    let error = StartFailure::lost(lost, content.whom(lost)).error();
                    content.set(rank, own, Presence::Left);
                    // Further ranks are to find the same.
                    if content.has_absent() {
                        table.write()?
                    } else {
                        table.remove()?
                    }
                    return Err(error);
                }
                Verdict::Lost => {
                    if let Some(content) = &mut table.content {
                        content.fail(StartFailure::lost(rank, content.whom(rank)));
                    }
                    table.write()?;
                }
                Verdict::Ending(living) if begin.elapsed() >= PATIENCE => return Err(still_there(&table, living)),
                Verdict::Ending(_) => {}
                verdict @ (Verdict::Taken | Verdict::OtherSize)
                    if begin.elapsed() >= grace(&table, verdict == Verdict::Taken, rank)? =>
                {
                    return Err(contradicts(table, verdict == Verdict::Taken, (rank, size), own)?.error());
                }
                Verdict::Taken | Verdict::OtherSize => {}
            }
            drop(table);
            std::thread::sleep(PAUSE);
        }
    }

    /// Rank of this process, and number of ranks.
    pub(super) fn seat(&self) -> (usize, usize) {
        (self.0.rank, self.0.size)
    }

    /// Tell the other ranks that this one ends with an exit code instead of joining: they end with the same. Nothing
    /// happens after it has joined.
    pub fn abandon(&self, code: u8, reason: &str) {
        if self.0.has_joined.load(Ordering::Relaxed) {
            return;
        }
        let failure = StartFailure::ended(self.0.rank, self.0.own, code, reason);
        let at = failure.at;
        let told = self.0.change(|content| content.fail(failure));
        match told {
            Ok(()) => outlast(at),
            Err(error) => tracing::debug!(%error, "the other ranks cannot be told why this one ends"),
        }
    }

    /// The memory that the ranks share; this rank waits for the others from now on.
    pub(super) fn memory(&self) -> Result<SharedFile> {
        let mut table = self.0.table()?;
        if let Some(failure) = table.content.as_ref().and_then(|content| content.failure.as_ref()) {
            return Err(failure.error());
        }
        let file = table.memory()?;
        if let Some(content) = &mut table.content {
            content.set(self.0.rank, self.0.own, Presence::Joined);
        }
        table.write()?;
        Ok(file)
    }

    /// All ranks have joined: from now on the memory that they share shows how one ends.
    pub(super) fn all_here(&self) {
        self.0.has_joined.store(true, Ordering::Relaxed);
    }

    /// Path of the ranks' memory until all have joined.
    pub(super) fn memory_path(&self) -> PathBuf {
        memory_path(&self.0.path)
    }

    /// See whether the start has failed while this rank waits for those that are `missing`.
    pub(super) fn look(&self, missing: &dyn Fn() -> u64) -> Result<()> {
        let mut table = self.0.table()?;
        let Some(content) = &table.content else { return Ok(()) };
        if let Some(failure) = &content.failure {
            return Err(failure.error());
        }
        let living = table.living()?;
        let gone = |rank: &usize| !content.is_absent(*rank) && !living.contains(rank);
        let Some(rank) = (0..content.seats.len()).find(gone) else { return Ok(()) };
        if missing() == 0 {
            // All have come in between, and that rank has done its work and left.
            return Ok(());
        }
        let failure = StartFailure::lost(rank, content.whom(rank));
        let error = failure.error();
        if let Some(content) = &mut table.content {
            content.fail(failure);
        }
        table.write()?;
        Err(error)
    }

    /// Tell the others that this rank's launch contradicts theirs.
    pub(super) fn refuse(&self, place: String, reason: String, fix: &str) -> Error {
        let failure = StartFailure::launch(self.0.rank, place, reason, fix.into());
        let (error, at) = (failure.error(), failure.at);
        if self.0.change(|content| content.fail(failure)).is_ok() {
            outlast(at);
        }
        error
    }

    /// Watch of a rank's process where its process number is not valid here.
    pub(super) fn watch(&self, rank: usize) -> Watch {
        let seat = self.0.table().ok().and_then(|table| table.watch(rank));
        seat.map_or(Watch::Nothing, Watch::Lock)
    }
}

impl Member {
    fn table(&self) -> Result<Table> {
        let table = Table::open(&self.path, Instant::now() + LOCKED)?;
        if table.number()? == self.number {
            return Ok(table);
        }
        if table.content.is_none() {
            // Opening it has made it.
            table.remove()?;
        }
        let reason = format!("the file {} at which the ranks meet was removed or replaced", self.path.display());
        Err(Error::Communication { operation: "join".into(), sequence: 0, reason, ranks: vec![] })
    }

    fn change(&self, change: impl FnOnce(&mut Content)) -> Result<()> {
        let mut table = self.table()?;
        if let Some(content) = &mut table.content {
            change(content);
        }
        table.write()
    }

    fn leave(&mut self) -> Result<()> {
        let mut table = self.table()?;
        let mut failed = None;
        if let Some(content) = table.content.as_mut().filter(|_| !*self.has_joined.get_mut()) {
            if std::thread::panicking() {
                let failure = StartFailure::ended(self.rank, self.own, DEFECT, "its thread panicked");
                failed = Some(failure.at);
                content.fail(failure);
            }
            content.set(self.rank, self.own, Presence::Left);
        }
        if let Ok(seat) = self.seat.get_mut()
            && let Some(seat) = seat.take()
        {
            unlock(&seat);
        }
        table.close()?;
        if let Some(at) = failed {
            outlast(at);
        }
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            tracing::debug!(%error, path = %self.path.display(), "the file of the ranks keeps its name");
        }
    }
}

pub(super) fn require_ranks(rank: usize, size: usize) -> Result<()> {
    let wrong = |reason: String, fix: &str| {
        Err(Error::Launch { place: format!("rank {rank} of {size}"), reason, fix: fix.into() })
    };
    if size == 0 || size > MAX_RANKS {
        let reason = format!("{size} ranks: one machine has 1 to {MAX_RANKS}");
        return wrong(reason, "start fewer ranks, or connect them by MPI");
    }
    if rank >= size {
        let reason = format!("rank {rank} of {size} ranks: they are numbered from 0 to {}", size - 1);
        return wrong(reason, "correct the rank or the world size");
    }
    Ok(())
}

/// Wait of a process that contradicts living ranks: longer where these are ending.
fn grace(table: &Table, is_taken: bool, rank: usize) -> Result<Duration> {
    let Some(content) = &table.content else { return Ok(GRACE) };
    let ranks = if is_taken { vec![rank] } else { table.living()? };
    Ok(if ranks.iter().all(|rank| content.whom(*rank).is_ending()) { ENDING } else { GRACE })
}

/// The failure of a process whose rank is taken, or whose world size is another one. Ranks that wait fail with it; a
/// run is left alone.
fn contradicts(mut table: Table, is_taken: bool, (rank, size): (usize, usize), own: Identity) -> Result<StartFailure> {
    let fix = "set another MASTER_PORT or BMTRAIN_JOB for another job";
    let Some(content) = &mut table.content else {
        let (place, reason) = (format!("rank {rank}"), format!("a living process is rank {rank} of this job"));
        return Ok(StartFailure::launch(rank, place, reason, format!("wait for its end, or {fix}")));
    };
    let other = if is_taken { Some(rank) } else { content.seats.iter().position(|seat| seat.whom.process != 0) };
    let other = other.unwrap_or(0);
    let (process, theirs, is_running) = (content.whom(other).process, content.seats.len(), content.is_complete());
    let place = format!("rank {rank} of {size}, process {}", own.process);
    let failure = match (is_running, is_taken) {
        (true, _) => {
            let reason = format!("this job is running with {theirs} ranks; its rank {other} is process {process}");
            StartFailure::launch(rank, place, reason, format!("wait for its end, or {fix}"))
        }
        (false, true) => {
            let reason = format!("processes {process} and {} are both rank {rank}", own.process);
            let all = theirs - 1;
            StartFailure::launch(rank, place, reason, format!("give each process its own RANK from 0 to {all}; {fix}"))
        }
        (false, false) => {
            let reason = format!("rank {rank} has world size {size}, rank {other} (process {process}) has {theirs}");
            StartFailure::launch(rank, place, reason, format!("set the same WORLD_SIZE for all ranks; {fix}"))
        }
    };
    if !is_running {
        content.fail(failure.clone());
        if !is_taken && content.is_absent(rank) {
            content.set(rank, own, Presence::Left);
        }
        table.close()?;
        outlast(failure.at);
    }
    Ok(failure)
}

/// Ranks of an earlier start that do not end.
fn still_there(table: &Table, living: Vec<usize>) -> Error {
    let process = |rank: &usize| table.content.as_ref().map_or(0, |content| content.whom(*rank).process);
    let who = living.iter().map(|rank| format!("rank {rank} (process {})", process(rank))).collect::<Vec<_>>();
    let reason = format!("{} of an earlier start of this job has not ended for {PATIENCE:.0?}", who.join(" and "));
    Error::Communication { operation: "join".into(), sequence: 0, reason, ranks: living }
}

/// Wait until a process that is started from now on is seen to be younger than a failure.
fn outlast(at: u64) {
    while now() <= at {
        std::thread::sleep(Duration::from_millis(1));
    }
}
