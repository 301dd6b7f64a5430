//! Floating-point views as kernels see them: three storage types, one arithmetic.
//!
//! Kernels work on tiles of at most [`TILE`] f32 values; a tile of an f32 view is the memory itself, a tile of a 16-bit
//! view is widened into a [`Spare`] and, if written, rounded back to nearest even. So each kernel is written once, and
//! f32 pays nothing for the other types.

use super::access;
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::simd::{f16_to_f32, f32_to_f16, vectorised};
use crate::threads::Divide;
use crate::view::{View, ViewMut};
use half::{bf16, f16};

/// Most elements of a tile: some tiles of f32 fit the first-level cache together.
pub(crate) const TILE: usize = 1024;

/// Room for one widened tile.
#[repr(align(64))]
pub(crate) struct Spare(pub(crate) [f32; TILE]);

impl Spare {
    pub(crate) const fn new() -> Self {
        Spare([0.0; TILE])
    }
}

pub(crate) fn tiles(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(TILE).map(move |start| (start, TILE.min(len - start)))
}

/// Elements to read.
#[derive(Debug, Clone, Copy)]
pub enum Floats<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// The upper half of f32.
    Bf16(&'a [bf16]),
}

pub(super) fn not_a_float(op: &'static str, got: DType) -> Error {
    Error::DType { op, what: "view".into(), expected: "a floating-point type".into(), got }
}

fn torn(op: &'static str, error: bytemuck::PodCastError) -> Error {
    Error::argument(op, format!("bytes that are not whole, aligned elements: {error}"))
}

impl<'a> Floats<'a> {
    pub(crate) fn of(op: &'static str, view: View<'a>) -> Result<Self> {
        Ok(match view.dtype() {
            DType::F32 => Floats::F32(access::read(op, view)?),
            DType::F16 => Floats::F16(access::read(op, view)?),
            DType::BF16 => Floats::Bf16(access::read(op, view)?),
            got => return Err(not_a_float(op, got)),
        })
    }

    pub(crate) fn of_bytes(op: &'static str, bytes: &'a [u8], dtype: DType) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => Floats::F32(bytemuck::try_cast_slice(bytes).map_err(|error| torn(op, error))?),
            DType::F16 => Floats::F16(bytemuck::try_cast_slice(bytes).map_err(|error| torn(op, error))?),
            DType::BF16 => Floats::Bf16(bytemuck::try_cast_slice(bytes).map_err(|error| torn(op, error))?),
            got => return Err(not_a_float(op, got)),
        })
    }

    /// Bytes of an element.
    pub(crate) fn element_bytes(&self) -> usize {
        if matches!(self, Floats::F32(_)) { 4 } else { 2 }
    }

    /// The address of element `index`.
    pub(crate) fn address(&self, index: usize) -> *const u8 {
        match self {
            Floats::F32(data) => data[index..].as_ptr().cast(),
            Floats::F16(data) => data[index..].as_ptr().cast(),
            Floats::Bf16(data) => data[index..].as_ptr().cast(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Floats::F32(data) => data.len(),
            Floats::F16(data) => data.len(),
            Floats::Bf16(data) => data.len(),
        }
    }

    pub(crate) fn maybe(op: &'static str, view: Option<View<'a>>) -> Result<Option<Self>> {
        view.map(|view| Floats::of(op, view)).transpose()
    }

    pub(crate) fn part(self, start: usize, len: usize) -> Self {
        match self {
            Floats::F32(data) => Floats::F32(&data[start..start + len]),
            Floats::F16(data) => Floats::F16(&data[start..start + len]),
            Floats::Bf16(data) => Floats::Bf16(&data[start..start + len]),
        }
    }

    /// Elements `start..start + len` as f32, at most [`TILE`] of them.
    pub(crate) fn tile<'t>(&self, start: usize, len: usize, spare: &'t mut Spare) -> &'t [f32]
    where
        'a: 't,
    {
        if let Floats::F32(data) = self {
            return &data[start..start + len];
        }
        let wide = &mut spare.0[..len];
        self.widen(start, wide);
        wide
    }

    /// Elements `start..start + to.len()` as f32.
    pub(crate) fn widen(&self, start: usize, to: &mut [f32]) {
        let end = start + to.len();
        match self {
            Floats::F32(data) => to.copy_from_slice(&data[start..end]),
            Floats::F16(data) => widen_f16(&data[start..end], to),
            Floats::Bf16(data) => widen_bf16(&data[start..end], to),
        }
    }
}

/// Elements to write.
#[derive(Debug)]
pub enum FloatsMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// IEEE half precision.
    F16(&'a mut [f16]),
    /// The upper half of f32.
    Bf16(&'a mut [bf16]),
}

impl<'a> FloatsMut<'a> {
    pub(crate) fn of(op: &'static str, view: ViewMut<'a>) -> Result<Self> {
        Ok(match view.dtype() {
            DType::F32 => FloatsMut::F32(access::write(op, view)?),
            DType::F16 => FloatsMut::F16(access::write(op, view)?),
            DType::BF16 => FloatsMut::Bf16(access::write(op, view)?),
            got => return Err(not_a_float(op, got)),
        })
    }

    pub(crate) fn of_bytes(op: &'static str, bytes: &'a mut [u8], dtype: DType) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => FloatsMut::F32(bytemuck::try_cast_slice_mut(bytes).map_err(|error| torn(op, error))?),
            DType::F16 => FloatsMut::F16(bytemuck::try_cast_slice_mut(bytes).map_err(|error| torn(op, error))?),
            DType::BF16 => FloatsMut::Bf16(bytemuck::try_cast_slice_mut(bytes).map_err(|error| torn(op, error))?),
            got => return Err(not_a_float(op, got)),
        })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            FloatsMut::F32(data) => data.len(),
            FloatsMut::F16(data) => data.len(),
            FloatsMut::Bf16(data) => data.len(),
        }
    }

    pub(crate) fn read(&self) -> Floats<'_> {
        match self {
            FloatsMut::F32(data) => Floats::F32(data),
            FloatsMut::F16(data) => Floats::F16(data),
            FloatsMut::Bf16(data) => Floats::Bf16(data),
        }
    }

    /// A range of these numbers for a shorter time.
    pub(crate) fn part(&mut self, start: usize, len: usize) -> FloatsMut<'_> {
        match self {
            FloatsMut::F32(data) => FloatsMut::F32(&mut data[start..start + len]),
            FloatsMut::F16(data) => FloatsMut::F16(&mut data[start..start + len]),
            FloatsMut::Bf16(data) => FloatsMut::Bf16(&mut data[start..start + len]),
        }
    }

    /// The elements before and from `at` on.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            FloatsMut::F32(data) => {
                let (head, tail) = data.split_at_mut(at);
                (FloatsMut::F32(head), FloatsMut::F32(tail))
            }
            FloatsMut::F16(data) => {
                let (head, tail) = data.split_at_mut(at);
                (FloatsMut::F16(head), FloatsMut::F16(tail))
            }
            FloatsMut::Bf16(data) => {
                let (head, tail) = data.split_at_mut(at);
                (FloatsMut::Bf16(head), FloatsMut::Bf16(tail))
            }
        }
    }

    /// Let `work` write elements `start..start + len`, at most [`TILE`] of them. With `old` it finds their old values,
    /// otherwise anything.
    pub(crate) fn update(
        &mut self,
        start: usize,
        len: usize,
        old: bool,
        spare: &mut Spare,
        work: impl FnOnce(&mut [f32]),
    ) {
        if let FloatsMut::F32(data) = self {
            return work(&mut data[start..start + len]);
        }
        let wide = &mut spare.0[..len];
        if old {
            self.read().widen(start, wide);
        }
        work(wide);
        self.narrow(start, wide);
    }

    pub(crate) fn narrow(&mut self, start: usize, from: &[f32]) {
        let end = start + from.len();
        match self {
            FloatsMut::F32(data) => data[start..end].copy_from_slice(from),
            FloatsMut::F16(data) => narrow_f16(from, &mut data[start..end]),
            FloatsMut::Bf16(data) => narrow_bf16(from, &mut data[start..end]),
        }
    }

    pub(crate) fn zero(&mut self) {
        match self {
            FloatsMut::F32(data) => data.fill(0.0),
            FloatsMut::F16(data) => data.fill(f16::ZERO),
            FloatsMut::Bf16(data) => data.fill(bf16::ZERO),
        }
    }

    /// As rows of `width` elements, for [`Threads::for_each_part`](crate::threads::Threads::for_each_part).
    pub(crate) fn rows(self, width: usize) -> RowsMut<'a> {
        RowsMut { data: self, width }
    }
}

/// Written rows that can be divided among threads; the last one may be shorter.
#[derive(Debug)]
pub(crate) struct RowsMut<'a> {
    pub(crate) data: FloatsMut<'a>,
    width: usize,
}

impl Divide for RowsMut<'_> {
    fn divide(self, rows: usize) -> (Self, Self) {
        let (at, width) = ((rows * self.width).min(self.data.len()), self.width);
        let (head, tail) = self.data.split_at(at);
        (RowsMut { data: head, width }, RowsMut { data: tail, width })
    }
}

vectorised! {
    fn widen_bf16<I>(from: &[bf16], to: &mut [f32]) {
        for (wide, narrow) in to.iter_mut().zip(from) {
            *wide = Float::to_f32(*narrow);
        }
    }

    fn narrow_bf16<I>(from: &[f32], to: &mut [bf16]) {
        for (narrow, wide) in to.iter_mut().zip(from) {
            *narrow = Float::from_f32(*wide);
        }
    }

    fn widen_f16<I>(from: &[f16], to: &mut [f32]) {
        for (wide, narrow) in to.iter_mut().zip(from) {
            *wide = f16_to_f32(narrow.to_bits());
        }
    }

    fn narrow_f16<I>(from: &[f32], to: &mut [f16]) {
        for (narrow, wide) in to.iter_mut().zip(from) {
            *narrow = f16::from_bits(f32_to_f16(*wide));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_each_set;

    #[test]
    fn every_f16_becomes_its_f32_and_back() {
        for_each_set(|set| {
            let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
            let (mut wide, mut back) = (vec![0.0; halves.len()], vec![f16::ZERO; halves.len()]);
            widen_f16(&halves, &mut wide);
            narrow_f16(&wide, &mut back);
            for ((half, wide), back) in halves.iter().zip(&wide).zip(&back) {
                assert!(
                    wide.to_bits() == half.to_f32().to_bits() || (wide.is_nan() && half.is_nan()),
                    "{set:?}: {half:?}"
                );
                assert!(back.to_bits() == half.to_bits() || (back.is_nan() && half.is_nan()), "{set:?}: {half:?}");
            }
        });
    }

    #[test]
    fn roundings_to_sixteen_bits_are_those_of_the_half_crate() {
        // Every upper half of an f32 with the lower halves at which roundings of both types change.
        for low in [0u32, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let wide: Vec<f32> = (0..=u32::from(u16::MAX)).map(|high| f32::from_bits(high << 16 | low)).collect();
            for_each_set(|set| {
                let (mut halves, mut brains) = (vec![f16::ZERO; wide.len()], vec![bf16::ZERO; wide.len()]);
                narrow_f16(&wide, &mut halves);
                narrow_bf16(&wide, &mut brains);
                for ((wide, half), brain) in wide.iter().zip(halves).zip(brains) {
                    let same = |a: u16, b: u16| a == b || wide.is_nan();
                    assert!(same(half.to_bits(), f16::from_f32(*wide).to_bits()), "{set:?}: {wide:e} became {half}");
                    assert!(same(brain.to_bits(), bf16::from_f32(*wide).to_bits()), "{set:?}: {wide:e} became {brain}");
                    assert!(!wide.is_nan() || (half.is_nan() && brain.is_nan()));
                }
            });
        }
    }

    #[test]
    fn a_written_tile_of_sixteen_bits_sees_its_old_values_if_asked() {
        let mut data = [1.5f32, -2.0, 3.0].map(bf16::from_f32);
        let mut spare = Spare::new();
        FloatsMut::Bf16(&mut data).update(1, 2, true, &mut spare, |tile| tile.iter_mut().for_each(|x| *x += 1.0));
        assert_eq!(data.map(bf16::to_f32), [1.5, -1.0, 4.0]);
    }
}
