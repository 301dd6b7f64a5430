//! How a parameter is split over tensor-parallel ranks: along one axis, part by part.
//!
//! A fused projection has several parts along its axis (queries, keys, values); each is split on its own, in whole
//! units (heads), so that every rank has matching heads of all of them. Pure arithmetic.

use crate::error::{Error, Result};
use bmtrain_core::Shape;
use std::ops::Range;

/// One part of a fused axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitPart {
    /// Length along the axis.
    pub size: usize,
    /// What may not be split, such as a head. With fewer units than ranks, neighbouring ranks have the same unit, as
    /// for grouped key and value heads.
    pub unit: usize,
}

impl SplitPart {
    /// A part that may be split anywhere.
    pub fn even(size: usize) -> Self {
        SplitPart { size, unit: 1 }
    }

    /// A part made of `count` units of `unit` elements.
    pub fn units(count: usize, unit: usize) -> Self {
        SplitPart { size: count * unit, unit }
    }

    /// The range of this part that a rank has, counted from the part's start.
    fn local(&self, ranks: usize, rank: usize) -> Option<Range<usize>> {
        if self.unit == 0 || !self.size.is_multiple_of(self.unit) {
            return None;
        }
        let units = self.size / self.unit;
        let held = if units.is_multiple_of(ranks) {
            let each = units / ranks;
            rank * each..(rank + 1) * each
        } else if self.unit > 1 && units > 0 && ranks.is_multiple_of(units) {
            let unit = rank / (ranks / units);
            unit..unit + 1
        } else {
            return None;
        };
        Some(held.start * self.unit..held.end * self.unit)
    }
}

/// How a parameter is distributed over tensor-parallel ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Split {
    /// Every rank has all of it.
    Replicated,
    /// Split along an axis.
    Axis {
        /// The axis.
        axis: usize,
        /// The concatenated parts of the axis.
        parts: Vec<SplitPart>,
    },
}

impl Split {
    /// Split an axis of this length as one part.
    pub fn even(axis: usize, size: usize) -> Self {
        Split::Axis { axis, parts: vec![SplitPart::even(size)] }
    }

    /// The ranges of the axis that a rank has, in order, and the shape of its part. `name` is for the message of an
    /// error.
    pub fn local(&self, name: &str, shape: Shape, ranks: usize, rank: usize) -> Result<LocalPart> {
        let Split::Axis { axis, parts } = self else {
            let whole = 0..shape.dims().first().copied().unwrap_or(1);
            return Ok(LocalPart { shape, axis: 0, ranges: Vec::from([whole]) });
        };
        let Some(&length) = shape.dims().get(*axis) else {
            return Err(Error::parameter(name, format!("split along axis {axis} of shape {shape}")));
        };
        let total: usize = parts.iter().map(|part| part.size).sum();
        if total != length {
            let reason = format!("parts add up to {total}, axis {axis} of {shape} has {length}");
            return Err(Error::parameter(name, reason));
        }
        let mut ranges = Vec::with_capacity(parts.len());
        let mut start = 0;
        for part in parts {
            let held = part.local(ranks, rank).ok_or_else(|| {
                let SplitPart { size, unit } = part;
                let reason = format!("{size} in units of {unit} cannot be split for {ranks} tensor-parallel ranks");
                Error::parameter(name, reason)
            })?;
            ranges.push(start + held.start..start + held.end);
            start += part.size;
        }
        let mut dims = shape.dims().to_vec();
        dims[*axis] = ranges.iter().map(Range::len).sum();
        Ok(LocalPart { shape: Shape::new(&dims)?, axis: *axis, ranges })
    }
}

/// One tensor-parallel rank's part of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPart {
    /// Shape of the part.
    pub shape: Shape,
    /// The axis that was split.
    pub axis: usize,
    /// Which ranges of that axis, in order.
    pub ranges: Vec<Range<usize>>,
}

impl LocalPart {
    /// Runs that are contiguous both in the full parameter of shape `global` and in the local part, in local order:
    /// `(first element in the full parameter, first element in the part, length)`.
    pub fn runs(&self, global: Shape) -> Vec<(usize, usize, usize)> {
        let dims = global.dims();
        let inner: usize = dims.iter().skip(self.axis + 1).product();
        let outer: usize = dims.iter().take(self.axis).product();
        let length = dims.get(self.axis).copied().unwrap_or(1);
        let mut runs: Vec<(usize, usize, usize)> = Vec::new();
        let mut local = 0;
        for row in 0..outer {
            for range in &self.ranges {
                let (from, count) = ((row * length + range.start) * inner, range.len() * inner);
                match runs.last_mut() {
                    Some(last) if last.0 + last.2 == from => last.2 += count,
                    _ => runs.push((from, local, count)),
                }
                local += count;
            }
        }
        runs
    }
}
