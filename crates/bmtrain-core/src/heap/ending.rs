//! An allocator that ends the program where the system refuses memory, with a message and an exit code of the program's
//! choice.
//!
//! Defines [`EndingHeap`], which a binary installs with `#[global_allocator]`; [`fallible`], inside which a refusal
//! is returned as usual; [`share_arena`] and [`reserve_stack`], which make a limit on the address space go further;
//! [`release_unused`], which makes the resident memory smaller.
//! Without it a refused allocation ends a Rust program by a signal, which schedulers take for a crash.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::memory;
use rustix::fd::BorrowedFd;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The message, once a program has set it.
static TEXT: OnceLock<String> = OnceLock::new();
static ENDS: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IS_FALLIBLE: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, which ends the process where memory is refused.
#[derive(Debug, Clone, Copy)]
pub struct EndingHeap {
    code: u8,
    text: &'static str,
}

impl EndingHeap {
    /// End with this exit code and, as long as none was set by [`EndingHeap::set_text`], this message.
    pub const fn new(code: u8, text: &'static str) -> Self {
        EndingHeap { code, text }
    }

    /// The message from now on. Made beforehand, since it cannot be put together without memory; a second one is
    /// ignored.
    pub fn set_text(text: String) {
        let _ = TEXT.set(text);
    }

    /// End the process: the message on standard error, the exit code, and nothing else. Nothing is dropped or flushed.
    pub fn end(&self) -> ! {
        unsafe extern "C" {
            safe fn _exit(code: c_int) -> !;
        }
        if ENDS.swap(true, Ordering::Relaxed) {
            // Another thread writes the message and ends the process.
            std::thread::sleep(Duration::from_secs(1));
        } else {
            let text = TEXT.get().map_or(self.text, String::as_str);
            // SAFETY: the number of standard error. If it is closed, writing fails, and that is ignored.
            let standard_error = unsafe { BorrowedFd::borrow_raw(2) };
            let mut rest = text.as_bytes();
            while let Ok(written @ 1..) = rustix::io::write(standard_error, rest) {
                rest = &rest[written..];
            }
        }
        _exit(c_int::from(self.code))
    }

    /// The allocated pointer; the end of the process where it is null and the caller does not handle that.
    fn check(&self, pointer: *mut u8) -> *mut u8 {
        if pointer.is_null() && !IS_FALLIBLE.try_with(Cell::get).unwrap_or(false) {
            self.end()
        }
        pointer
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged, and its answer is returned or the process ends.
unsafe impl GlobalAlloc for EndingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's requirements.
        self.check(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.check(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.check(unsafe { System.realloc(pointer, layout, size) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Do work of this thread in which a refused allocation is returned, as to `try_reserve`, and not the end of the
/// program.
pub fn fallible<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_FALLIBLE.set(self.0);
        }
    }
    let _restore = Restore(IS_FALLIBLE.replace(true));
    work()
}

/// Let all threads allocate from one arena. The C library otherwise reserves 64 MiB of addresses for each thread, and
/// where a limit refuses that it maps and unmaps every allocation by itself. Without effect on other C libraries than
/// glibc.
pub fn share_arena() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// From `malloc.h`.
        const M_ARENA_MAX: c_int = -8;
        unsafe extern "C" {
            safe fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        mallopt(M_ARENA_MAX, 1);
    }
}

/// Give pages of the heap in which nothing is allocated back to the system: after work that allocated a lot in small
/// pieces, such as parsing a large document, which leaves them between those that are in use. Without effect on other C
/// libraries than glibc.
pub fn release_unused() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            safe fn malloc_trim(kept_at_the_top: usize) -> c_int;
        }
        malloc_trim(0);
    }
}

/// Bytes of [`reserve_stack`]; a thread has twice as many for everything.
const STACK: usize = 1 << 20;

/// Let the stack of the main thread take its addresses now. It grows when it is touched, and a limit that refuses that
/// ends the process by a signal. Where the stack itself is bound to less than twice that, nothing is done.
pub fn reserve_stack() -> Result<()> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    if most.is_some_and(|most| most < 2 * STACK as u64) {
        return Ok(());
    }
    // Some pages more: the frames below this one.
    memory::release(memory::allocate(STACK + (64 << 10))?);
    touch();
    Ok(())
}

#[inline(never)]
fn touch() {
    let mut room = [0u8; STACK];
    std::hint::black_box(&mut room);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_returned_inside_of_fallible_work() {
        let heap = EndingHeap::new(5, "no memory");
        let layout = Layout::from_size_align(isize::MAX as usize - 4096, 8).unwrap();
        // SAFETY: a layout with a size; nothing is done with the pointer.
        let refused = fallible(|| unsafe {
            fallible(|| ());
            heap.alloc(layout)
        });
        // An allocation that is only compared with null may be optimised away, and is then never refused.
        assert!(std::hint::black_box(refused).is_null());
        assert!(!IS_FALLIBLE.get(), "the mark stayed");
        let caught = std::panic::catch_unwind(|| fallible(|| panic!("inside")));
        assert!(caught.is_err() && !IS_FALLIBLE.get(), "the mark stayed after a panic");
    }

    #[test]
    fn what_is_allocated_is_the_systems() {
        let heap = EndingHeap::new(5, "no memory");
        let layout = Layout::from_size_align(64, 16).unwrap();
        // SAFETY: the layout has a size, and the pointer is used and released with the same one.
        unsafe {
            let pointer = heap.alloc_zeroed(layout);
            assert!((0..64).all(|at| *pointer.add(at) == 0));
            let pointer = heap.realloc(pointer, layout, 128);
            heap.dealloc(pointer, Layout::from_size_align(128, 16).unwrap());
        }
        reserve_stack().unwrap();
    }
}
