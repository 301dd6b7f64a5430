//! Partition of a model's blocks among the places of a pipeline: pure arithmetic.
//!
//! A place is a chunk of the model between two edges, in the order of the forward pass; the first has the embedding
//! too, the last the head. Defines [`Partition`]; a [`PartitionRule`](crate::pipeline::PartitionRule) chooses one for a
//! model.

use crate::error::{Error, Result};
use std::ops::Range;

/// The blocks of each place of a pipeline, counted through all stacks of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The first block of each place, and the number of blocks.
    bounds: Vec<usize>,
}

impl Partition {
    /// Equal numbers of blocks; the first `blocks % places` places have one more.
    ///
    /// # Errors
    /// Fewer blocks than places.
    pub fn even(blocks: usize, places: usize) -> Result<Self> {
        require(blocks, places)?;
        Partition::of_counts(
            &(0..places).map(|place| blocks / places + usize::from(place < blocks % places)).collect::<Vec<_>>(),
        )
    }

    /// The given number of blocks at each place. The first and the last place may have none: the embedding or the head
    /// alone.
    ///
    /// # Errors
    /// No place, no block, or a place without blocks between two others.
    pub fn of_counts(counts: &[usize]) -> Result<Self> {
        let refuse = |reason: String| Err(Error::setting("pipeline partition", reason));
        let empty =
            counts.iter().enumerate().position(|(place, count)| *count == 0 && place > 0 && place + 1 < counts.len());
        if let Some(place) = empty {
            let reason = format!("place {place} of {counts:?} has no block; only the first and the last may have none");
            return refuse(reason);
        }
        let mut bounds = vec![0];
        for count in counts {
            match bounds.last().and_then(|end: &usize| end.checked_add(*count)) {
                Some(end) => bounds.push(end),
                None => return refuse(format!("{counts:?} are more blocks than can be counted")),
            }
        }
        match bounds.last() {
            Some(0) | None => refuse(format!("{counts:?} divides no block; give the number of blocks of each place")),
            Some(_) => Ok(Partition { bounds }),
        }
    }

    /// Every place has at least one block, and the largest cost of a place is as small as it can be; of several such
    /// partitions, the one whose first places have the most blocks. `head` is added to the last place.
    ///
    /// # Errors
    /// Fewer blocks than places.
    pub fn balanced(blocks: &[u64], head: u64, places: usize) -> Result<Self> {
        require(blocks.len(), places)?;
        // The smallest bound that a greedy division keeps, by bisection: no place is ever fuller than it.
        let total = blocks.iter().fold(head, |sum, cost| sum.saturating_add(*cost));
        let largest = blocks.iter().copied().max().unwrap_or(0);
        let (mut low, mut high) = (largest, total);
        while low < high {
            let middle = low + (high - low) / 2;
            match fill(blocks, head, places, middle) {
                Some(_) => high = middle,
                None => low = middle + 1,
            }
        }
        let counts = fill(blocks, head, places, low);
        counts.map_or_else(|| Partition::even(blocks.len(), places), |counts| Partition::of_counts(&counts))
    }

    /// Number of places.
    pub fn places(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// The blocks of a place; none of a place that does not exist.
    pub fn range(&self, place: usize) -> Range<usize> {
        match (self.bounds.get(place), self.bounds.get(place + 1)) {
            (Some(&first), Some(&end)) => first..end,
            _ => self.blocks()..self.blocks(),
        }
    }

    /// The place of a block; the last one for blocks that do not exist.
    pub fn place_of(&self, block: usize) -> usize {
        let last_with_blocks = self.bounds.partition_point(|first| *first < self.blocks()).saturating_sub(1);
        match block < self.blocks() {
            true => self.bounds.partition_point(|first| *first <= block) - 1,
            false => last_with_blocks,
        }
    }

    /// The number of blocks of each place.
    pub fn counts(&self) -> Vec<usize> {
        (0..self.places()).map(|place| self.range(place).len()).collect()
    }
}

fn require(blocks: usize, places: usize) -> Result<()> {
    if places == 0 || blocks < places {
        let reason = format!(
            "{blocks} blocks cannot be divided among {places} places with at least one each; use fewer stages or fewer \
             chunks, or give the number of blocks of each place"
        );
        return Err(Error::setting("pipeline partition", reason));
    }
    Ok(())
}

/// The number of blocks of each place where each takes all that fit below `bound` and leaves one to each place after
/// it; `None` if they do not fit.
fn fill(blocks: &[u64], head: u64, places: usize, bound: u64) -> Option<Vec<usize>> {
    let (mut counts, mut next) = (Vec::with_capacity(places), 0);
    for place in 0..places {
        let after = places - 1 - place;
        let (mut cost, first) = (if after == 0 { head } else { 0 }, next);
        while next < blocks.len() - after {
            let more = cost.saturating_add(blocks[next]);
            if more > bound {
                break;
            }
            (cost, next) = (more, next + 1);
        }
        if next == first {
            return None;
        }
        counts.push(next - first);
    }
    (next == blocks.len()).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{BlockCosts, PartitionRule};

    #[test]
    fn blocks_that_do_not_divide_are_at_the_first_places() {
        let counts = |blocks, places| Partition::even(blocks, places).unwrap().counts();
        assert_eq!(counts(4, 1), [4]);
        assert_eq!(counts(7, 3), [3, 2, 2]);
        assert_eq!(counts(12, 4), [3, 3, 3, 3]);
        let error = Partition::even(3, 4).unwrap_err().to_string();
        assert!(error.contains("3 blocks") && error.contains("4 places"), "{error}");
    }

    #[test]
    fn a_place_and_its_blocks_name_each_other() {
        let partition = Partition::of_counts(&[0, 2, 3, 0]).unwrap();
        assert_eq!((partition.places(), partition.blocks()), (4, 5));
        assert_eq!([0, 1, 2, 3].map(|place| partition.range(place)), [0..0, 0..2, 2..5, 5..5]);
        assert_eq!([0, 1, 2, 4].map(|block| partition.place_of(block)), [1, 1, 2, 2]);
        assert_eq!(partition.place_of(9), 2);
        assert_eq!(Partition::even(6, 2).unwrap().place_of(6), 1);
    }

    #[test]
    fn the_largest_place_is_as_small_as_any_division_makes_it() {
        // All divisions of up to 7 blocks among up to 4 places.
        fn least(blocks: &[u64], head: u64, places: usize) -> u64 {
            if places == 1 {
                return blocks.iter().sum::<u64>() + head;
            }
            let first = 1..=blocks.len() + 1 - places;
            first.map(|n| blocks[..n].iter().sum::<u64>().max(least(&blocks[n..], head, places - 1))).min().unwrap()
        }
        for seed in 0..200u64 {
            let blocks: Vec<u64> = (0..1 + seed % 7).map(|i| 1 + (seed * 31 + i * 17) % 9).collect();
            let head = seed % 23;
            for places in 1..=blocks.len().min(4) {
                let partition = Partition::balanced(&blocks, head, places).unwrap();
                let cost = |place: usize| {
                    let own: u64 = blocks[partition.range(place)].iter().sum();
                    own + if place + 1 == places { head } else { 0 }
                };
                let found = (0..places).map(cost).max().unwrap();
                assert_eq!(found, least(&blocks, head, places), "{blocks:?}, head {head}, {places} places");
            }
        }
    }

    #[test]
    fn equal_blocks_without_a_head_are_divided_evenly() {
        for places in 1..=4 {
            let (balanced, even) = (Partition::balanced(&[5; 8], 0, places), Partition::even(8, places));
            let largest = |partition: Partition| partition.counts().into_iter().max();
            assert_eq!(largest(balanced.unwrap()), largest(even.unwrap()));
        }
    }

    #[test]
    fn times_of_other_blocks_are_refused() {
        let rule = PartitionRule::Time(BlockCosts { blocks: vec![1, 2, 3], head: 0 });
        let nothing = crate::Builder::new(&bmtrain_core::Device::cpu(1).unwrap(), Default::default()).finish();
        let error = Partition::of_model(&rule, &nothing, 2).unwrap_err().to_string();
        assert!(error.contains("3 blocks") && error.contains("has 0"), "{error}");
    }

    #[test]
    fn counts_that_leave_a_place_empty_are_refused() {
        for (counts, part) in [(&[2, 0, 2][..], "place 1"), (&[0, 0], "no block"), (&[], "no block")] {
            let error = Partition::of_counts(counts).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
