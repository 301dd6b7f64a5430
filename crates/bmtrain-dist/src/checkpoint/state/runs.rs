//! The elements of a rank as a checkpoint records them: one piece for the rows that are alike.
//!
//! A rank that has some columns of a matrix has one run of the full matrix for every row, which is thousands of pieces
//! for every large one. Runs of neighbouring rows with the same columns are one piece of several runs.

use crate::param::Param;
use std::ops::Range;

/// Runs of a full parameter that begin `stride` elements apart, and follow each other in a rank's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SavedRuns {
    /// First element in the full parameter.
    pub(super) start: usize,
    /// First element in the rank's part.
    pub(super) at: usize,
    /// Elements of each run.
    pub(super) length: usize,
    /// Number of runs.
    pub(super) runs: usize,
    /// The elements of a row of the full parameter; 0 for one run.
    pub(super) stride: usize,
}

/// The elements `part` of this rank's tensor-parallel part of a parameter, without padding.
pub(super) fn saved_runs(param: &Param, part: &Range<usize>) -> Vec<SavedRuns> {
    let dims = param.spec().shape;
    let row = dims.dims().iter().skip(param.local_part().axis).product();
    join_rows(&param.runs_of(part), row)
}

/// Join runs in the order of a rank's part, each within a row of `row` elements or of whole rows.
fn join_rows(runs: &[(usize, usize, usize)], row: usize) -> Vec<SavedRuns> {
    let mut joined: Vec<SavedRuns> = Vec::new();
    for &(start, at, length) in runs {
        match joined.last_mut() {
            Some(last)
                if last.length == length
                    && last.at + last.runs * length == at
                    && last.start + last.runs * row == start
                    && start % row.max(1) + length <= row =>
            {
                (last.runs, last.stride) = (last.runs + 1, row);
            }
            _ => joined.push(SavedRuns { start, at, length, runs: 1, stride: 0 }),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(runs: &[(usize, usize, usize)]) -> Vec<(usize, usize, usize, usize, usize)> {
        let all = join_rows(runs, 10);
        all.iter().map(|all| (all.start, all.at, all.length, all.runs, all.stride)).collect()
    }

    #[test]
    fn rows_with_the_same_columns_are_one_piece() {
        assert_eq!(joined(&[(4, 0, 3), (14, 3, 3), (24, 6, 3)]), [(4, 0, 3, 3, 10)]);
        // Cut within a row at both ends, as shards of data-parallel ranks are.
        let cut = [(5, 0, 2), (14, 2, 3), (24, 5, 3), (34, 8, 1)];
        assert_eq!(joined(&cut), [(5, 0, 2, 1, 0), (14, 2, 3, 2, 10), (34, 8, 1, 1, 0)]);
        // Whole rows are one run already; a row is left out; the part has a gap.
        assert_eq!(joined(&[(10, 0, 30)]), [(10, 0, 30, 1, 0)]);
        assert_eq!(joined(&[(4, 0, 3), (24, 3, 3)]), [(4, 0, 3, 1, 0), (24, 3, 3, 1, 0)]);
        assert_eq!(joined(&[(4, 0, 3), (14, 5, 3)]), [(4, 0, 3, 1, 0), (14, 5, 3, 1, 0)]);
    }
}
