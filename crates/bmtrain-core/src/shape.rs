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

    /// The same shape with another innermost dimension.
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
    ///
    /// # Errors
    /// Another rank.
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

#[cfg(test)]
mod tests {
    use super::*;

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
