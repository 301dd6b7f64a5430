//! Shapes: up to six dimensions, copied freely, destructured with a check.

use crate::error::{Error, Result};
use std::fmt;

/// The most dimensions a tensor has.
pub const MAX_RANK: usize = 6;

/// The dimensions of a row-major, contiguous tensor. A scalar has no dimension and one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// A shape of these dimensions.
    ///
    /// # Errors
    /// More than [`MAX_RANK`] dimensions, or an element count that overflows.
    pub fn new(dims: &[usize]) -> Result<Self> {
        let mut all = [1; MAX_RANK];
        let Some(slots) = all.get_mut(..dims.len()) else {
            return Err(Error::shape("shape", "rank", format!("at most {MAX_RANK}"), dims.len()));
        };
        slots.copy_from_slice(dims);
        if dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).is_none() {
            return Err(Error::shape("shape", "element count", "below 2^64", format!("{dims:?}")));
        }
        Ok(Shape { dims: all, rank: dims.len() as u8 })
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The innermost dimension; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// The product of all dimensions but the innermost: how many rows kernels that work along the last axis see.
    pub fn rows(&self) -> usize {
        self.dims().split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// This shape with another innermost dimension.
    ///
    /// # Errors
    /// A scalar has no innermost dimension; an overflowing element count.
    pub fn with_last(&self, last: usize) -> Result<Self> {
        let mut dims = self.dims().to_vec();
        match dims.last_mut() {
            Some(slot) => *slot = last,
            None => return Err(Error::shape("shape", "rank", "at least 1", 0)),
        }
        Shape::new(&dims)
    }

    /// Destructure into exactly `N` dimensions, naming the operation that asks.
    pub fn split<const N: usize>(&self, op: &'static str) -> Result<[usize; N]> {
        self.dims().try_into().map_err(|_| Error::shape(op, "rank", format!("{N} dimensions"), format!("{self:?}")))
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    /// For shapes written down in code. Ranks above [`MAX_RANK`] do not compile.
    fn from(dims: [usize; N]) -> Self {
        const { assert!(N <= MAX_RANK) };
        let mut all = [1; MAX_RANK];
        all[..N].copy_from_slice(&dims);
        Shape { dims: all, rank: N as u8 }
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// Require axes of (stride, length) under which no two indices reach the same element: sorted by stride, every axis has
/// to step over all that the smaller ones reach. An axis of length one does not matter; with one of length zero,
/// nothing is reached.
///
/// Enough, not needed: interleaved axes (three indices each at strides 2 and 3) can be apart and are refused.
pub(crate) fn expect_apart<const N: usize>(mut axes: [(usize, usize); N]) -> Result<(), String> {
    if axes.iter().any(|(_, length)| *length == 0) {
        return Ok(());
    }
    axes.sort_unstable();
    let mut reach = 0usize;
    for (stride, length) in axes.into_iter().filter(|(_, length)| *length > 1) {
        if stride <= reach {
            return Err(format!("stride {stride} over elements that reach to {reach}"));
        }
        reach = reach.saturating_add(stride.saturating_mul(length - 1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_called_apart_are_apart_and_nested_ones_are_called_so() {
        for strides in (0..8 * 8 * 8).map(|i| [i % 8, i / 8 % 8, i / 64]) {
            for lengths in [[2, 2, 2], [3, 2, 1], [2, 1, 3], [0, 2, 2]] {
                let axes = [0, 1, 2].map(|axis| (strides[axis], lengths[axis]));
                let mut seen = vec![0];
                for (stride, length) in axes {
                    seen = (0..length).flat_map(|i| seen.iter().map(move |start| start + i * stride)).collect();
                }
                seen.sort_unstable();
                assert!(expect_apart(axes).is_err() || seen.windows(2).all(|pair| pair[0] < pair[1]), "{axes:?}");
            }
        }
        let nested = [(1, 2), (2, 3), (6, 4)];
        for [a, b, c] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            expect_apart([nested[a], (0, 1), nested[b], nested[c]]).unwrap();
        }
        assert_eq!(expect_apart([(2, 2), (2, 2)]).unwrap_err(), "stride 2 over elements that reach to 2");
        assert!(expect_apart([(usize::MAX, 3), (usize::MAX, 2)]).is_err());
    }

    #[test]
    fn a_scalar_has_one_element_and_a_zero_dimension_none() {
        assert_eq!(Shape::from([]).elements(), 1);
        assert_eq!(Shape::from([3, 0, 2]).elements(), 0);
        assert_eq!(Shape::from([2, 3, 4]).rows(), 6);
        assert_eq!(Shape::from([2, 3, 4]).last(), 4);
    }

    #[test]
    fn too_many_or_too_large_dimensions_are_errors() {
        assert!(Shape::new(&[1; 7]).is_err());
        assert!(Shape::new(&[usize::MAX, 2]).is_err());
    }

    #[test]
    fn split_names_the_operation_on_a_wrong_rank() {
        let [b, l] = Shape::from([2, 5]).split("test").unwrap();
        assert_eq!((b, l), (2, 5));
        let error = Shape::from([2, 5]).split::<3>("attention").unwrap_err().to_string();
        assert!(error.starts_with("attention: rank: expected 3 dimensions, got [2, 5]"), "{error}");
    }
}
