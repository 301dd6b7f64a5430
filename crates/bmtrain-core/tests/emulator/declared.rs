//! A backend that tells the emulated driver, before each kernel, which memory the kernel may touch: the views of its arguments.
#![allow(unsafe_code)]

use bmtrain_core::backend::{DeviceId, HostWork, Mark, Memory};
use bmtrain_core::buffer::{View, ViewMut};
use bmtrain_core::kernel::{Access, Kernel};
use bmtrain_core::{Backend, Kernels, Lane, Result};
use cudarc::driver::sys::culib;
use std::sync::Arc;

/// The wrapper.
#[derive(Debug)]
pub struct Declared {
    inner: Arc<dyn Backend>,
    declare: unsafe extern "C" fn(u64, usize, i32),
    end: unsafe extern "C" fn(),
}

impl Declared {
    /// Declare what the kernels of `inner` touch, which runs on the emulated driver.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        // SAFETY: the bindings have opened the emulated driver, which stays open; types as in fake_declared.cpp.
        let (declare, end) =
            unsafe { (*culib().get(b"emulated_declare\0").unwrap(), *culib().get(b"emulated_declare_end\0").unwrap()) };
        Declared { inner, declare, end }
    }

    fn declare(&self, access: &Access<'_>) {
        let (start, bytes, written) = match access {
            Access::Read(view) => (view.address(), view.bytes(), false),
            // The rows of a fused projection lie between each other: the whole span is declared.
            Access::Write(view) | Access::WriteRows { view, .. } => (view.address(), view.bytes(), true),
        };
        // SAFETY: the function remembers the numbers.
        unsafe { (self.declare)(start, bytes, i32::from(written)) };
    }
}

impl Kernels for Declared {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        kernel.visit(&mut |access| self.declare(&access));
        let launched = self.inner.launch(kernel, on);
        // SAFETY: the function forgets what was declared.
        unsafe { (self.end)() };
        launched
    }
}

impl Backend for Declared {
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

    /// Memory is taken piece by piece: in a slab, what lies behind a tensor may be another of the same kernel.
    fn slab_bytes(&self) -> usize {
        1
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

    fn fuses_gradients(&self) -> bool {
        self.inner.fuses_gradients()
    }

    fn scratch(&self) -> Vec<(&'static str, usize)> {
        self.inner.scratch()
    }
}
