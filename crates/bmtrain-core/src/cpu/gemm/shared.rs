//! A result that several threads write at once, each its own elements.
//!
//! The rule that makes it sound: the scheduler hands each unit of work (a range of rows by a range of columns) to one
//! thread, and a unit only touches elements of its own rows and columns.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::kernel::MAX_TILE;
use super::operand::{Source, Target, widen};
use crate::cpu::vector::{LINE, fetch_to_write};

#[derive(Debug, Clone, Copy)]
enum Address {
    F32(*mut f32),
    F16(*mut f16),
    Bf16(*mut bf16),
}

/// The elements of a [`Target`], open to several threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared<'a> {
    address: Address,
    len: usize,
    owner: PhantomData<&'a mut f32>,
}

// SAFETY: the elements are plain numbers of a slice that is borrowed exclusively for 'a, and every method that reaches
// them is unsafe with the condition that no two threads use the same element at the same time.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(super) fn new(target: Target<'a>) -> Self {
        let len = target.len();
        let address = match target {
            Target::F32(data) => Address::F32(data.as_mut_ptr()),
            Target::F16(data) => Address::F16(data.as_mut_ptr()),
            Target::Bf16(data) => Address::Bf16(data.as_mut_ptr()),
        };
        Shared { address, len, owner: PhantomData }
    }

    pub(super) fn is_f32(&self) -> bool {
        matches!(self.address, Address::F32(_))
    }

    pub(super) fn is_f16(&self) -> bool {
        matches!(self.address, Address::F16(_))
    }

    /// Address of element `start` if the elements are f32; the `extent` elements from there are inside the slice.
    pub(super) fn f32_at(&self, start: usize, extent: usize) -> Option<*mut f32> {
        self.check(start, extent);
        match self.address {
            // SAFETY: start is inside the slice or one past its end.
            Address::F32(data) => Some(unsafe { data.add(start) }),
            _ => None,
        }
    }

    /// As [`Shared::f32_at`], of bf16.
    pub(super) fn bf16_at(&self, start: usize, extent: usize) -> Option<*mut bf16> {
        self.check(start, extent);
        match self.address {
            // SAFETY: start is inside the slice or one past its end.
            Address::Bf16(data) => Some(unsafe { data.add(start) }),
            _ => None,
        }
    }

    /// The `len` elements from `start` on of an f32 result, to fill.
    ///
    /// # Safety
    /// No other thread may use these elements meanwhile.
    #[allow(clippy::mut_from_ref)] // The elements are the caller's own, as it vouches.
    pub(super) unsafe fn part(&self, start: usize, len: usize) -> &mut [f32] {
        match self.f32_at(start, len) {
            // SAFETY: inside the slice, not used by others as the caller promises.
            Some(data) => unsafe { std::slice::from_raw_parts_mut(data, len) },
            None => &mut [],
        }
    }

    /// Elements `start..start + to.len()` as f32.
    ///
    /// # Safety
    /// No other thread may write these elements meanwhile.
    pub(super) unsafe fn read(&self, start: usize, to: &mut [f32]) {
        self.check(start, to.len());
        // SAFETY: inside the slice by the check, not written by others as the caller promises.
        let source = unsafe {
            match self.address {
                Address::F32(data) => Source::F32(std::slice::from_raw_parts(data.add(start), to.len())),
                Address::F16(data) => Source::F16(std::slice::from_raw_parts(data.add(start), to.len())),
                Address::Bf16(data) => Source::Bf16(std::slice::from_raw_parts(data.add(start), to.len())),
            }
        };
        widen(source, 0, to);
    }

    /// Rounds `from` to elements `start..start + from.len()`.
    ///
    /// # Safety
    /// No other thread may use these elements meanwhile.
    pub(super) unsafe fn write(&self, start: usize, from: &[f32]) {
        self.check(start, from.len());
        // SAFETY: inside the slice by the check, not used by others as the caller promises.
        unsafe {
            match self.address {
                Address::F32(data) => {
                    let to = std::slice::from_raw_parts_mut(data.add(start), from.len());
                    // The row of a tile: of a known length, so that no function is called for a cache line.
                    match (to.as_chunks_mut::<LINE>(), from.as_chunks::<LINE>()) {
                        ((to, []), (from, [])) => to.iter_mut().zip(from).for_each(|(to, from)| *to = *from),
                        _ => to.copy_from_slice(from),
                    }
                }
                Address::F16(data) => {
                    std::slice::from_raw_parts_mut(data.add(start), from.len()).convert_from_f32_slice(from)
                }
                Address::Bf16(data) => {
                    Target::Bf16(std::slice::from_raw_parts_mut(data.add(start), from.len())).narrow(0, from)
                }
            }
        }
    }

    /// Rounds `columns` elements of each row of `from`, `width` apart there and `leading` here, to elements from
    /// `start` on.
    ///
    /// # Safety
    /// No other thread may use these elements meanwhile.
    pub(super) unsafe fn write_rows(
        &self,
        start: usize,
        leading: usize,
        (from, width): (&[f32], usize),
        columns: usize,
    ) {
        assert!(columns <= width);
        let rows = from.len() / width;
        if rows == 0 {
            return;
        }
        self.check(start, (rows - 1) * leading + columns);
        match self.address {
            Address::Bf16(data) if from.len() <= MAX_TILE => {
                // All rows at once: a row is too short for a loop of vectors.
                let mut narrow = [bf16::ZERO; MAX_TILE];
                Target::Bf16(&mut narrow).narrow(0, from);
                for (i, line) in narrow.chunks_exact(width).take(rows).enumerate() {
                    // SAFETY: every row is inside the slice by the check, not used by others as the caller promises.
                    let to = unsafe { std::slice::from_raw_parts_mut(data.add(start + i * leading), columns) };
                    match (<&mut [bf16; 2 * LINE]>::try_from(&mut *to), line.first_chunk()) {
                        (Ok(to), Some(line)) => *to = *line,
                        _ => to.copy_from_slice(&line[..columns]),
                    }
                }
            }
            _ => {
                for (i, line) in from.chunks_exact(width).enumerate() {
                    // SAFETY: as above.
                    unsafe { self.write(start + i * leading, &line[..columns]) };
                }
            }
        }
    }

    /// Fetches the cache lines of elements that are written soon, which may be beyond the end.
    #[inline(always)]
    pub(super) fn fetch_to_write(&self, start: usize, len: usize) {
        let (data, bytes): (*const u8, usize) = match self.address {
            Address::F32(data) => (data.cast(), 4),
            Address::F16(data) => (data.cast(), 2),
            Address::Bf16(data) => (data.cast(), 2),
        };
        for at in (0..len * bytes).step_by(LINE * size_of::<f32>()) {
            fetch_to_write(data.wrapping_add(start * bytes + at));
        }
    }

    fn check(&self, start: usize, extent: usize) {
        let inside = start.checked_add(extent).is_some_and(|end| end <= self.len);
        assert!(inside, "gemm: element {start} + {extent} of a result of {}", self.len);
    }
}
