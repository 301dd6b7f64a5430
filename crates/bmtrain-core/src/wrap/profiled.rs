//! A backend that times every kernel of another one. It waits after each, so it shows where time goes, not how well
//! lanes overlap.

use crate::backend::{Backend, Kernels};
use crate::error::Result;
use crate::kernel::{Cost, Kernel};
use crate::lane::Lane;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Time and work of one kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KernelTime {
    /// Number of runs.
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
    crate::forward_to_inner!(name id memory upload download copy on_host mark wait sync provided);
}
