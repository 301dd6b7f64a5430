//! Decoders as programs call them: ids and labels checked, brought onto the device, scored.

use super::{DecoderBatch, DecoderHead, DecoderOutput, PositionTable};
use crate::config::ProblemType;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::model::flow::TextFlow;
use crate::model::labels::{
    Numbers, Wanted, check_length, check_spans, check_verbalizer, refuse_decoder_inputs, refuse_spans,
    refuse_verbalizer,
};
use crate::model::text::{ModelOutput, Observe};
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::Model;

/// What [`Decoder::score`] has to know of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderFacts {
    /// V.
    pub vocab_size: usize,
    /// The longest row, in tokens.
    pub max_length: usize,
    /// The word that stands for nothing.
    pub pad_token_id: Option<usize>,
    /// What a classifier's labels mean.
    pub problem_type: Option<ProblemType>,
    /// Its head.
    pub head: DecoderHead,
    /// Learned positions, if it has any.
    pub table: Option<PositionTable>,
    /// Whether a batch may have a context and spans.
    pub has_spans: bool,
}

/// A decoder of text.
pub trait Decoder: Model<Batch = DecoderBatch, Flow = TextFlow, Output = DecoderOutput> {
    /// What is known of it.
    fn facts(&self) -> DecoderFacts;

    /// What [`TextModel::forward`](crate::model::TextModel::forward) does, for every decoder. Labels of the next word are
    /// given for the token itself, commonly the ids once more, and are moved here.
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit, a failing device.
    fn scored(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput> {
        let batch = upload(&self.facts(), batch, cx)?;
        let output = match observe {
            None => Model::forward(self, &batch, cx)?,
            Some(observe) => {
                self.forward_observed(&batch, cx, &mut |index, flow| observe(index, flow.hidden.value()))?
            }
        };
        Ok(ModelOutput { logits: output.logits, extra: Vec::new(), loss: output.loss })
    }

    /// What [`TextModel::loss`](crate::model::TextModel::loss) does, for every decoder.
    ///
    /// # Errors
    /// As [`Decoder::score`].
    fn loss(&self, batch: &Batch, cx: &mut Ctx) -> Result<Option<Var>> {
        let batch = DecoderBatch { wants_logits: false, ..upload(&self.facts(), batch, cx)? };
        Ok(Model::forward(self, &batch, cx)?.loss)
    }
}

fn upload(facts: &DecoderFacts, batch: &Batch, cx: &Ctx) -> Result<DecoderBatch> {
    check(facts, batch)?;
    let pad = facts.pad_token_id.map(|id| id as i64);
    DecoderBatch::upload(cx.device(), batch, facts.table, facts.head, pad)
}

/// Whether ids and labels are those of this model.
fn check(facts: &DecoderFacts, batch: &Batch) -> Result<()> {
    check_length(batch.length, facts.max_length)?;
    refuse_decoder_inputs(batch)?;
    Numbers::grid("input_ids", &batch.input_ids, batch, facts.vocab_size).check(false)?;
    match facts.has_spans {
        true => check_spans(batch)?,
        false => refuse_spans(batch)?,
    }
    let wanted = match (facts.head, &batch.verbalizer) {
        (DecoderHead::CausalLm { .. }, Some(verbalizer)) => {
            check_verbalizer(verbalizer, (batch.rows, batch.input_ids.len()), facts.vocab_size)?;
            Wanted::Classes(verbalizer.label_words.len())
        }
        _ => {
            refuse_verbalizer(batch)?;
            wanted_by(facts, batch)
        }
    };
    wanted.check(batch, facts.vocab_size)?;
    if batch.next_sentence.is_some() {
        let reason = "it is for the pretraining of encoders, and this model is a decoder";
        return Err(Error::data("next_sentence_label", reason, "leave it out"));
    }
    Ok(())
}

/// What labels are without answers.
fn wanted_by(facts: &DecoderFacts, batch: &Batch) -> Wanted {
    match facts.head {
        DecoderHead::None => Wanted::Nothing,
        DecoderHead::CausalLm { .. } => Wanted::Words,
        DecoderHead::Classifier { outputs } => Wanted::of_classifier(outputs, batch.choices, facts.problem_type),
    }
}
