//! Prediction of the next segment from those before it.
//!
//! One segment may be followed by several: the first micro-batch of a step writes gradients, the others add to them,
//! after the same forward pass. So the longest run of segments that has come before decides.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Lengths of the runs that are looked at.
const LENGTHS: [usize; 4] = [64, 16, 4, 1];

/// Most runs that are remembered.
const MAX_RUNS: usize = 1 << 14;

#[derive(Debug, Default)]
pub(super) struct History {
    /// The latest first.
    past: VecDeque<usize>,
    /// The segment after a run, by a hash of the run.
    next: HashMap<u64, usize>,
}

impl History {
    /// A segment has come.
    pub(super) fn add(&mut self, id: usize) {
        if self.next.len() >= MAX_RUNS {
            self.next.clear();
        }
        for length in LENGTHS {
            self.next.insert(self.run(length), id);
        }
        self.past.push_front(id);
        // One more, so that the last can be taken back.
        self.past.truncate(LENGTHS[0] + 1);
    }

    /// The last segment was only the beginning of one.
    pub(super) fn take_back(&mut self) {
        self.past.pop_front();
    }

    /// The segments that came after such a run before, by the longest run first.
    pub(super) fn expected(&self) -> impl Iterator<Item = usize> {
        LENGTHS.into_iter().filter_map(|length| self.next.get(&self.run(length)).copied())
    }

    /// It is unknown what came last.
    pub(super) fn break_off(&mut self) {
        self.past.clear();
    }

    fn run(&self, length: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        length.hash(&mut hasher);
        self.past.iter().take(length).for_each(|id| id.hash(&mut hasher));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_that_came_before_decides() {
        let mut history = History::default();
        // An optimizer step (9), then two micro-batches with one forward pass of three segments (1, 2, 3).
        let step = [1, 2, 3, 4, 1, 2, 3, 5, 9];
        for id in step.into_iter().cycle().take(3 * step.len()) {
            history.add(id);
        }
        for id in step.into_iter().cycle().take(2 * step.len()) {
            assert_eq!(history.expected().next(), Some(id));
            history.add(id);
        }
        history.break_off();
        assert_eq!(history.expected().next(), Some(1), "as in the beginning");
    }
}
