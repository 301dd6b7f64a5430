//! A backend that times every kernel of another one. It waits after each, so it shows where time goes, not how well
//! lanes overlap.

use crate::backend::{Backend, DeviceId, HostWork, Kernels, Lane, Mark, Memory};
use crate::buffer::{View, ViewMut};
use crate::cpu::threads::Threads;
use crate::error::Result;
use crate::kernel::{Cost, Kernel};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Time and work of one kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KernelTime {
    /// How often it ran.
    pub calls: u64,
    /// Seconds of all calls together.
    pub seconds: f64,
    /// Work of all calls together.
    pub cost: Cost,
}

/// The timing backend.
#[derive(Debug)]
pub struct Profiled {
    inner: Arc<dyn Backend>,
    times: Mutex<BTreeMap<&'static str, KernelTime>>,
}

impl Profiled {
    /// Time the kernels of `inner`.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Profiled { inner, times: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, KernelTime>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Times since the start or the last reset, by kernel.
    pub fn times(&self) -> BTreeMap<&'static str, KernelTime> {
        self.lock().clone()
    }

    /// Start timing anew.
    pub fn reset(&self) {
        self.lock().clear();
    }
}

impl Kernels for Profiled {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        let (name, cost) = (kernel.name(), kernel.cost());
        let start = Instant::now();
        self.inner.launch(kernel, on)?;
        self.inner.sync(on)?;
        let seconds = start.elapsed().as_secs_f64();
        let mut times = self.lock();
        let time = times.entry(name).or_default();
        time.calls += 1;
        time.seconds += seconds;
        time.cost.flops += cost.flops;
        time.cost.bytes += cost.bytes;
        Ok(())
    }
}

impl Backend for Profiled {
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
        self.inner.sync(on)
    }

    fn on_host(&self, read: Option<View<'_>>, write: Option<ViewMut<'_>>, work: HostWork, on: Lane) -> Result<()> {
        self.inner.on_host(read, write, work, on)
    }

    fn host_threads(&self) -> Option<Arc<Threads>> {
        self.inner.host_threads()
    }

    fn fuses_gradients(&self) -> bool {
        self.inner.fuses_gradients()
    }

    fn scratch(&self) -> Vec<(&'static str, usize)> {
        self.inner.scratch()
    }
}
