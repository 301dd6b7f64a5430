//! One rank's handle of a device: a backend and the pool of its memory. Cheap to clone, confined to the rank's thread.

use crate::backend::Backend;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::lane::{DeviceId, Lane};
use crate::pool::{Chunk, HostAccount, Pool, Report, Segment};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A device as the code of one rank sees it.
#[derive(Clone)]
pub struct Device {
    inner: Rc<Inner>,
}

struct Inner {
    backend: Arc<dyn Backend>,
    id: DeviceId,
    pool: RefCell<Pool>,
    host: Arc<HostAccount>,
}

impl Device {
    /// A device over a backend. Every rank makes its own backend: lanes and pools are not shared.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        let id = backend.id();
        Device { inner: Rc::new(Inner { backend, id, pool: RefCell::new(Pool::default()), host: Arc::default() }) }
    }

    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        &*self.inner.backend
    }

    /// Identity of the backend instance.
    pub fn id(&self) -> DeviceId {
        self.inner.id
    }

    /// Give a kernel to the compute lane.
    pub fn launch<'a>(&self, kernel: impl Into<Kernel<'a>>) -> Result<()> {
        self.launch_on(kernel, Lane::Compute)
    }

    /// Give a kernel to a lane, after checking its arguments once for all backends.
    pub fn launch_on<'a>(&self, kernel: impl Into<Kernel<'a>>, on: Lane) -> Result<()> {
        let kernel = kernel.into();
        kernel.check(self.inner.id, on)?;
        self.inner.backend.launch(kernel, on)
    }

    /// Let the host wait until all lanes are idle.
    pub fn sync(&self) -> Result<()> {
        // Every lane is waited for, also after a failure: each clears its own when it has reported it.
        Lane::ALL.into_iter().map(|lane| self.inner.backend.sync(lane)).fold(Ok(()), Result::and)
    }

    /// Memory in use, by segment, with high-water marks; the last segment is memory of the host.
    pub fn memory(&self) -> Report {
        let mut report = self.inner.pool.borrow().report();
        for (segment, usage) in &mut report.segments {
            if *segment == Segment::Offload {
                *usage = self.inner.host.usage();
            }
        }
        report
    }

    /// Start new high-water marks.
    pub fn reset_peaks(&self) {
        self.inner.pool.borrow_mut().reset_peaks();
        self.inner.host.reset_peak();
    }

    pub(crate) fn host_account(&self) -> Arc<HostAccount> {
        Arc::clone(&self.inner.host)
    }

    pub(crate) fn take(&self, bytes: usize, segment: Segment, first_use: Lane) -> Result<Chunk> {
        self.inner.pool.borrow_mut().take(&*self.inner.backend, bytes, segment, first_use)
    }

    pub(crate) fn release(&self, chunk: Chunk, lanes: u8) {
        self.inner.pool.borrow_mut().release(&*self.inner.backend, chunk, lanes);
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.inner.backend.name())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for lane in Lane::ALL {
            if let Err(error) = self.backend.sync(lane) {
                tracing::warn!(%error, "a lane failed before its device was closed");
            }
        }
        self.pool.get_mut().release_all(&*self.backend);
    }
}
