//! Launches on the emulated device.

use cudarc::driver::sys::culib;
use std::ffi;

/// A launch of a kernel, or of a library, whose name then is "a library".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// The kernel's name.
    pub kernel: String,
    /// Blocks of the grid.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u32,
}

/// Launches of `work` in this process, which has opened the emulated driver.
#[allow(unsafe_code)]
pub fn launched_by<T>(work: impl FnOnce() -> T) -> (T, Vec<Launched>) {
    type Launch = unsafe extern "C" fn(usize, *mut ffi::c_char, usize, *mut u64, *mut u32) -> i32;
    // SAFETY: the bindings have opened the emulated driver, which stays open; types as in fake_hooks.cpp.
    let (record, launch) = unsafe {
        let record = *culib().get::<unsafe extern "C" fn(i32)>(b"emulated_record\0").unwrap();
        (record, *culib().get::<Launch>(b"emulated_launch\0").unwrap())
    };
    // SAFETY: a switch.
    unsafe { record(1) };
    let done = work();
    let mut launches = Vec::new();
    loop {
        let mut name = [0; 256];
        let (mut blocks, mut threads) = (0, 0);
        // SAFETY: the name has that number of bytes and ends with a zero; the other pointers are live.
        let kernel = unsafe {
            if launch(launches.len(), name.as_mut_ptr(), name.len(), &mut blocks, &mut threads) == 0 {
                break;
            }
            ffi::CStr::from_ptr(name.as_ptr())
        };
        launches.push(Launched { kernel: kernel.to_str().unwrap().to_owned(), blocks, threads });
    }
    // SAFETY: a switch.
    unsafe { record(0) };
    (done, launches)
}
