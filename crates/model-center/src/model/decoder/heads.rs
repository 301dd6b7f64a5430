//! The heads of decoders: the next word at every position, and classes from the last token.

use super::DecoderBatch;
use crate::error::Error;
use crate::model::labels::{Targets, VerbalizerTensors};
use crate::model::lm_loss::in_chunks;
use crate::model::text_model::{ModelOutput, TextHead};
use crate::model::verbalizer_head::verbalizer_logits;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, Tensor, Var};
use bmtrain_dist::nn::embedding::Embedding;
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::param::Init;
use bmtrain_dist::{Builder, Result};

/// Which head a decoder carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecoderHead {
    /// Hidden states alone.
    None,
    /// The next word.
    CausalLm {
        /// Whether the words' embedding is the projection; else the head has a matrix of its own.
        tied: bool,
    },
    /// Classes of a sequence, or a value when there is one output, from its last token.
    Classifier {
        /// Outputs.
        outputs: usize,
    },
}

impl DecoderHead {
    /// The head that a program asks for; `family` is the family's name for people.
    ///
    /// # Errors
    /// A head that decoders do not have.
    pub fn of(head: TextHead, tied: bool, family: &str) -> crate::Result<Self> {
        Ok(match head {
            TextHead::None => DecoderHead::None,
            TextHead::CausalLm => DecoderHead::CausalLm { tied },
            TextHead::Classification { outputs } => DecoderHead::Classifier { outputs },
            TextHead::MaskedLm | TextHead::NextSentence | TextHead::Pretraining => {
                let reason = format!("masked words and next sentence are for encoders, and {family} is a decoder");
                return Err(Error::recipe("the head asked for", reason, "ask for lm, cls or none"));
            }
        })
    }
}

/// The parts behind the blocks. A classifier has no bias.
#[derive(Debug)]
pub struct DecoderHeads {
    kind: DecoderHead,
    /// Of an untied head.
    words: Option<Linear>,
    classifier: Option<Linear>,
}

impl DecoderHeads {
    /// Declare the head's parameters, `lm_head` or `cls_projection`, under the builder's name.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(
        builder: &Builder,
        kind: DecoderHead,
        (dim_model, vocab_size): (usize, usize),
        has_word_bias: bool,
        init: Init,
    ) -> Result<Self> {
        let map = |name: &str, outputs: usize| {
            let bias = has_word_bias && name == "lm_head";
            Linear::new(&builder.at(name), LinearOptions::new(dim_model, outputs, bias, init))
        };
        let (mut words, mut classifier) = (None, None);
        match kind {
            DecoderHead::None | DecoderHead::CausalLm { tied: true } => {}
            DecoderHead::CausalLm { tied: false } => words = Some(map("lm_head", vocab_size)?),
            DecoderHead::Classifier { outputs } => classifier = Some(map("cls_projection", outputs)?),
        }
        Ok(DecoderHeads { kind, words, classifier })
    }

    /// Which head this is.
    pub fn kind(&self) -> DecoderHead {
        self.kind
    }

    /// From hidden states to logits and, with labels, the loss; `table` is the words' embedding.
    ///
    /// # Errors
    /// Labels out of range, shapes that do not fit, a failing device.
    pub fn forward(&self, hidden: &Var, batch: &DecoderBatch, table: &Embedding, cx: &mut Ctx) -> Result<ModelOutput> {
        if let (DecoderHead::CausalLm { .. }, Some(verbalizer)) = (self.kind, &batch.verbalizer) {
            return self.verbalizer(hidden, (verbalizer, batch), table, cx);
        }
        if let (DecoderHead::CausalLm { .. }, false, Some(Targets::Classes(targets))) =
            (self.kind, batch.wants_logits, &batch.labels)
        {
            let loss = Some(self.lm_loss(hidden, (targets, batch.label_smoothing), table, cx)?); // [1]
            return Ok(ModelOutput { logits: None, extra: Vec::new(), loss });
        }
        let logits = match (self.kind, &self.words, &self.classifier) {
            (DecoderHead::CausalLm { .. }, None, _) => Some(table.project(hidden, None, cx)?), // [B, L, V]
            (DecoderHead::CausalLm { .. }, Some(words), _) => Some(words.forward(hidden, cx)?), // [B, L, V]
            (DecoderHead::Classifier { .. }, _, Some(classifier)) => Some(classify(hidden, classifier, batch, cx)?),
            _ => None,
        };
        let loss = match (&logits, &batch.labels) {
            (None, _) | (_, None) => None,
            (Some(logits), Some(Targets::Classes(targets))) => {
                let (label_smoothing, class_weights) = (batch.label_smoothing, batch.class_weights.clone());
                let loss = CrossEntropy { label_smoothing, class_weights, ..CrossEntropy::default() };
                Some(ops::cross_entropy(cx, logits, targets, &loss)?) // [1]
            }
            (Some(logits), Some(Targets::Values(targets))) => Some(ops::squared_error(cx, logits, targets)?), // [1]
        };
        Ok(ModelOutput { logits, extra: Vec::new(), loss })
    }

    /// Logits of the words of answers alone and, with labels, the loss: that of the answers and, as far as it counts,
    /// that of the prompts' next words.
    fn verbalizer(
        &self,
        hidden: &Var,
        (verbalizer, batch): (&VerbalizerTensors, &DecoderBatch),
        table: &Embedding,
        cx: &Ctx,
    ) -> Result<ModelOutput> {
        let (weight, bias) = match &self.words {
            None => (table.weight().var(cx)?, None),
            Some(words) => words.vars(cx)?,
        };
        let logits = verbalizer_logits(hidden, verbalizer, (&weight, bias.as_ref()), cx)?; // [B, K]
        let Some(Targets::Classes(classes)) = &batch.labels else {
            return Ok(ModelOutput { logits: Some(logits), extra: Vec::new(), loss: None });
        };
        let options = CrossEntropy { label_smoothing: batch.label_smoothing, ..CrossEntropy::default() };
        let mut loss = ops::cross_entropy(cx, &logits, classes, &options)?; // [1]
        if let Some((words, weight)) = &batch.prompt {
            let of_prompt = self.lm_loss(hidden, (words, batch.label_smoothing), table, cx)?; // [1]
            loss = ops::add(cx, &loss, &ops::scale(cx, &of_prompt, *weight)?)?; // [1]
        }
        Ok(ModelOutput { logits: Some(logits), extra: Vec::new(), loss: Some(loss) })
    }

    /// The loss of the next words, without the logits of all positions.
    fn lm_loss(
        &self,
        hidden: &Var,
        (targets, label_smoothing): (&Tensor, f32),
        table: &Embedding,
        cx: &Ctx,
    ) -> Result<Var> {
        let loss = CrossEntropy { label_smoothing, ..CrossEntropy::default() };
        match &self.words {
            None => table.cross_entropy(hidden, None, targets, &in_chunks(loss, table.weight()), cx),
            Some(words) => words.cross_entropy(hidden, targets, &in_chunks(loss, words.weight()), cx),
        }
    }
}

/// Logits from the last token of each row: a table of all tokens in which rows are looked up.
fn classify(hidden: &Var, classifier: &Linear, batch: &DecoderBatch, cx: &mut Ctx) -> Result<Var> {
    let missing = || bmtrain_dist::Error::setting("classifier", "the batch does not say where a text ends");
    let last = batch.last.as_ref().ok_or_else(missing)?;
    let [rows, length, dim] = hidden.dims("classify")?;
    let tokens = hidden.reshape([rows * length, dim])?; // [B L, D]
    let last = ops::embedding(cx, last, &tokens, None)?; // [B, D]
    let logits = classifier.forward(&last, cx)?; // [B, outputs]
    match batch.choices {
        1 => Ok(logits),
        choices => Ok(logits.reshape([logits.value().elements() / choices, choices])?), // [samples, choices]
    }
}
