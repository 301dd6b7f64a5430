//! One communicator of NCCL, with an owner: begun, asked how far it is, used, and ended in order or broken off.
//!
//! Nothing here waits: a call that NCCL completes later is [`Progress::UnderWay`], and the caller asks again until it
//! is done, within its own deadline.
#![allow(unsafe_code)]

use super::library::{Library, Progress, Stream, config, failure};
use crate::comm::{Collective, Reduction};
use crate::dtype::DType;
use crate::error::Result;
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A rank's end of a communicator. Dropped without [`Connection::finish`], it is broken off: what is queued on the
/// device ends.
#[derive(Debug)]
pub(super) struct Connection {
    handle: ncclComm_t,
    rank: usize,
    size: usize,
    library: Arc<Library>,
}

// SAFETY: NCCL's communicators are bound to a device, not to a thread; this one is used by one thread at a time, which
// its owner's lock sees to.
unsafe impl Send for Connection {}

impl Connection {
    /// Begin to come together with the ranks that have the same id. The device has to be current.
    pub(super) fn begin(library: &Arc<Library>, id: &[u8; 128], (rank, size): (usize, usize)) -> Result<Self> {
        let id = ncclUniqueId { internal: bytemuck::cast(*id) };
        let (mut handle, mut config) = (std::ptr::null_mut(), config());
        let (ranks, own) = (number(size)?, number(rank)?);
        // SAFETY: places for a handle and settings, which NCCL copies before it returns; the device is current.
        let status =
            unsafe { (library.functions.ncclCommInitRankConfig)(&raw mut handle, ranks, id, own, &raw mut config) };
        // With a handle there is something to break off, also after an error.
        let connection = (!handle.is_null()).then(|| Connection { handle, rank, size, library: Arc::clone(library) });
        library.answer("ncclCommInitRankConfig", status)?;
        connection.ok_or_else(|| failure("ncclCommInitRankConfig", "no communicator came back"))
    }

    pub(super) fn progress(&self) -> Result<Progress> {
        let mut state = 0;
        // SAFETY: the communicator lives; a place for an int.
        let status = unsafe { (self.library.functions.ncclCommGetAsyncError)(self.handle, &raw mut state) };
        self.library.answer("ncclCommGetAsyncError", status)?;
        self.library.answer("NCCL", state)
    }

    /// Queue collectives on a stream as one. All are of this communicator's ranks, checked, and not empty.
    ///
    /// # Safety
    /// The memory of the views stays valid until the stream has run what is queued.
    pub(super) unsafe fn queue(&self, collectives: &[Collective<'_>], stream: Stream) -> Result<()> {
        // SAFETY: a group is a matter of this thread; it is ended below whatever happens.
        self.library.answer("ncclGroupStart", unsafe { (self.library.functions.ncclGroupStart)() })?;
        let queued = collectives.iter().try_for_each(|collective| {
            // SAFETY: promised by the caller.
            unsafe { self.one(collective, stream) }.map(|_| ())
        });
        // SAFETY: ends the group begun above.
        let ended = self.library.answer("ncclGroupEnd", unsafe { (self.library.functions.ncclGroupEnd)() });
        queued.and(ended.map(|_| ()))
    }

    /// Queue one collective, inside a group.
    ///
    /// # Safety
    /// As for [`Connection::queue`].
    unsafe fn one(&self, collective: &Collective<'_>, stream: Stream) -> Result<Progress> {
        let (nccl, comm) = (&self.library.functions, self.handle);
        // SAFETY: every address is one of a view that was checked for this collective; the rest is promised by the
        // caller.
        unsafe {
            let (name, status) = match collective {
                Collective::AllGather { send, recv } => {
                    let (from, to, kind) = (read(send.address()), write(recv.address()), kind(send.dtype()));
                    ("ncclAllGather", (nccl.ncclAllGather)(from, to, send.len(), kind, comm, stream))
                }
                Collective::ReduceScatter { send, recv, by } => {
                    let (from, to, kind) = (read(send.address()), write(recv.address()), kind(send.dtype()));
                    let status = (nccl.ncclReduceScatter)(from, to, recv.len(), kind, reduction(*by), comm, stream);
                    ("ncclReduceScatter", status)
                }
                Collective::AllReduce { data, by } => {
                    let (place, kind) = (data.address(), kind(data.dtype()));
                    let (from, to, by) = (read(place), write(place), reduction(*by));
                    ("ncclAllReduce", (nccl.ncclAllReduce)(from, to, data.len(), kind, by, comm, stream))
                }
                Collective::Reduce { data, by, root } => {
                    // The other ranks keep their data: they pass no address for the result.
                    let place = data.address();
                    let to = if self.rank == *root { write(place) } else { std::ptr::null_mut() };
                    let (from, kind, by, root) = (read(place), kind(data.dtype()), reduction(*by), number(*root)?);
                    ("ncclReduce", (nccl.ncclReduce)(from, to, data.len(), kind, by, root, comm, stream))
                }
                Collective::Broadcast { data, root } => {
                    let (place, kind, root) = (data.address(), kind(data.dtype()), number(*root)?);
                    let status = (nccl.ncclBroadcast)(read(place), write(place), data.len(), kind, root, comm, stream);
                    ("ncclBroadcast", status)
                }
                Collective::AllToAll { send, recv } => {
                    let (part, kind) = (send.len() / self.size, kind(send.dtype()));
                    for peer in 0..self.size {
                        let (place, peer) = ((peer * part * send.dtype().size()) as u64, number(peer)?);
                        let (from, to) = (read(send.address() + place), write(recv.address() + place));
                        let sent = (nccl.ncclSend)(from, part, kind, peer, comm, stream);
                        self.library.answer("ncclSend", sent)?;
                        let received = (nccl.ncclRecv)(to, part, kind, peer, comm, stream);
                        self.library.answer("ncclRecv", received)?;
                    }
                    return Ok(Progress::Done);
                }
                Collective::Send { data, to } => {
                    let (from, kind) = (read(data.address()), kind(data.dtype()));
                    ("ncclSend", (nccl.ncclSend)(from, data.len(), kind, number(*to)?, comm, stream))
                }
                Collective::Recv { data, from } => {
                    let (to, kind) = (write(data.address()), kind(data.dtype()));
                    ("ncclRecv", (nccl.ncclRecv)(to, data.len(), kind, number(*from)?, comm, stream))
                }
            };
            self.library.answer(name, status)
        }
    }

    /// Begin to end it in order, together with the other ranks: what is queued has ended. Asked for by
    /// [`Connection::progress`]; then [`Connection::finish`].
    pub(super) fn finalize(&self) -> Result<()> {
        // SAFETY: the communicator lives, and nothing more is queued on it.
        self.library.answer("ncclCommFinalize", unsafe { (self.library.functions.ncclCommFinalize)(self.handle) })?;
        Ok(())
    }

    pub(super) fn finish(self) -> Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, from a value that is not dropped. The library stays open for the life of the process.
        let library = unsafe { std::ptr::read(&raw const this.library) };
        // SAFETY: the communicator lives and is not used from here on.
        library.answer("ncclCommDestroy", unsafe { (library.functions.ncclCommDestroy)(this.handle) })?;
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the communicator lives and is not used from here on. Abort is meant for any state of it.
        let status = unsafe { (self.library.functions.ncclCommAbort)(self.handle) };
        if let Err(error) = self.library.answer("ncclCommAbort", status) {
            tracing::debug!(%error, "a communicator could not be broken off");
        }
    }
}

fn number(of: usize) -> Result<c_int> {
    c_int::try_from(of).map_err(|_| failure("NCCL", format!("rank {of} is beyond what NCCL counts")))
}

fn read(address: u64) -> *const c_void {
    address as *const c_void
}

fn write(address: u64) -> *mut c_void {
    address as *mut c_void
}

fn kind(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::U8 | DType::Blocks(_) => ncclDataType_t::ncclUint8,
    }
}

fn reduction(by: Reduction) -> ncclRedOp_t {
    match by {
        Reduction::Sum => ncclRedOp_t::ncclSum,
        Reduction::Average => ncclRedOp_t::ncclAvg,
        Reduction::Max => ncclRedOp_t::ncclMax,
        Reduction::Min => ncclRedOp_t::ncclMin,
        Reduction::Product => ncclRedOp_t::ncclProd,
    }
}
