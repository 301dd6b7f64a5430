//! The heads of models with two stacks: the next word at every position of the decoder, and classes of a text.

use super::{Layout, Seq2SeqBatch};
use crate::error::Error;
use crate::model::labels::Targets;
use crate::model::lm_loss::in_chunks;
use crate::model::text_model::TextHead;
use crate::model::verbalizer_head::verbalizer_logits;
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::nn::embedding::Embedding;
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::param::{Init, Param, Split};
use bmtrain_dist::{Builder, Result};

/// Which head a model with two stacks carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seq2SeqHead {
    /// Hidden states alone.
    None,
    /// The next word of the decoder.
    Words {
        /// Whether the words' embedding is the projection; else the head has a matrix of its own.
        tied: bool,
    },
    /// Classes of a text, or a value when there is one output, from the decoder's state at the text's last word.
    Classifier {
        /// Outputs.
        outputs: usize,
    },
}

impl Seq2SeqHead {
    /// The head that a program asks for; `family` is the family's name for people, which may have a classifier.
    ///
    /// # Errors
    /// A head that these models do not have here.
    pub fn of(head: TextHead, tied: bool, family: &str, has_classifier: bool) -> crate::Result<Self> {
        match head {
            TextHead::None => Ok(Seq2SeqHead::None),
            TextHead::CausalLm => Ok(Seq2SeqHead::Words { tied }),
            TextHead::Classification { outputs } if has_classifier => Ok(Seq2SeqHead::Classifier { outputs }),
            TextHead::Classification { .. } | TextHead::MaskedLm | TextHead::NextSentence | TextHead::Pretraining => {
                let (one, fix) = match has_classifier {
                    true => (", with one for classes", "ask for lm, cls or none"),
                    false => ("", "ask for lm or none"),
                };
                let reason =
                    format!("{family} is opened with the head for the next word of its decoder{one}, or without one");
                Err(Error::recipe("the head asked for", reason, fix))
            }
        }
    }
}

/// The parts behind the decoder.
#[derive(Debug)]
pub struct Seq2SeqHeads {
    kind: Seq2SeqHead,
    factor: f32,
    /// Of an untied head.
    words: Option<Linear>,
    /// `[1, V]`, as files have it.
    logits_bias: Option<Param>,
    classifier: Option<TextClassifier>,
}

/// `cls_projection(tanh(cls_dense(x)))`, with dropout in front of both.
#[derive(Debug)]
struct TextClassifier {
    dense: Linear,
    projection: Linear,
    dropout: f32,
}

impl Seq2SeqHeads {
    /// Declare `lm_head`, where the head has a matrix of its own, and `logits_bias`, where the layout has one, or
    /// `cls_dense` and `cls_projection` of a classifier, under the builder's name.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(
        builder: &Builder,
        kind: Seq2SeqHead,
        (dim_model, vocab_size): (usize, usize),
        layout: &Layout,
        init: Init,
    ) -> Result<Self> {
        let words = match kind {
            Seq2SeqHead::Words { tied: false } => {
                Some(Linear::new(&builder.at("lm_head"), LinearOptions::new(dim_model, vocab_size, false, init))?)
            }
            Seq2SeqHead::None | Seq2SeqHead::Words { tied: true } | Seq2SeqHead::Classifier { .. } => None,
        };
        let classifier = match kind {
            Seq2SeqHead::Classifier { outputs } => {
                let map = |name: &str, outputs| {
                    Linear::new(&builder.at(name), LinearOptions::new(dim_model, outputs, true, init))
                };
                let (dense, projection) = (map("cls_dense", dim_model)?, map("cls_projection", outputs)?);
                Some(TextClassifier { dense, projection, dropout: layout.classifier_dropout })
            }
            Seq2SeqHead::None | Seq2SeqHead::Words { .. } => None,
        };
        let logits_bias = match layout.logits_bias && matches!(kind, Seq2SeqHead::Words { .. }) {
            // transformers keeps it among what it saves and does not train.
            true => {
                let shape = [1, vocab_size];
                Some(builder.frozen().param("logits_bias", shape, Init::ZEROS, Split::Replicated, false)?)
            }
            false => None,
        };
        Ok(Seq2SeqHeads { kind, factor: layout.head_factor, words, logits_bias, classifier })
    }

    /// Which head this is.
    pub fn kind(&self) -> Seq2SeqHead {
        self.kind
    }

    /// From the decoder's states `[B, L, D]` to logits and, with labels, the loss; `table` is the words' embedding.
    ///
    /// # Errors
    /// Labels out of range, shapes that do not fit, a failing device.
    pub fn forward(
        &self,
        hidden: &Var,
        batch: &Seq2SeqBatch,
        table: &Embedding,
        cx: &mut Ctx,
    ) -> Result<(Option<Var>, Option<Var>)> {
        if self.kind == Seq2SeqHead::None {
            return Ok((None, None));
        }
        if let Some(classifier) = &self.classifier {
            let logits = classifier.forward(hidden, batch, cx)?; // [B, outputs]
            let loss = batch_loss(&logits, batch, cx)?; // [1]
            return Ok((Some(logits), loss));
        }
        let parts = self.parts(hidden, table, cx)?;
        let (hidden, weight, bias) = &parts; // [B, L, D], [V, D], [V]
        if let Some(verbalizer) = &batch.verbalizer {
            let logits = verbalizer_logits(hidden, verbalizer, (weight, bias.as_ref()), cx)?; // [B, K]
            let loss = batch_loss(&logits, batch, cx)?; // [1]
            return Ok((Some(logits), loss));
        }
        if let (false, Some(Targets::Classes(targets))) = (batch.wants_logits, &batch.labels) {
            let options = in_chunks(lm_loss(batch), self.matrix(table));
            let loss = ops::linear_cross_entropy(cx, hidden, weight, bias.as_ref(), targets, &options)?; // [1]
            return Ok((None, Some(loss)));
        }
        let logits = ops::linear(cx, hidden, weight, bias.as_ref(), None)?; // [B, L, V]
        let loss = batch_loss(&logits, batch, cx)?; // [1]
        Ok((Some(logits), loss))
    }
}

impl Seq2SeqHeads {
    /// From the decoder's states `[B, L, D]` to the logits of the next words, `[B, L, V]`.
    ///
    /// # Errors
    /// Shapes that do not fit; a failing device.
    pub(super) fn words(&self, hidden: &Var, table: &Embedding, cx: &Ctx) -> Result<Var> {
        let (hidden, weight, bias) = self.parts(hidden, table, cx)?;
        Ok(ops::linear(cx, &hidden, &weight, bias.as_ref(), None)?) // [B, L, V]
    }

    /// What the head's product is made of: the states times the head's factor, the matrix `[V, D]`, the bias `[V]`.
    fn parts(&self, hidden: &Var, table: &Embedding, cx: &Ctx) -> Result<(Var, Var, Option<Var>)> {
        let hidden = match self.factor {
            1.0 => hidden.clone(),
            factor => ops::scale(cx, hidden, factor)?,
        };
        Ok((hidden, self.matrix(table).var(cx)?, self.bias(cx)?))
    }

    /// `[V, D]`.
    fn matrix<'a>(&'a self, table: &'a Embedding) -> &'a Param {
        self.words.as_ref().map_or(table.weight(), Linear::weight)
    }

    /// `[V]`.
    fn bias(&self, cx: &Ctx) -> Result<Option<Var>> {
        match &self.logits_bias {
            Some(bias) => Ok(Some(bias.var(cx)?.reshape([bias.spec().shape.elements()])?)),
            None => Ok(None),
        }
    }
}

impl TextClassifier {
    /// The decoder's states `[B, L, D]` to `[B, outputs]`.
    fn forward(&self, hidden: &Var, batch: &Seq2SeqBatch, cx: &mut Ctx) -> Result<Var> {
        let missing = || bmtrain_dist::Error::setting("classifier", "the batch does not say where a text ends");
        let last = batch.last.as_ref().ok_or_else(missing)?;
        let [rows, length, dim] = hidden.dims("classify")?;
        let tokens = hidden.reshape([rows * length, dim])?; // [B L, D]
        let at_last = ops::embedding(cx, last, &tokens, None)?; // [B, D]
        let dropout = cx.dropout("cls_dense", self.dropout)?;
        let dense = self.dense.forward_activated(&ops::dropout(cx, &at_last, dropout)?, Activation::Tanh, cx)?; // [B, D]
        let dropout = cx.dropout("cls_projection", self.dropout)?;
        self.projection.forward(&ops::dropout(cx, &dense, dropout)?, cx) // [B, outputs]
    }
}

fn lm_loss(batch: &Seq2SeqBatch) -> CrossEntropy {
    let (label_smoothing, class_weights) = (batch.label_smoothing, batch.class_weights.clone());
    CrossEntropy { label_smoothing, class_weights, ..CrossEntropy::default() }
}

/// The loss `[1]` of logits, if there are labels.
fn batch_loss(logits: &Var, batch: &Seq2SeqBatch, cx: &mut Ctx) -> Result<Option<Var>> {
    Ok(match &batch.labels {
        None => None,
        Some(Targets::Classes(targets)) => Some(ops::cross_entropy(cx, logits, targets, &lm_loss(batch))?),
        Some(Targets::Values(targets)) => Some(ops::squared_error(cx, logits, targets)?),
    })
}
