//! The heads: pooler with classifier, masked words, next sentence.

use super::{Classifier, EncoderBatch, EncoderFamily, Layout};
use crate::error::{Error, Result};
use crate::model::labels::Targets;
use crate::model::lm_loss::in_chunks;
use crate::model::text_model::TextHead;
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, Tensor, Var};
use bmtrain_dist::Builder;
use bmtrain_dist::nn::embedding::Embedding;
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::param::{Init, Param, Split};

/// Which head a model carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EncoderHead {
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

impl EncoderHead {
    /// The head that a program asks for; `family` is the family's name for people.
    ///
    /// # Errors
    /// A head that the family does not have.
    pub fn of<C: EncoderFamily>(head: TextHead, family: &str) -> Result<Self> {
        let head = match head {
            TextHead::None => EncoderHead::None { with_pooler: true },
            TextHead::Classification { outputs } => EncoderHead::Classifier { outputs },
            TextHead::MaskedLm => EncoderHead::MaskedLm,
            TextHead::NextSentence => EncoderHead::NextSentence,
            TextHead::Pretraining => EncoderHead::Pretraining,
            TextHead::CausalLm => {
                let reason = format!("the head for the next word is for decoders, and {family} is an encoder");
                return Err(Error::recipe("the head asked for", reason, known::<C>()));
            }
        };
        head.check::<C>(family).map(|()| head)
    }

    /// Whether the family has it.
    pub(super) fn check<C: EncoderFamily>(self, family: &str) -> Result<()> {
        if C::HAS_SENTENCES || !self.has_sentences() {
            return Ok(());
        }
        let reason = format!("{family} is not trained on pairs of sentences and has no head for the next one");
        Err(Error::recipe("the head asked for", reason, known::<C>()))
    }

    pub(super) fn has_pooler(self, classifier: Classifier) -> bool {
        match self {
            EncoderHead::None { with_pooler } => with_pooler,
            EncoderHead::Classifier { .. } => classifier == Classifier::Pooled,
            EncoderHead::MaskedLm => false,
            EncoderHead::NextSentence | EncoderHead::Pretraining => true,
        }
    }

    pub(super) fn has_words(self) -> bool {
        matches!(self, EncoderHead::MaskedLm | EncoderHead::Pretraining)
    }

    fn has_sentences(self) -> bool {
        matches!(self, EncoderHead::NextSentence | EncoderHead::Pretraining)
    }
}

/// What to ask for instead of a head that a family does not have.
fn known<C: EncoderFamily>() -> &'static str {
    if C::HAS_SENTENCES { "ask for mlm, nsp, cls or none" } else { "ask for mlm, cls or none" }
}

/// What a forward pass yields.
#[derive(Debug, Clone)]
pub struct EncoderOutput {
    /// Output of the last block, `[B, L, D]`.
    pub hidden: Var,
    /// Tanh of the pooler, `[B, D]`.
    pub pooled: Option<Var>,
    /// Classifier `[B, outputs]` (multiple choice: `[samples, choices]`), masked words `[B, L, V]` where they are
    /// asked for, next sentence `[B, 2]`.
    pub logits: Option<Var>,
    /// Next-sentence logits `[B, 2]` of [`EncoderHead::Pretraining`].
    pub sentence_logits: Option<Var>,
    /// `[1]`, when there were labels.
    pub loss: Option<Var>,
}

/// The parts behind the encoder.
#[derive(Debug)]
pub struct EncoderHeads {
    kind: EncoderHead,
    pooler: Option<Linear>,
    /// The map of a classifier's own, where it has one.
    classifier_dense: Option<Linear>,
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

impl EncoderHeads {
    pub(super) fn new(
        builder: &Builder,
        layout: &Layout,
        classifier: Classifier,
        kind: EncoderHead,
    ) -> bmtrain_dist::Result<Self> {
        let (size, init) = (layout.dim_model, layout.head_init);
        let map =
            |name: &str, outputs: usize| Linear::new(&builder.at(name), LinearOptions::new(size, outputs, true, init));
        let pooler = kind.has_pooler(classifier).then(|| map("pooler.dense", size)).transpose()?;
        let (classifier_dense, classifier) = match (kind, classifier) {
            (EncoderHead::Classifier { outputs }, Classifier::Pooled) => (None, Some(map("cls_projection", outputs)?)),
            (EncoderHead::Classifier { outputs }, Classifier::Dense) => {
                (Some(map("cls_dense", size)?), Some(map("cls_projection", outputs)?))
            }
            _ => (None, None),
        };
        let words = match kind.has_words() {
            true => Some(WordHead {
                dense: map("lm_head.dense", size)?,
                activation: layout.word_activation,
                norm: Norm::new(&builder.at("lm_head.layer_norm"), layout.norm)?,
                bias: builder.param(
                    "lm_head.decoder.bias",
                    [layout.vocab_size],
                    Init::ZEROS,
                    Split::Replicated,
                    false,
                )?,
            }),
            false => None,
        };
        let sentences = kind.has_sentences().then(|| map("nsp_projection", 2)).transpose()?;
        let dropout = layout.classifier_dropout_p;
        Ok(EncoderHeads { kind, pooler, classifier_dense, classifier, words, sentences, dropout })
    }

    pub(super) fn kind(&self) -> EncoderHead {
        self.kind
    }

    pub(super) fn forward(
        &self,
        hidden: Var,
        batch: &EncoderBatch,
        table: &Embedding,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<EncoderOutput> {
        let pooled = match &self.pooler {
            Some(pooler) => {
                let first = ops::select_row(cx, &hidden, 0)?; // [B, D]
                Some(pooler.forward_activated(&first, Activation::Tanh, cx)?) // [B, D]
            }
            None => None,
        };
        let mut output = EncoderOutput { hidden, pooled, logits: None, sentence_logits: None, loss: None };
        if let Some(classifier) = &self.classifier {
            let features = self.features(&output, cx)?; // [B, D]
            let dropout = cx.dropout("classifier", self.dropout)?;
            let logits = classifier.forward(&ops::dropout(cx, &features, dropout)?, cx)?; // [B, outputs]
            let logits = match batch.choices {
                1 => logits,
                choices => logits.reshape([logits.value().elements() / choices, choices])?, // [samples, choices]
            };
            output.loss = self.classifier_loss(&logits, batch, cx)?;
            output.logits = Some(logits);
        }
        let mut lm_loss = None;
        if let Some(words) = &self.words {
            let ready = words.transform(&output.hidden, cx)?; // [B, L, D]
            // With two heads there is a loss only where both have labels, as in transformers.
            let has_all = self.sentences.is_none() || batch.next_sentence.is_some();
            let targets = batch.class_labels().filter(|_| has_all);
            match targets.filter(|_| !batch.wants_logits) {
                Some(targets) => lm_loss = Some(words.loss(&ready, targets, table, cx)?), // [1]
                None => {
                    let logits = table.project(&ready, Some(&words.bias.var(cx)?), cx)?; // [B, L, V]
                    if let Some(targets) = targets {
                        lm_loss = Some(ops::cross_entropy(cx, &logits, targets, &CrossEntropy::default())?); // [1]
                    }
                    output.logits = Some(logits);
                }
            }
        }
        if let (Some(sentences), Some(pooled)) = (&self.sentences, &output.pooled) {
            let logits = sentences.forward(pooled, cx)?; // [B, 2]
            let alone = self.words.is_none();
            let targets = match (alone, &lm_loss) {
                (true, _) => batch.class_labels(),
                (false, Some(_)) => batch.next_sentence.as_ref(),
                (false, None) => None,
            };
            if let Some(targets) = targets {
                let loss = ops::cross_entropy(cx, &logits, targets, &CrossEntropy::default())?; // [1]
                output.loss = Some(match lm_loss.take() {
                    Some(words) => ops::add(cx, &words, &loss)?, // [1]
                    None => loss,
                });
            }
            *(if alone { &mut output.logits } else { &mut output.sentence_logits }) = Some(logits);
        }
        output.loss = output.loss.or(lm_loss);
        Ok(output)
    }

    /// What a classifier's last map reads, before its dropout.
    fn features(&self, output: &EncoderOutput, cx: &mut Ctx) -> bmtrain_dist::Result<Var> {
        let first = match &output.pooled {
            Some(pooled) => return Ok(pooled.clone()),       // [B, D]
            None => ops::select_row(cx, &output.hidden, 0)?, // [B, D]
        };
        let Some(dense) = &self.classifier_dense else { return Ok(first) };
        let dropout = cx.dropout("classifier_dense", self.dropout)?;
        let first = ops::dropout(cx, &first, dropout)?; // [B, D]
        dense.forward_activated(&first, Activation::Tanh, cx) // [B, D]
    }

    fn classifier_loss(&self, logits: &Var, batch: &EncoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<Option<Var>> {
        Ok(match &batch.labels {
            None => None,
            Some(Targets::Classes(targets)) => {
                let (label_smoothing, class_weights) = (batch.label_smoothing, batch.class_weights.clone());
                let loss = CrossEntropy { label_smoothing, class_weights, ..CrossEntropy::default() };
                Some(ops::cross_entropy(cx, logits, targets, &loss)?)
            }
            Some(Targets::Values(targets)) => Some(ops::squared_error(cx, logits, targets)?),
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
