//! Models of text as programs use them.
//!
//! Defines [`TextModel`], a batch to logits, loss or hidden states, with what else a program may ask of a model:
//! [`Decode`], incremental decoding; [`Staged`], passes over pipeline stages; [`SaveModel`], directories.
//! [`crate::model::load::registry`] opens them and [`crate::model::Transformer`] implements them.

use crate::model::SaveOptions;
use crate::model::batch::loss_settings::LossSettings;
use crate::model::decode::decoding::{Decoding, DecodingOptions};
use crate::model::decode::packed::PackedDecoding;
use crate::model::head::lm_operands::LmOperands;
use crate::model::load::opening::from_parameters;
use bmtrain_core::ops::{self, CrossEntropy, Reduction};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::param::WholeReader;
use bmtrain_dist::pipeline::{BlockCosts, MicroBatch, NamedTensors, Pipeline};
use bmtrain_dist::{Module, OptimManager};
use model_center_base::batch::{Batch, VerbalizerPosition};
use model_center_base::error::{Error, Result};
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

/// What a forward pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ForwardOutputs {
    /// The loss, for training: a language-modelling head computes it without storing all logits.
    Loss,
    /// All outputs.
    #[default]
    All,
}

/// How a forward pass is made.
#[derive(Default)]
pub struct ForwardOptions<'a> {
    /// What it computes.
    pub outputs: ForwardOutputs,
    /// Settings of the loss of labels.
    pub loss: LossSettings<'a>,
    /// Called with the hidden states, where all outputs are computed.
    pub observe: Option<Observe<'a>>,
}

/// What [`TextModel::hidden`] computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HiddenOutputs {
    /// The hidden states alone.
    States,
    /// Also what the logits of tokens are computed from.
    LmOperands,
}

/// The hidden states of a batch: what losses are computed from that are not the model's own.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// `[R, P + L, E]` after the last block, E being [`ModelInfo::hidden_size`]; of an encoder-decoder the decoder's,
    /// `[R, P + T, E]`.
    pub states: Var,
    /// P, virtual tokens of prompt tuning before each sequence.
    pub virtual_tokens: usize,
    /// The token that each of these positions predicts, R × (P + L), [`IGNORED`](model_center_base::batch::IGNORED) for
    /// none; empty without a language-modelling head or labels.
    pub targets: Vec<i64>,
    /// What the logits are computed from; `None` unless asked for, and without a language-modelling head.
    pub lm: Option<LmOperands>,
}

impl Hidden {
    /// The targets on a device, i64 `[R, P + L]`, with the operands.
    ///
    /// # Errors
    /// No language-modelling head, or no labels; out of memory.
    pub fn lm_targets(&self, device: &Device) -> Result<(&LmOperands, Tensor)> {
        let missing = || {
            let fix = "open the model with a language-modelling head, and label tokens";
            Error::data("batch", "it has no log-probabilities of sequences", fix)
        };
        let lm = self.lm.as_ref().filter(|_| !self.targets.is_empty()).ok_or_else(missing)?;
        let [rows, length, _] = self.states.dims("hidden states")?;
        Ok((lm, Tensor::from_slice_in(device, [rows, length], &self.targets, Segment::Data)?))
    }

    /// The log-probability of the target of each position given the tokens up to it, f32 `[R, P + L]`; 0 for positions
    /// without one. Logits are not stored.
    ///
    /// # Errors
    /// As [`Hidden::lm_targets`].
    pub fn token_log_probs(&self, cx: &Ctx) -> Result<Var> {
        Ok(ops::scale(cx, &self.token_losses(cx)?, -1.0)?) // [R, P + L]
    }

    /// Minus [`Hidden::token_log_probs`].
    pub(crate) fn token_losses(&self, cx: &Ctx) -> Result<Var> {
        let (lm, targets) = self.lm_targets(cx.device())?;
        Ok(lm.cross_entropy(&targets, CrossEntropy { reduction: Reduction::None, ..CrossEntropy::default() }, cx)?)
    }
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
    /// Meaning of a classifier's labels, if the configuration states it.
    pub problem: Option<ProblemType>,
    /// Names of the classes in the order of the classifier's outputs; empty where they have none.
    pub label_names: Vec<String>,
    /// Whether it has token type embeddings. Without them [`TextModel::forward`] ignores the token types of a batch.
    pub has_token_types: bool,
    /// Whether labels are the tokens that a decoder generates from the encoder's input.
    pub generates_targets: bool,
    /// The token with which the decoder of an encoder-decoder starts, if the configuration states it.
    pub decoder_start_token: Option<i64>,
    /// Whether it has an encoder and a decoder, whatever its head.
    pub is_encoder_decoder: bool,
    /// Whether its classifier supports multiple choice, comparing several sequences of one sample.
    pub compares_choices: bool,
    /// Number of parameters in embedding tables that are only looked up. A table tied to the language-modelling head is
    /// not counted.
    pub embedding_parameters: usize,
    /// Additional parameters where blocks share them: their number for each place after the first.
    pub repeated_parameters: usize,
}

/// A model of text, as programs use it.
pub trait TextModel: Decode + Staged + SaveModel {
    /// Sizes, label names and other properties needed before the first batch.
    fn info(&self) -> &ModelInfo;

    /// Batch to logits and, with labels, the loss.
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit; settings of a loss that the head does not have.
    fn forward_with(&self, batch: &Batch, options: ForwardOptions<'_>, cx: &mut Ctx) -> Result<ModelOutput>;

    /// The hidden states after the last block, for a loss that is not the model's own.
    ///
    /// # Errors
    /// As [`TextModel::forward_with`].
    fn hidden(&self, batch: &Batch, outputs: HiddenOutputs, cx: &mut Ctx) -> Result<Hidden>;

    /// The embeddings of texts of pooled hidden states: after the modules `Dense` of a sentence encoder that was opened
    /// with [`OpenOptions::sentence_modules`](crate::model::OpenOptions::sentence_modules), and `pooled` itself
    /// otherwise. They are not scaled to length one.
    ///
    /// Shapes: f32 `[R, D]` → f32 `[R, E]`.
    ///
    /// # Errors
    /// Hidden states of another size than the modules have.
    fn sentence_embedding(&self, pooled: Var, _cx: &mut Ctx) -> Result<Var> {
        Ok(pooled)
    }

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

    /// Batch to logits and, with labels, the loss. `observe` is called with the hidden states.
    ///
    /// # Errors
    /// As [`TextModel::forward_with`].
    fn forward(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput> {
        self.forward_with(batch, ForwardOptions { observe, ..ForwardOptions::default() }, cx)
    }

    /// The loss only, `[1]`, for training; `None` without labels.
    ///
    /// # Errors
    /// As [`TextModel::forward_with`].
    fn loss(&self, batch: &Batch, cx: &mut Ctx) -> Result<Option<Var>> {
        let options = ForwardOptions { outputs: ForwardOutputs::Loss, ..ForwardOptions::default() };
        Ok(self.forward_with(batch, options, cx)?.loss)
    }

    /// Number of parameters in matrix products, as often as they are in one: all but
    /// [`ModelInfo::embedding_parameters`]. A training step takes about six floating-point operations per parameter and
    /// token.
    fn matmul_parameters(&self) -> usize {
        self.parameters().count() - self.info().embedding_parameters + self.info().repeated_parameters
    }
}

/// Incremental decoding. A model without it has an empty `impl`, whose functions return errors.
pub trait Decode: Module {
    /// Starts incremental decoding with a KV cache. Over pipeline stages every stage starts it and makes the same
    /// calls.
    ///
    /// # Errors
    /// An encoder, or a model without a language-modelling head; ids of the source out of range.
    fn decoding<'a>(&'a self, _options: DecodingOptions<'_>, _cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>> {
        Err(not_supported("incremental decoding"))
    }

    /// Starts incremental decoding of sequences that join and leave between passes.
    ///
    /// # Errors
    /// An encoder, an encoder-decoder, or a model without a language-modelling head; several ranks.
    fn packed_decoding<'a>(&'a self) -> Result<Box<dyn PackedDecoding + 'a>> {
        Err(not_supported("incremental decoding"))
    }
}

/// Loads a micro-batch by its number, with the settings of its loss.
pub type LoadMicroBatch<'a, 's> = &'a mut dyn FnMut(usize) -> Result<(MicroBatch<Batch>, LossSettings<'s>)>;

/// Passes over pipeline stages. A model without them has an empty `impl`, whose functions return errors.
pub trait Staged: Module {
    /// The forward and backward passes of a training step over the stages of a pipeline, in place of
    /// [`TextModel::loss`] and the backward pass for each micro-batch: see [`Pipeline::forward_backward`].
    ///
    /// # Errors
    /// As [`TextModel::loss`] and [`Pipeline::forward_backward`].
    fn forward_backward(
        &self,
        _pipeline: &Pipeline,
        _optim: &OptimManager,
        _load: LoadMicroBatch<'_, '_>,
    ) -> Result<Tensor> {
        Err(not_supported("pipeline stages"))
    }

    /// Forward passes without dropout over the stages of a pipeline, in place of [`TextModel::forward`] or
    /// [`TextModel::loss`] for each batch: their outputs, on every stage, which all have the same batches. The stages
    /// overlap in several batches, and hold the outputs of all of them. Waits for the device.
    ///
    /// # Errors
    /// As [`TextModel::forward`] and [`Pipeline::forward_outputs`].
    fn forward_stages(
        &self,
        _pipeline: &Pipeline,
        _batches: &[Batch],
        _outputs: ForwardOutputs,
    ) -> Result<Vec<ModelOutput>> {
        Err(not_supported("pipeline stages"))
    }

    /// Times this rank's blocks and head on a micro-batch, for a partition by time: see [`BlockCosts::measure`].
    ///
    /// # Errors
    /// As [`TextModel::loss`] and [`BlockCosts::measure`].
    fn block_costs(&self, _device: &Device, _batch: &Batch) -> Result<BlockCosts> {
        Err(not_supported("pipeline stages"))
    }
}

/// Model directories.
pub trait SaveModel: Module {
    /// Parameter names in Hugging Face files.
    fn names(&self) -> &NameTable;

    /// Parameter names in files of this layout.
    ///
    /// # Errors
    /// A layout that the family does not have.
    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>>;

    /// Whether [`SaveModel::save`] would accept the configuration and the tokenizer files. Reads no values.
    ///
    /// # Errors
    /// The errors that `save` would return at the end of the training.
    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()>;

    /// Fields of the configuration that the written layout cannot hold.
    ///
    /// # Errors
    /// A layout that the family does not have.
    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>>;

    /// Writes a complete directory: configuration, weights, tokenizer files. `fill` puts the values of the named
    /// parameter into a vector; it is called once per parameter, in order.
    ///
    /// # Errors
    /// I/O errors; a layout that the family does not have; errors of `fill`.
    fn write(&self, directory: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()>;

    /// [`SaveModel::write`] with the model's own values. One of the ranks that share the model writes, over pipeline
    /// stages the first one; the others call [`SaveModel::pass_save`].
    ///
    /// # Errors
    /// As [`SaveModel::write`]; a lost rank.
    fn save(&self, directory: &Path, options: &SaveOptions<'_>) -> Result<()> {
        self.write(directory, options, &mut from_parameters(self.parameters())?)
    }

    /// Takes part in another rank's [`SaveModel::save`], which reads all parameters, in order, through one
    /// [`WholeReader`].
    ///
    /// # Errors
    /// A lost rank.
    fn pass_save(&self) -> Result<()> {
        let mut reader = WholeReader::of(self.parameters())?;
        Ok(self.parameters().declared().iter().try_for_each(|param| reader.pass(param))?)
    }
}

fn not_supported(what: &str) -> Error {
    Error::argument("the model", format!("it does not support {what}"), "use a model of another family")
}
