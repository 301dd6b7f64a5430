//! A sum of many gradients in a binary tree that depends on their number alone.
//!
//! Leaves come one after the other, in the order of the micro-batches. As in a binary counter, two sums of equally many
//! leaves become one at once, so that at most `1 + ceil(log2(leaves))` are alive. Defines [`SumTreePlan`], what to add
//! to what for the next leaves, and [`SumTree`], the sums themselves; called by [`collectives`](super::collectives).

use crate::error::Result;
use bmtrain_core::kernel::{AddScaled, Cast, Dest};
use bmtrain_core::{DType, Device, Lane, Segment, Storage};
use std::ops::Range;

/// One thing to do with a leaf of the plan or the sum in a storage, both by number, over any range of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SumAction {
    /// Sum `to` becomes the leaf.
    Store { leaf: usize, to: usize },
    /// The leaf is added to sum `to`.
    AddLeaf { leaf: usize, to: usize },
    /// Sum `from` is added to the earlier sum `to`, and its storage is free.
    Merge { from: usize, to: usize },
}

/// The counter: which storage holds the sum of each level.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SumTreePlan {
    /// Number of a storage by level; level k holds 2^k leaves.
    levels: Vec<Option<usize>>,
    /// Storages that hold nothing now.
    free: Vec<usize>,
    /// Storages that were ever needed at once.
    storages: usize,
    /// Number of leaves so far.
    leaves: usize,
}

impl SumTreePlan {
    /// Actions for the next `leaves` leaves.
    fn insert(&mut self, leaves: usize) -> Vec<SumAction> {
        let mut actions = Vec::new();
        for leaf in 0..leaves {
            let full = self.levels.iter().take_while(|level| level.is_some()).count();
            if full == self.levels.len() {
                self.levels.push(None);
            }
            let mut sum = None;
            for level in 0..full {
                let Some(to) = self.levels[level].take() else { continue };
                match sum {
                    None => actions.push(SumAction::AddLeaf { leaf, to }),
                    Some(from) => {
                        actions.push(SumAction::Merge { from, to });
                        self.free.push(from);
                    }
                }
                sum = Some(to);
            }
            let sum = sum.unwrap_or_else(|| {
                let to = self.free.pop().unwrap_or_else(|| {
                    self.storages += 1;
                    self.storages - 1
                });
                actions.push(SumAction::Store { leaf, to });
                to
            });
            self.levels[full] = Some(sum);
            self.leaves += 1;
        }
        debug_assert!(self.storages <= most_sums(self.leaves), "{} sums of {} leaves", self.storages, self.leaves);
        actions
    }

    /// Actions at the end, and the storage that then holds everything; `None` before the first leaf.
    fn finish(&mut self) -> Option<(Vec<SumAction>, usize)> {
        let mut actions = Vec::new();
        let mut sum = None;
        for to in self.levels.drain(..).flatten() {
            if let Some(from) = sum {
                actions.push(SumAction::Merge { from, to });
            }
            sum = Some(to);
        }
        sum.map(|sum| (actions, sum))
    }
}

/// The most sums that may be alive for this number of leaves: `1 + ceil(log2(leaves))`.
fn most_sums(leaves: usize) -> usize {
    1 + leaves.next_power_of_two().ilog2() as usize
}

/// Sums of gradients of one storage's shard.
#[derive(Debug, Default)]
pub(crate) struct SumTree {
    plan: SumTreePlan,
    sums: Vec<Storage>,
}

impl SumTree {
    /// Add `leaves` leaves of `len` elements. `leaf(slice, number)` returns the storage of the leaf's slice and the
    /// slice's first element there; it is called for one slice after the other, all leaves of each.
    pub(super) fn insert(
        &mut self,
        device: &Device,
        (len, dtype): (usize, DType),
        leaves: usize,
        slices: impl Iterator<Item = Range<usize>>,
        mut leaf: impl FnMut(&Range<usize>, usize) -> Result<(Storage, usize)>,
    ) -> Result<()> {
        let actions = self.plan.insert(leaves);
        while self.sums.len() < self.plan.storages {
            self.sums.push(Storage::empty_on(device, len, dtype, Segment::Gradients, Lane::Zero)?);
        }
        for slice in slices {
            for action in &actions {
                match *action {
                    SumAction::Store { leaf: number, to } => {
                        let (from, start) = leaf(&slice, number)?;
                        let x = from.view_on(start..start + slice.len(), Lane::Zero)?;
                        let out = Dest { view: self.sums[to].view_mut_on(slice.clone(), Lane::Zero)?, add: false };
                        device.launch_on(Cast { x, out }, Lane::Zero)?;
                    }
                    SumAction::AddLeaf { leaf: number, to } => {
                        let (from, start) = leaf(&slice, number)?;
                        add(device, (&from, start..start + slice.len()), (&self.sums[to], slice.clone()))?;
                    }
                    SumAction::Merge { from, to } => {
                        add(device, (&self.sums[from], slice.clone()), (&self.sums[to], slice.clone()))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The sum of all leaves; `None` without a leaf.
    pub(super) fn finish(mut self, device: &Device) -> Result<Option<Storage>> {
        let Some((actions, whole)) = self.plan.finish() else { return Ok(None) };
        for action in actions {
            if let SumAction::Merge { from, to } = action {
                let all = 0..self.sums[from].len();
                add(device, (&self.sums[from], all.clone()), (&self.sums[to], all))?;
            }
        }
        Ok(Some(self.sums.swap_remove(whole)))
    }

    /// A copy of what [`SumTree::finish`] would return.
    pub(super) fn peek(&self, device: &Device) -> Result<Option<Storage>> {
        let mut whole: Option<Storage> = None;
        for sum in self.plan.levels.iter().flatten().filter_map(|number| self.sums.get(*number)) {
            let all = 0..sum.len();
            match &whole {
                Some(whole) => add(device, (sum, all.clone()), (whole, all))?,
                None => {
                    let a = sum.view_on(all.clone(), Lane::Zero)?;
                    let copy = Storage::empty_on(device, sum.len(), sum.dtype(), Segment::Gradients, Lane::Zero)?;
                    device.backend().copy(a, copy.view_mut_on(all, Lane::Zero)?, Lane::Zero)?;
                    whole = Some(copy);
                }
            }
        }
        Ok(whole)
    }
}

/// Add a range of a storage to one of another, after the collectives so far.
pub(super) fn add(
    device: &Device,
    (from, range): (&Storage, Range<usize>),
    (to, slice): (&Storage, Range<usize>),
) -> Result<()> {
    let (a, out) = (from.view_on(range, Lane::Zero)?, to.view_mut_on(slice, Lane::Zero)?);
    Ok(device.launch_on(AddScaled { alpha: 1.0, a, beta: 1.0, b: None, out }, Lane::Zero)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs plans on expressions instead of numbers.
    fn expression(batches: &[usize]) -> (String, usize) {
        let (mut plan, mut sums, mut first) = (SumTreePlan::default(), Vec::<String>::new(), 0);
        let run = |sums: &mut Vec<String>, actions: &[SumAction], first: usize| {
            for action in actions {
                match *action {
                    SumAction::Store { leaf, to } => {
                        sums.resize(sums.len().max(to + 1), String::new());
                        sums[to] = (first + leaf).to_string();
                    }
                    SumAction::AddLeaf { leaf, to } => sums[to] = format!("({}+{})", sums[to], first + leaf),
                    SumAction::Merge { from, to } => {
                        let from = std::mem::take(&mut sums[from]);
                        sums[to] = format!("({}+{from})", sums[to]);
                    }
                }
            }
        };
        for &leaves in batches {
            let actions = plan.insert(leaves);
            run(&mut sums, &actions, first);
            first += leaves;
        }
        let (actions, whole) = plan.finish().unwrap();
        run(&mut sums, &actions, first);
        (sums[whole].clone(), plan.storages)
    }

    #[test]
    fn the_tree_depends_on_the_number_of_leaves_alone() {
        assert_eq!(expression(&[1; 4]).0, "((0+1)+(2+3))");
        assert_eq!(expression(&[1; 7]).0, "(((0+1)+(2+3))+((4+5)+6))");
        for total in 1..=24usize {
            let (one_by_one, _) = expression(&vec![1; total]);
            for ranks in [2, 3, 4, 8] {
                if total.is_multiple_of(ranks) {
                    assert_eq!(
                        expression(&vec![ranks; total / ranks]).0,
                        one_by_one,
                        "{total} leaves of {ranks} ranks"
                    );
                }
            }
        }
    }

    #[test]
    fn few_sums_are_alive_at_once() {
        for total in 1..=70usize {
            let (_, storages) = expression(&vec![1; total]);
            assert!(storages <= most_sums(total), "{storages} sums for {total} leaves");
        }
    }

    #[test]
    fn nothing_has_no_sum() {
        assert!(SumTreePlan::default().finish().is_none());
    }
}
