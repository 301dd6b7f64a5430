//! The driver's functions, looked up once: what is missing is an error before anything is called.
//!
//! Results are numbers here and not the enumeration of the bindings, because a newer driver may have more of them. Of
//! the bindings come the library, the types of handles and the values of attributes and flags.
#![allow(unsafe_code)]

use super::failure;
use crate::error::{OPEN_DRIVER, Result};
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmodule, CUstream,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// `CUresult`.
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const OUT_OF_MEMORY: Status = 2;
pub(super) const NOT_READY: Status = 600;

macro_rules! table {
    (
        { $($name:ident = $symbol:literal ($($argument:ty),*);)* }
        optional { $($other:ident = $other_symbol:literal ($($other_argument:ty),*);)* }
    ) => {
        /// Functions of the driver; the last ones not of every driver.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Status,)*
            $(pub(super) $other: Option<unsafe extern "C" fn($($other_argument),*) -> Status>,)*
        }

        impl Functions {
            fn of(library: &'static libloading::Library) -> std::result::Result<Self, &'static str> {
                // SAFETY: each function has the type of its place, by the driver's documentation; the library stays
                // open.
                unsafe {
                    Ok(Functions {
                        $($name: *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)?,)*
                        $($other: library.get(concat!($other_symbol, "\0").as_bytes()).ok().map(|found| *found),)*
                    })
                }
            }
        }
    };
}

table! {
    {
        context_current = "cuCtxGetCurrent"(*mut CUcontext);
        context_set = "cuCtxSetCurrent"(CUcontext);
        device = "cuDeviceGet"(*mut CUdevice, c_int);
        device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, CUdevice);
        device_count = "cuDeviceGetCount"(*mut c_int);
        device_name = "cuDeviceGetName"(*mut c_char, c_int, CUdevice);
        device_pci_bus_id = "cuDeviceGetPCIBusId"(*mut c_char, c_int, CUdevice);
        context_release = "cuDevicePrimaryCtxRelease_v2"(CUdevice);
        context_retain = "cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
        event_create = "cuEventCreate"(*mut CUevent, c_uint);
        event_destroy = "cuEventDestroy_v2"(CUevent);
        // The bindings know only a newer one, which drivers before CUDA 12.8 lack; the signature is the same.
        event_elapsed = "cuEventElapsedTime"(*mut f32, CUevent, CUevent);
        event_query = "cuEventQuery"(CUevent);
        event_record = "cuEventRecord"(CUevent, CUstream);
        event_synchronize = "cuEventSynchronize"(CUevent);
        function_set = "cuFuncSetAttribute"(CUfunction, c_int, c_int);
        error_name = "cuGetErrorName"(Status, *mut *const c_char);
        error_string = "cuGetErrorString"(Status, *mut *const c_char);
        init = "cuInit"(c_uint);
        launch = "cuLaunchKernel"(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void
        );
        memory_allocate = "cuMemAlloc_v2"(*mut CUdeviceptr, usize);
        pinned_free = "cuMemFreeHost"(*mut c_void);
        memory_free = "cuMemFree_v2"(CUdeviceptr);
        pinned_allocate = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
        pinned_device_address = "cuMemHostGetDevicePointer_v2"(*mut CUdeviceptr, *mut c_void, c_uint);
        copy = "cuMemcpyDtoDAsync_v2"(CUdeviceptr, CUdeviceptr, usize, CUstream);
        download = "cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
        upload = "cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
        fill_16 = "cuMemsetD16Async"(CUdeviceptr, u16, usize, CUstream);
        fill_32 = "cuMemsetD32Async"(CUdeviceptr, c_uint, usize, CUstream);
        fill_8 = "cuMemsetD8Async"(CUdeviceptr, u8, usize, CUstream);
        module_function = "cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);
        module_load = "cuModuleLoadData"(*mut CUmodule, *const c_void);
        module_unload = "cuModuleUnload"(CUmodule);
        stream_create = "cuStreamCreate"(*mut CUstream, c_uint);
        stream_destroy = "cuStreamDestroy_v2"(CUstream);
        stream_synchronize = "cuStreamSynchronize"(CUstream);
        stream_wait_event = "cuStreamWaitEvent"(CUstream, CUevent, c_uint);
        stream_wait_value = "cuStreamWaitValue32_v2"(CUstream, CUdeviceptr, u32, c_uint);
        stream_write_value = "cuStreamWriteValue32_v2"(CUstream, CUdeviceptr, u32, c_uint);
    }
    optional {
        device_memory = "cuDeviceTotalMem_v2"(*mut usize, CUdevice);
        driver_version = "cuDriverGetVersion"(*mut c_int);
        // Graphs, whole since CUDA 12.0.
        capture_begin = "cuStreamBeginCapture_v2"(CUstream, c_uint);
        capture_end = "cuStreamEndCapture"(CUstream, *mut CUgraph);
        capture_info = "cuStreamGetCaptureInfo_v2"(
            CUstream, *mut c_int, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize
        );
        graph_destroy = "cuGraphDestroy"(CUgraph);
        graph_exec_destroy = "cuGraphExecDestroy"(CUgraphExec);
        graph_instantiate = "cuGraphInstantiateWithFlags"(*mut CUgraphExec, CUgraph, u64);
        graph_launch = "cuGraphLaunch"(CUgraphExec, CUstream);
        graph_set_kernel = "cuGraphExecKernelNodeSetParams_v2"(
            CUgraphExec, CUgraphNode, *const sys::CUDA_KERNEL_NODE_PARAMS_v2_st
        );
        // Drivers before CUDA 12.0 have none.
        tensor_map = "cuTensorMapEncodeTiled"(
            *mut c_void, c_int, c_uint, CUdeviceptr, *const u64, *const u64, *const c_uint, *const c_uint, c_int, c_int,
            c_int, c_int
        );
        // Drivers before CUDA 12.4 have none.
        parameter_info = "cuFuncGetParamInfo"(CUfunction, usize, *mut usize, *mut usize);
    }
}

/// The functions of this process's driver.
///
/// # Errors
/// There is no driver, or it lacks a function. The result is the same for the life of the process.
pub(super) fn functions() -> Result<&'static Functions> {
    static FOUND: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
    FOUND.get_or_init(find).as_ref().map_err(|reason| failure(OPEN_DRIVER, reason.clone()))
}

fn find() -> std::result::Result<Functions, String> {
    // SAFETY: opening a library runs its initialisers; the name is the driver's, on whose good behaviour every later
    // call rests as well.
    if !unsafe { sys::is_culib_present() } {
        return Err("no driver library (libcuda.so.1) where the system looks for libraries".into());
    }
    // SAFETY: as above. The library was found a moment ago; should it be gone by now, the bindings panic, and the
    // caller turns that into an error too.
    let library = unsafe { sys::culib() };
    Functions::of(library).map_err(|absent| {
        format!("the driver library has no function {absent}: it is older than this program needs; update the driver")
    })
}

/// The result of a call, with the driver's name and description of an error.
///
/// # Errors
/// Any status but success.
pub(in crate::cuda) fn answer(call: &'static str, status: Status) -> Result<()> {
    if status == SUCCESS {
        return Ok(());
    }
    let words = |of: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
        let mut text = std::ptr::null();
        // SAFETY: takes any number and writes one pointer.
        let known = unsafe { of(status, &mut text) } == SUCCESS && !text.is_null();
        // SAFETY: the text ends with a zero byte and lives as long as the library.
        known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let driver = functions()?;
    // A driver that cannot even name its error is known by the number.
    let name = words(driver.error_name).unwrap_or_else(|| format!("error {status}"));
    Err(failure(call, words(driver.error_string).map_or_else(|| name.clone(), |text| format!("{name}: {text}"))))
}
