//! Models of text as programs use them: batch to logits and loss, incremental decoding, reading and writing
//! directories.
//!
//! Defines [`TextModel`], which [`crate::model::load::registry`] opens and [`crate::model::Transformer`] implements.

use crate::distillation::{DistillationLoss, Teaching};
use crate::model::SaveOptions;
use crate::model::decode::decoding::{Decoding, DecodingOptions};
use crate::model::decode::packed::PackedDecoding;
use crate::model::head::pooling::PoolingMode;
use crate::model::load::opening::from_parameters;
use bmtrain_core::ops::Distilled;
use bmtrain_core::{Ctx, Device, Tensor, Var};
use bmtrain_dist::param::WholeReader;
use bmtrain_dist::pipeline::{BlockCosts, MicroBatch, NamedTensors, Pipeline};
use bmtrain_dist::{Module, OptimManager};
use model_center_base::batch::{Batch, VerbalizerPosition};
use model_center_base::error::Result;
use model_center_formats::config::{ProblemType, TextHead};
use model_center_formats::directory::DirectoryLayout;
use model_center_formats::{Fill, NameTable};
use std::borrow::Cow;
use std::path::Path;

/// The output of a forward pass.
#[derive(Debug, Clone)]
pub struct ModelOutput {
    /// Logits of the head: `[R, outputs]`, `[samples, choices]`, `[R, L, V]` or, of token classes, `[R, L, outputs]`;
    /// with a verbalizer `[R, classes]`. Answer spans have [`ModelOutput::extra`] instead.
    pub logits: Option<Var>,
    /// Further outputs by name, such as `pooler`; of answer spans `start_logits` and `end_logits`, `[R, L]`.
    pub extra: Vec<(&'static str, Var)>,
    /// `[1]`, when there were labels.
    pub loss: Option<Var>,
}

/// The names of [`ModelOutput::extra`].
const EXTRA_OUTPUTS: [&str; 5] =
    ["pooler", "seq_relationship_logits", "encoder_last_hidden_state", START_LOGITS, END_LOGITS];
/// The divergence of a student, of a batch with a teaching.
pub(super) const DIVERGENCE: &str = "divergence";
pub(super) const START_LOGITS: &str = "start_logits";
pub(super) const END_LOGITS: &str = "end_logits";
const LOGITS: &str = "logits";
const LOSS: &str = "loss";

impl ModelOutput {
    /// The logits of the first and the last token of an answer, each `[R, L]`; `None` for another head.
    pub fn span_logits(&self) -> Option<[&Var; 2]> {
        let of = |wanted: &str| self.extra.iter().find(|(name, _)| *name == wanted).map(|(_, logits)| logits);
        Some([of(START_LOGITS)?, of(END_LOGITS)?])
    }

    /// Its tensors: the loss alone, or all.
    pub(super) fn into_tensors(self, wants: ForwardOutputs) -> NamedTensors {
        let named = |name: &str, var: Var| (name.to_owned(), var.into_value());
        let loss = self.loss.map(|loss| named(LOSS, loss));
        if wants == ForwardOutputs::Loss {
            return loss.into_iter().collect();
        }
        let logits = self.logits.map(|logits| named(LOGITS, logits));
        logits.into_iter().chain(loss).chain(self.extra.into_iter().map(|(name, var)| named(name, var))).collect()
    }

    /// The output that has these tensors.
    pub(super) fn of_tensors(tensors: NamedTensors) -> Self {
        let mut output = ModelOutput { logits: None, extra: Vec::new(), loss: None };
        for (name, tensor) in tensors {
            let var = Var::constant(tensor);
            match name.as_str() {
                LOGITS => output.logits = Some(var),
                LOSS => output.loss = Some(var),
                other => {
                    let known = EXTRA_OUTPUTS.into_iter().find(|known| *known == other);
                    output.extra.extend(known.map(|known| (known, var)));
                }
            }
        }
        output
    }
}

/// What a forward pass over pipeline stages computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ForwardOutputs {
    /// The loss alone, as [`TextModel::loss`].
    Loss,
    /// All outputs, as [`TextModel::forward`].
    All,
}

/// Called with the index and value of each hidden state; index 0 is the input of the first block.
pub type Observe<'a> = &'a mut dyn FnMut(usize, &Tensor) -> bmtrain_dist::Result<()>;

/// The properties of a model that a program needs before it makes a batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelInfo {
    /// Rows of the token embedding: ids are below this.
    pub vocab_size: usize,
    /// The maximum sequence length, in tokens.
    pub max_length: usize,
    /// Elements of the last hidden state of a token.
    pub hidden_size: usize,
    /// The head.
    pub head: TextHead,
    /// What the labels of a classifier are, if the configuration states it.
    pub problem: Option<ProblemType>,
    /// Names of the classes in the order of the classifier's outputs; empty where they have none.
    pub label_names: Vec<String>,
    /// Whether it has token type embeddings. Without them [`TextModel::forward`] ignores the token types of a batch.
    pub has_token_types: bool,
    /// Whether labels are the tokens that a decoder generates from the encoder's input.
    pub generates_targets: bool,
    /// The token with which the decoder of an encoder-decoder starts, if the configuration states it.
    pub decoder_start_token: Option<i64>,
    /// Whether its classifier supports multiple choice, comparing several sequences of one sample.
    pub compares_choices: bool,
    /// Number of parameters in embedding tables that are only looked up. A table tied to the language-modelling head is
    /// not counted.
    pub embedding_parameters: usize,
    /// What parameters count further where blocks share them: their number for each place after the first.
    pub repeated_parameters: usize,
}

/// A model of text, as programs use it.
pub trait TextModel: Module {
    /// Sizes, label names and other properties needed before the first batch.
    fn info(&self) -> &ModelInfo;

    /// Parameter names in Hugging Face files.
    fn names(&self) -> &NameTable;

    /// Parameter names in files of this layout.
    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>>;

    /// Batch to logits and, with labels, the loss. `observe` is called with the hidden states.
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit.
    fn forward(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput>;

    /// The loss only, `[1]`, for training: as [`TextModel::forward`], but a language-modelling head may compute it
    /// without storing all logits.
    fn loss(&self, batch: &Batch, cx: &mut Ctx) -> Result<Option<Var>>;

    /// The log-probability of each sequence, f32 `[R]`: of the tokens that have a label, given those before them. As in
    /// [`TextModel::loss`], logits are not stored.
    ///
    /// # Errors
    /// As [`TextModel::loss`]; a model without a language-modelling head, a batch without labels.
    fn log_probs(&self, batch: &Batch, cx: &mut Ctx) -> Result<Var>;

    /// What a student learns of a batch from this model: logits of classes, or what logits of tokens are computed from.
    /// Nothing is recorded. The labels of the batch are the student's.
    ///
    /// # Errors
    /// As [`TextModel::loss`]; a model without a classifier and without a language-modelling head.
    fn teaching(&self, batch: &Batch, device: &Device) -> Result<Teaching>;

    /// The loss of a student, f32 `[1]`, with the divergence in it, means over what counts in [`TextModel::loss`]. The
    /// logits of tokens are not stored. Where classes have weights, the class of a sample weighs its divergence, too.
    ///
    /// # Errors
    /// As [`TextModel::loss`]; outputs of another kind or number than the teacher's, several tensor-parallel ranks,
    /// virtual tokens.
    fn distilled(&self, batch: &Batch, teaching: Teaching, loss: DistillationLoss, cx: &mut Ctx) -> Result<Distilled>;

    /// The embedding of each sequence, f32 `[R, D]`: the mean of the last hidden states of its tokens, or the first
    /// one. It is not scaled to length one.
    ///
    /// # Errors
    /// As [`TextModel::loss`]; [`PoolingMode::Max`], an encoder-decoder, virtual tokens.
    fn embeddings(&self, batch: &Batch, pooling: PoolingMode, cx: &mut Ctx) -> Result<Var>;

    /// The forward and backward passes of a training step over the stages of a pipeline, in place of
    /// [`TextModel::loss`] and the backward pass for each micro-batch: see [`Pipeline::forward_backward`].
    ///
    /// # Errors
    /// As [`TextModel::loss`] and [`Pipeline::forward_backward`].
    fn forward_backward(
        &self,
        pipeline: &Pipeline,
        optim: &OptimManager,
        load: &mut dyn FnMut(usize) -> Result<MicroBatch<Batch>>,
    ) -> Result<Tensor>;

    /// Times this rank's blocks and head on a micro-batch, for a partition by time: see [`BlockCosts::measure`].
    ///
    /// # Errors
    /// As [`TextModel::loss`] and [`BlockCosts::measure`].
    fn block_costs(&self, device: &Device, batch: &Batch) -> Result<BlockCosts>;

    /// Forward passes without dropout over the stages of a pipeline, in place of [`TextModel::forward`] or
    /// [`TextModel::loss`] for each batch: their outputs, on every stage, which all have the same batches. The stages
    /// overlap in several batches, and hold the outputs of all of them. Waits for the device.
    ///
    /// # Errors
    /// As [`TextModel::forward`] and [`Pipeline::forward_outputs`].
    fn forward_stages(&self, pipeline: &Pipeline, batches: &[Batch], wants: ForwardOutputs)
    -> Result<Vec<ModelOutput>>;

    /// Starts incremental decoding with a KV cache. Over pipeline stages every stage starts it and makes the same
    /// calls.
    ///
    /// # Errors
    /// An encoder, or a model without a language-modelling head; ids of the source out of range.
    fn decoding<'a>(&'a self, options: DecodingOptions<'_>, cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>>;

    /// Starts incremental decoding of sequences that join and leave between passes.
    ///
    /// # Errors
    /// An encoder, an encoder-decoder, or a model without a language-modelling head; several ranks.
    fn packed_decoding<'a>(&'a self) -> Result<Box<dyn PackedDecoding + 'a>>;

    /// The position at which the head predicts the label word of a prompt.
    ///
    /// # Errors
    /// A model without a language-modelling head; a special token that its configuration does not state.
    fn verbalizer_position(&self) -> Result<VerbalizerPosition>;

    /// Whether decoder inputs can be made from any targets, if the model
    /// [generates](ModelInfo::generates_targets) them.
    ///
    /// # Errors
    /// A special token for it that the configuration does not state.
    fn check_targets(&self) -> Result<()>;

    /// Number of parameters in matrix products, as often as they are in one: all but
    /// [`ModelInfo::embedding_parameters`]. A training step takes about six floating-point operations per parameter and
    /// token.
    fn matmul_parameters(&self) -> usize {
        self.parameters().count() - self.info().embedding_parameters + self.info().repeated_parameters
    }

    /// Whether [`TextModel::save`] would accept the configuration and the tokenizer files. Reads no values.
    ///
    /// # Errors
    /// The errors that `save` would return at the end of the training.
    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()>;

    /// Fields of the configuration that the written layout cannot hold.
    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>>;

    /// Writes a complete directory: configuration, weights, tokenizer files. `fill` puts the values of the named
    /// parameter into a vector; it is called once per parameter, in order.
    ///
    /// # Errors
    /// I/O errors; a layout that the family does not have; errors of `fill`.
    fn write(&self, directory: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()>;

    /// [`TextModel::write`] with the model's own values. One of the ranks that share the model writes, over pipeline
    /// stages the first one; the others call [`TextModel::pass_save`].
    fn save(&self, directory: &Path, options: &SaveOptions<'_>) -> Result<()> {
        self.write(directory, options, &mut from_parameters(self.parameters())?)
    }

    /// Takes part in another rank's [`TextModel::save`], which reads all parameters, in order, through one
    /// [`WholeReader`].
    fn pass_save(&self) -> Result<()> {
        let mut reader = WholeReader::of(self.parameters())?;
        Ok(self.parameters().declared().iter().try_for_each(|param| reader.pass(param))?)
    }
}
