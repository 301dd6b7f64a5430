//! How ranks come together: threads get their places at once, processes meet at a file ([`super::meeting`]), groups are
//! split from groups.
//!
//! Defines [`places`], [`join`] and [`Place`] for the first group, and [`Group::split`] for those made from it. The
//! memory that the ranks share loses its name as soon as all have joined, so that it ends with them however that
//! happens.

use super::HostOptions;
use super::group::{Group, Job, ranks_where};
use super::layout::{FORMAT, HANDED_OUT, Layout, PAGE};
use super::mapping::{Region, SharedFile};
use super::meeting::Meeting;
use crate::comm::call::Channel;
use crate::comm::call::{Call, What};
use crate::comm::processes::{Identity, Watch};
use crate::error::{Error, Result};
use crate::limits::{self, Resource};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Where processes meet.
#[derive(Debug)]
pub enum Place {
    /// A file of this name, which the first rank makes; see [`HostGroup::place`](super::HostGroup::place).
    Path(PathBuf),
    /// One that this process has entered.
    Meeting(Meeting),
    /// A file that is open, such as one that was inherited.
    File(OwnedFd),
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Self {
        Place::Path(path.to_path_buf())
    }
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Self {
        Place::Path(path)
    }
}

impl From<Meeting> for Place {
    fn from(meeting: Meeting) -> Self {
        Place::Meeting(meeting)
    }
}

impl From<OwnedFd> for Place {
    fn from(file: OwnedFd) -> Self {
        Place::File(file)
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
pub(super) fn places(size: usize, options: HostOptions) -> Result<Vec<Group>> {
    options.check(0, size)?;
    let file = SharedFile::without_name().map_err(|error| refused("shared memory", &error))?;
    let job = Arc::new(job(file, size, options, None)?);
    let _ = job.watch.set((0..size).map(|_| Watch::Nothing).collect());
    Ok((0..size).map(|rank| place_in(&job, rank, size)).collect())
}

/// One rank among processes.
pub(super) fn join(place: Place, rank: usize, size: usize, options: HostOptions) -> Result<Group> {
    options.check(rank, size)?;
    let (file, meeting) = match place {
        Place::File(file) => (SharedFile::of(file).map_err(|error| failed("open", error))?, None),
        Place::Path(path) => {
            let meeting = Meeting::enter(path, rank, size)?;
            (meeting.memory()?, Some(meeting))
        }
        Place::Meeting(meeting) if meeting.seat() == (rank, size) => (meeting.memory()?, Some(meeting)),
        Place::Meeting(meeting) => {
            let reason =
                format!("rank {rank} of {size} with the place of rank {} of {}", meeting.seat().0, meeting.seat().1);
            return Err(Error::argument("join", reason));
        }
    };
    let job = Arc::new(job(file, size, options, meeting)?);
    take_place(&job, rank, size)?;
    let layout = job.root_layout;
    let group = place_in(&job, rank, size);
    let here = |rank: usize| job.root.word(layout.process(rank)).load(Ordering::Acquire) != 0;
    group.notify();
    let all_here = group.wait(&Call { what: What::Join, sequence: 0 }, || ranks_where(size, |rank| !here(rank)));
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
        let word = |offset| job.root.word(offset).load(Ordering::Relaxed);
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
fn take_place(job: &Job, rank: usize, size: usize) -> Result<()> {
    let (layout, options) = (job.root_layout, job.options);
    let wrong = |reason: String, fix: &str| match &job.meeting {
        Some(meeting) => Err(meeting.refuse(format!("rank {rank} of {size}"), reason, fix)),
        None => Err(Error::Launch { place: format!("rank {rank} of {size}"), reason, fix: fix.into() }),
    };
    let found = job.root.word(FORMAT).compare_exchange(0, layout.format(), Ordering::AcqRel, Ordering::Acquire);
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
    job.root.word(layout.namespace(rank)).store(own.namespace, Ordering::Relaxed);
    job.root.word(layout.start(rank)).store(own.start, Ordering::Relaxed);
    let seat = job.root.word(layout.process(rank));
    match seat.compare_exchange(0, own.process, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(other) => {
            let reason = format!("processes {other} and {} are both rank {rank}", own.process);
            wrong(reason, "give each process a rank of its own")
        }
    }
}

fn job(file: SharedFile, size: usize, options: HostOptions, meeting: Option<Meeting>) -> Result<Job> {
    let layout = Layout::new(size, options.chunk);
    file.reserve(0, layout.control_bytes()).map_err(|error| refused("shared memory", &error))?;
    let root = Region::map(&file, 0, layout.bytes()).map_err(|error| refused("map", &error))?;
    Ok(Job { file, root: Arc::new(root), root_layout: layout, options, watch: OnceLock::new(), meeting })
}

fn place_in(job: &Arc<Job>, rank: usize, size: usize) -> Group {
    Group::new(Arc::clone(job), (Arc::clone(&job.root), 0), job.root_layout, (rank, (0..size).collect()))
}

impl Group {
    /// The group of the ranks that come with this `colour`, in the order of `key` and then of their ranks. `sequence`
    /// is the number of the first of the two meetings that this takes.
    ///
    /// # Errors
    /// As for every meeting; no memory.
    pub(super) fn split(&self, colour: u64, key: u64, sequence: u64) -> Result<Group> {
        let call = Call { what: What::Split, sequence };
        let wishes = self.meet(&call, [colour, key])?;
        let mut groups: Vec<([u64; 2], usize)> = wishes.into_iter().zip(0..).collect();
        groups.sort_unstable();
        let of_colour = |wanted: u64| groups.iter().filter(move |(wish, _)| wish[0] == wanted).map(|(_, rank)| *rank);
        let bytes_of = |colour: u64| Layout::new(of_colour(colour).count(), self.layout.chunk()).bytes();
        let mut colours: Vec<u64> = groups.iter().map(|(wish, _)| wish[0]).collect();
        colours.dedup();

        // One rank takes room for all new groups, behind what has been handed out, and tells the others where.
        let next = Call { what: What::Split, sequence: sequence + 1 };
        let start = match self.rank {
            0 => {
                let bytes = colours.iter().map(|colour| bytes_of(*colour) as u64).sum();
                self.job.root.word(HANDED_OUT).fetch_add(bytes, Ordering::Relaxed)
            }
            _ => 0,
        };
        let [start, _] = self.meet(&next, [start, 0])?[0];
        let before: usize = colours.iter().take_while(|other| **other != colour).map(|colour| bytes_of(*colour)).sum();
        let start = usize::try_from(start).ok().filter(|start| *start < 1 << 46 && start.is_multiple_of(PAGE));
        let Some(start) = start.map(|start| self.job.root_layout.bytes() + start + before) else {
            return Err(self.fail(&next, 1, format!("{} gave a place that is none", self.label(0))));
        };

        let members: Vec<usize> = of_colour(colour).collect();
        let world = members.iter().map(|rank| self.world[*rank]).collect();
        let rank = members.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let layout = Layout::new(members.len(), self.layout.chunk());
        let reserved = self.job.file.reserve(start, layout.control_bytes());
        // The other ranks learn of it from the caller, who ends by this error; see `fail_with`.
        let region = reserved
            .and_then(|()| Region::map(&self.job.file, start, layout.bytes()))
            .map_err(|error| refused("split", &error))?;
        Ok(Group::new(Arc::clone(&self.job), (Arc::new(region), start), layout, (rank, world)))
    }

    /// Come together with all ranks, on the calling thread, and exchange two words.
    ///
    /// # Errors
    /// Another call on another rank; a failed group; a rank that does not come.
    pub(super) fn meet(&self, call: &Call, words: [u64; 2]) -> Result<Vec<[u64; 2]>> {
        self.healthy(call)?;
        self.publish(Channel::Host, call, words);
        self.agree(Channel::Host, call)?;
        let of = |rank| self.record(rank, Channel::Host, call.sequence).map_or([0; 2], |[_, _, a, b]| [a, b]);
        Ok((0..self.size).map(of).collect())
    }
}
