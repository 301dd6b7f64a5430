//! Start of a job: threads get their places at once, processes meet at a file ([`super::meeting`]), groups are split
//! from groups.
//!
//! The memory that the ranks share loses its name as soon as all have joined, so that it ends with them however that
//! happens.

use super::HostOptions;
use super::group::{HostJob, SharedGroup, ranks_where};
use super::layout::{FORMAT, HANDED_OUT, Layout, PAGE};
use super::mapping::{Region, SharedFile};
use super::meeting::Meeting;
use crate::comm::call::{Call, CallKind};
use crate::comm::engine::{Group, members_of_color};
use crate::comm::processes::{Identity, Watch};
use crate::error::{Error, Result};
use crate::limits::{self, Resource};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Meeting point of processes.
#[derive(Debug)]
pub enum Rendezvous {
    /// A file of this name, which the first rank makes; see [`HostGroup::place`](super::HostGroup::place).
    Path(PathBuf),
    /// One that this process has entered.
    Meeting(Meeting),
    /// A file that is open, such as one that was inherited.
    File(OwnedFd),
}

impl From<&Path> for Rendezvous {
    fn from(path: &Path) -> Self {
        Rendezvous::Path(path.to_path_buf())
    }
}

impl From<PathBuf> for Rendezvous {
    fn from(path: PathBuf) -> Self {
        Rendezvous::Path(path)
    }
}

impl From<Meeting> for Rendezvous {
    fn from(meeting: Meeting) -> Self {
        Rendezvous::Meeting(meeting)
    }
}

impl From<OwnedFd> for Rendezvous {
    fn from(file: OwnedFd) -> Self {
        Rendezvous::File(file)
    }
}

fn failed(call: &'static str, error: impl std::fmt::Display) -> Error {
    Error::Device { backend: "ranks of one machine".into(), call, reason: error.to_string() }
}

/// A refusal of shared memory, which a limit can cause, or another failure of the call.
pub(super) fn refused(call: &'static str, error: &std::io::Error) -> Error {
    match exhausted(error) {
        Some(resource) => Error::refused("memory that ranks share", resource, error),
        None => failed(call, error),
    }
}

/// The resource that an error of the shared memory's file system means.
pub(super) fn exhausted(error: &std::io::Error) -> Option<Resource> {
    match error.kind() {
        // The file system is full.
        std::io::ErrorKind::StorageFull => Some(Resource::Memory),
        _ => limits::reached(error),
    }
}

/// The places of all ranks of one process.
pub(super) fn places(size: usize, options: HostOptions) -> Result<Vec<SharedGroup>> {
    options.check(0, size)?;
    let file = SharedFile::without_name().map_err(|error| refused("shared memory", &error))?;
    let job = Arc::new(job(file, size, options, None)?);
    let _ = job.watch.set((0..size).map(|_| Watch::Nothing).collect());
    Ok((0..size).map(|rank| place_in(&job, rank, size)).collect())
}

pub(super) fn join(at: Rendezvous, rank: usize, size: usize, options: HostOptions) -> Result<SharedGroup> {
    options.check(rank, size)?;
    let (file, meeting) = match at {
        Rendezvous::File(file) => (SharedFile::of(file).map_err(|error| failed("open", error))?, None),
        Rendezvous::Path(path) => {
            let meeting = Meeting::enter(path, rank, size)?;
            (meeting.memory()?, Some(meeting))
        }
        Rendezvous::Meeting(meeting) if meeting.seat() == (rank, size) => (meeting.memory()?, Some(meeting)),
        Rendezvous::Meeting(meeting) => {
            let reason =
                format!("rank {rank} of {size} with the place of rank {} of {}", meeting.seat().0, meeting.seat().1);
            return Err(Error::argument("join", reason));
        }
    };
    let job = Arc::new(job(file, size, options, meeting)?);
    take_place(&job, rank, size)?;
    let layout = job.root_layout;
    let group = place_in(&job, rank, size);
    let here = |rank: usize| job.root.slot(layout.process(rank)).load(Ordering::Acquire) != 0;
    group.notify();
    let all_here = group.wait(&Call { kind: CallKind::Join, sequence: 0 }, || ranks_where(size, |rank| !here(rank)));
    if let Some(meeting) = &job.meeting
        && (rank == 0 || all_here.is_err())
        && let Err(error) = job.file.remove_name(&meeting.memory_path())
    {
        tracing::debug!(%error, "the memory of the ranks keeps its name");
    }
    all_here?;
    if let Some(meeting) = &job.meeting {
        meeting.all_here();
    }
    let own = Identity::own();
    let watch = |rank| {
        let word = |offset| job.root.slot(offset).load(Ordering::Relaxed);
        let process = word(layout.process(rank));
        let whom = Identity { process, namespace: word(layout.namespace(rank)), start: word(layout.start(rank)) };
        match (Watch::over(whom), &job.meeting) {
            (Watch::Nothing, Some(meeting)) if whom.namespace != own.namespace => meeting.watch(rank),
            (watch, _) => watch,
        }
    };
    let _ = job.watch.set((0..size).map(watch).collect());
    Ok(group)
}

/// Write this process into the memory that the ranks share.
fn take_place(job: &HostJob, rank: usize, size: usize) -> Result<()> {
    let (layout, options) = (job.root_layout, job.options);
    let wrong = |reason: String, fix: &str| match &job.meeting {
        Some(meeting) => Err(meeting.refuse(format!("rank {rank} of {size}"), reason, fix)),
        None => Err(Error::Launch { place: format!("rank {rank} of {size}"), reason, fix: fix.into() }),
    };
    let found = job.root.slot(FORMAT).compare_exchange(0, layout.format(), Ordering::AcqRel, Ordering::Acquire);
    if let Err(other) = found
        && other != layout.format()
    {
        let (ranks, chunk) = Layout::of_format(other);
        let reason = format!(
            "rank {rank} has {size} ranks and chunks of {} bytes, another rank has {ranks} and {chunk}",
            options.chunk
        );
        return wrong(reason, "start all ranks with the same chunk size");
    }
    let own = Identity::own();
    job.root.slot(layout.namespace(rank)).store(own.namespace, Ordering::Relaxed);
    job.root.slot(layout.start(rank)).store(own.start, Ordering::Relaxed);
    let seat = job.root.slot(layout.process(rank));
    match seat.compare_exchange(0, own.process, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(other) => {
            let reason = format!("processes {other} and {} are both rank {rank}", own.process);
            wrong(reason, "give each process a rank of its own")
        }
    }
}

fn job(file: SharedFile, size: usize, options: HostOptions, meeting: Option<Meeting>) -> Result<HostJob> {
    let layout = Layout::new(size, options.chunk);
    file.reserve(0, layout.control_bytes()).map_err(|error| refused("shared memory", &error))?;
    let root = Region::map(&file, 0, layout.bytes()).map_err(|error| refused("map", &error))?;
    Ok(HostJob { file, root: Arc::new(root), root_layout: layout, options, watch: OnceLock::new(), meeting })
}

fn place_in(job: &Arc<HostJob>, rank: usize, size: usize) -> SharedGroup {
    SharedGroup::new(Arc::clone(job), (Arc::clone(&job.root), 0), job.root_layout, (rank, (0..size).collect()))
}

/// See [`engine::Group::split`]. It takes two meetings.
pub(super) fn split(group: &SharedGroup, color: u64, key: u64, sequence: u64) -> Result<(SharedGroup, u64)> {
    let wishes = group.meet(&Call { kind: CallKind::Split, sequence }, [color, key])?;
    let chunk = group.layout.chunk();
    let bytes_of = |color: u64| Layout::new(wishes.iter().filter(|wish| wish[0] == color).count(), chunk).bytes();
    let mut colors: Vec<u64> = wishes.iter().map(|wish| wish[0]).collect();
    colors.sort_unstable();
    colors.dedup();

    // Rank 0 allocates the regions of all new groups in the file and tells the others where.
    let next = Call { kind: CallKind::Split, sequence: sequence + 1 };
    let start = match group.members.rank {
        0 => {
            let bytes = colors.iter().map(|color| bytes_of(*color) as u64).sum();
            group.job.root.slot(HANDED_OUT).fetch_add(bytes, Ordering::Relaxed)
        }
        _ => 0,
    };
    let [start, _] = group.meet(&next, [start, 0])?[0];
    let before: usize = colors.iter().take_while(|other| **other != color).map(|color| bytes_of(*color)).sum();
    let start = usize::try_from(start).ok().filter(|start| *start < 1 << 46 && start.is_multiple_of(PAGE));
    let Some(start) = start.map(|start| group.job.root_layout.bytes() + start + before) else {
        return Err(group.fail(&next, &[0], format!("{} gave an invalid offset", group.members.label(0))));
    };

    let ranks = members_of_color(&wishes, color);
    let world = ranks.iter().map(|rank| group.members.world[*rank]).collect();
    let rank = ranks.iter().position(|rank| *rank == group.members.rank).unwrap_or(0);
    let layout = Layout::new(ranks.len(), chunk);
    let reserved = group.job.file.reserve(start, layout.control_bytes());
    // The other ranks learn of it from the caller, who ends by this error; see `fail_with`.
    let region = reserved
        .and_then(|()| Region::map(&group.job.file, start, layout.bytes()))
        .map_err(|error| refused("split", &error))?;
    let job = Arc::clone(&group.job);
    Ok((SharedGroup::new(job, (Arc::new(region), start), layout, (rank, world)), 2))
}
