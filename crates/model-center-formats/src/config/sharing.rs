//! Blocks that share their parameters.

use serde::{Deserialize, Serialize};

/// Blocks of a stack that have the same parameters: few blocks run at many places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSharing {
    /// Blocks with parameters of their own, a divisor of the number of places.
    pub unique: usize,
    /// Their order.
    pub style: SharingStyle,
}

/// The order of blocks that run at several places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharingStyle {
    /// All of them, one after the other, again and again: of two blocks 0 1 0 1.
    Grouped,
    /// Each of them several times in a row: of two blocks 0 0 1 1.
    Spaced,
}

impl LayerSharing {
    /// The block at each of the places; `None` if the blocks do not divide them.
    pub fn order(self, places: usize) -> Option<Vec<usize>> {
        let times = places.checked_div(self.unique).filter(|times| times * self.unique == places)?;
        let block = |place: usize| match self.style {
            SharingStyle::Grouped => place % self.unique,
            SharingStyle::Spaced => place / times,
        };
        Some((0..places).map(block).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{LayerSharing, SharingStyle};

    #[test]
    fn orders_are_those_of_megatron_lm() {
        let order = |unique, style, places| LayerSharing { unique, style }.order(places);
        assert_eq!(order(2, SharingStyle::Grouped, 4), Some(vec![0, 1, 0, 1]));
        assert_eq!(order(2, SharingStyle::Spaced, 4), Some(vec![0, 0, 1, 1]));
        assert_eq!(order(3, SharingStyle::Spaced, 6), Some(vec![0, 0, 1, 1, 2, 2]));
        assert_eq!(order(1, SharingStyle::Grouped, 3), Some(vec![0, 0, 0]));
        assert_eq!(order(4, SharingStyle::Spaced, 4), order(4, SharingStyle::Grouped, 4));
        assert_eq!([0, 3, 8].map(|unique| order(unique, SharingStyle::Grouped, 4)), [const { None }; 3]);
    }
}
