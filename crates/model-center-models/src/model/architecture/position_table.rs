//! Learned positions: mapping from tokens to rows of the position embedding.

/// Learned positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionTable {
    /// The row of the first token.
    pub first: usize,
    /// Count of positions.
    pub count: Count,
}

/// Count of positions, from the beginning of the sequence or of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Count {
    /// All positions before it, padding included.
    Places,
    /// The tokens before it; padding tokens get the row before the first.
    Tokens,
}

impl PositionTable {
    /// Rows from 0 on, of all positions, padding included.
    pub const PLACES: PositionTable = PositionTable { first: 0, count: Count::Places };

    /// The table's row of each of `rows * length` positions. `documents` has the index in its sequence of the first
    /// token of each token's document.
    pub(in crate::model) fn rows_of(
        self,
        [rows, length]: [usize; 2],
        mask: Option<&[u8]>,
        documents: Option<&[u32]>,
    ) -> Vec<i64> {
        let first = self.first as i64;
        let mask = mask.filter(|_| self.count == Count::Tokens);
        let mut next = first;
        let row_of = |at: usize| {
            let index = at % length;
            let start = documents.and_then(|starts| starts.get(at)).map_or(0, |start| *start as usize);
            if index == start {
                next = first;
            }
            let is_token = mask.is_none_or(|mask| mask.get(at) == Some(&1));
            next += i64::from(is_token);
            // Padding tokens get the row before the first token's, if the table has such a row.
            if is_token { next - 1 } else { (first - 1).max(0) }
        };
        (0..rows * length).map(row_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Count, PositionTable};

    #[test]
    fn positions_count_places_or_tokens() {
        let (places, tokens) = (Count::Places, Count::Tokens);
        let rows = |first, count, mask| PositionTable { first, count }.rows_of([2, 3], mask, None);
        let mask = [0, 1, 1, 1, 0, 1];
        assert_eq!(rows(0, places, Some(&mask)), [0, 1, 2, 0, 1, 2]);
        assert_eq!(rows(2, tokens, Some(&mask)), [1, 2, 3, 2, 1, 3]);
        assert_eq!(rows(0, tokens, Some(&mask)), [0, 0, 1, 0, 0, 1]);
        assert_eq!(rows(2, tokens, None), [2, 3, 4, 2, 3, 4]);
        let packed =
            |first, count, mask| PositionTable { first, count }.rows_of([2, 3], mask, Some(&[0, 1, 1, 0, 0, 2]));
        assert_eq!(packed(0, places, Some(&mask)), [0, 0, 1, 0, 1, 0]);
        assert_eq!(packed(2, tokens, Some(&mask)), [1, 2, 3, 2, 1, 2]);
    }
}
