//! A backend that counts how often the host waits for another one. A step that waits once keeps a device busy; each further
//! wait lets it run dry.

use crate::backend::{Backend, DeviceId, HostWork, Kernels, Lane, Mark, Memory};
use crate::buffer::{View, ViewMut};
use crate::cpu::threads::Threads;
use crate::error::Result;
use crate::kernel::Kernel;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counting backend. What it counts is downloads and waits for lanes that callers ask for; where the inner backend waits
/// by itself, as for memory from the system, is not seen.
#[derive(Debug)]
pub struct Waiting {
    inner: Arc<dyn Backend>,
    waits: AtomicU64,
}

impl Waiting {
    /// Count the waits for `inner`.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Waiting { inner, waits: AtomicU64::new(0) }
    }

    /// Waits since the start.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

impl Kernels for Waiting {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        self.inner.launch(kernel, on)
    }
}

impl Backend for Waiting {
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
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.inner.download(from, host, on)
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.inner.copy(from, to, on)
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
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.inner.sync(on)
    }

    fn on_host(&self, read: Option<View<'_>>, write: Option<ViewMut<'_>>, work: HostWork, on: Lane) -> Result<()> {
        self.inner.on_host(read, write, work, on)
    }

    fn host_threads(&self) -> Option<Arc<Threads>> {
        self.inner.host_threads()
    }

    fn scratch(&self) -> Vec<(&'static str, usize)> {
        self.inner.scratch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device, Segment, Tensor};

    #[test]
    fn a_download_and_a_wait_for_a_lane_count_one_each() {
        let waiting = Arc::new(Waiting::new(Arc::new(crate::cpu::CpuBackend::new(1).unwrap())));
        let device = Device::new(waiting.clone());
        let tensor = Tensor::full(&device, [1], DType::F32, 2.0, Segment::Workspace).unwrap();
        assert_eq!(waiting.waits(), 0, "filling is no wait");
        assert_eq!((tensor.item().unwrap(), waiting.waits()), (2.0, 1));
        device.sync().unwrap();
        assert_eq!(waiting.waits(), 1 + Lane::ALL.len() as u64);
    }
}
