//! The task heads of a transformer: language modelling, classification of sequences and tokens, answer spans,
//! next-sentence prediction.
//!
//! Defines [`Head`], [`HeadSpec`] and [`Heads`], which [`crate::model::Transformer`] calls with the last hidden states.

pub(in crate::model) mod classifier;
pub(in crate::model) mod cross_encoder;
mod lm_head;
pub(in crate::model) mod lm_operands;
pub(in crate::model) mod pooling;
pub(in crate::model) mod sentence_encoder;
mod transform;

use crate::layer::TokensRead;
use crate::model::batch::DeviceBatch;
use crate::model::text_model::{END_LOGITS, ModelOutput, START_LOGITS};
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::nn::{
    embedding::Embedding,
    linear::{Linear, LinearOptions},
    norm::NormOptions,
};
use bmtrain_dist::param::Init;
use bmtrain_dist::{Builder, Result};
use classifier::{Classifier, TokenClassifier, batch_loss};
use lm_head::LmHead;
use lm_operands::LmOperands;
use model_center_formats::Alias;
use model_center_formats::config::{TextConfig, TextHead, TokenPooling};
use transform::Transform;

/// Which head a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Head {
    /// Hidden states alone.
    None,
    /// Classes of a sequence, or a value when there is one output.
    Classifier {
        /// Outputs.
        outputs: usize,
    },
    /// Classes of each token.
    TokenClassifier {
        /// Outputs.
        outputs: usize,
    },
    /// The first and the last token of an answer.
    Span,
    /// Masked language modelling.
    MaskedLm,
    /// Whether the second sentence follows the first.
    NextSentence,
    /// Masked language modelling and next-sentence prediction, as BERT was pretrained.
    Pretraining,
    /// Next-token prediction.
    CausalLm {
        /// Whether the output matrix is the token embedding; else the head has its own.
        tied: bool,
    },
}

impl Head {
    /// Whether it has logits over the vocabulary.
    pub fn is_lm(self) -> bool {
        matches!(self, Head::MaskedLm | Head::Pretraining | Head::CausalLm { .. })
    }

    /// Whether it predicts masked tokens.
    pub fn is_masked_lm(self) -> bool {
        matches!(self, Head::MaskedLm | Head::Pretraining)
    }

    /// Whether it has next-sentence prediction.
    pub fn has_sentences(self) -> bool {
        matches!(self, Head::NextSentence | Head::Pretraining)
    }

    /// The head by which callers ask for it.
    pub fn requested(self) -> TextHead {
        match self {
            Head::None => TextHead::None,
            Head::Classifier { outputs } => TextHead::Classification { outputs },
            Head::TokenClassifier { outputs } => TextHead::TokenClassification { outputs },
            Head::Span => TextHead::QuestionAnswering,
            Head::MaskedLm => TextHead::MaskedLm,
            Head::NextSentence => TextHead::NextSentence,
            Head::Pretraining => TextHead::Pretraining,
            Head::CausalLm { .. } => TextHead::CausalLm,
        }
    }

    /// The alias for a tied language-modelling head's matrix in Hugging Face's checkpoints, which may hold the token
    /// embedding under both names; `table` is the embedding's name. Models with other heads ignore such a matrix.
    pub fn tied_alias(self, table: &'static str) -> Option<Alias> {
        (self == Head::CausalLm { tied: true }).then_some(Alias::new("lm_head.weight", table))
    }

    /// Whether its output matrix is the token embedding.
    pub(in crate::model) fn is_tied(self) -> bool {
        self.is_masked_lm() || self == Head::CausalLm { tied: true }
    }
}

/// Input of a classifier's last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClassifierInput {
    /// The pooler of the base model.
    Pooled,
    /// The first token, through a dense layer between two dropouts; the model has no pooler then.
    FirstToken,
    /// The mean over all tokens but padding, and otherwise as the first token.
    MeanToken,
    /// The last token; the layer has no bias.
    LastToken,
    /// The last EOS token, through a dense layer between two dropouts.
    EosToken,
}

impl ClassifierInput {
    /// Whether it is an encoder's.
    pub(in crate::model) fn is_of_encoder(self) -> bool {
        matches!(self, ClassifierInput::Pooled | ClassifierInput::FirstToken | ClassifierInput::MeanToken)
    }
}

impl From<TokenPooling> for ClassifierInput {
    fn from(pooling: TokenPooling) -> Self {
        match pooling {
            TokenPooling::First => ClassifierInput::FirstToken,
            TokenPooling::Mean => ClassifierInput::MeanToken,
        }
    }
}

/// Dropout probabilities before the layers of the heads.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HeadDropout {
    /// Before a classifier's dense layer.
    pub dense: f32,
    /// Before a classifier's last layer.
    pub classifier: f32,
    /// Before the layer that classifies tokens.
    pub tokens: f32,
    /// Before the layer of answer spans.
    pub span: f32,
    /// Before the layer for the second sentence.
    pub sentences: f32,
}

impl HeadDropout {
    /// One probability in both classifiers, as most families have it.
    pub const fn of_classifiers(rate: f32) -> Self {
        HeadDropout { dense: rate, classifier: rate, tokens: rate, span: 0.0, sentences: 0.0 }
    }

    /// The classifier's probability before the layer for the second sentence, too.
    #[must_use]
    pub const fn before_sentences(self) -> Self {
        HeadDropout { sentences: self.classifier, ..self }
    }
}

/// Configuration of the heads of an architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadSpec {
    /// Dimension of the hidden states.
    pub size: usize,
    /// Initializer of the weights.
    pub init: Init,
    /// Initializer of the last layer of classifiers and answer spans, where it is another.
    pub last_init: Option<Init>,
    /// Norm and activation of the transform before a masked-LM head's output matrix, which is tied: the norm has the
    /// dimension of the token embeddings.
    pub transform: Option<(NormOptions, Activation)>,
    /// Whether classifiers of sequences and of tokens and answer spans have such a transform too, before their dropout.
    /// A classifier of sequences then has no other dense layer.
    pub transforms_all: bool,
    /// Whether the dense layer of a transform has a bias.
    pub dense_bias: bool,
    /// Whether the tied output matrix of a masked-LM head has a bias.
    pub tied_bias: bool,
    /// Whether an untied output matrix has a bias.
    pub lm_bias: bool,
    /// Whether the head adds a bias `[1, V]` that checkpoints hold and that is not trained.
    pub logits_bias: bool,
    /// Factor of the hidden states before the output matrix.
    pub factor: f32,
    /// Logits over the vocabulary become `cap * tanh(logit / cap)`.
    pub soft_cap: Option<f32>,
    /// Input of a classifier.
    pub classifier: ClassifierInput,
    /// The function after a classifier's dense layer.
    pub dense_activation: Activation,
    /// Whether the base model has a pooler.
    pub base_pooler: bool,
    /// Dropout in the heads.
    pub dropout: HeadDropout,
}

impl HeadSpec {
    /// Heads without transform, bias, factor and dropout. A classifier's dense layer is followed by tanh.
    pub fn new(size: usize, init: Init, classifier: ClassifierInput) -> Self {
        HeadSpec {
            size,
            init,
            last_init: None,
            transform: None,
            transforms_all: false,
            dense_bias: true,
            tied_bias: true,
            lm_bias: false,
            logits_bias: false,
            factor: 1.0,
            soft_cap: None,
            classifier,
            dense_activation: Activation::Tanh,
            base_pooler: classifier.is_of_encoder(),
            dropout: HeadDropout::default(),
        }
    }

    /// The same heads, all with this transform, and dropout with this probability before the last layers of classifiers
    /// and answer spans. The base model has no pooler.
    ///
    /// Source: initializers of ModernBERT in transformers.
    #[must_use]
    pub fn with_transforms(self, text: &TextConfig, transform: (NormOptions, Activation), rate: f32) -> Self {
        HeadSpec {
            init: Init::normal(text.init_std / text.residual_divisor(true)),
            last_init: Some(Init::normal(1.0 / (self.size as f32).sqrt())),
            transform: Some(transform),
            transforms_all: true,
            base_pooler: false,
            dropout: HeadDropout { span: rate, ..HeadDropout::of_classifiers(rate) },
            ..self
        }
    }

    /// The hidden states that this head reads.
    pub(in crate::model) fn reads(&self, head: Head) -> TokensRead {
        match (head, self.classifier) {
            (Head::Classifier { .. }, ClassifierInput::Pooled | ClassifierInput::FirstToken) => TokensRead::First,
            (Head::NextSentence, _) => TokensRead::First,
            _ => TokensRead::All,
        }
    }

    /// The transform that a head other than a language-modelling one has.
    pub(in crate::model) fn transform_of(&self, head: Head) -> Option<(NormOptions, Activation)> {
        let has_one = matches!(head, Head::Classifier { .. } | Head::TokenClassifier { .. } | Head::Span);
        self.transform.filter(|_| self.transforms_all && has_one)
    }

    /// Whether a model with this head has a pooler.
    pub(in crate::model) fn has_pooler(&self, head: Head) -> bool {
        match head {
            Head::Classifier { .. } => self.classifier == ClassifierInput::Pooled,
            Head::None => self.base_pooler,
            Head::NextSentence | Head::Pretraining => true,
            Head::TokenClassifier { .. } | Head::Span | Head::MaskedLm | Head::CausalLm { .. } => false,
        }
    }
}

/// The layers after the last block.
#[derive(Debug)]
pub struct Heads {
    kind: Head,
    pooler: Option<Linear>,
    /// Before the last layer of a classifier or of answer spans.
    transform: Option<Transform>,
    classifier: Option<Classifier>,
    tokens: Option<TokenClassifier>,
    /// With the dropout before it, as below.
    span: Option<(Linear, f32)>,
    lm: Option<LmHead>,
    sentences: Option<(Linear, f32)>,
}

impl Heads {
    /// Declare the head's parameters under the builder's name.
    pub fn new(builder: &Builder, spec: &HeadSpec, kind: Head, vocab_size: usize) -> Result<Self> {
        let with = |name: &str, outputs: usize, bias: bool, init: Init| {
            Linear::new(&builder.at(name), LinearOptions::new(spec.size, outputs, bias, init))
        };
        let linear = |name: &str, outputs: usize, bias: bool| with(name, outputs, bias, spec.init);
        let last_init = spec.last_init.unwrap_or(spec.init);
        let last = |name: &str, outputs: usize, bias: bool| with(name, outputs, bias, last_init);
        let transform = spec.transform_of(kind);
        let transform = transform.map(|of| Transform::new(&builder.at("head_transform"), spec, of)).transpose()?;
        let pooler = spec.has_pooler(kind).then(|| linear("pooler.dense", spec.size, true)).transpose()?;
        let classifier = match kind {
            Head::Classifier { outputs } => {
                let has_dense = transform.is_none()
                    && !matches!(spec.classifier, ClassifierInput::Pooled | ClassifierInput::LastToken);
                let dense = has_dense.then(|| linear("cls_dense", spec.size, true)).transpose()?;
                let projection = last("cls_projection", outputs, spec.classifier != ClassifierInput::LastToken)?;
                let dense = dense.map(|dense| (dense, spec.dense_activation));
                Some(Classifier { input: spec.classifier, dense, projection, dropout: spec.dropout })
            }
            _ => None,
        };
        let tokens = match kind {
            Head::TokenClassifier { outputs } => {
                let projection = last("token_projection", outputs, true)?;
                Some(TokenClassifier { projection, dropout: spec.dropout.tokens })
            }
            _ => None,
        };
        let span = match kind {
            Head::Span => Some((last("span_projection", 2, true)?, spec.dropout.span)),
            _ => None,
        };
        let lm = kind.is_lm().then(|| LmHead::new(builder, spec, kind, vocab_size)).transpose()?;
        let sentences = match kind.has_sentences() {
            true => Some((linear("nsp_projection", 2, true)?, spec.dropout.sentences)),
            false => None,
        };
        Ok(Heads { kind, pooler, transform, classifier, tokens, span, lm, sentences })
    }

    /// Which head this is.
    pub fn kind(&self) -> Head {
        self.kind
    }

    /// From hidden states `[B, L, D]` to logits and, with labels, the loss; `table` is the token embedding.
    pub fn forward(&self, hidden: &Var, batch: &DeviceBatch, table: &Embedding, cx: &mut Ctx) -> Result<ModelOutput> {
        let pooled = match &self.pooler {
            Some(pooler) => {
                let first = ops::select_row(cx, hidden, 0)?; // [B, D]
                Some(pooler.forward_activated(&first, Activation::Tanh, cx)?) // [B, D]
            }
            None => None,
        };
        let mut output = ModelOutput { logits: None, extra: Vec::new(), loss: None };
        output.extra.extend(pooled.clone().map(|pooled| ("pooler", pooled)));
        if let Some(classifier) = &self.classifier {
            let features = classifier.features(hidden, pooled.as_ref(), batch, cx)?; // [B, D]
            let logits = classifier.forward(self.transformed(&features, cx)?, batch, cx)?; // [B, outputs]
            output.loss = batch_loss(&logits, batch, cx)?; // [1]
            output.logits = Some(logits);
        }
        if let Some(tokens) = &self.tokens {
            let logits = tokens.forward(&self.transformed(hidden, cx)?, cx)?; // [B, L, outputs]
            output.loss = batch_loss(&logits, batch, cx)?; // [1]
            output.logits = Some(logits);
        }
        if let Some((span, rate)) = &self.span {
            let dropout = cx.dropout("answer_span", *rate)?;
            let hidden = self.transformed(hidden, cx)?; // [B, L, D]
            let logits = span.forward(&ops::dropout(cx, &hidden, dropout)?, cx)?; // [B, L, 2]
            answer_span(&logits, batch, &mut output, cx)?;
        }
        if let Some(lm) = &self.lm {
            // With two heads the loss needs the labels of both, as in transformers.
            let has_all = self.sentences.is_none() || batch.next_sentence.is_some();
            (output.logits, output.loss) = lm.forward(hidden, (batch, has_all), table, cx)?;
        }
        if let (Some((sentences, rate)), Some(pooled)) = (&self.sentences, &pooled) {
            let dropout = cx.dropout("sentences", *rate)?;
            let logits = sentences.forward(&ops::dropout(cx, pooled, dropout)?, cx)?; // [B, 2]
            self.next_sentence(logits, batch, &mut output, cx)?;
        }
        Ok(output)
    }

    /// The input `[.., D]` of the last layer of a classifier or of answer spans, before its dropout.
    fn transformed(&self, hidden: &Var, cx: &Ctx) -> Result<Var> {
        match &self.transform {
            Some(transform) => transform.forward(hidden, cx), // [.., D]
            None => Ok(hidden.clone()),
        }
    }

    /// Add the logits `[B, 2]` of next-sentence prediction and, with labels, its loss.
    fn next_sentence(&self, logits: Var, batch: &DeviceBatch, output: &mut ModelOutput, cx: &mut Ctx) -> Result<()> {
        let is_alone = self.lm.is_none();
        let targets = match (is_alone, &output.loss) {
            (true, _) => batch.class_labels(),
            (false, Some(_)) => batch.next_sentence.as_ref(),
            (false, None) => None,
        };
        if let Some(targets) = targets {
            let loss = ops::cross_entropy(cx, &logits, targets, &CrossEntropy::default())?; // [1]
            output.loss = Some(match output.loss.take() {
                Some(lm_loss) => ops::add(cx, &lm_loss, &loss)?, // [1]
                None => loss,
            });
        }
        match is_alone {
            true => output.logits = Some(logits),
            false => output.extra.push(("seq_relationship_logits", logits)),
        }
        Ok(())
    }

    /// What logits of tokens are computed from, of hidden states `[B, L, D]`; `None` without a language-modelling head.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub(in crate::model) fn lm_operands(
        &self,
        hidden: &Var,
        table: &Embedding,
        cx: &Ctx,
    ) -> Result<Option<LmOperands>> {
        self.lm.as_ref().map(|lm| lm.operands(hidden, table, cx)).transpose()
    }
}

/// Divides logits `[B, L, 2]` into one side for first and one for last tokens and, with labels, adds the loss: the mean
/// of the two cross-entropies over the tokens of a sequence.
fn answer_span(logits: &Var, batch: &DeviceBatch, output: &mut ModelOutput, cx: &mut Ctx) -> Result<()> {
    let [rows, length, _] = logits.dims("answer span")?;
    for (side, name) in [START_LOGITS, END_LOGITS].into_iter().enumerate() {
        let logits = ops::slice_last(cx, logits, side..side + 1)?.reshape([rows, length])?; // [B, L]
        if let Some(spans) = &batch.spans {
            let options = CrossEntropy { label_smoothing: batch.label_smoothing, ..CrossEntropy::default() };
            let loss = ops::cross_entropy(cx, &logits, &spans[side], &options)?; // [1]
            let half = ops::scale(cx, &loss, 0.5)?; // [1]
            output.loss = Some(match output.loss.take() {
                Some(start) => ops::add(cx, &start, &half)?, // [1]
                None => half,
            });
        }
        output.extra.push((name, logits));
    }
    Ok(())
}
