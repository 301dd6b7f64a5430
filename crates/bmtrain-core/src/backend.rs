//! The seam between the framework and a device: memory, order, transfer and kernels.
//!
//! A backend is a run-time object, `Arc<dyn Backend>`; adding one is a crate of its own that implements the two
//! traits here and passes the conformance table. Everything above this file is written once for all of them.

pub use crate::lane::{DeviceId, Lane, Mark};
pub use crate::memory::Memory;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Activation, Kernel};
use crate::threads::Threads;
use crate::view::{View, ViewMut};
use std::fmt::Debug;
use std::sync::Arc;

/// The arithmetic of a backend. One method: a kernel is a value of [`Kernel`], whose variants are the table of
/// contents.
pub trait Kernels {
    /// Give one kernel to a lane. Returns when it is queued; its views stay valid until the lane has run it, because
    /// memory goes back to the pool in lane order.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for kernels this backend does not have: a partial backend is legal.
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()>;
}

/// Work of the host on device memory: the bytes it reads and those it writes, empty where there is no such range. It
/// finds in the written range what is there: sums add to it, and an optimizer updates it.
pub type HostWork = Box<dyn FnOnce(&[u8], &mut [u8]) -> Result<()> + Send>;

/// Memory, order and transfer of a device. A backend around another one forwards what it leaves alone by
/// [`forward_to_inner`](crate::forward_to_inner), which also lists what is provided here.
pub trait Backend: Kernels + Debug + Send + Sync {
    /// Name of this device in reports and errors, e.g. `cpu (2 threads)`.
    fn name(&self) -> String;

    /// The identity taken when the backend was built.
    fn id(&self) -> DeviceId;

    /// Take memory from the system, at least `bytes` long, aligned to 512 bytes. Called by the pool only.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the system has no more, see [`Error::no_memory`]: the pool then releases free
    /// slabs and asks again. Other errors are passed on.
    fn allocate(&self, bytes: usize) -> Result<Memory>;

    /// Give memory back to the system, after the work of all lanes that may touch it is done.
    fn release(&self, memory: Memory);

    /// Bytes that the pool requests at a time for short-lived tensors.
    fn slab_bytes(&self) -> usize;

    /// Copy host bytes to the device. The host slice is free for reuse when this returns.
    fn upload(&self, host: &[u8], to: ViewMut<'_>, on: Lane) -> Result<()>;

    /// Copy device bytes to the host. Waits for the lane: the one blocking call of a training step.
    fn download(&self, from: View<'_>, host: &mut [u8], on: Lane) -> Result<()>;

    /// Copy within the device.
    fn copy(&self, from: View<'_>, to: ViewMut<'_>, on: Lane) -> Result<()>;

    /// Remember the present end of a lane.
    fn mark(&self, on: Lane) -> Result<Mark>;

    /// Let a lane wait, on the device, until the mark is reached.
    fn wait(&self, on: Lane, mark: Mark) -> Result<()>;

    /// Whether a mark is reached, without waiting; `None` from a backend that cannot tell.
    fn has_reached(&self, mark: Mark) -> Option<bool> {
        let _ = mark;
        None
    }

    /// Let the host wait until all work of a lane is done; reports failures of queued work.
    fn sync(&self, on: Lane) -> Result<()>;

    /// Let the host work on a range that is read and a range that is written, in the order of the lane: how ranks that
    /// share no device communicate. On other lanes than [`Lane::Compute`] the work may run later, on another thread.
    ///
    /// # Errors
    /// Views of another device or lane, ranges that overlap. What `work` returns is a failure of the lane, told at the
    /// next wait for it.
    fn on_host(&self, read: Option<View<'_>>, write: Option<ViewMut<'_>>, work: HostWork, on: Lane) -> Result<()> {
        let _ = (read, write, work, on);
        Err(Error::Unsupported { backend: self.name(), kernel: "on_host", detail: String::new() })
    }

    /// As [`Backend::on_host`], for work that writes the whole of the range that is written and reads nothing of it:
    /// what was there need not be brought to the host, and the work finds any bytes there.
    fn fill_on_host(&self, read: Option<View<'_>>, write: ViewMut<'_>, work: HostWork, on: Lane) -> Result<()> {
        self.on_host(read, Some(write), work, on)
    }

    /// Threads for work of the host that is worth dividing, beside the one that runs it. The CPU backend lends those
    /// its kernels run on.
    fn host_threads(&self) -> Option<Arc<Threads>> {
        None
    }

    /// Whether a product that sums the rows of a factor beside it moves less memory than the kernel that does so alone.
    /// Where it does not, ops launch that one.
    fn fuses_gradients(&self) -> bool {
        false
    }

    /// Whether products are slower where their sizes are odd: tables of tokens are padded in storage then.
    fn aligns_products(&self) -> bool {
        false
    }

    /// Whether products of 8-bit factors are faster than products of 16-bit ones. Where they are not, factors are
    /// rounded and widened again.
    fn multiplies_fp8(&self) -> bool {
        false
    }

    /// Whether a product with a result of `dtype` multiplies it by the derivative of `activation` as it is written.
    /// Where it does not, ops launch a kernel that makes the activation's value again in the same pass.
    fn fuses_derivative(&self, _activation: Activation, _dtype: DType) -> bool {
        false
    }

    /// Whether [`release`](Backend::release) waits for all work of the device, as a CUDA driver does. The pool then
    /// gives nothing back while training runs well: such a wait would stall the step, and the ranks whose collectives
    /// are in flight.
    fn release_waits(&self) -> bool {
        false
    }

    /// Whether the device's memory is the host's, as on the CPU: moving something to the host then gains nothing.
    fn memory_is_host(&self) -> bool {
        false
    }

    /// Bytes of scratch the backend keeps outside the pool, by name, for the memory report.
    fn scratch(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }
}
