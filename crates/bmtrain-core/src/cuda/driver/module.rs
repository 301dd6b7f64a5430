//! Compiled kernels.
#![allow(unsafe_code)]

use super::{Context, answer, failure, owned, warn_of};
use crate::error::{Error, Result};
use cudarc::driver::sys;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;

owned! {
    /// Compiled kernels in the device's memory.
    Module(sys::CUmodule), "cuModuleUnload", module_unload
}

impl Module {
    /// Load compiled kernels.
    ///
    /// # Safety
    /// `image` is a whole cubin, fat binary or PTX text: the driver trusts the lengths in it.
    pub(in crate::cuda) unsafe fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self> {
        context.drain()?;
        // PTX is text and ends with a zero byte; other images carry their length and do not mind one.
        let mut ended = image.to_vec();
        ended.push(0);
        let (driver, mut handle) = (context.driver, ptr::null_mut());
        // SAFETY: promised by the caller; the driver copies the image and writes one handle.
        answer("cuModuleLoadData", unsafe { (driver.module_load)(&mut handle, ended.as_ptr().cast()) })?;
        Ok(Module { handle, context: Arc::clone(context) })
    }

    /// A kernel by its name, which takes one structure of `bytes` bytes.
    ///
    /// # Errors
    /// There is none of that name, or it was compiled from a source with another structure.
    pub(in crate::cuda) fn function(&self, name: &CStr, bytes: usize) -> Result<Function> {
        self.context.bind()?;
        let named = |error: Error| match error {
            Error::Device { backend, call, reason } => {
                let reason = format!("{}: {reason}", name.to_string_lossy());
                Error::Device { backend, call, reason }
            }
            other => other,
        };
        let (driver, mut handle) = (self.context.driver, ptr::null_mut());
        // SAFETY: the module is loaded; one handle is written.
        let status = unsafe { (driver.module_function)(&mut handle, self.handle, name.as_ptr()) };
        answer("cuModuleGetFunction", status).map_err(named)?;
        if let Some(parameter_info) = driver.parameter_info {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the function was just found; both places live.
            let status = unsafe { parameter_info(handle, 0, &mut offset, &mut size) };
            answer("cuFuncGetParamInfo", status).map_err(named)?;
            if size != bytes {
                let reason = format!("{} takes {size} bytes, not {bytes}: another version", name.to_string_lossy());
                return Err(failure("find a kernel", reason));
            }
        }
        Ok(Function { handle })
    }
}

/// A kernel of a module, for as long as that is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Function {
    pub(super) handle: sys::CUfunction,
}

// SAFETY: a name for something in a module; the driver's interface may be called from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Let launches choose up to this many bytes of shared memory, beyond the 48 KiB that every kernel may have.
    pub(in crate::cuda) fn allow_shared(&self, context: &Context, bytes: u32) -> Result<()> {
        self.set(
            context,
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            bytes.cast_signed(),
        )
    }

    /// Prefer shared memory over cache, as far as possible, in the memory that a multiprocessor divides between the
    /// two.
    pub(in crate::cuda) fn prefer_shared(&self, context: &Context) -> Result<()> {
        const ALL_OF_IT: c_int = 100;
        self.set(context, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, ALL_OF_IT)
    }

    fn set(&self, context: &Context, what: sys::CUfunction_attribute, value: c_int) -> Result<()> {
        context.bind()?;
        // SAFETY: the function's module is loaded.
        answer("cuFuncSetAttribute", unsafe { (context.driver.function_set)(self.handle, what as c_int, value) })
    }
}
