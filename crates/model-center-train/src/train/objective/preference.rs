//! Completions that are compared in a run: their loss, and the log-probabilities of the reference model that it takes.
//!
//! Defines [`Preference`] and its [`Reference`]. The reference is the model as training begins.
//! Where new low-rank updates alone are trained, it is the same model without them, for each batch anew; otherwise
//! `reference.rs` computes its log-probabilities of all samples before the first step, so that there is never a second
//! model.

use super::{Objective, ObjectiveLoss, Pass, PassNumbers};
use crate::{Error, Result};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};
use bmtrain_dist::param::widen;
use model_center_base::batch::Batch;
use model_center_data::Split;
use model_center_data::metrics::PairStatistics;
use model_center_models::TextModel;
use model_center_models::adapter::AdapterPlan;
use model_center_models::preference::{
    PairedSequences, PreferenceKind, PreferenceLoss, PreferenceOutcome, UnpairedSequences, labelled_tokens, log_probs,
    own_and_mismatched,
};
use model_center_recipe::run::Number;

/// Log-probabilities of the two sequences of each sample: of the chosen and the rejected completion, or of a judged one
/// and its mismatch.
pub(in crate::train) type PairLogProbs = Vec<[f32; 2]>;

/// The loss of pairs, and its reference.
#[derive(Debug)]
pub(super) struct Preference {
    loss: PreferenceLoss,
    reference: Reference,
}

/// Where log-probabilities of the reference model come from.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reference {
    /// The loss has none.
    None,
    /// From the model without its updates.
    WithoutUpdates,
    /// From before the first step: not known yet.
    Pending,
    /// Log-probabilities of all samples.
    Stored {
        /// Of the training data.
        train: PairLogProbs,
        /// Log-probabilities of the evaluation data, where there are some.
        eval: PairLogProbs,
    },
}

impl Preference {
    /// Reference of a model with this adapter.
    ///
    /// # Errors
    /// Virtual tokens, without which the model is not what it was.
    pub(super) fn new(loss: PreferenceLoss, adapter: Option<&AdapterPlan>) -> Result<Self> {
        let reference = match adapter {
            _ if !loss.kind.has_reference() => Reference::None,
            Some(plan) if plan.virtual_tokens().is_some() => {
                let reason = "virtual tokens are in every sequence, and the reference model has none";
                let fix = "set adapter.method = \"lora\", or preference.loss = \"simpo\" or \"orpo\"";
                return Err(Error::recipe("adapter.method", reason, fix));
            }
            Some(plan) if plan.is_new_updates_alone() => Reference::WithoutUpdates,
            _ => Reference::Pending,
        };
        Ok(Preference { loss, reference })
    }

    /// The loss of a batch of pairs, or of unpaired completions.
    fn outcome(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<PreferenceOutcome> {
        let Pass { model, batch, split, .. } = *pass;
        if self.is_unpaired() {
            return self.unpaired(model, (batch, split), cx);
        }
        let reference = match self.loss.kind.has_reference() {
            true => Some(self.reference_of(model, (batch, split), &[0, 1], cx.device())?), // [R]
            false => None,
        };
        let log_probs = log_probs(model, batch, cx)?; // [R]
        let tokens = labelled_tokens(batch);
        self.loss.of(&log_probs, PairedSequences { tokens: &tokens, reference: reference.as_ref() }, cx)
    }

    /// Whether completions are judged one by one.
    fn is_unpaired(&self) -> bool {
        self.loss.kind == PreferenceKind::Kto
    }

    /// The loss of a batch of unpaired completions. Prompts with other completions have no gradient.
    fn unpaired(
        &self,
        model: &dyn TextModel,
        (batch, split): (&Batch, Split),
        cx: &mut Ctx,
    ) -> Result<PreferenceOutcome> {
        let [own, mismatch] = own_and_mismatched(batch);
        let policy = log_probs(model, &mismatch, &mut Ctx::inference(cx.device()))?.into_value(); // [B]
        let reference_of = |batch: &Batch, side| self.reference_of(model, (batch, split), &[side], cx.device());
        let (reference, of_mismatch) = (reference_of(&own, 0)?, reference_of(&mismatch, 1)?); // [B]
        let log_probs = log_probs(model, &own, cx)?; // [B]
        // A batch without samples has the row of one in their place.
        let stand_in = vec![true; own.rows];
        let is_good = batch.judgements.as_deref().filter(|given| given.len() == own.rows).unwrap_or(&stand_in);
        let unpaired = UnpairedSequences { is_good, reference: &reference, mismatch: [&policy, &of_mismatch] };
        self.loss.of_unpaired(&log_probs, unpaired, cx)
    }

    /// Log-probabilities of a batch under the reference model; its rows are these sequences of each sample, in turn.
    fn reference_of(
        &self,
        model: &dyn TextModel,
        (batch, split): (&Batch, Split),
        sides: &[usize],
        device: &Device,
    ) -> Result<Tensor> {
        match &self.reference {
            Reference::WithoutUpdates => {
                let known = || log_probs(model, batch, &mut Ctx::inference(device));
                Ok(model.parameters().without_updates(known)?.into_value()) // [R]
            }
            Reference::None | Reference::Pending => {
                let reason = "the log-probabilities of the reference model are not known";
                Err(Error::argument("preference.loss", reason, "report this"))
            }
            Reference::Stored { train, eval } => {
                let (known, name) = if split == Split::Train { (train, "training") } else { (eval, "evaluation") };
                let of_sides = |pair: [f32; 2]| sides.iter().filter_map(move |side| pair.get(*side).copied());
                let pairs = pairs_of(known, name, batch, batch.rows / sides.len())?;
                let known: Vec<f32> = pairs.into_iter().flat_map(of_sides).collect();
                Ok(Tensor::from_slice_in(device, [batch.rows], &known, Segment::Data)?)
            }
        }
    }
}

impl Objective for Preference {
    /// Its numbers are the number of samples, then [`numbers_by_kind`], padded to the most samples of a micro-batch.
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<ObjectiveLoss> {
        let outcome = self.outcome(pass, cx)?;
        let numbers = numbers_of_step(&outcome, pass.batch.samples.len(), pass.most_samples, cx.device())?;
        Ok(ObjectiveLoss { loss: outcome.loss, numbers })
    }

    fn step_metrics(&self, micro_batches: &[PassNumbers<'_>]) -> Vec<(&'static str, Number)> {
        let mut pairs = if self.is_unpaired() { PairStatistics::unpaired() } else { PairStatistics::default() };
        micro_batches.iter().for_each(|of| add_pairs(&mut pairs, of.numbers));
        pairs.named().into_iter().map(|(name, value)| (name, Number::Double(value))).collect()
    }

    /// The numbers of each sample are those that [`PairStatistics`] takes.
    fn evaluated(&self, pass: &Pass<'_>, device: &Device) -> Result<Option<Vec<f32>>> {
        let outcome = self.outcome(pass, &mut Ctx::inference(device))?;
        let values = numbers_by_kind(&outcome).iter().map(widen).collect::<bmtrain_dist::Result<Vec<_>>>()?.concat();
        let by_sample = numbers_by_sample(&values, pass.batch.rows / 2, outcome.unpaired.is_some());
        Ok(Some([outcome.loss.value().item()?].into_iter().chain(by_sample.flatten()).collect()))
    }

    fn reference(&mut self) -> Option<&mut Reference> {
        Some(&mut self.reference)
    }
}

/// The stored log-probabilities of a batch's samples, `count` of them.
fn pairs_of(known: &[[f32; 2]], part: &str, batch: &Batch, count: usize) -> Result<PairLogProbs> {
    let pair = |sample: &u32| {
        known.get(*sample as usize).copied().ok_or_else(|| {
            let reason = format!("the log-probabilities of the reference model are of {} samples", known.len());
            Error::data(format!("sample {sample} of the {part} data"), reason, "report this")
        })
    };
    let mut pairs = batch.samples.iter().map(pair).collect::<Result<PairLogProbs>>()?;
    // A batch without samples has the rows of one in their place.
    pairs.resize(count, [0.0; 2]);
    Ok(pairs)
}

/// The numbers of a batch's samples by kind: rewards of all sequences, then their log-probabilities; of judged
/// completions log-ratios of mismatches and judgements follow.
fn numbers_by_kind(outcome: &PreferenceOutcome) -> Vec<Tensor> {
    let mut numbers = vec![outcome.rewards.value().clone(), outcome.log_probs.value().clone()];
    if let Some(unpaired) = &outcome.unpaired {
        numbers.extend([unpaired.mismatch_ratios.value().clone(), unpaired.is_good.clone()]);
    }
    numbers
}

/// The same of each sample, as [`PairStatistics`] takes them.
fn numbers_by_sample(
    numbers: &[f32],
    samples: usize,
    are_unpaired: bool,
) -> impl Iterator<Item = [f32; PairStatistics::NUMBERS]> {
    (0..samples).map(move |sample| {
        let places = match are_unpaired {
            true => [0, 1, 2, 3].map(|kind| kind * samples + sample),
            false => [0, 1, 2 * samples, 2 * samples + 1].map(|first| first + 2 * sample),
        };
        places.map(|at| numbers.get(at).copied().unwrap_or(f32::NAN))
    })
}

/// Numbers of a micro-batch that are gathered: the number of its samples, then [`numbers_by_kind`], padded to `most`
/// samples.
fn numbers_of_step(outcome: &PreferenceOutcome, samples: usize, most: usize, device: &Device) -> Result<Vec<Tensor>> {
    let count = Tensor::full_in(device, [1], DType::F32, samples as f32, Segment::Activations)?; // [1]
    let by_kind = numbers_by_kind(outcome);
    let used: usize = by_kind.iter().map(Tensor::elements).sum();
    let mut numbers = [vec![count], by_kind].concat();
    let padding = (PairStatistics::NUMBERS * most).saturating_sub(used);
    if padding > 0 {
        numbers.push(Tensor::full_in(device, [padding], DType::F32, 0.0, Segment::Activations)?);
    }
    Ok(numbers)
}

/// Adds the samples of a micro-batch, as [`numbers_of_step`] has them.
fn add_pairs(statistics: &mut PairStatistics, numbers: &[f32]) {
    let Some((count, numbers)) = numbers.split_first() else { return };
    for sample in numbers_by_sample(numbers, *count as usize, statistics.are_unpaired()) {
        statistics.add(statistics.len() as u64, sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_by_kind_become_numbers_of_each_sample_before_padding() {
        let numbers: Vec<f32> = (0..10u8).map(f32::from).collect();
        let by_sample = |are_unpaired| numbers_by_sample(&numbers, 2, are_unpaired).collect::<Vec<_>>();
        assert_eq!(by_sample(false), [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]);
        assert_eq!(by_sample(true), [[0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 5.0, 7.0]]);
        assert_eq!(numbers_by_sample(&numbers, 0, false).count(), 0);
    }

    #[test]
    fn a_sample_without_stored_log_probabilities_is_an_error() {
        let known = [[-1.0, -2.0], [-3.0, -4.0]];
        let of = |samples: &[u32], rows: usize| {
            let batch = Batch { samples: samples.to_vec(), rows, ..Batch::new(1, vec![0; rows]) };
            pairs_of(&known, "training", &batch, rows / 2)
        };
        assert_eq!(of(&[1, 0], 4).unwrap(), [[-3.0, -4.0], [-1.0, -2.0]]);
        assert_eq!(of(&[], 2).unwrap(), [[0.0; 2]], "a batch that stands for none");
        let error = of(&[0, 2], 4).unwrap_err().to_string();
        assert!(error.contains("sample 2 of the training data") && error.contains("of 2 samples"), "{error}");
    }
}
