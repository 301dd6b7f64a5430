//! The forward program: a Hugging Face directory and a file of inputs in; logits, loss, hidden states and gradients
//! out.

mod inputs;
mod lines;

use crate::opened::{self, Head, Stored};
use crate::places::model_places;
use crate::program;
use crate::terminal;
use bmtrain_core::{Ctx, DType, Device, DeviceChoice, Segment, Tensor};
use bmtrain_dist::param::widen;
use clap::Parser;
use model_center::formats::{Pretrained, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry};
use model_center::model::{Batch, OpenOptions, Registry, TextModel};
use model_center::run::ExitStatus;
use model_center::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a model once on given inputs, dropout off.
///
/// Inputs are tensors (i64) of a safetensors file: `input_ids [B, L]`; `attention_mask`, `token_type_ids [B, L]`;
/// `labels [B]` or `[B, L]`; `next_sentence_label [B]`. Labels of a regression are f32, `[B]` or `[B, outputs]`; those
/// of the next word are the ids themselves, and are moved by the model. A decoder behind an encoder reads
/// `decoder_input_ids [B, T]` with `decoder_attention_mask [B, T]`, or the `labels [B, T]` moved by one. A tensor of
/// any other name is refused; what is absent gets the defaults of transformers. CPM-1 goes by `context [B, L]` and
/// `span [B, L]` too.
///
/// Or they are rows of a file whose name ends in .jsonl, one object a line with lists under the same names, padded
/// here; `text`, with `text_pair`, and `target` stand for `input_ids` and `labels` as the directory's tokenizer makes
/// them.
///
/// Outputs (f32): `logits`, `loss`, `hidden.<i>`, `pooler`, `encoder_last_hidden_state`, and with --grads `grad.<name>`
/// for every parameter under its Hugging Face name. Where rows were texts also `input_ids` (i64), what the tokenizer
/// made of them.
///
/// Example: forward --model DIR --inputs in.jsonl --out out.safetensors --grads
#[derive(Debug, Clone, Parser)]
#[command(name = "forward", version)]
pub struct Options {
    /// Hugging Face directory, or the hub's name of a model that is in its cache (program fetch).
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub model: String,
    /// Branch, tag or commit of a model of the hub; by default main.
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Family of a model whose config.json does not name it, as ModelCenter's do not.
    #[arg(long, value_name = "FAMILY")]
    pub family: Option<String>,
    /// Leave out tensors that the model has no use for, by a pattern in which * stands for any text; may be repeated.
    /// Those of heads for other tasks need none.
    #[arg(long, value_name = "PATTERN")]
    pub leave: Vec<String>,
    /// File of inputs.
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Also write the gradient of the loss with respect to every parameter; needs labels.
    #[arg(long)]
    pub grads: bool,
    /// The head; by default the one that the directory's class has.
    #[arg(long, value_enum)]
    pub head: Option<Head>,
    /// Dtype of the weights while it runs; by default the one that most of them are stored in, and f32 with --grads.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<Stored>,
    /// What it runs on: auto, cpu, cuda, or cuda:1 for the second CUDA device.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Threads; by default all that this process may use.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// The tensor of a row's words, in and out.
const INPUT_IDS: &str = "input_ids";

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, |options, registry| run(options, registry))
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// A directory or inputs that cannot be used, a file that cannot be written.
pub fn run(options: &Options, registry: Registry<'_>) -> Result<ExitStatus> {
    let device = Device::new(
        crate::device::open(options.device, (0, 1), crate::device::threads(options.threads)?, true)?.backend,
    );
    let directory = Pretrained::resolve(&options.model, options.revision.as_deref(), &model_places())?;
    let lines::Rows { batch, tokenizer, uneven } = match lines::is_for(&options.inputs) {
        true => lines::read(&options.inputs, &directory)?,
        false => {
            let batch = inputs::read(&SafetensorsFile::open(&options.inputs)?)?;
            lines::Rows { batch, tokenizer: None, uneven: None }
        }
    };
    let place = options.inputs.display().to_string();
    if options.grads && batch.labels.is_none() {
        let reason = "--grads needs a loss, and there are no labels";
        return Err(Error::data(place, reason, "add labels to the inputs, or leave --grads out"));
    }
    let asked = OpenOptions {
        head: opened::head(options.head, &directory, batch.next_sentence.is_some())?,
        family: options.family.clone(),
        leave: options.leave.clone(),
        dtype: options.dtype.map_or(DType::F32, Stored::dtype),
        // Gradients in 16 bits are too coarse to compare with, so they are asked for.
        keep_dtype: options.dtype.is_none() && !options.grads,
        ..OpenOptions::new(&device)
    };
    let opened = registry.open(&directory, &asked).map_err(|error| match error {
        // The family knows that it has no such head, but not who asked for it.
        Error::Argument { reason, fix, .. } => Error::argument("--head", reason, fix),
        other => other,
    })?;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.require_rows(opened.model.info().vocab_size)?;
    }
    if let Some(error) = uneven.filter(|_| !opened.model.info().generates_targets) {
        return Err(error);
    }
    if batch.token_type_ids.is_some() && !opened.model.info().has_token_types {
        let reason = "this model has no types of tokens";
        return Err(Error::data(format!("{place}, token_type_ids"), reason, "leave the tensor out"));
    }
    opened::remarks_of(&opened).iter().for_each(|line| terminal::note(line));
    for name in &opened.initialized {
        terminal::note(&format!("warning: {name} is not in the directory; its values are drawn"));
    }
    let outputs = compute(&*opened.model, &batch, options.grads, &device).map_err(|error| match error {
        // The model knows which tensor is wrong, but not where it came from.
        Error::Data { place: tensor, reason, fix } => Error::data(format!("{place}, {tensor}"), reason, fix),
        other => other,
    })?;
    write(&options.out, &outputs, tokenizer.is_some().then_some(&batch))?;
    warn_of(&outputs);
    let results = outputs.iter().map(|(entry, _)| entry).filter(|entry| !entry.name.starts_with("grad."));
    let lines: Vec<String> = results.map(|entry| format!("{} {:?}", entry.name, entry.shape)).collect();
    terminal::print(&lines.join("\n"))?;
    Ok(ExitStatus::Done)
}

type Output = (TensorEntry, Vec<f32>);

fn compute(model: &dyn TextModel, batch: &Batch, grads: bool, device: &Device) -> Result<Vec<Output>> {
    let mut outputs: Vec<Output> = Vec::new();
    let mut push = |name: String, value: &Tensor| -> bmtrain_dist::Result<()> {
        outputs.push((TensorEntry::new(name, StoredDtype::F32, value.shape().dims()), widen(value)?));
        Ok(())
    };
    let mut cx = if grads { Ctx::gradients(device) } else { Ctx::inference(device) };
    let mut observe = |index: usize, value: &Tensor| push(format!("hidden.{index}"), value);
    let scores = model.forward(batch, Some(&mut observe), &mut cx)?;
    let named = [("logits", scores.logits), ("loss", scores.loss.clone())];
    for (name, var) in named.into_iter().filter_map(|(name, var)| Some((name, var?))).chain(scores.extra) {
        push(name.to_owned(), var.value())?;
    }
    if !grads {
        return Ok(outputs);
    }
    let (Some(loss), Some(tape)) = (scores.loss, cx.take_tape()) else {
        return Err(Error::data(
            "--grads",
            "there is no loss to differentiate",
            "add labels for every head to the inputs, or leave --grads out",
        ));
    };
    let one = Tensor::full_in(device, loss.shape(), DType::F32, 1.0, Segment::Activations)?;
    tape.backward(device, vec![(loss, one)], &[])?;
    for param in model.parameters() {
        let shape = param.spec().shape;
        let grad = match param.grad()? {
            Some(grad) => widen(&grad)?,
            None => vec![0.0; shape.elements()],
        };
        for piece in model.names().pieces(param.name(), shape.dims(), true)? {
            let values = piece.of(&grad)?.into_owned();
            outputs.push((TensorEntry::new(format!("grad.{}", piece.name), StoredDtype::F32, piece.shape), values));
        }
    }
    Ok(outputs)
}

/// Names the outputs that are not finite. They are no error: without one label that counts, or one token that is seen,
/// PyTorch returns NaN too.
fn warn_of(outputs: &[Output]) {
    let count = |values: &[f32]| values.iter().filter(|value| !value.is_finite()).count();
    let found = outputs.iter().map(|(entry, values)| (&entry.name, count(values), values.len()));
    let found = found.filter(|(_, count, _)| *count > 0);
    let (grads, others): (Vec<_>, Vec<_>) = found.partition(|(name, ..)| name.starts_with("grad."));
    let mut names: Vec<String> =
        others.into_iter().map(|(name, count, all)| format!("{name} ({count} of {all} values)")).collect();
    if let Some((name, ..)) = grads.first() {
        names.push(format!("the gradients of {} parameters ({name} is the first)", grads.len()));
    }
    if !names.is_empty() {
        let cause =
            "inputs without a label that counts or a token that is seen give NaN; so do weights that are too large";
        terminal::note(&format!("warning: not finite: {}\n  {cause}", names.join(", ")));
    }
}

/// Writes all outputs, and the ids of a batch that was made of a text.
fn write(path: &Path, outputs: &[Output], ids: Option<&Batch>) -> Result<()> {
    let mut entries: Vec<TensorEntry> = outputs.iter().map(|(entry, _)| entry.clone()).collect();
    entries.extend(ids.map(|batch| TensorEntry::new(INPUT_IDS, StoredDtype::I64, [batch.rows, batch.length])));
    let mut writer = SafetensorsWriter::create(path, &entries)?;
    for (entry, values) in outputs {
        writer.write_f32(&entry.name, values)?;
    }
    if let Some(batch) = ids {
        let bytes: Vec<u8> = batch.input_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        writer.write_raw(INPUT_IDS, &bytes)?;
    }
    writer.finish()
}
