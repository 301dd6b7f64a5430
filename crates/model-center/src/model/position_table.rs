//! Learned positions: mapping from tokens to rows of the position embedding.

/// Learned positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionTable {
    /// The row of the first token.
    pub first: usize,
    /// What positions count.
    pub count: Count,
}

/// What positions count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Count {
    /// All positions before it, padding included.
    Places,
    /// The tokens before it; padding tokens get the row before the first.
    Tokens,
}

impl PositionTable {
    /// The table's row of each of `rows * length` positions.
    pub(super) fn rows_of(self, rows: usize, length: usize, mask: Option<&[u8]>) -> Vec<i64> {
        let first = self.first as i64;
        let (Count::Tokens, Some(mask)) = (self.count, mask) else {
            return (0..rows).flat_map(|_| first..first + length as i64).collect();
        };
        let number = |row: &[u8]| {
            let mut next = first;
            row.iter()
                .map(|&is_token| {
                    next += i64::from(is_token);
                    // Padding tokens get the row before the first token's, if the table has such a row.
                    if is_token == 1 { next - 1 } else { (first - 1).max(0) }
                })
                .collect::<Vec<_>>()
        };
        mask.chunks(length.max(1)).flat_map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Count, PositionTable};

    #[test]
    fn positions_count_places_or_tokens() {
        let (places, tokens) = (Count::Places, Count::Tokens);
        let rows = |first, count, mask| PositionTable { first, count }.rows_of(2, 3, mask);
        let mask = [0, 1, 1, 1, 0, 1];
        assert_eq!(rows(0, places, Some(&mask)), [0, 1, 2, 0, 1, 2]);
        assert_eq!(rows(2, tokens, Some(&mask)), [1, 2, 3, 2, 1, 3]);
        assert_eq!(rows(0, tokens, Some(&mask)), [0, 0, 1, 0, 0, 1]);
        assert_eq!(rows(2, tokens, None), [2, 3, 4, 2, 3, 4]);
    }
}
