//! Losses and log-probabilities of given tokens.
//!
//! Defines [`Scorer`], which runs batches of [`ScoredSequence`]s on a model.

use crate::{Error, Result};
use bmtrain_core::{Ctx, Device, Segment, Tensor, ops};
use bmtrain_dist::Mesh;
use bmtrain_dist::param::widen;
use bmtrain_dist::pipeline::Pipeline;
use model_center_base::batch::IGNORED;
use model_center_models::generate::{TokenScore, token_score};
use model_center_models::{Batch, ForwardOutputs, Labels, ModelOutput, TextModel};

/// A token to predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoredTarget {
    /// The position of the input whose logits predict it.
    pub position: usize,
    /// Its id.
    pub token: u32,
}

/// An input with the tokens that are to be predicted at some of its positions. For a decoder the token at `position` is
/// the one that follows it, for a masked language model the one that is masked there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScoredSequence {
    /// Token ids.
    pub input: Vec<u32>,
    /// The tokens to predict, in the order of their positions.
    pub targets: Vec<ScoredTarget>,
}

/// Called with a batch's number, its sequences and their output.
type OnOutput<'a> = dyn FnMut(u64, &[ScoredSequence], ModelOutput) -> Result<()> + 'a;

/// A model on one rank, to score sequences with.
pub struct Scorer<'a> {
    model: &'a dyn TextModel,
    device: &'a Device,
    pipeline: Option<&'a Pipeline>,
    mesh: Mesh,
    batch: usize,
}

impl<'a> Scorer<'a> {
    /// A scorer of batches of this many sequences, on a rank of this mesh.
    ///
    /// # Errors
    /// [`Error::Argument`] for an encoder-decoder and an empty batch.
    pub fn new(
        (model, device): (&'a dyn TextModel, &'a Device),
        (pipeline, mesh): (Option<&'a Pipeline>, Mesh),
        batch: usize,
    ) -> Result<Self> {
        if model.info().generates_targets {
            let reason = "this model has an encoder and a decoder, whose sequences have no fixed pairs of tokens";
            return Err(Error::argument("model", reason, "use a decoder or an encoder"));
        }
        if batch == 0 {
            return Err(Error::argument("batch", "0 sequences at a time", "use at least 1"));
        }
        Ok(Scorer { model, device, pipeline, mesh, batch })
    }

    /// Scores this rank's batches of `count` sequences: `each` is called with a batch's number, the sum of the negative
    /// log-likelihoods of its targets in nats and their number. Logits are not stored.
    ///
    /// All ranks of the mesh make the same call. `sequence` has the sequence of a number.
    ///
    /// # Errors
    /// What `sequence` and `each` return; sequences that the model cannot read; a loss that is not finite.
    pub fn losses(
        &self,
        count: u64,
        sequence: &dyn Fn(u64) -> Result<ScoredSequence>,
        each: &mut dyn FnMut(u64, f64, u64) -> Result<()>,
    ) -> Result<()> {
        self.run(count, sequence, ForwardOutputs::Loss, &mut |index, sequences, output| {
            let targets = sequences.iter().map(|sequence| sequence.targets.len() as u64).sum::<u64>();
            if targets == 0 {
                return each(index, 0.0, 0);
            }
            let loss = output.loss.ok_or_else(no_head)?.value().item()?;
            if !loss.is_finite() {
                let reason = format!("the loss of batch {index} is {loss}");
                return Err(Error::model("evaluation", reason, "check the weights, or choose --dtype f32"));
            }
            each(index, f64::from(loss) * targets as f64, targets)
        })
    }

    /// Scores this rank's batches of `count` sequences: `each` is called with a sequence's number and its targets'
    /// scores.
    ///
    /// All ranks of the mesh make the same call. `sequence` has the sequence of a number.
    ///
    /// # Errors
    /// As [`Scorer::losses`].
    pub fn tokens(
        &self,
        count: u64,
        sequence: &dyn Fn(u64) -> Result<ScoredSequence>,
        each: &mut dyn FnMut(u64, Vec<TokenScore>) -> Result<()>,
    ) -> Result<()> {
        self.run(count, sequence, ForwardOutputs::All, &mut |index, sequences, output| {
            let scores = self.scores(sequences, &output)?;
            let first = index * self.batch as u64;
            scores.into_iter().enumerate().try_for_each(|(number, scores)| each(first + number as u64, scores))
        })
    }

    /// Runs the batches of all ranks in rounds and passes this rank's on.
    fn run(
        &self,
        count: u64,
        sequence: &dyn Fn(u64) -> Result<ScoredSequence>,
        wants: ForwardOutputs,
        each: &mut OnOutput<'_>,
    ) -> Result<()> {
        let (batch, ranks) = (self.batch as u64, self.mesh.data_size() as u64);
        let batches = count.div_ceil(batch);
        for first in (0..batches).step_by(self.mesh.data_size()) {
            let own = first + self.mesh.data_rank() as u64;
            // A rank without a batch left repeats the last one: where parameters are gathered, all ranks take part in a
            // forward pass.
            let index = own.min(batches.min(first + ranks) - 1);
            let numbers = index * batch..((index + 1) * batch).min(count);
            let sequences = numbers.map(sequence).collect::<Result<Vec<_>>>()?;
            let output = self.forward(&sequences, wants)?;
            if own == index {
                each(index, &sequences, output)?;
            }
        }
        Ok(())
    }

    fn forward(&self, sequences: &[ScoredSequence], wants: ForwardOutputs) -> Result<ModelOutput> {
        let batch = padded(sequences)?;
        if let Some(pipeline) = self.pipeline {
            let outputs = self.model.forward_stages(pipeline, std::slice::from_ref(&batch), wants)?;
            return outputs.into_iter().next().ok_or_else(no_head);
        }
        let mut cx = Ctx::inference(self.device);
        match wants {
            ForwardOutputs::Loss => {
                Ok(ModelOutput { logits: None, extra: Vec::new(), loss: self.model.loss(&batch, &mut cx)? })
            }
            ForwardOutputs::All => self.model.forward(&Batch { labels: None, ..batch }, None, &mut cx),
        }
    }

    /// The scores of each sequence's targets.
    fn scores(&self, sequences: &[ScoredSequence], output: &ModelOutput) -> Result<Vec<Vec<TokenScore>>> {
        let logits = output.logits.as_ref().ok_or_else(no_head)?;
        let [rows, length, vocabulary] = logits.dims("evaluation")?;
        let at = |(row, sequence): (usize, &ScoredSequence)| {
            sequence.targets.iter().map(move |target| (row * length + target.position) as i64).collect::<Vec<_>>()
        };
        let positions: Vec<i64> = sequences.iter().enumerate().flat_map(at).collect();
        if positions.is_empty() {
            return Ok(vec![Vec::new(); sequences.len()]);
        }
        // The logits of the scored positions alone go to the host.
        let index = Tensor::from_slice_in(self.device, [positions.len()], &positions, Segment::Data)?;
        let cx = Ctx::inference(self.device);
        let table = logits.reshape([rows * length, vocabulary])?; // [B L, V]
        let chosen = widen(ops::embedding(&cx, &index, &table, None)?.value())?; // [targets, V]
        let mut chosen = chosen.chunks_exact(vocabulary.max(1));
        let mut scores = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let of =
                sequence.targets.iter().zip(chosen.by_ref()).map(|(target, logits)| token_score(logits, target.token));
            scores.push(of.collect::<Result<Vec<_>>>()?);
        }
        Ok(scores)
    }
}

fn no_head() -> Error {
    Error::model("evaluation", "the model has no language-modelling head", "use a model that predicts tokens")
}

/// Sequences padded on the right, with their targets as labels.
fn padded(sequences: &[ScoredSequence]) -> Result<Batch> {
    let length = sequences.iter().map(|sequence| sequence.input.len()).max().unwrap_or(0);
    if sequences.iter().any(|sequence| sequence.input.is_empty()) {
        return Err(Error::data("sequence", "a sequence without a token", "leave it out"));
    }
    let (mut ids, mut mask, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for sequence in sequences {
        let row = labels.len();
        ids.extend(sequence.input.iter().map(|id| i64::from(*id)));
        mask.resize(ids.len(), 1);
        ids.resize(row + length, 0);
        mask.resize(row + length, 0_u8);
        labels.resize(row + length, IGNORED);
        for target in &sequence.targets {
            if let Some(label) = labels[row..].get_mut(target.position) {
                *label = i64::from(target.token);
            }
        }
    }
    let attention_mask = mask.contains(&0).then_some(mask);
    Ok(Batch { attention_mask, labels: Some(Labels::Predicted(labels)), ..Batch::new(length, ids) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{ScoredSequence, ScoredTarget, padded};
    use model_center_models::Labels;

    #[test]
    fn targets_are_labels_at_their_positions() {
        let target = |position, token| ScoredTarget { position, token };
        let long = ScoredSequence { input: vec![4, 5, 6], targets: vec![target(1, 9), target(2, 8)] };
        let short = ScoredSequence { input: vec![7], targets: vec![target(0, 3)] };
        let batch = padded(&[long, short]).unwrap();
        assert_eq!(batch.input_ids, [4, 5, 6, 7, 0, 0]);
        assert_eq!(batch.attention_mask, Some(vec![1, 1, 1, 1, 0, 0]));
        assert_eq!(batch.labels, Some(Labels::Predicted(vec![-100, 9, 8, 3, -100, -100])));
        assert!(padded(&[ScoredSequence::default()]).is_err());
    }
}
