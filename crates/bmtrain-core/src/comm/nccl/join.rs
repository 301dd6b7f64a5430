//! Start of the ranks: they agree on a version and on ids over the control plane, then NCCL connects their devices.
//!
//! Each group has ids of its own: NCCL's way to split a communicator demands that nothing is under way on it, and what
//! groups would share puts their calls in one order.

use super::connection::Connection;
use super::job::{NAP, NcclJob};
use super::library::{Library, Progress, failure};
use super::rank::{Member, Route};
use super::{NcclOptions, Version};
use crate::backend::Backend;
use crate::comm::call::{Call, CallKind};
use crate::comm::{Collective, Communicator};
use crate::cuda::CudaBackend;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::pool::Segment;
use crate::tensor::Storage;
use std::sync::Arc;
use std::time::Instant;

/// Connections of a group with messages, and bytes of an id.
pub(super) const WAYS: usize = 3;
const ID: usize = 128;

pub(super) fn join(
    backend: Arc<CudaBackend>,
    control: Arc<dyn Communicator>,
    options: NcclOptions,
) -> Result<Arc<Member>> {
    if options.deadline.is_zero() {
        return Err(Error::argument("ranks of NCCL", "a deadline of no time at all: give ranks some seconds"));
    }
    let (rank, alone) = (control.rank(), control.size() == 1);
    let library = if alone { None } else { Some(Library::open(&options.libraries)) };
    let (library, missing) = match library {
        Some(Ok(library)) => (Some(library), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let job = NcclJob::new(backend, Arc::clone(&control), library, options);
    // The others hear from this rank that it has no library, and do not wait.
    meet(&job, control, rank).map_err(|error| missing.unwrap_or(error))
}

/// The group of the ranks of a control plane; `own` is this rank's number among all.
pub(super) fn meet(job: &Arc<NcclJob>, control: Arc<dyn Communicator>, own: usize) -> Result<Arc<Member>> {
    let member = if control.size() == 1 {
        Member::new(job, (Arc::clone(&control), control), vec![own], None)
    } else {
        let inquest = control.split(0, control.rank())?;
        let ways = if job.options.messages { WAYS } else { 1 };
        let (ids, world) = agree(job, &*control, own, ways)?;
        let connections = connect_all(job, &*control, &ids)?;
        Member::new(job, (control, inquest), world, Some(connections))
    };
    job.enter(&member)?;
    if member.size > 1
        && job.options.messages
        && let Err(error) = greet(&member)
    {
        job.leave();
        return Err(error);
    }
    Ok(member)
}

/// The connections for messages of a group that has none yet.
pub(super) fn connect_messages(member: &Member) -> Result<()> {
    if member.size == 1 || member.has_messages() {
        return Ok(());
    }
    member.job.healthy(member, &Call { kind: CallKind::Join, sequence: 0 })?;
    let (job, control) = (&member.job, &*member.control);
    let own = member.world.get(member.rank).copied().unwrap_or(member.rank);
    let (ids, _) = agree(job, control, own, WAYS - 1)?;
    let connections = connect_all(job, control, &ids)?;
    member.add_connections(connections)?;
    greet(member)
}

/// Ids of `ways` connections and the ranks' numbers among all, the same on all ranks.
fn agree(job: &NcclJob, control: &dyn Communicator, own: usize, ways: usize) -> Result<(Vec<[u8; ID]>, Vec<usize>)> {
    let ids = match &job.library {
        Some(library) if control.rank() == 0 => (0..ways).map(|_| library.unique_id()).collect(),
        _ => Ok(vec![[0; ID]; ways]),
    };
    // A version of nothing stands for a rank that cannot.
    let version = job.library.as_ref().filter(|_| ids.is_ok()).map_or(0, |library| u64::from(library.version().0));
    let words = [version, own as u64, ways as u64].map(u64::to_le_bytes).concat();
    let mut card = [words, ids.as_ref().map_or(vec![], |ids| ids.concat())].concat();
    card.resize(3 * 8 + WAYS * ID, 0);
    let cards = gather(control, &card)?;
    let ids = ids?;
    let word = |rank: usize, place: usize| {
        cards[rank][8 * place..][..8].iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte))
    };
    for rank in 0..control.size() {
        let reason = match (word(rank, 0), word(rank, 2)) {
            (0, _) => "cannot use NCCL: see its own error".into(),
            (other, _) if other != version => {
                let version_of = |number| Version(u32::try_from(number).unwrap_or(0));
                format!(
                    "has NCCL {}, this rank {}; install one version everywhere",
                    version_of(other),
                    version_of(version)
                )
            }
            (_, other) if other != ways as u64 => "has other options about messages; give all ranks the same".into(),
            _ => continue,
        };
        return Err(failure("join", format!("rank {rank} {reason}")));
    }
    let world = (0..control.size()).map(|rank| usize::try_from(word(rank, 1)).unwrap_or(rank)).collect();
    let id = |way: usize| {
        let mut id = [0; ID];
        id.copy_from_slice(&cards[0][3 * 8 + way * ID..][..ID]);
        id
    };
    Ok(((0..ids.len()).map(id).collect(), world))
}

/// A connection for each id.
fn connect_all(job: &NcclJob, control: &dyn Communicator, ids: &[[u8; ID]]) -> Result<Vec<Connection>> {
    let connected = ids.iter().map(|id| connect(job, control, id)).collect::<Result<Vec<_>>>();
    // Told here, because no watch knows of these connections yet.
    connected.inspect_err(|error| control.abort(&error.to_string()))
}

fn connect(job: &NcclJob, control: &dyn Communicator, id: &[u8; ID]) -> Result<Connection> {
    let Some(library) = &job.library else { return Err(failure("join", "no library")) };
    job.backend.make_current()?;
    let connection = Connection::begin(library, id, (control.rank(), control.size()))?;
    let begin = Instant::now();
    while connection.progress()? == Progress::UnderWay {
        if let Some(error) = control.failure() {
            return Err(error);
        }
        if begin.elapsed() >= job.options.deadline {
            let reason = format!("not all {} ranks have come within {:.1?}", control.size(), job.options.deadline);
            return Err(failure("join", reason));
        }
        std::thread::sleep(NAP);
    }
    Ok(connection)
}

/// Send one byte to each neighbour and take theirs, so that later messages need not wait for the other rank's host.
fn greet(member: &Member) -> Result<()> {
    let (rank, size, device) = (member.rank, member.size, Device::new(member.job.backend.clone() as Arc<dyn Backend>));
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    let lane = Lane::Pipe;
    let place = || Storage::empty_on(&device, 1, DType::U8, Segment::Workspace, lane);
    // Of two ranks each is the other's neighbour on both sides.
    let mut neighbours = vec![next, last];
    neighbours.dedup();
    let call = Call { kind: CallKind::Join, sequence: 0 };
    for way in [Route::Up, Route::Down] {
        let is_here = |from: usize, to: usize| (from < to) == (way == Route::Up);
        let mut storages = Vec::new();
        for other in &neighbours {
            storages.push((*other, place()?, place()?));
        }
        let mut messages = Vec::new();
        for (other, sent, received) in &storages {
            if is_here(rank, *other) {
                messages.push(Collective::Send { data: sent.view_on(0..1, lane)?, to: *other });
            }
            if is_here(*other, rank) {
                messages.push(Collective::Recv { data: received.view_mut_on(0..1, lane)?, from: *other });
            }
        }
        if !messages.is_empty() {
            member.queue(way, &messages, call, lane)?;
        }
        member.job.backend.sync(lane)?;
    }
    Ok(())
}

/// All-gather in the order of the ranks: the same number of bytes from each, through memory of the hosts.
pub(super) fn gather(control: &dyn Communicator, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    let device = Device::cpu(1)?;
    let (backend, lane) = (device.backend(), Lane::Compute);
    let whole = own.len() * control.size();
    let new = |len| Storage::empty(&device, len, DType::U8, Segment::Data);
    let (send, recv) = (new(own.len())?, new(whole)?);
    backend.upload(own, send.view_mut(0..own.len())?, lane)?;
    let collective = Collective::AllGather { send: send.view(0..own.len())?, recv: recv.view_mut(0..whole)? };
    control.launch(backend, collective, lane)?;
    let mut bytes = vec![0; whole];
    backend.download(recv.view(0..whole)?, &mut bytes, lane)?;
    Ok(bytes.chunks_exact(own.len()).map(<[u8]>::to_vec).collect())
}
