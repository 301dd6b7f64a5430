//! Pairs of completions in a run: their loss, and the log-probabilities of the reference model that it takes.
//!
//! Defines [`Preference`], which training steps and evaluations ask. The reference is the model as training begins.
//! Where new low-rank updates alone are trained, it is the same model without them, for each batch anew; otherwise
//! `reference.rs` computes its log-probabilities of all samples before the first step, so that there is never a second
//! model.

use crate::adapter::AdapterPlan;
use crate::data::Batch;
use crate::metrics::PairStatistics;
use crate::model::TextModel;
use crate::preference::{PairedSequences, PreferenceLoss, PreferenceOutcome, labelled_tokens};
use crate::{Error, Result};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor};

/// Log-probabilities of the chosen and the rejected completion of each sample.
pub(super) type PairLogProbs = Vec<[f32; 2]>;

/// The loss of pairs, and its reference.
#[derive(Debug)]
pub(crate) struct Preference {
    loss: PreferenceLoss,
    pub(super) reference: Reference,
}

/// Where log-probabilities of the reference model come from.
#[derive(Debug)]
pub(super) enum Reference {
    /// The loss has none.
    None,
    /// From the model without its updates.
    WithoutUpdates,
    /// From before the first step: not known yet.
    Pending,
    /// Of all samples.
    Stored {
        train: PairLogProbs,
        /// Of the evaluation data, where there are some.
        eval: PairLogProbs,
    },
}

/// Which samples a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairPart {
    Train,
    Eval,
}

impl Preference {
    /// Of a model with this adapter.
    ///
    /// # Errors
    /// Virtual tokens, without which the model is not what it was.
    pub(super) fn new(loss: PreferenceLoss, adapter: Option<&AdapterPlan>) -> Result<Self> {
        let reference = match adapter {
            _ if !loss.kind.has_reference() => Reference::None,
            Some(plan) if plan.is_prompt() => {
                let reason = "virtual tokens are in every sequence, and the reference model has none";
                let fix = "set adapter.method = \"lora\", or preference.loss = \"simpo\"";
                return Err(Error::recipe("adapter.method", reason, fix));
            }
            Some(plan) if plan.is_new_updates_alone() => Reference::WithoutUpdates,
            _ => Reference::Pending,
        };
        Ok(Preference { loss, reference })
    }

    /// The loss of a batch of pairs.
    pub(super) fn outcome(
        &self,
        model: &dyn TextModel,
        (batch, part): (&Batch, PairPart),
        cx: &mut Ctx,
    ) -> Result<PreferenceOutcome> {
        let reference = match &self.reference {
            Reference::None => None,
            Reference::WithoutUpdates => {
                let log_probs = || model.log_probs(batch, &mut Ctx::inference(cx.device()));
                Some(model.parameters().without_updates(log_probs)?.into_value()) // [R]
            }
            Reference::Pending => {
                let reason = "the log-probabilities of the reference model are not known";
                return Err(Error::argument("preference.loss", reason, "report this"));
            }
            Reference::Stored { train, eval } => {
                let of_part = if part == PairPart::Train { train } else { eval };
                let pair = |sample: &u32| of_part.get(*sample as usize).copied().unwrap_or_default();
                let mut pairs: PairLogProbs = batch.samples.iter().map(pair).collect();
                // A batch without samples has the rows of one in their place.
                pairs.resize(batch.rows / 2, [0.0; 2]);
                Some(Tensor::from_slice_in(cx.device(), [batch.rows], pairs.as_flattened(), Segment::Data)?)
            }
        };
        let log_probs = model.log_probs(batch, cx)?; // [R]
        let tokens = labelled_tokens(batch);
        self.loss.of(&log_probs, PairedSequences { tokens: &tokens, reference: reference.as_ref() }, cx)
    }
}

/// What is gathered of a micro-batch's pairs: their number, then rewards and log-probabilities, padded to `most` pairs.
pub(super) fn numbers_of_pairs(
    outcome: &PreferenceOutcome,
    samples: usize,
    most: usize,
    device: &Device,
) -> Result<Vec<Tensor>> {
    let used = outcome.rewards.shape().elements() + outcome.log_probs.shape().elements();
    let count = Tensor::full_in(device, [1], DType::F32, samples as f32, Segment::Activations)?; // [1]
    let mut numbers = vec![count, outcome.rewards.value().clone(), outcome.log_probs.value().clone()];
    let padding = (PairStatistics::NUMBERS * most).saturating_sub(used);
    if padding > 0 {
        numbers.push(Tensor::full_in(device, [padding], DType::F32, 0.0, Segment::Activations)?);
    }
    Ok(numbers)
}

/// Adds the pairs of a micro-batch, as [`numbers_of_pairs`] has them.
pub(super) fn add_pairs(statistics: &mut PairStatistics, numbers: &[f32]) {
    let Some((count, numbers)) = numbers.split_first() else { return };
    let rows = 2 * (*count as usize).max(1);
    for pair in 0..*count as usize {
        let number = |at: usize| numbers.get(at).copied().unwrap_or(f32::NAN);
        let [chosen, rejected] = [2 * pair, 2 * pair + 1];
        let index = statistics.len() as u64;
        statistics.add(index, [number(chosen), number(rejected), number(rows + chosen), number(rows + rejected)]);
    }
}
