//! The forward program: a Hugging Face directory and a file of inputs in; logits, loss, hidden states and gradients
//! out. The work is in [`model_center_train::inference`].

use crate::cli::{
    device::DeviceArguments,
    opened::{self, Head, ModelSource},
    places::model_places,
    program,
    ranks::{self, ModelRanks, RankModel},
    terminal,
};
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::comm::Communicator;
use bmtrain_core::wrap::Counting;
use bmtrain_dist::Launch;
use bmtrain_dist::launch::{DistributedOptions, ProcessGroup};
use clap::Parser;
use model_center_base::error::ExitStatus;
use model_center_formats::Pretrained;
use model_center_formats::config::TextHead;
use model_center_models::adapter::{Adapter, tokenizer_directory};
use model_center_models::{OpenMode, OpenOptions, Registry, WeightForm};
use model_center_train::inference::{
    ForwardInputs, Gradients, NamedTensor, describe_non_finite, describe_texts, write_outputs,
};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Run a model once on given inputs, dropout off.
///
/// Inputs are tensors (i64) of a safetensors file: `input_ids [B, L]`; `attention_mask`, `token_type_ids [B, L]`;
/// `labels [B]` or `[B, L]`; `next_sentence_label [B]`; `start_positions [B]` and `end_positions [B]`. Labels of a
/// regression are f32, `[B]` or `[B, outputs]`. Labels of language modelling are the input ids; the model shifts them,
/// and labels of token classes are -100 where nothing counts. The decoder of an encoder-decoder reads
/// `decoder_input_ids [B, T]` with `decoder_attention_mask [B, T]`, or the `labels [B, T]` shifted by one. CPM-1 also
/// reads `context [B, L]` and `span [B, L]`. Other names are refused; absent tensors have the defaults of transformers.
///
/// Or they are the rows of a file whose name ends in .jsonl: one object per line with lists under the same names, which
/// are padded. `text` with `text_pair` may replace `input_ids`, and `target` the `labels`: the directory's tokenizer
/// encodes them.
///
/// Outputs (f32): `logits` or, of answer spans, `start_logits` and `end_logits`; `loss`, `hidden.<i>`, `pooler`,
/// `encoder_last_hidden_state`, and with --grads `grad.<name>` for every parameter under its Hugging Face name. For
/// rows of text also their `input_ids` (i64).
///
/// For rows of text, the entities that a head for token classes predicts and the answers of a head for spans are
/// printed.
///
/// Example: bmtrain forward --model DIR --inputs in.jsonl --out out.safetensors --grads
#[derive(Debug, Clone, Parser)]
#[command(name = "forward", version)]
pub struct Options {
    /// Hugging Face directory, or the hub name of a model in its cache (program fetch).
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub model: String,
    /// Files of the model, and its adapter.
    #[command(flatten)]
    pub source: ModelSource,
    /// Quantise the model beside --adapter to NF4, as `adapter.quantize = "nf4"` does in training.
    #[arg(long)]
    pub quantize: bool,
    /// File of inputs.
    #[arg(long, value_name = "FILE")]
    pub inputs: PathBuf,
    /// File to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Also write the gradient of the loss with respect to every parameter; needs labels. Computed in f32, whatever
    /// the weights are stored in, unless --dtype is given.
    #[arg(long)]
    pub grads: bool,
    /// The head; by default the head of the directory's model class.
    #[arg(long, value_enum)]
    pub head: Option<Head>,
    /// Device and dtype of the computation.
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Share the weights (ZeRO-3) among this number of ranks, threads of this process; by default --tensor.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Of the ranks, this number share each layer: each has some of its heads, columns and tokens.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tensor: usize,
    /// Divide the blocks into this number of pipeline stages of --tensor ranks each; the other --ranks then have the
    /// weights of their stage. The outputs are without hidden states.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "grads")]
    pub pipeline: usize,
}

impl Options {
    fn model_ranks(&self) -> ModelRanks {
        ModelRanks { tensor: self.tensor, pipeline: self.pipeline }
    }
}

/// The program: what a binary's `main` calls, with the families of its registry.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// A directory or inputs that cannot be used, ranks that do not divide the model, a file that cannot be written.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let launch = match (options.ranks, options.tensor, options.pipeline) {
        // One rank takes no notice of a launcher around it.
        (None, 1, 1) => Launch::detect(None, &|_| None)?,
        (ranks, ..) => ranks::launch(ranks, options.model_ranks())?,
    };
    let threads = options.device.threads()?;
    let (model, adapter) = opened::adapted(&options.model, &options.source)?;
    let directory = Pretrained::resolve(&model, options.source.revision.as_deref(), &model_places())?;
    let texts = tokenizer_directory(adapter.as_ref(), &directory)?;
    let mut inputs = ForwardInputs::open(&options.inputs, texts)?;
    if options.grads && inputs.batch.labels.is_none() {
        let reason = "--grads needs a loss, and there are no labels";
        let place = options.inputs.display().to_string();
        return Err(Error::data(place, reason, "add labels to the inputs, or leave --grads out"));
    }
    if options.quantize && adapter.is_none() {
        let reason = "it is for a model with an adapter, and there is none";
        return Err(Error::argument("--quantize", reason, "give --adapter DIR, or leave it out"));
    }
    if options.grads && launch.world != options.tensor {
        let reason = "gradients are computed by one copy of the model, and these ranks share several";
        return Err(Error::argument("--ranks", reason, "leave it out, or give the number of --tensor"));
    }
    let head = opened::head(options.head, (&directory, adapter.as_ref()), inputs.batch.next_sentence.is_some())?;
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let sketch = OpenOptions { mode: OpenMode::Check, ..open_options(options, (head, adapter.as_ref()), &nowhere) };
    let sketch = registry.open(&directory, &sketch).map_err(of_command_line)?;
    ranks::check(launch.world, options.model_ranks(), sketch.model.parameters())?;
    inputs.check(sketch.model.info())?;
    opened::remarks_of(&sketch).iter().for_each(|line| terminal::note(line));
    let distributed = DistributedOptions { ranks: options.ranks, ..DistributedOptions::default() };
    let group = ProcessGroup::join(launch, distributed)?;
    let pass = Arc::new(Pass { options: options.clone(), registry, directory, inputs, head, adapter, group, threads });
    let of_rank = {
        let pass = Arc::clone(&pass);
        move |ranks| pass.rank(ranks)
    };
    pass.group.run(of_rank)
}

/// Options to open the model with.
fn open_options(
    options: &Options,
    (head, adapter): (Option<TextHead>, Option<&Adapter>),
    device: &Device,
) -> OpenOptions {
    let weights = if options.quantize { WeightForm::Nf4 } else { WeightForm::Dequantised };
    let open = OpenOptions { head, weights, ..OpenOptions::new(device) };
    let open = options.device.open_options(&options.source, adapter, open);
    // Gradients in 16 bits are too coarse for a comparison: f32 unless --dtype is given.
    OpenOptions { keep_dtype: open.keep_dtype && !options.grads, ..open }
}

/// Error of the family as one of --head, which asked for it.
fn of_command_line(error: Error) -> Error {
    match error {
        Error::Argument { reason, fix, .. } | Error::Recipe { reason, fix, .. } => {
            Error::argument("--head", reason, fix)
        }
        other => other,
    }
}

/// State that the ranks share.
struct Pass {
    options: Options,
    registry: Registry<'static>,
    directory: PathBuf,
    inputs: ForwardInputs,
    head: Option<TextHead>,
    adapter: Option<Adapter>,
    group: ProcessGroup,
    threads: usize,
}

impl Pass {
    /// One rank's part. All ranks compute the same outputs, which the first one writes.
    fn rank(&self, ranks: Arc<dyn Communicator>) -> Result<ExitStatus> {
        let Pass { options, registry, directory, inputs, head, adapter, group, threads } = self;
        let is_first = ranks.rank() == 0;
        let RankModel { device, opened, pipeline, .. } = RankModel::open(
            (group, ranks),
            (options.device.device, *threads),
            options.model_ranks(),
            |device| open_options(options, (*head, adapter.as_ref()), device),
            |open| registry.open(directory, open).map_err(of_command_line),
        )?;
        for name in opened.initialized.iter().filter(|_| is_first) {
            terminal::note(&format!("warning: {name} is not in the directory and is initialized at random"));
        }
        let outputs = match &pipeline {
            Some(pipeline) => inputs.forward_stages(&*opened.model, pipeline)?,
            None => {
                let grads = match (options.grads, &opened.adapter) {
                    (false, _) => Gradients::None,
                    (true, None) => Gradients::Model,
                    (true, Some(plan)) => Gradients::Adapter(plan),
                };
                inputs.forward(&*opened.model, grads, &device)?
            }
        };
        if is_first {
            self.write(&outputs, &opened.model.info().label_names)?;
        }
        Ok(ExitStatus::Done)
    }

    fn write(&self, outputs: &[NamedTensor], names: &[String]) -> Result<()> {
        let batch = self.inputs.tokenizer.is_some().then_some(&self.inputs.batch);
        write_outputs(&self.options.out, outputs, batch)?;
        if let Some(names) = describe_non_finite(outputs) {
            let cause = "inputs without a counted label or a visible token give NaN; so do too large weights";
            terminal::note(&format!("warning: not finite: {names}\n  {cause}"));
        }
        let results = outputs.iter().filter(|output| !output.is_grad()).map(|output| &output.entry);
        let mut lines: Vec<String> = results.map(|entry| format!("{} {:?}", entry.name, entry.shape)).collect();
        lines.extend(describe_texts(&self.inputs, outputs, names)?);
        terminal::print(&lines.join("\n"))
    }
}
