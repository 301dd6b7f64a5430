//! Batches of two levels as the library takes them.

use crate::kernel::Batch;

/// A batch of two levels as one of the library's, which has one distance, repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Folded {
    pub(super) count: usize,
    /// Elements from one of them to the next, of a, b and c.
    pub(super) stride: [usize; 3],
    pub(super) steps: usize,
    /// Elements from one call to the next.
    pub(super) step: [usize; 3],
}

impl Folded {
    /// The fold of a batch with these distances, outer and inner, of a, b and c.
    pub(super) fn of(distances: [[usize; 2]; 3], Batch { outer, inner }: Batch) -> Self {
        let (of_outer, of_inner) = (distances.map(|[outer, _]| outer), distances.map(|[_, inner]| inner));
        let none = [0; 3];
        let follow = distances.iter().all(|[outer, step]| *outer == inner * step);
        match (outer, inner) {
            (1, 1) => Folded { count: 1, stride: none, steps: 1, step: none },
            (1, _) => Folded { count: inner, stride: of_inner, steps: 1, step: none },
            (_, 1) => Folded { count: outer, stride: of_outer, steps: 1, step: none },
            _ if follow => Folded { count: outer * inner, stride: of_inner, steps: 1, step: none },
            // The fewer calls.
            _ if outer <= inner => Folded { count: inner, stride: of_inner, steps: outer, step: of_outer },
            _ => Folded { count: outer, stride: of_outer, steps: inner, step: of_inner },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_one_call_where_its_entries_follow_each_other() {
        let none = [0; 3];
        let (plain, heads) = ([[24, 6], [12, 3], [32, 8]], [[48, 4], [48, 4], [32, 8]]);
        let fold = |distances, outer, inner| Folded::of(distances, Batch { outer, inner });
        assert_eq!(fold(plain, 1, 1), Folded { count: 1, stride: none, steps: 1, step: none });
        assert_eq!(fold(plain, 5, 4), Folded { count: 20, stride: [6, 3, 8], steps: 1, step: none });
        assert_eq!(fold(heads, 1, 4), Folded { count: 4, stride: [4, 4, 8], steps: 1, step: none });
        assert_eq!(fold(heads, 7, 1), Folded { count: 7, stride: [48, 48, 32], steps: 1, step: none });
        assert_eq!(fold(heads, 2, 4), Folded { count: 4, stride: [4, 4, 8], steps: 2, step: [48, 48, 32] });
        assert_eq!(fold(heads, 9, 4), Folded { count: 9, stride: [48, 48, 32], steps: 4, step: [4, 4, 8] });
    }
}
