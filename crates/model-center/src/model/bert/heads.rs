//! The heads: pooler with classifier, masked words, next sentence.

use super::BertBatch;
use crate::config::BertConfig;
use crate::model::labels::Labels;
use crate::model::word_loss::in_chunks;
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, Tensor, Var};
use bmtrain_dist::Builder;
use bmtrain_dist::nn::embedding::Embedding;
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::param::{Init, Param, Split};

/// Which head a model carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BertHead {
    /// Hidden states alone; `with_pooler` keeps the pooler of a base model.
    None {
        /// Whether there is a pooler.
        with_pooler: bool,
    },
    /// Classes of a sequence, or a value when there is one output.
    Classifier {
        /// Outputs.
        outputs: usize,
    },
    /// Masked words.
    MaskedLm,
    /// Whether the second sentence follows the first.
    NextSentence,
    /// Masked words and next sentence, as BERT was pretrained.
    Pretraining,
}

impl BertHead {
    fn has_pooler(self) -> bool {
        !matches!(self, BertHead::None { with_pooler: false } | BertHead::MaskedLm)
    }

    pub(super) fn has_words(self) -> bool {
        matches!(self, BertHead::MaskedLm | BertHead::Pretraining)
    }

    fn has_sentences(self) -> bool {
        matches!(self, BertHead::NextSentence | BertHead::Pretraining)
    }
}

/// What a forward pass yields.
#[derive(Debug, Clone)]
pub struct BertOutput {
    /// Output of the last block, `[B, L, D]`.
    pub hidden: Var,
    /// Tanh of the pooler, `[B, D]`.
    pub pooled: Option<Var>,
    /// Classifier `[B, outputs]` (multiple choice: `[samples, choices]`), masked words `[B, L, V]` where they are
    /// asked for, next sentence `[B, 2]`.
    pub logits: Option<Var>,
    /// Next-sentence logits `[B, 2]` of [`BertHead::Pretraining`].
    pub sentence_logits: Option<Var>,
    /// `[1]`, when there were labels.
    pub loss: Option<Var>,
}

/// The parts behind the encoder.
#[derive(Debug)]
pub struct BertHeads {
    kind: BertHead,
    pooler: Option<Linear>,
    classifier: Option<Linear>,
    words: Option<WordHead>,
    sentences: Option<Linear>,
    dropout: f32,
}

/// Dense, activation, norm, and the projection onto the words, tied to the input embedding.
#[derive(Debug)]
struct WordHead {
    dense: Linear,
    activation: Activation,
    norm: Norm,
    bias: Param,
}

impl BertHeads {
    pub(super) fn new(builder: &Builder, config: &BertConfig, kind: BertHead) -> bmtrain_dist::Result<Self> {
        let size = config.dim_model;
        let init = Init::normal(config.proj_init_std);
        let map =
            |name: &str, outputs: usize| Linear::new(&builder.at(name), LinearOptions::new(size, outputs, true, init));
        let pooler = kind.has_pooler().then(|| map("pooler.dense", size)).transpose()?;
        let classifier = match kind {
            BertHead::Classifier { outputs } => Some(map("cls_projection", outputs)?),
            _ => None,
        };
        let words = match kind.has_words() {
            true => Some(WordHead {
                dense: map("lm_head.dense", size)?,
                activation: config.ffn_activate_fn,
                norm: Norm::new(&builder.at("lm_head.layer_norm"), NormOptions::layer(size, config.norm_eps))?,
                bias: builder.param(
                    "lm_head.decoder.bias",
                    [config.vocab_size],
                    Init::ZEROS,
                    Split::Replicated,
                    false,
                )?,
            }),
            false => None,
        };
        let sentences = kind.has_sentences().then(|| map("nsp_projection", 2)).transpose()?;
        Ok(BertHeads { kind, pooler, classifier, words, sentences, dropout: config.classifier_dropout_p })
    }

    pub(super) fn kind(&self) -> BertHead {
        self.kind
    }

    pub(super) fn forward(
        &self,
        hidden: Var,
        batch: &BertBatch,
        table: &Embedding,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<BertOutput> {
        let pooled = match &self.pooler {
            Some(pooler) => {
                let first = ops::select_row(cx, &hidden, 0)?; // [B, D]
                Some(pooler.forward_activated(&first, Activation::Tanh, cx)?) // [B, D]
            }
            None => None,
        };
        let mut output = BertOutput { hidden, pooled, logits: None, sentence_logits: None, loss: None };
        if let (Some(classifier), Some(pooled)) = (&self.classifier, &output.pooled) {
            let dropout = cx.dropout("classifier", self.dropout)?;
            let logits = classifier.forward(&ops::dropout(cx, pooled, dropout)?, cx)?; // [B, outputs]
            let logits = match batch.choices {
                1 => logits,
                choices => logits.reshape([logits.value().elements() / choices, choices])?, // [samples, choices]
            };
            output.loss = self.classifier_loss(&logits, batch, cx)?;
            output.logits = Some(logits);
        }
        let mut word_loss = None;
        if let Some(words) = &self.words {
            let ready = words.transform(&output.hidden, cx)?; // [B, L, D]
            // With two heads there is a loss only where both have labels, as in transformers.
            let has_all = self.sentences.is_none() || batch.next_sentence.is_some();
            let targets = batch.class_labels().filter(|_| has_all);
            match targets.filter(|_| !batch.wants_logits) {
                Some(targets) => word_loss = Some(words.loss(&ready, targets, table, cx)?), // [1]
                None => {
                    let logits = table.project(&ready, Some(&words.bias.var(cx)?), cx)?; // [B, L, V]
                    if let Some(targets) = targets {
                        word_loss = Some(ops::cross_entropy(cx, &logits, targets, &CrossEntropy::default())?); // [1]
                    }
                    output.logits = Some(logits);
                }
            }
        }
        if let (Some(sentences), Some(pooled)) = (&self.sentences, &output.pooled) {
            let logits = sentences.forward(pooled, cx)?; // [B, 2]
            let alone = self.words.is_none();
            let targets = match (alone, &word_loss) {
                (true, _) => batch.class_labels(),
                (false, Some(_)) => batch.next_sentence.as_ref(),
                (false, None) => None,
            };
            if let Some(targets) = targets {
                let loss = ops::cross_entropy(cx, &logits, targets, &CrossEntropy::default())?; // [1]
                output.loss = Some(match word_loss.take() {
                    Some(words) => ops::add(cx, &words, &loss)?, // [1]
                    None => loss,
                });
            }
            *(if alone { &mut output.logits } else { &mut output.sentence_logits }) = Some(logits);
        }
        output.loss = output.loss.or(word_loss);
        Ok(output)
    }

    fn classifier_loss(&self, logits: &Var, batch: &BertBatch, cx: &mut Ctx) -> bmtrain_dist::Result<Option<Var>> {
        Ok(match &batch.labels {
            None => None,
            Some(Labels::Classes(targets)) => {
                let loss = CrossEntropy { label_smoothing: batch.label_smoothing, ..CrossEntropy::default() };
                Some(ops::cross_entropy(cx, logits, targets, &loss)?)
            }
            Some(Labels::Values(targets)) => Some(ops::squared_error(cx, logits, targets)?),
        })
    }
}

impl WordHead {
    /// What is projected onto the words.
    fn transform(&self, hidden: &Var, cx: &Ctx) -> bmtrain_dist::Result<Var> {
        let dense = self.dense.forward_activated(hidden, self.activation, cx)?; // [B, L, D]
        self.norm.forward(&dense, cx) // [B, L, D]
    }

    /// The loss without the logits of all positions.
    fn loss(&self, ready: &Var, targets: &Tensor, table: &Embedding, cx: &Ctx) -> bmtrain_dist::Result<Var> {
        let options = in_chunks(CrossEntropy::default(), table.weight());
        table.cross_entropy(ready, Some(&self.bias.var(cx)?), targets, &options, cx)
    }
}
