//! The one place where a view becomes a slice.
#![allow(unsafe_code)]

use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::view::{View, ViewMut};

pub(super) fn read<'a, T: Element>(op: &'static str, view: View<'a>) -> Result<&'a [T]> {
    if view.dtype() != T::DTYPE {
        return Err(Error::DType { op, what: "view".into(), expected: T::DTYPE.name().into(), got: view.dtype() });
    }
    if view.is_empty() {
        return Ok(&[]);
    }
    // SAFETY: the view's range was checked against its buffer, whose memory this backend allocated (its device id was
    // compared at launch), 512-byte aligned with an offset in whole elements, initialised. The launch check also saw
    // that no written view of the same call overlaps it; marks and waits order the calls on one memory from the threads
    // of the rank and of its lanes, as `Late` in the parent explains.
    Ok(unsafe { std::slice::from_raw_parts(view.address() as *const T, view.len()) })
}

pub(super) fn write<'a, T: Element>(op: &'static str, view: ViewMut<'a>) -> Result<&'a mut [T]> {
    if view.dtype() != T::DTYPE {
        return Err(Error::DType { op, what: "view".into(), expected: T::DTYPE.name().into(), got: view.dtype() });
    }
    if view.is_empty() {
        return Ok(&mut []);
    }
    // SAFETY: as in `read`; besides, the launch check saw that no other view of the call overlaps this one, and a
    // `ViewMut` is consumed here, so this is the only slice over its range.
    Ok(unsafe { std::slice::from_raw_parts_mut(view.address() as *mut T, view.len()) })
}

pub(super) fn read_bytes<'a>(view: View<'a>) -> &'a [u8] {
    if view.is_empty() {
        return &[];
    }
    // SAFETY: as in `read`; every element type is plain bytes.
    unsafe { std::slice::from_raw_parts(view.address() as *const u8, view.bytes()) }
}

pub(super) fn write_bytes<'a>(view: ViewMut<'a>) -> &'a mut [u8] {
    if view.is_empty() {
        return &mut [];
    }
    // SAFETY: as in `write`; every bit pattern is a value of every element type.
    unsafe { std::slice::from_raw_parts_mut(view.address() as *mut u8, view.bytes()) }
}

/// Rows of a strided matrix that several threads write at once, each its own part.
pub(super) struct Rows<'a, T> {
    start: *mut T,
    len: usize,
    life: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: the only access is `part`, whose callers promise disjoint parts.
unsafe impl<T: Element> Sync for Rows<'_, T> {}
// SAFETY: as for `Sync`; it is a range of plain numbers.
unsafe impl<T: Element> Send for Rows<'_, T> {}

impl<T: Element> Rows<'_, T> {
    /// The `len` elements from `start` on.
    ///
    /// # Safety
    /// No other slice over any of these elements is alive, in this thread or another one, while the returned one is.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} elements from {start} of {}",
            self.len
        );
        // SAFETY: inside the range by the assertion, alone by the caller's promise, valid as in `write`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

pub(super) fn write_rows<'a, T: Element>(op: &'static str, view: ViewMut<'a>) -> Result<Rows<'a, T>> {
    if view.dtype() != T::DTYPE {
        return Err(Error::DType { op, what: "view".into(), expected: T::DTYPE.name().into(), got: view.dtype() });
    }
    Ok(Rows { start: view.address() as *mut T, len: view.len(), life: std::marker::PhantomData })
}
