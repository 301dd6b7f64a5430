//! The keys of `[train.batch_ramp]`: batches that grow over the first samples of a run.
//!
//! Defines [`BatchRamp`], a part of the [`TrainSettings`](super::TrainSettings).

use super::train::GIVEN;
use super::{MAX_SAMPLES, MAX_STEPS, Settings};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;

const ABSENT: &str = "not set: batches of one size";

settings! {
    #[derive(Debug)]
    pub(super) struct BatchRampKeys in "train.batch_ramp" (r) {
        /// Samples of the first steps of task `pretrain`, where batches grow to `train.batch_size`.
        start: Option<u64> = optional_integer(ABSENT, 1..=MAX_SAMPLES, 32), "0.2", not_of_step(GIVEN);
        /// What the batch grows by at a time.
        increment: Option<u64> = optional_integer(ABSENT, 1..=MAX_SAMPLES, 32), "0.2", not_of_step(GIVEN);
        /// Samples over which it grows.
        samples: Option<u64> = optional_integer(ABSENT, 1..=MAX_STEPS, 488_280), "0.2", not_of_step(GIVEN);
    }
}

/// Batches that grow from a first size to the size of the run, by the same number at a time.
///
/// Source: Megatron-LM's `--rampup-batch-size START INCREMENT SAMPLES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRamp {
    /// Samples of the first steps.
    pub start: u64,
    /// Increment of the batch.
    pub increment: u64,
    /// Samples over which it grows.
    pub samples: u64,
    /// Samples of a step in the end: `train.batch_size`.
    pub batch: u64,
}

impl BatchRamp {
    /// No ramp: every step has this many samples.
    pub fn constant(batch: u64) -> Self {
        BatchRamp { start: batch, increment: batch.max(1), samples: 0, batch }
    }

    /// Samples before step `step`, counted from 0, and the samples of it. Beyond 64 bits the largest number.
    pub fn at(&self, step: u64) -> (u64, u64) {
        let increments = self.batch.saturating_sub(self.start).div_ceil(self.increment.max(1));
        let (mut consumed, mut left) = (0_u64, step);
        for number in 0..increments {
            let batch = self.start + number * self.increment;
            // Up to where the next size begins.
            let end = (u128::from(self.samples) * u128::from(number + 1)).div_ceil(u128::from(increments)) as u64;
            let steps = end.saturating_sub(consumed).div_ceil(batch.max(1));
            if left < steps {
                return (consumed + left * batch, batch);
            }
            (consumed, left) = (consumed + steps * batch, left - steps);
        }
        (consumed.saturating_add(left.saturating_mul(self.batch)), self.batch)
    }
}

/// Reads the keys; the size of the run is [`BatchRamp::batch`].
pub(super) fn read(r: &mut Reader, batch: u64) -> Option<BatchRamp> {
    let BatchRampKeys { start, increment, samples } = BatchRampKeys::read(r);
    let given = [start, increment, samples].iter().flatten().count();
    if (1..3).contains(&given) {
        let keys: Vec<&str> = BatchRampKeys::TABLE.rows().iter().map(|row| row.key).collect();
        r.absent(&keys, format!("{given} of the three keys of train.batch_ramp are set"), "set all of them, or none");
    }
    Some(BatchRamp { start: start?, increment: increment?, samples: samples?, batch })
}

/// Adds what contradicts itself.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    let Some(BatchRamp { start, increment, batch, .. }) = s.train.batch_ramp else { return };
    let key = "train.batch_ramp.start";
    if s.data.source.pretraining().is_none() {
        r.without_effect(key, "data.task", "it is for task pretrain", "remove train.batch_ramp");
        return;
    }
    if start >= batch || !(batch - start).is_multiple_of(increment) {
        let reason = format!("batches of {start}, {increment} more at a time, do not come to {batch}");
        r.contradiction(&[key, "train.batch_ramp.increment", "train.batch_size"], reason, "choose a divisor");
    }
    if s.parallel.pipeline > 1 {
        let reason = "a pipeline's schedule is for one number of micro-batches, and `train.batch_ramp` changes it";
        r.contradiction(&[key, "parallel.pipeline"], reason, "remove train.batch_ramp, or set parallel.pipeline = 1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_and_grow_to_the_batch() {
        let ramp = BatchRamp { start: 4, increment: 4, samples: 50, batch: 16 };
        let mut consumed = 0;
        let mut sizes = Vec::new();
        for step in 0..20 {
            let (before, batch) = ramp.at(step);
            assert_eq!(before, consumed, "{step}");
            // Megatron's rule: the size follows from the samples seen so far.
            let expected = (4 + 4 * (consumed * 3 / 50)).min(16);
            assert_eq!(batch, expected, "{step}");
            consumed += batch;
            sizes.push(batch);
        }
        assert_eq!(sizes[..11], [4, 4, 4, 4, 4, 8, 8, 12, 12, 16, 16]);
        assert_eq!(BatchRamp::constant(8).at(5), (40, 8));
        assert_eq!(BatchRamp::constant(8).at(u64::MAX).0, u64::MAX);
    }
}
