//! One forward pass over given inputs: logits, loss, hidden states and gradients by name.
//!
//! [`ForwardInputs`] reads a batch from safetensors or JSONL; [`forward`] returns every output as a [`NamedTensor`] and
//! [`write_outputs`] writes them as safetensors, for comparisons with other implementations of a model.

mod rows;
mod tensors;
mod texts;

pub use texts::describe_texts;

use crate::{Error, Result};
use bmtrain_core::comm::{self, Reduction};
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var};
use bmtrain_dist::param::{Param, Split, widen};
use bmtrain_dist::pipeline::Pipeline;
use model_center_data::Format;
use model_center_formats::tokenizer::Tokenizer;
use model_center_formats::{SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry};
use model_center_models::adapter::{AdapterPlan, PROMPT_EMBEDDINGS};
use model_center_models::{Batch, ForwardOutputs, ModelInfo, ModelOutput, TextModel};
use std::path::Path;
use std::sync::Arc;

const INPUT_IDS: &str = "input_ids";

/// The inputs of a forward pass.
#[derive(Debug)]
pub struct ForwardInputs {
    /// The padded batch.
    pub batch: Batch,
    /// The model's tokenizer, if rows are texts.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The file, for errors.
    place: String,
    /// Rows whose labels differ in number from their tokens, an error unless the model has a decoder of its own.
    uneven_labels: Option<Error>,
}

impl ForwardInputs {
    /// Read a file: rows if its name ends in `.jsonl`, whose texts the tokenizer of the model directory encodes; else
    /// tensors of a safetensors file.
    ///
    /// # Errors
    /// [`Error::Data`] for unknown names, wrong shapes or dtypes, and rows that do not form a batch.
    pub fn open(path: &Path, directory: &Path) -> Result<Self> {
        if matches!(Format::of(path), Ok(Format::Jsonl)) {
            return rows::read(path, directory);
        }
        let batch = tensors::read(&SafetensorsFile::open(path)?)?;
        Ok(ForwardInputs { batch, tokenizer: None, place: path.display().to_string(), uneven_labels: None })
    }

    /// Check the inputs against a model.
    ///
    /// # Errors
    /// [`Error::Data`] for inputs that the model cannot read, [`Error::Model`] for a tokenizer of another vocabulary.
    pub fn check(&mut self, info: &ModelInfo) -> Result<()> {
        if let Some(tokenizer) = &self.tokenizer {
            tokenizer.require_rows(info.vocab_size)?;
        }
        if let Some(error) = self.uneven_labels.take().filter(|_| !info.generates_targets) {
            return Err(error);
        }
        if self.batch.token_type_ids.is_some() && !info.has_token_types {
            let place = format!("{}, token_type_ids", self.place);
            return Err(Error::data(place, "the model has no token types", "leave the tensor out"));
        }
        Ok(())
    }

    /// Run a model, see [`forward`]; errors name the file of the inputs.
    pub fn forward(&self, model: &dyn TextModel, grads: Gradients<'_>, device: &Device) -> Result<Vec<NamedTensor>> {
        forward(model, &self.batch, grads, device).map_err(|error| self.placed(error))
    }

    /// Run a model that is on several pipeline stages, see [`forward_stages`]; errors name the file of the inputs.
    pub fn forward_stages(&self, model: &dyn TextModel, pipeline: &Pipeline) -> Result<Vec<NamedTensor>> {
        forward_stages(model, &self.batch, pipeline).map_err(|error| self.placed(error))
    }

    fn placed(&self, error: Error) -> Error {
        match error {
            Error::Data { place, reason, fix } => Error::data(format!("{}, {place}", self.place), reason, fix),
            other => other,
        }
    }
}

/// An output in `f32`.
#[derive(Debug, Clone)]
pub struct NamedTensor {
    /// Name, dtype and shape.
    pub entry: TensorEntry,
    /// Values in row-major order.
    pub values: Vec<f32>,
}

impl NamedTensor {
    fn new(name: String, shape: impl Into<Vec<usize>>, values: Vec<f32>) -> Self {
        NamedTensor { entry: TensorEntry::new(name, StoredDtype::F32, shape), values }
    }

    /// Whether this is the gradient of a parameter.
    pub fn is_grad(&self) -> bool {
        self.entry.name.starts_with("grad.")
    }
}

/// The gradients that [`forward`] computes.
#[derive(Debug, Clone, Copy)]
pub enum Gradients<'p> {
    /// None.
    None,
    /// Gradients of every parameter, under its Hugging Face name.
    Model,
    /// Gradients of what is trained with an adapter, under PEFT's names.
    Adapter(&'p AdapterPlan),
}

/// Run a model on a batch, without dropout: `logits`, `loss`, `hidden.<i>` and the model's further outputs, and
/// `grad.<name>` for the gradients.
///
/// # Errors
/// [`Error::Data`] for a batch that the model cannot read, or gradients without labels.
pub fn forward(
    model: &dyn TextModel,
    batch: &Batch,
    grads: Gradients<'_>,
    device: &Device,
) -> Result<Vec<NamedTensor>> {
    let mut outputs: Vec<NamedTensor> = Vec::new();
    let mut push = |name: String, value: &Tensor| -> bmtrain_dist::Result<()> {
        outputs.push(NamedTensor::new(name, value.shape().dims(), widen(value)?));
        Ok(())
    };
    let with_grads = !matches!(grads, Gradients::None);
    let mut cx = if with_grads { Ctx::gradients(device) } else { Ctx::inference(device) };
    let mut observe = |index: usize, value: &Tensor| push(format!("hidden.{index}"), value);
    let output = model.forward(batch, Some(&mut observe), &mut cx)?;
    for (name, var) in named(&output) {
        push(name.to_owned(), var.value())?;
    }
    if !with_grads {
        return Ok(outputs);
    }
    let (Some(loss), Some(tape)) = (output.loss, cx.take_tape()) else {
        let fix = "add labels for every head to the inputs, or leave the gradients out";
        return Err(Error::data("gradients", "there is no loss to differentiate", fix));
    };
    let one = Tensor::full_in(device, loss.shape(), DType::F32, 1.0, Segment::Activations)?;
    tape.backward(device, vec![(loss, one)], &[])?;
    for param in model.parameters() {
        let pieces = match grads {
            Gradients::Adapter(plan) => plan.parts(param.name()),
            _ => model.names().pieces(param.name(), param.spec().shape.dims(), true)?,
        };
        if pieces.is_empty() {
            continue;
        }
        let grad = whole_gradient(param, device)?;
        for piece in pieces {
            let values = piece.of(&grad)?.into_owned();
            outputs.push(NamedTensor::new(format!("grad.{}", piece.name), piece.shape, values));
        }
    }
    if let Gradients::Adapter(plan) = grads
        && let Some(tables) = plan.virtual_tokens()
    {
        let values = tables.tensor(&mut |name, values| {
            let param = model.parameters().find_declared(name);
            values.extend(param.map(|param| whole_gradient(param, device)).transpose()?.unwrap_or_default());
            Ok(())
        })?;
        outputs.push(NamedTensor::new(format!("grad.{PROMPT_EMBEDDINGS}"), tables.shape(), values));
    }
    Ok(outputs)
}

/// Run a model over the stages of a pipeline, without dropout: `logits`, `loss` and the model's further outputs, with
/// the bits of [`forward`] on one stage, on every stage. Hidden states stay on their stages.
///
/// # Errors
/// As [`Staged::forward_stages`](model_center_models::model::Staged::forward_stages).
pub fn forward_stages(model: &dyn TextModel, batch: &Batch, pipeline: &Pipeline) -> Result<Vec<NamedTensor>> {
    let outputs = model.forward_stages(pipeline, std::slice::from_ref(batch), ForwardOutputs::All)?;
    let tensor =
        |(name, var): (&str, &Var)| Ok(NamedTensor::new(name.to_owned(), var.shape().dims(), widen(var.value())?));
    outputs.iter().flat_map(named).map(tensor).collect()
}

/// The outputs of a forward pass by name.
fn named(output: &ModelOutput) -> impl Iterator<Item = (&'static str, &Var)> {
    let first = [("logits", &output.logits), ("loss", &output.loss)];
    let first = first.into_iter().filter_map(|(name, var)| Some((name, var.as_ref()?)));
    first.chain(output.extra.iter().map(|(name, var)| (*name, var)))
}

/// The gradient of a full parameter; each tensor-parallel rank has a part or a term of it. Zeros without one.
fn whole_gradient(param: &Param, device: &Device) -> Result<Vec<f32>> {
    let (ranks, shape) = (param.place()?.0.tensor_ranks(), param.spec().shape);
    let own = param.grad()?.map(|grad| widen(&grad)).transpose()?;
    if ranks.size() == 1 {
        return Ok(own.unwrap_or_else(|| vec![0.0; shape.elements()]));
    }
    // What several ranks have of a split parameter are terms; of a replicated one all have the same gradient.
    let counts = param.spec().split != Split::Replicated || ranks.rank() == 0;
    let mut whole = vec![0.0; shape.elements()];
    for (from, at, len) in param.local_part().runs(shape) {
        if let Some(own) = own.as_ref().filter(|_| counts) {
            whole[from..from + len].copy_from_slice(&own[at..at + len]);
        }
    }
    let whole = Tensor::from_slice_in(device, [shape.elements()], &whole, Segment::Workspace)?;
    Ok(comm::tensors::all_reduce(&**ranks, whole, Reduction::Sum)?.to_vec()?)
}

/// Describe the outputs with values that are not finite. They are no error: without a label that counts, or a token
/// that is attended to, PyTorch returns NaN too.
pub fn describe_non_finite(outputs: &[NamedTensor]) -> Option<String> {
    let count = |output: &NamedTensor| output.values.iter().filter(|value| !value.is_finite()).count();
    let (grads, others): (Vec<_>, Vec<_>) = outputs.iter().filter(|o| count(o) > 0).partition(|o| o.is_grad());
    let describe = |o: &&NamedTensor| format!("{} ({} of {} values)", o.entry.name, count(o), o.values.len());
    let mut names: Vec<String> = others.iter().map(describe).collect();
    if let Some(first) = grads.first() {
        names.push(format!("the gradients of {} parameters ({} is the first)", grads.len(), first.entry.name));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

/// Write outputs as safetensors, with the ids of `tokenized` as `input_ids`.
pub fn write_outputs(path: &Path, outputs: &[NamedTensor], tokenized: Option<&Batch>) -> Result<()> {
    let mut entries: Vec<TensorEntry> = outputs.iter().map(|output| output.entry.clone()).collect();
    entries.extend(tokenized.map(|batch| TensorEntry::new(INPUT_IDS, StoredDtype::I64, [batch.rows, batch.length])));
    let mut writer = SafetensorsWriter::create(path, &entries)?;
    for output in outputs {
        writer.write_f32(&output.entry.name, &output.values)?;
    }
    if let Some(batch) = tokenized {
        let bytes: Vec<u8> = batch.input_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        writer.write_raw(INPUT_IDS, &bytes)?;
    }
    writer.finish()
}
