//! Data that the ranks all-gather with every step: its metrics, and their votes on stopping and on saving a checkpoint.

use super::objective::{Objective, PassNumbers};
use super::run_ranks::RunRanks;
use super::trainer::{LocalMetrics, Trainer};
use crate::Result;
use bmtrain_core::{Device, Segment, Tensor, Var};
use bmtrain_dist::ControlGroup;
use model_center_base::batch::Batch;
use model_center_recipe::run::{Number, StopReason};

/// Offset basis and prime of the 64-bit FNV-1a hash.
const FNV: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;

/// A rank's vote after a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopVote {
    pub(super) reason: Option<StopReason>,
    /// Whether a checkpoint is due by this rank's clock.
    pub(super) checkpoint_due: bool,
}

/// Decision of all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Why the run ends now: by the first rank's vote, since clocks differ, or because any rank is asked to stop.
    pub(crate) stop: Option<StopReason>,
    /// Whether a checkpoint is due by the first rank's clock.
    pub(crate) checkpoint: bool,
}

/// Metrics of a step over all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepMetrics {
    /// Mean loss of the whole batch; not a number of one without a target.
    pub(crate) loss: f32,
    /// Whether the batch has a target.
    pub(crate) has_targets: bool,
    /// A hash of the sample indices in their order.
    pub(crate) batch: u64,
    pub(crate) samples: u64,
    pub(crate) tokens: u64,
    pub(crate) padded_tokens: u64,
    /// Metrics of the objective, with their names.
    pub(crate) values: Vec<(&'static str, Number)>,
}

/// How the numbers of a rank's step are laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepLayout {
    micro_batches: usize,
    /// Numbers of a micro-batch beside its loss.
    numbers: usize,
}

impl StopVote {
    const WIDTH: usize = 2;

    /// As two numbers of the all-gather.
    fn to_numbers(self) -> [f32; Self::WIDTH] {
        [self.reason.map_or(-1.0, |reason| reason as u8 as f32), f32::from(u8::from(self.checkpoint_due))]
    }

    fn from_numbers([reason, checkpoint_due]: [f32; Self::WIDTH]) -> Self {
        StopVote {
            reason: StopReason::ALL.into_iter().find(|known| *known as u8 as f32 == reason),
            checkpoint_due: checkpoint_due == 1.0,
        }
    }
}

impl Decision {
    /// From the votes of all ranks, in their order.
    fn of(votes: &[StopVote]) -> Self {
        let requested = votes.iter().filter_map(|vote| vote.reason).find(|reason| *reason == StopReason::Request);
        let first = votes.first();
        Decision {
            stop: first.and_then(|vote| vote.reason).or(requested),
            checkpoint: first.is_some_and(|vote| vote.checkpoint_due),
        }
    }
}

impl Trainer {
    /// Agree before the first step on whether to make it.
    pub(super) fn agree(&self) -> Result<Decision> {
        let all = self.ranks.gather(&self.vote(self.progress.step, false).to_numbers())?;
        let votes = all.iter().filter_map(|numbers| numbers.last_chunk()).map(|vote| StopVote::from_numbers(*vote));
        Ok(Decision::of(&votes.collect::<Vec<_>>()))
    }
}

impl LocalMetrics {
    /// Count the samples and tokens of a micro-batch.
    pub(super) fn count(&mut self, batch: &Batch) {
        let counts = match batch.samples.len() {
            // It stands for a batch without samples.
            0 => [0; 3],
            samples => [samples, batch.tokens(), batch.padded_tokens()],
        };
        for (count, more) in self.counts.iter_mut().zip(counts) {
            *count += more as f32;
        }
        self.sample_hashes.push(sample_hash(&batch.samples));
    }

    /// How [`LocalMetrics::gather_later`] lays out its numbers.
    pub(super) fn layout(&self) -> StepLayout {
        let numbers = self.numbers.first().map_or(0, |numbers| numbers.iter().map(Tensor::elements).sum());
        StepLayout { micro_batches: self.losses.len(), numbers }
    }

    /// All-gather this rank's losses, numbers of micro-batches, sample hashes, counts and vote:
    /// `[ranks, micro-batches · (3 + numbers) + 5]` on the device, without a host wait.
    pub(super) fn gather_later(&self, vote: StopVote, ranks: &ControlGroup, device: &Device) -> Result<Tensor> {
        let known = [self.sample_hashes.as_flattened(), &self.counts, &vote.to_numbers()].concat();
        let known = Tensor::from_slice_in(device, [known.len()], &known, Segment::Data)?;
        let of_samples = self.numbers.iter().flatten().chain([&known]);
        let numbers: Vec<&Tensor> = self.losses.iter().map(Var::value).chain(of_samples).collect();
        Ok(ranks.gather_later(&numbers)?)
    }
}

impl StepMetrics {
    /// Merge what [`LocalMetrics::gather_later`] gathered of the ranks, in the order of the micro-batches, which is the
    /// same on any number of ranks. `weights` are the micro-batches'.
    pub(super) fn merge(
        gathered: &[f32],
        ranks: &RunRanks,
        layout: StepLayout,
        (weights, objective): (&[f32], &dyn Objective),
    ) -> (Self, Decision) {
        let StepLayout { micro_batches: losses, numbers: width } = layout;
        let before_hashes = losses * (1 + width);
        let mut by_micro_batch = Vec::with_capacity(weights.len());
        let all: Vec<&[f32]> = gathered.chunks((gathered.len() / ranks.size()).max(1)).collect();
        // Of ranks with the same samples one counts; each of them votes.
        let of_samples: Vec<&[f32]> = ranks.of_data_ranks(&all).copied().collect();
        // The mean of nothing is not a number.
        let has_targets = weights.iter().any(|weight| *weight != 0.0);
        let (mut loss, mut batch, mut sums) = (if has_targets { 0.0 } else { f32::NAN }, 0u64, [0u64; 3]);
        let mut weights = weights.iter();
        for micro_batch in 0..losses {
            for numbers in &of_samples {
                let hash = before_hashes + 2 * micro_batch;
                let [own, high, low] =
                    [micro_batch, hash, hash + 1].map(|at| numbers.get(at).copied().unwrap_or(f32::NAN));
                let weight = weights.next().copied().unwrap_or(0.0);
                // Without targets it has no part of the mean, and its own is not a number.
                loss += if weight == 0.0 { 0.0 } else { weight * own };
                batch = combine_hashes(batch, [high, low]);
                let first = losses + micro_batch * width;
                let numbers = numbers.get(first..first + width).unwrap_or_default();
                by_micro_batch.push(PassNumbers { weight, numbers });
            }
        }
        for numbers in &of_samples {
            for (sum, count) in sums.iter_mut().zip(numbers.iter().skip(before_hashes + 2 * losses)) {
                *sum += *count as u64;
            }
        }
        let votes = all.iter().filter_map(|numbers| numbers.last_chunk()).map(|vote| StopVote::from_numbers(*vote));
        let decision = Decision::of(&votes.collect::<Vec<_>>());
        let [samples, tokens, padded_tokens] = sums;
        let values = if width > 0 { objective.step_metrics(&by_micro_batch) } else { Vec::new() };
        (StepMetrics { loss, has_targets, batch, samples, tokens, padded_tokens, values }, decision)
    }
}

/// A 48-bit hash of sample indices, as two numbers that f32 holds exactly.
fn sample_hash(samples: &[u32]) -> [f32; 2] {
    let hash = samples.iter().fold(FNV, |hash, sample| (hash ^ u64::from(*sample)).wrapping_mul(FNV_PRIME));
    let mixed = hash ^ (hash >> 48);
    [((mixed >> 24) & 0xff_ffff) as f32, (mixed & 0xff_ffff) as f32]
}

/// The hash of the micro-batches so far and of the next one.
fn combine_hashes(so_far: u64, [high, low]: [f32; 2]) -> u64 {
    let next = (high as u64) << 24 | low as u64;
    (so_far.rotate_left(5) ^ next).wrapping_mul(FNV_PRIME) & 0xffff_ffff_ffff
}
