//! Chunks of the rows of a head.

use super::head::Size;
use crate::dtype::DType;

/// Rows of logits start at multiples of 8 elements for every number of classes: vectors of 16 bytes, and fast
/// matrix products.
pub(super) const ALIGNED: usize = 8;

/// Longer chunks are a multiple of this number of rows.
const STEP: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) hidden: bool,
    pub(super) weight: bool,
    pub(super) bias: bool,
}

impl Wanted {
    pub(super) fn any(self) -> bool {
        self.hidden || self.weight || self.bias
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogitsPlan {
    /// The logits of all rows are computed and kept for the backward pass.
    Hold,
    /// The logits of this number of rows at a time, overwritten by their gradients.
    Chunks(usize),
    /// The logits of this number of rows at a time, for losses whose gradients the backward pass brings: it computes
    /// them again.
    Recompute(usize),
}

impl LogitsPlan {
    /// Whichever needs less memory; a function of sizes. With `each`, every row has a loss of its own.
    pub(super) fn new(size: Size, dtype: DType, wanted: Wanted, each: bool, chunk_bytes: usize) -> LogitsPlan {
        let Size { rows, classes, depth, .. } = size;
        let row_bytes = classes.next_multiple_of(ALIGNED).saturating_mul(dtype.size()).max(1);
        let at_once = rows_at_once(rows, row_bytes, chunk_bytes);
        let gradient = |wanted: bool, elements: usize| if wanted { elements.saturating_mul(4) } else { 0 };
        let gradients = gradient(wanted.weight, classes.saturating_mul(depth)) + gradient(wanted.bias, classes);
        let made = row_bytes.saturating_mul(at_once).saturating_add(gradients);
        match (wanted.any(), each) {
            (true, _) if row_bytes.saturating_mul(rows) <= made => LogitsPlan::Hold,
            (true, true) => LogitsPlan::Recompute(at_once),
            _ => LogitsPlan::Chunks(at_once),
        }
    }
}

/// Rows of `row_bytes` each that are worked on at a time, of all `rows`, in about `chunk_bytes`: the fewest chunks, of
/// nearly equal length.
pub(super) fn rows_at_once(rows: usize, row_bytes: usize, chunk_bytes: usize) -> usize {
    let most = (chunk_bytes / row_bytes).clamp(1, rows.max(1));
    let step = if most >= STEP { STEP } else { 1 };
    let most = most / step * step;
    rows.div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(step).min(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wanted = Wanted { hidden: true, weight: true, bias: true };
    const NONE: Wanted = Wanted { hidden: false, weight: false, bias: false };

    fn plan(rows: usize, classes: usize, depth: usize, wanted: Wanted, chunk_bytes: usize) -> LogitsPlan {
        let size = Size { rows, classes, columns: classes.next_multiple_of(ALIGNED), depth };
        LogitsPlan::new(size, DType::BF16, wanted, false, chunk_bytes)
    }

    #[test]
    fn chunks_stay_within_their_bytes_and_are_of_nearly_one_length() {
        for (rows, classes, bytes) in [(8192, 50257, 128 << 20), (1000, 7, 64), (65, 1 << 20, 1 << 28), (3, 5, 1)] {
            let LogitsPlan::Chunks(at_once) = plan(rows, classes, 1, NONE, bytes) else { panic!("nothing is kept") };
            let row = classes.next_multiple_of(8) * 2;
            assert!(at_once == 1 || at_once * row <= bytes, "{rows}x{classes}: {at_once} rows");
            assert!(at_once >= 1 && at_once <= rows);
            let count = rows.div_ceil(at_once);
            assert!(at_once * count - rows < count * STEP, "{rows}x{classes}: {at_once} rows");
        }
    }

    #[test]
    fn logits_are_held_where_that_needs_less_than_the_gradient_of_the_weight() {
        assert_eq!(plan(8192, 50257, 768, NONE, 128 << 20), LogitsPlan::Chunks(1216));
        assert_eq!(plan(8192, 50257, 768, ALL, 128 << 20), LogitsPlan::Chunks(1216));
        assert_eq!(plan(2048, 50257, 768, ALL, 128 << 20), LogitsPlan::Hold);
        // A frozen weight has no gradient.
        let hidden = Wanted { hidden: true, ..NONE };
        assert_eq!(plan(2048, 50257, 768, hidden, 128 << 20), LogitsPlan::Chunks(1024));
        assert_eq!(plan(0, 5, 3, ALL, 1 << 20), LogitsPlan::Hold);
        assert_eq!(plan(0, 5, 3, NONE, 1 << 20), LogitsPlan::Chunks(0));
    }

    #[test]
    fn logits_of_losses_of_their_own_are_computed_again_where_they_are_too_large_to_be_held() {
        let size = Size { rows: 100, classes: 1000, columns: 1000, depth: 4 };
        assert_eq!(LogitsPlan::new(size, DType::F32, ALL, true, 1), LogitsPlan::Recompute(1));
        // The gradient of the weight takes as much as the logits that are not held.
        let deep = Size { depth: 64, ..size };
        assert_eq!(LogitsPlan::new(size, DType::F32, ALL, true, 1 << 20), LogitsPlan::Recompute(64));
        assert_eq!(LogitsPlan::new(deep, DType::F32, ALL, true, 1 << 20), LogitsPlan::Hold);
        assert_eq!(LogitsPlan::new(size, DType::F32, NONE, true, 1), LogitsPlan::Chunks(1));
    }
}
