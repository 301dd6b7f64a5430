//! A backend around another that counts how often the host waits for it. A training step that keeps a device busy waits once.

use crate::backend::{Backend, DeviceId, HostWork, Kernels, Lane, Mark, Memory};
use crate::buffer::{View, ViewMut};
use crate::cpu::threads::Threads;
use crate::error::Result;
use crate::kernel::Kernel;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The wrapper. What counts are [`Backend::download`] and [`Backend::sync`], the two calls that return when a lane is idle;
/// waits of lanes for each other do not hold up the host.
#[derive(Debug)]
pub struct Waits {
    inner: Arc<dyn Backend>,
    count: AtomicU64,
}

impl Waits {
    /// Count the waits for this backend.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Waits { inner, count: AtomicU64::new(0) }
    }

    /// Waits since the start or the last call of this.
    pub fn take(&self) -> u64 {
        self.count.swap(0, Ordering::Relaxed)
    }

    fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Kernels for Waits {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        self.inner.launch(kernel, on)
    }
}

impl Backend for Waits {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.inner.allocate(bytes)
    }

    fn release(&self, memory: Memory) {
        self.inner.release(memory);
    }

    fn slab_bytes(&self) -> usize {
        self.inner.slab_bytes()
    }

    fn upload(&self, host: &[u8], to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.inner.upload(host, to, on)
    }

    fn download(&self, from: View<'_>, host: &mut [u8], on: Lane) -> Result<()> {
        self.add();
        self.inner.download(from, host, on)
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.inner.copy(from, to, on)
    }

    fn on_host(&self, read: Option<View<'_>>, write: Option<ViewMut<'_>>, work: HostWork, on: Lane) -> Result<()> {
        self.inner.on_host(read, write, work, on)
    }

    fn mark(&self, on: Lane) -> Result<Mark> {
        self.inner.mark(on)
    }

    fn wait(&self, on: Lane, mark: Mark) -> Result<()> {
        self.inner.wait(on, mark)
    }

    fn has_reached(&self, mark: Mark) -> Option<bool> {
        self.inner.has_reached(mark)
    }

    fn sync(&self, on: Lane) -> Result<()> {
        self.add();
        self.inner.sync(on)
    }

    fn host_threads(&self) -> Option<Arc<Threads>> {
        self.inner.host_threads()
    }

    fn scratch(&self) -> Vec<(&'static str, usize)> {
        self.inner.scratch()
    }
}
