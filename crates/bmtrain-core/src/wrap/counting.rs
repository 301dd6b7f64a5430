//! A backend that allocates nothing and computes nothing: it counts. Running a training step on it tells the memory and
//! the work of the step before anything is spent.
#![allow(unsafe_code)]

use crate::backend::{Backend, HostWork, Kernels};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::elementwise::library_has_derivative;
use crate::kernel::{Activation, Cost, Kernel};
use crate::lane::{DeviceId, Lane, Mark};
use crate::memory::Memory;
use crate::pool::ALIGNMENT;
use crate::view::{View, ViewMut};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Messages whose receivers have not taken them yet, so that their memory is not released: of a pipeline stage at
/// work about one to each neighbour.
const MESSAGES_UNDER_WAY: u64 = 2;

/// Calls and work of one kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelCount {
    /// Number of launches.
    pub calls: u64,
    /// Work of all calls together.
    pub cost: Cost,
}

#[derive(Debug)]
struct State {
    kernels: BTreeMap<&'static str, KernelCount>,
    next_address: u64,
    /// Messages to other ranks so far.
    messages: u64,
}

/// The counting backend. Downloads yield zeros.
#[derive(Debug)]
pub struct Counting {
    id: DeviceId,
    slab_bytes: usize,
    is_cuda: bool,
    state: Mutex<State>,
}

impl Counting {
    /// A counter that asks for memory in slabs of this size, like the backend it stands for.
    pub fn new(slab_bytes: usize) -> Self {
        let state = State { kernels: BTreeMap::new(), next_address: ALIGNMENT as u64, messages: 0 };
        Counting { id: DeviceId::fresh(), slab_bytes, is_cuda: false, state: Mutex::new(state) }
    }

    /// This backend as one that [fuses gradients](Backend::fuses_gradients) and whose [release
    /// waits](Backend::release_waits), as on the CUDA backend.
    #[must_use]
    pub fn standing_for_cuda(self, is_cuda: bool) -> Self {
        Counting { is_cuda, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Launches since the start or the last reset, by name.
    pub fn kernels(&self) -> BTreeMap<&'static str, KernelCount> {
        self.lock().kernels.clone()
    }

    /// Start counting anew.
    pub fn reset(&self) {
        self.lock().kernels.clear();
    }
}

impl Kernels for Counting {
    fn launch(&self, kernel: Kernel<'_>, _on: Lane) -> Result<()> {
        let cost = kernel.cost();
        let mut state = self.lock();
        let count = state.kernels.entry(kernel.name()).or_default();
        count.calls += 1;
        count.cost.flops += cost.flops;
        count.cost.bytes += cost.bytes;
        Ok(())
    }
}

impl Backend for Counting {
    fn name(&self) -> String {
        "counting".into()
    }

    fn id(&self) -> DeviceId {
        self.id
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        let mut state = self.lock();
        let address = state.next_address;
        let rounded = bytes.checked_next_multiple_of(ALIGNMENT).map(|bytes| bytes as u64);
        state.next_address = rounded
            .and_then(|bytes| address.checked_add(bytes))
            .ok_or_else(|| Error::argument("allocate", format!("{bytes} bytes are beyond any address")))?;
        // SAFETY: no kernel or copy of this backend touches memory, so any address is valid for them.
        Ok(unsafe { Memory::new(address, bytes) })
    }

    fn release(&self, _memory: Memory) {}

    fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    fn fuses_gradients(&self) -> bool {
        self.is_cuda
    }

    fn aligns_products(&self) -> bool {
        self.is_cuda
    }

    fn multiplies_fp8(&self) -> bool {
        self.is_cuda
    }

    fn fuses_derivative(&self, activation: Activation, dtype: DType) -> bool {
        self.is_cuda && library_has_derivative(activation, dtype)
    }

    fn release_waits(&self) -> bool {
        self.is_cuda
    }

    fn memory_is_host(&self) -> bool {
        !self.is_cuda
    }

    fn upload(&self, _host: &[u8], _to: ViewMut<'_>, _on: Lane) -> Result<()> {
        Ok(())
    }

    fn download(&self, _from: View<'_>, host: &mut [u8], _on: Lane) -> Result<()> {
        host.fill(0);
        Ok(())
    }

    fn copy(&self, _from: View<'_>, _to: ViewMut<'_>, _on: Lane) -> Result<()> {
        Ok(())
    }

    fn on_host(&self, _read: Option<View<'_>>, _write: Option<ViewMut<'_>>, _work: HostWork, on: Lane) -> Result<()> {
        // The work would communicate data that is not there.
        if on == Lane::Pipe {
            self.lock().messages += 1;
        }
        Ok(())
    }

    fn mark(&self, on: Lane) -> Result<Mark> {
        Ok(Mark { lane: on, ticket: if on == Lane::Pipe { self.lock().messages } else { 0 } })
    }

    fn has_reached(&self, mark: Mark) -> Option<bool> {
        (mark.lane == Lane::Pipe).then(|| self.lock().messages >= mark.ticket + MESSAGES_UNDER_WAY)
    }

    fn wait(&self, _on: Lane, _mark: Mark) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _on: Lane) -> Result<()> {
        Ok(())
    }
}
