//! Elements of a parameter that a rank counts, where several ranks have the same: in the norm of all gradients, and in
//! a checkpoint, which holds every element once.

use super::{OwnedPart, Param, Split};
use crate::error::Result;
use std::ops::Range;

impl Param {
    /// The elements of this rank's tensor-parallel part that this rank counts, in order: over all data-parallel and
    /// tensor-parallel ranks, every element of the full parameter is counted once. Data-parallel ranks count their
    /// shards at every ZeRO level; of tensor-parallel ranks that have the same elements, the first one counts them, and
    /// of two pipeline stages that hold a tied parameter, the first one.
    /// Padding is counted too.
    pub fn counted(&self) -> Result<Vec<OwnedPart>> {
        let (flat, index) = self.place()?;
        if flat.is_copy() {
            return Ok(Vec::new());
        }
        let (ranks, all) = (flat.tensor_ranks(), flat.counted(index));
        let mut left = vec![all.of_param.clone()];
        if ranks.size() > 1 {
            if self.spec().split == Split::Replicated && ranks.rank() > 0 {
                return Ok(Vec::new());
            }
            for other in self.shared_ranges().into_iter().filter(|shared| ranks.rank() % shared.replicas != 0) {
                left = left.into_iter().flat_map(|range| outside(&range, &other.range)).collect();
            }
        }
        Ok(left.into_iter().map(|range| all.part(range)).collect())
    }
}

/// Remainder of `range` without `out`.
pub(crate) fn outside(range: &Range<usize>, out: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let before = range.start..range.end.min(out.start);
    let after = range.start.max(out.end)..range.end;
    [before, after].into_iter().filter(|range| range.start < range.end)
}

impl OwnedPart {
    /// Some of its elements.
    pub(crate) fn part(&self, of_param: Range<usize>) -> OwnedPart {
        let within = |all: &Range<usize>| {
            let start = all.start + of_param.start - self.of_param.start;
            start..start + of_param.len()
        };
        OwnedPart { in_values: within(&self.in_values), in_state: within(&self.in_state), of_param }
    }
}
