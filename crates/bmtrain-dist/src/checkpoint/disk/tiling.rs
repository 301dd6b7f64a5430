//! Whether pieces cover a tensor exactly once, in time and memory of the number of pieces alone: a manifest from
//! outside can claim any number of runs.
//!
//! Pieces of several runs are rectangles in the tensor seen as a matrix whose rows are as long as their stride. A run
//! of elements is a partial row, whole rows and a partial row, at most three rectangles. Rectangles that do not overlap
//! and have the area of the matrix cover it. Called by `coverage.rs`.

use super::coverage::TensorRuns;
use std::collections::BTreeMap;

/// Why pieces do not cover a tensor exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Two pieces hold this element.
    Overlap(u64),
    /// No piece holds this element, and none before it is missing.
    Gap(u64),
    /// The pieces do not overlap, and together hold this number of elements.
    Missing(u64),
    /// Pieces of several runs have rows of these two lengths.
    Strides(u64, u64),
}

/// Check that pieces, each valid by itself and no two alike, hold every one of `elements` elements once. They are in
/// the order of their first elements.
pub(super) fn check_tiling(pieces: &[TensorRuns], elements: u64) -> Result<(), Flaw> {
    let mut strides = pieces.iter().map(|piece| piece.stride).filter(|stride| *stride > 0);
    let Some(width) = strides.next() else { return check_runs(pieces, elements) };
    match strides.find(|stride| *stride != width) {
        Some(other) => Err(Flaw::Strides(width, other)),
        None => check_rectangles(pieces, width, elements),
    }
}

/// Single runs alone: each begins where the one before it ends.
fn check_runs(pieces: &[TensorRuns], elements: u64) -> Result<(), Flaw> {
    let mut next = 0;
    for piece in pieces {
        match piece.start {
            start if start < next => return Err(Flaw::Overlap(start)),
            start if start > next => return Err(Flaw::Gap(next)),
            _ => next = piece.end(),
        }
    }
    if next == elements { Ok(()) } else { Err(Flaw::Gap(next)) }
}

/// The edge of a rectangle above its first row, or below its last one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    row: u64,
    /// Rectangles end before others begin in the same row.
    begins: bool,
    column: u64,
    end_column: u64,
}

fn check_rectangles(pieces: &[TensorRuns], width: u64, elements: u64) -> Result<(), Flaw> {
    let mut edges = Vec::with_capacity(4 * pieces.len());
    let mut add = |row: u64, rows: u64, column: u64, columns: u64| {
        if rows > 0 && columns > 0 {
            let end_column = column + columns;
            edges.push(Edge { row, begins: true, column, end_column });
            edges.push(Edge { row: row + rows, begins: false, column, end_column });
        }
    };
    let mut held = 0u64;
    for piece in pieces {
        let (row, column) = (piece.start / width, piece.start % width);
        // No larger than the tensor each; a sum of overlapping ones may be too large, and is not equal then either.
        held = held.saturating_add(piece.length * piece.runs);
        if piece.runs > 1 {
            add(row, piece.runs, column, piece.length);
            continue;
        }
        let first = if column == 0 { 0 } else { piece.length.min(width - column) };
        let (whole, last) = ((piece.length - first) / width, (piece.length - first) % width);
        let below = row + u64::from(first > 0);
        add(row, 1, column, first);
        add(below, whole, 0, width);
        add(below + whole, 1, 0, last);
    }
    edges.sort_unstable();
    // The columns that are held in the present row.
    let mut columns = BTreeMap::new();
    for Edge { row, begins, column, end_column } in edges {
        if !begins {
            columns.remove(&column);
            continue;
        }
        let left = columns.range(..=column).next_back().is_some_and(|(_, end): (_, &u64)| *end > column);
        let right = columns.range(column..end_column).next().map(|(start, _)| *start);
        if let Some(at) = if left { Some(column) } else { right } {
            return Err(Flaw::Overlap(row * width + at));
        }
        columns.insert(column, end_column);
    }
    if held == elements { Ok(()) } else { Err(Flaw::Missing(held)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: u64 = 6;
    const ROWS: u64 = 5;
    const ALL: u64 = WIDTH * ROWS;

    fn piece(start: u64, length: u64, runs: u64) -> TensorRuns {
        TensorRuns { start, length, runs, stride: if runs > 1 { WIDTH } else { 0 }, file: 0, piece: 0 }
    }

    fn check(pieces: &[(u64, u64, u64)]) -> Result<(), Flaw> {
        let mut pieces: Vec<TensorRuns> =
            pieces.iter().map(|&(start, length, runs)| piece(start, length, runs)).collect();
        pieces.sort_by_key(|piece| (piece.start, piece.length, piece.runs));
        check_tiling(&pieces, ALL)
    }

    #[test]
    fn columns_of_ranks_cut_anywhere_cover_a_matrix() {
        assert_eq!(check(&[(0, 3, 5), (3, 3, 5)]), Ok(()));
        // Each of the two columns is cut again within a row.
        assert_eq!(check(&[(0, 3, 2), (12, 1, 1), (13, 2, 1), (18, 3, 2), (3, 3, 4), (27, 2, 1), (29, 1, 1)]), Ok(()));
        // Whole rows beside columns.
        assert_eq!(check(&[(0, 12, 1), (12, 2, 3), (14, 4, 3)]), Ok(()));
        assert_eq!(check(&[(0, 9, 1), (9, 3, 1), (12, 2, 3), (14, 4, 3)]), Ok(()));
    }

    #[test]
    fn overlaps_and_gaps_of_rectangles_are_found() {
        assert_eq!(check(&[(0, 3, 5), (2, 4, 5)]), Err(Flaw::Overlap(2)));
        assert_eq!(check(&[(0, 3, 5), (3, 3, 4)]), Err(Flaw::Missing(27)));
        assert_eq!(check(&[(0, 2, 5), (3, 3, 5)]), Err(Flaw::Missing(25)));
        assert_eq!(check(&[(0, 3, 5), (3, 3, 5), (7, 1, 1)]), Err(Flaw::Overlap(7)));
        assert_eq!(check(&[(0, 30, 1), (3, 3, 5)]), Err(Flaw::Overlap(3)));
        // As many elements as the tensor, one of them twice.
        assert_eq!(check(&[(0, 3, 5), (3, 3, 4), (0, 3, 1)]), Err(Flaw::Overlap(0)));
        let mut pieces = [piece(0, 3, 5), piece(3, 3, 5)];
        pieces[1].stride = 10;
        assert_eq!(check_tiling(&pieces, ALL), Err(Flaw::Strides(6, 10)));
    }

    /// Small cases against a count of every element.
    #[test]
    fn a_cover_is_one_that_counts_every_element_once() {
        let mut seed = 1u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let (mut sound, mut other) = (0, 0);
        for _ in 0..20_000 {
            // Columns at a cut, of rows above and below another cut, and sometimes a piece changed.
            let (cut, row) = (1 + below(WIDTH - 1), 2 + below(2));
            let mut pieces = vec![(0, cut, row), (cut, WIDTH - cut, row), (row * WIDTH, (ROWS - row) * WIDTH, 1)];
            if below(2) == 0 {
                let (at, kind) = (below(3) as usize, below(3));
                match kind {
                    0 => pieces[at].0 += 1,
                    1 => pieces[at].1 = 1 + below(pieces[at].1),
                    _ => pieces[at].2 = 1 + below(ROWS - pieces[at].0 / WIDTH),
                }
            }
            let valid = |&(start, length, runs): &(u64, u64, u64)| {
                start + (runs - 1) * WIDTH + length <= ALL && (runs == 1 || start % WIDTH + length <= WIDTH)
            };
            if !pieces.iter().all(valid) {
                continue;
            }
            let mut counts = [0; ALL as usize];
            for &(start, length, runs) in &pieces {
                for run in 0..runs {
                    (start + run * WIDTH..start + run * WIDTH + length).for_each(|at| counts[at as usize] += 1);
                }
            }
            let covers = counts.iter().all(|count| *count == 1);
            assert_eq!(check(&pieces).is_ok(), covers, "{pieces:?}");
            if covers { sound += 1 } else { other += 1 }
        }
        assert!(sound > 1000 && other > 1000, "{sound} sound, {other} not");
    }
}
