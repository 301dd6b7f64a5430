//! Reduction over the ranks of a group on the host, always in the order of the ranks.
//!
//! An element's bits depend on the values and their order alone, not on where a piece begins.

use super::Reduction;
use crate::cpu::floats::{Floats, FloatsMut, Spare, TILE, tiles};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::simd::vectorised;

/// Parts begin at multiples of this many bytes: a whole number of elements of every dtype.
pub(super) const GRAIN: usize = 64;

/// Reduction of values, and the rank that gets the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reducer {
    pub(super) dtype: DType,
    pub(super) by: Reduction,
    pub(super) rank: usize,
    pub(super) size: usize,
}

impl Reducer {
    /// Reduce the values of all ranks, in their order, to `out`: `own` of this rank (in place if none), and `of` of
    /// each other one.
    pub(super) fn reduce<'b>(
        &self,
        own: Option<&'b [u8]>,
        of: impl Fn(usize) -> Result<&'b [u8]>,
        out: &mut [u8],
    ) -> Result<()> {
        let source = |rank| match (rank == self.rank, own) {
            (true, None) => Ok(Source::InPlace),
            (true, Some(own)) => Ok(Source::Bytes(own)),
            (false, _) => of(rank).map(Source::Bytes),
        };
        let sources: Vec<Source<'_>> = (0..self.size).map(source).collect::<Result<_>>()?;
        reduce(self.dtype, self.by, &sources, out)
    }
}

/// Location of the values of a rank.
#[derive(Debug, Clone, Copy)]
enum Source<'a> {
    /// In the output.
    InPlace,
    /// Elsewhere, as long as the output.
    Bytes(&'a [u8]),
}

/// Reduce the values of all ranks into `out`, from one source for each rank.
///
/// Numerics: 16-bit floats are widened to f32 and rounded once at the end; integers wrap around. The largest and the
/// smallest of floats are NaN where one of them is.
fn reduce(dtype: DType, by: Reduction, sources: &[Source<'_>], out: &mut [u8]) -> Result<()> {
    for source in sources {
        if let Source::Bytes(bytes) = source
            && bytes.len() != out.len()
        {
            return Err(Error::shape("reduce", "bytes of a rank", out.len(), bytes.len()));
        }
    }
    match dtype {
        DType::F32 => reduce_floats(by, sources, FloatsMut::F32(elements_mut(out)?), Floats::F32),
        DType::F16 => reduce_floats(by, sources, FloatsMut::F16(elements_mut(out)?), Floats::F16),
        DType::BF16 => reduce_floats(by, sources, FloatsMut::Bf16(elements_mut(out)?), Floats::Bf16),
        DType::I64 => reduce_integers::<i64>(by, sources, elements_mut(out)?),
        DType::I32 => reduce_integers::<i32>(by, sources, elements_mut(out)?),
        DType::U8 => reduce_integers::<u8>(by, sources, elements_mut(out)?),
        got @ DType::Blocks(_) => {
            Err(Error::DType { op: "reduce", what: "values".into(), expected: "a type of single elements".into(), got })
        }
    }
}

fn unaligned(error: bytemuck::PodCastError) -> Error {
    Error::argument("reduce", format!("bytes that are no whole elements: {error}"))
}

fn elements<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    bytemuck::try_cast_slice(bytes).map_err(unaligned)
}

fn elements_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T]> {
    bytemuck::try_cast_slice_mut(bytes).map_err(unaligned)
}

fn reduce_floats<'a, T: Element>(
    by: Reduction,
    sources: &[Source<'a>],
    mut out: FloatsMut<'_>,
    floats: impl Fn(&'a [T]) -> Floats<'a>,
) -> Result<()> {
    let others: Vec<Option<Floats<'a>>> = sources
        .iter()
        .map(|source| match source {
            Source::InPlace => Ok(None),
            Source::Bytes(bytes) => elements::<T>(bytes).map(|values| Some(floats(values))),
        })
        .collect::<Result<_>>()?;
    let (mut sum, mut spares) = (Spare::new(), [Spare::new(), Spare::new()]);
    for (start, len) in tiles(out.len()) {
        let sum = &mut sum.0[..len];
        let [first_spare, spare] = &mut spares;
        let place = out.read();
        let tile = |source: &Option<Floats<'a>>| source.unwrap_or(place);
        match &others[..] {
            [] => return Err(Error::argument("reduce", "no rank")),
            [only] => tile(only).widen(start, sum),
            [first, second, rest @ ..] => {
                let (first, second) = (tile(first), tile(second));
                join(by, first.tile(start, len, first_spare), second.tile(start, len, spare), sum);
                for other in rest {
                    add(by, sum, tile(other).tile(start, len, spare));
                }
            }
        }
        if by == Reduction::Average {
            divide(sum, others.len() as f32);
        }
        out.narrow(start, sum);
    }
    Ok(())
}

/// `sum = a by b`.
fn join(by: Reduction, a: &[f32], b: &[f32], sum: &mut [f32]) {
    match by {
        Reduction::Sum | Reduction::Average => join_sum(a, b, sum),
        Reduction::Product => join_product(a, b, sum),
        Reduction::Max => join_larger(a, b, sum),
        Reduction::Min => join_smaller(a, b, sum),
    }
}

/// `sum = sum by b`.
fn add(by: Reduction, sum: &mut [f32], b: &[f32]) {
    match by {
        Reduction::Sum | Reduction::Average => add_sum(sum, b),
        Reduction::Product => add_product(sum, b),
        Reduction::Max => add_larger(sum, b),
        Reduction::Min => add_smaller(sum, b),
    }
}

/// The larger one, or NaN; of equal ones the second.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

/// The smaller one, or NaN; of equal ones the second.
#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

vectorised! {
    fn join_sum<I>(a: &[f32], b: &[f32], sum: &mut [f32]) {
        for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
            *sum = *a + *b;
        }
    }

    fn join_product<I>(a: &[f32], b: &[f32], sum: &mut [f32]) {
        for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
            *sum = *a * *b;
        }
    }

    fn join_larger<I>(a: &[f32], b: &[f32], sum: &mut [f32]) {
        for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
            *sum = larger(*a, *b);
        }
    }

    fn join_smaller<I>(a: &[f32], b: &[f32], sum: &mut [f32]) {
        for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
            *sum = smaller(*a, *b);
        }
    }

    fn add_sum<I>(sum: &mut [f32], b: &[f32]) {
        for (sum, b) in sum.iter_mut().zip(b) {
            *sum += *b;
        }
    }

    fn add_product<I>(sum: &mut [f32], b: &[f32]) {
        for (sum, b) in sum.iter_mut().zip(b) {
            *sum *= *b;
        }
    }

    fn add_larger<I>(sum: &mut [f32], b: &[f32]) {
        for (sum, b) in sum.iter_mut().zip(b) {
            *sum = larger(*sum, *b);
        }
    }

    fn add_smaller<I>(sum: &mut [f32], b: &[f32]) {
        for (sum, b) in sum.iter_mut().zip(b) {
            *sum = smaller(*sum, *b);
        }
    }

    fn divide<I>(sum: &mut [f32], count: f32) {
        for sum in sum.iter_mut() {
            *sum /= count;
        }
    }
}

/// Integers as reductions see them.
trait Integer: Element + Ord {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Integer for $type {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        }
    )*};
}
integers!(i64, i32, u8);

fn reduce_integers<T: Integer>(by: Reduction, sources: &[Source<'_>], out: &mut [T]) -> Result<()> {
    let join = match by {
        Reduction::Sum => T::sum,
        Reduction::Product => T::product,
        Reduction::Max => T::max,
        Reduction::Min => T::min,
        Reduction::Average => {
            let expected = "floats to average".into();
            return Err(Error::DType { op: "reduce", what: "data".into(), expected, got: T::DTYPE });
        }
    };
    let others: Vec<Option<&[T]>> = sources
        .iter()
        .map(|source| match source {
            Source::InPlace => Ok(None),
            Source::Bytes(bytes) => elements(bytes).map(Some),
        })
        .collect::<Result<_>>()?;
    let Some((first, rest)) = others.split_first() else {
        return Err(Error::argument("reduce", "no rank"));
    };
    let mut sum = [T::zeroed(); TILE];
    for (start, len) in tiles(out.len()) {
        let (sum, range) = (&mut sum[..len], start..start + len);
        sum.copy_from_slice(&first.unwrap_or(out)[range.clone()]);
        for other in rest {
            for (sum, other) in sum.iter_mut().zip(&other.unwrap_or(out)[range.clone()]) {
                *sum = join(*sum, *other);
            }
        }
        out[range].copy_from_slice(sum);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_each_set;
    use half::bf16;

    #[test]
    fn ranks_are_added_in_their_order_wherever_the_own_values_are() {
        // In f32, 1e8 + 1 is 1e8: each order gives another sum.
        let values = [1e8f32, -1e8, 1.0].map(|value| vec![value; 1500]);
        for (order, expected) in [([0, 1, 2], 1.0f32), ([0, 2, 1], 0.0), ([2, 0, 1], 0.0)] {
            for own in 0..3 {
                let sources: Vec<Source<'_>> = (0..3)
                    .map(|place| match place == own {
                        true => Source::InPlace,
                        false => Source::Bytes(bytemuck::cast_slice(&values[order[place]])),
                    })
                    .collect();
                for_each_set(|_| {
                    let mut out = values[order[own]].clone();
                    reduce(DType::F32, Reduction::Sum, &sources, bytemuck::cast_slice_mut(&mut out)).unwrap();
                    assert_eq!(out, vec![expected; 1500], "{order:?}, own values in place {own}");
                });
            }
        }
    }

    #[test]
    fn sixteen_bits_are_rounded_once() {
        // 256 + 0.75 is 256 in bf16, and so is 256 + 0.75 again; together they are 1.5 more, which rounds to 258.
        let values = [256.0f32, 0.75, 0.75].map(|value| [bf16::from_f32(value); 3]);
        let sources = values.each_ref().map(|value| Source::Bytes(bytemuck::cast_slice(value)));
        let mut out = [bf16::ZERO; 3];
        reduce(DType::BF16, Reduction::Sum, &sources, bytemuck::cast_slice_mut(&mut out)).unwrap();
        assert_eq!(out.map(bf16::to_f32), [258.0; 3]);
    }

    #[test]
    fn a_nan_is_never_lost() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            for by in [Reduction::Sum, Reduction::Average, Reduction::Max, Reduction::Min, Reduction::Product] {
                let first = [a; 20];
                let sources = [Source::Bytes(bytemuck::cast_slice(&first)), Source::InPlace];
                for_each_set(|level| {
                    let mut out = [b; 20];
                    reduce(DType::F32, by, &sources, bytemuck::cast_slice_mut(&mut out)).unwrap();
                    assert!(out.iter().all(|value| value.is_nan()), "{by:?} of {a} and {b}, {level:?}");
                });
            }
        }
    }

    #[test]
    fn integers_wrap_around_and_have_no_average() {
        let other = [i32::MAX, -7];
        let sources = [Source::Bytes(bytemuck::cast_slice(&other)), Source::InPlace];
        let mut out = [1i32, 3];
        reduce(DType::I32, Reduction::Sum, &sources, bytemuck::cast_slice_mut(&mut out)).unwrap();
        assert_eq!(out, [i32::MIN, -4]);
        let error = reduce(DType::I32, Reduction::Average, &sources, bytemuck::cast_slice_mut(&mut out)).unwrap_err();
        assert!(matches!(error, Error::DType { got: DType::I32, .. }), "{error}");
    }
}
