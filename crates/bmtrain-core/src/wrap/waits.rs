//! A backend around another that counts how often the host waits for it. A training step that keeps a device busy waits
//! once.

use crate::backend::{Backend, Kernels};
use crate::error::Result;
use crate::kernel::Kernel;
use crate::lane::Lane;
use crate::view::View;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The wrapper. What counts are [`Backend::download`] and [`Backend::sync`], the two calls that return when a lane is
/// idle; waits of lanes for each other do not hold up the host.
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
    crate::forward_to_inner!(name id memory upload copy on_host mark wait provided);

    fn download(&self, from: View<'_>, host: &mut [u8], on: Lane) -> Result<()> {
        self.add();
        self.inner.download(from, host, on)
    }

    fn sync(&self, on: Lane) -> Result<()> {
        self.add();
        self.inner.sync(on)
    }
}
