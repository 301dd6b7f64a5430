//! A backend that tells the emulated driver, before each kernel, which memory the kernel may touch: the views of its
//! arguments.
#![allow(unsafe_code)]

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
            // The rows of a fused projection are interleaved: the whole span is declared.
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
    bmtrain_core::forward_to_inner!(name id allocate upload download copy on_host mark wait sync provided);

    /// Memory is taken piece by piece: in a slab, a tensor may be followed by another of the same kernel.
    fn slab_bytes(&self) -> usize {
        1
    }
}
