//! Split of a parameter over tensor-parallel ranks: along one axis, part by part.
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
    /// Size of a unit that may not be split, such as a head. With fewer units than ranks, neighbouring ranks have the
    /// same unit, as for grouped key and value heads.
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

    /// Whether each of `ranks` tensor-parallel ranks gets the same number of units, or neighbouring ranks share a unit.
    pub fn fits(&self, ranks: usize) -> bool {
        self.local(ranks, 0).is_some()
    }

    /// Number of neighbouring ranks that have the same unit; 1 where each rank has units of its own.
    fn replicas(&self, ranks: usize) -> usize {
        let units = self.size.checked_div(self.unit).unwrap_or(0);
        if units == 0 || units.is_multiple_of(ranks) { 1 } else { (ranks / units).max(1) }
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

/// Elements of a local part that neighbouring ranks share, each with a term of their gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRange {
    /// Elements of the local part.
    pub range: Range<usize>,
    /// Number of ranks that have the same elements.
    pub replicas: usize,
}

/// Distribution of a parameter over tensor-parallel ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Split {
    /// Every rank has all of it, and the same gradient.
    Replicated,
    /// Every rank has all of it and computes a term of its gradient, as a norm of heads that are split. The terms are
    /// summed before the optimizer step.
    ReplicatedTerms,
    /// An axis of classes: every rank has the same number of places, a multiple of `multiple` where there are several
    /// ranks, and the classes fill them in the order of the ranks. Places after the last class are padding: zeros that
    /// no file holds, without gradient.
    Vocabulary {
        /// The axis.
        axis: usize,
        /// Divisor of the number of places of a rank.
        multiple: usize,
    },
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

    /// The ranges of the local part, in elements, that several ranks have, in order, each with the number of ranks that
    /// share it: [`LocalPart::shape`] is of this split. Such ranks compute terms of one gradient. Nothing for what is
    /// replicated with the same gradient everywhere.
    pub fn shared(&self, local: &LocalPart, ranks: usize) -> Vec<SharedRange> {
        let elements = local.shape.elements();
        let Split::Axis { axis, parts } = self else {
            let all = SharedRange { range: 0..elements, replicas: ranks };
            return Vec::from_iter((*self == Split::ReplicatedTerms && ranks > 1).then_some(all));
        };
        let inner: usize = local.shape.dims().iter().skip(axis + 1).product();
        let outer: usize = local.shape.dims().iter().take(*axis).product();
        let row: usize = local.ranges.iter().map(Range::len).sum::<usize>() * inner;
        let mut shared: Vec<SharedRange> = Vec::new();
        for start in (0..outer).map(|number| number * row) {
            let mut at = start;
            for (part, held) in parts.iter().zip(&local.ranges) {
                let (from, replicas) = (at, part.replicas(ranks));
                at += held.len() * inner;
                match shared.last_mut() {
                    _ if replicas == 1 || from == at => {}
                    Some(last) if (last.range.end, last.replicas) == (from, replicas) => last.range.end = at,
                    _ => shared.push(SharedRange { range: from..at, replicas }),
                }
            }
        }
        shared
    }

    /// The ranges of the axis that a rank has, in order, and the shape of its part. `name` is for the message of an
    /// error.
    pub fn local(&self, name: &str, shape: Shape, ranks: usize, rank: usize) -> Result<LocalPart> {
        let length_of = |axis: usize| {
            let missing = || Error::parameter(name, format!("split along axis {axis} of shape {shape}"));
            shape.dims().get(axis).copied().ok_or_else(missing)
        };
        let (axis, parts) = match self {
            Split::Replicated | Split::ReplicatedTerms => {
                let whole = 0..shape.dims().first().copied().unwrap_or(1);
                return Ok(LocalPart { shape, axis: 0, ranges: Vec::from([whole]) });
            }
            Split::Vocabulary { axis, multiple } => {
                let length = length_of(*axis)?;
                let room = vocabulary_room(length, ranks, *multiple);
                let mut dims = shape.dims().to_vec();
                dims[*axis] = room;
                let held = (rank * room).min(length)..((rank + 1) * room).min(length);
                return Ok(LocalPart { shape: Shape::new(&dims)?, axis: *axis, ranges: Vec::from([held]) });
            }
            Split::Axis { axis, parts } => (axis, parts),
        };
        let length = length_of(*axis)?;
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

/// Column at which a rank's part of a matrix divides a block of `elements` values of a row; `None` where parts are of
/// whole blocks.
pub fn divided_block(local: &LocalPart, elements: usize) -> Option<usize> {
    let mut ends = local.ranges.iter().flat_map(|range| [range.start, range.end]).filter(|_| local.axis == 1);
    ends.find(|end| !end.is_multiple_of(elements))
}

/// Places for classes on each rank, a multiple of `multiple`.
pub fn vocabulary_room(classes: usize, ranks: usize, multiple: usize) -> usize {
    classes.div_ceil(ranks.max(1)).next_multiple_of(multiple.max(1))
}

/// One tensor-parallel rank's part of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPart {
    /// Shape of the part.
    pub shape: Shape,
    /// The axis that was split.
    pub axis: usize,
    /// Ranges of that axis, in order. What `shape` has beyond them is padding.
    pub ranges: Vec<Range<usize>>,
}

impl LocalPart {
    /// Whether there is padding.
    pub fn is_padded(&self) -> bool {
        let held: usize = self.ranges.iter().map(Range::len).sum();
        self.shape.dims().get(self.axis).is_some_and(|length| *length > held)
    }

    /// Runs that are contiguous both in the full parameter of shape `global` and in the local part, in local order:
    /// `(first element in the full parameter, first element in the part, length)`.
    pub fn runs(&self, global: Shape) -> Vec<(usize, usize, usize)> {
        let dims = global.dims();
        let inner: usize = dims.iter().skip(self.axis + 1).product();
        let outer: usize = dims.iter().take(self.axis).product();
        let length = dims.get(self.axis).copied().unwrap_or(1);
        let row_len = self.shape.dims().get(self.axis).copied().unwrap_or(1) * inner;
        let mut runs: Vec<(usize, usize, usize)> = Vec::new();
        for row in 0..outer {
            let mut local = row * row_len;
            for range in self.ranges.iter().filter(|range| !range.is_empty()) {
                let (from, count) = ((row * length + range.start) * inner, range.len() * inner);
                match runs.last_mut() {
                    Some(last) if (last.0 + last.2, last.1 + last.2) == (from, local) => last.2 += count,
                    _ => runs.push((from, local, count)),
                }
                local += count;
            }
        }
        runs
    }
}
