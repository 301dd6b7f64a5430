//! The convert program: a model directory of Hugging Face or of ModelCenter, a GGUF file, or a checkpoint of
//! Megatron-LM, DeepSpeed or torch.distributed.checkpoint in; a directory of Hugging Face or ModelCenter out.
//!
//! Every tensor is accounted for before the first is written: what is mapped, what belongs to other heads, what is left
//! out with leave, and what is missing or left over, which is an error. One parameter is in memory at a time. Called by
//! `bmtrain convert`, and by programs of crates with models of their own.

mod report;

use crate::cli::opened::{self, Head, Stored};
use crate::cli::places::model_places;
use crate::cli::{program, terminal};
use bmtrain_core::{DType, Device};
use clap::{Parser, ValueEnum};
use model_center_base::file::{StagedDirectory, printable};
use model_center_base::{Error, Result};
use model_center_formats::config::{ConfigOverrides, ConfigSource};
use model_center_formats::directory::CONFIG_FILE;
use model_center_formats::{
    DirectoryLayout, GgufFile, NotFinite, Pretrained, RankedOptions, TensorSource, Weights, gguf_to_directory,
    is_distributed, is_ranked, ranked_to_directory, shortened,
};
use model_center_models::adapter::{Adapter, AdapterPlan};
use model_center_models::{OpenMode, OpenOptions, OpenedModel, Registry, SaveOptions};
use model_center_recipe::run::ExitStatus;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Tensors that a warning names.
const NAMED: usize = 8;

/// Bring a model into another program's files: from a directory of Hugging Face or of ModelCenter, with safetensors or
/// PyTorch's own files (which are read without being run), from a GGUF file of a decoder, from a checkpoint of
/// Megatron-LM or DeepSpeed with one file for each rank, or from one of torch.distributed.checkpoint (FSDP); to a
/// directory of Hugging Face or of ModelCenter. Reports what became of every tensor.
///
/// Example: bmtrain convert SmolLM2-135M-Instruct-Q4_1.gguf smollm2 --dtype f32
#[derive(Debug, Clone, Parser)]
#[command(name = "convert", version)]
pub struct Options {
    /// A model directory, the name of a model in the local cache, a GGUF file, the directory of a checkpoint or run of
    /// Megatron-LM or DeepSpeed, or the directory of a checkpoint of torch.distributed.checkpoint.
    #[arg(value_name = "MODEL")]
    pub from: String,
    /// The directory to write. It must be empty or not exist yet.
    #[arg(value_name = "DIR")]
    pub to: PathBuf,
    /// Whose files are written.
    #[arg(long, value_enum, default_value = "hugging-face")]
    pub layout: Layout,
    /// Dtype of the weights that are written; by default the one that most of them are stored in. A quantised file has
    /// none, and needs this.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<Stored>,
    /// Branch, tag or commit, for a model in the cache.
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Family of a model whose config.json does not name it, as ModelCenter's do not.
    #[arg(long, value_name = "FAMILY")]
    pub family: Option<String>,
    /// The head that is written; by default the one of the class in config.json.
    #[arg(long, value_enum)]
    pub head: Option<Head>,
    /// Leave out tensors that the model has no use for, by a pattern in which * stands for any text; may be repeated.
    /// Heads for other tasks need none.
    #[arg(long, value_name = "PATTERN")]
    pub leave: Vec<String>,
    /// PEFT directory of an adapter that is merged with the weights that are written. Of LoRA there may be several,
    /// whose updates are added up: repeat the option.
    #[arg(long, value_name = "DIR")]
    pub merge: Vec<PathBuf>,
    /// Factor of the updates of an adapter of LoRA, one for each --merge in their order; by default 1.
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub merge_weight: Vec<f32>,
    /// Attention heads, for a checkpoint of Megatron-LM or DeepSpeed whose files do not tell them.
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Tokens of the vocabulary without padding, for a checkpoint of Megatron-LM or DeepSpeed.
    #[arg(long, value_name = "N")]
    pub vocab_size: Option<usize>,
    /// Directory of config.json and tokenizer of the model that a checkpoint of DeepSpeed or of
    /// torch.distributed.checkpoint is of; of a checkpoint of Megatron-LM, of the tokenizer.
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// Write what became of every tensor to this file, which must not exist yet, or to standard output for -: one JSON
    /// object a line.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Layout of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// config.json, model.safetensors, tokenizer files.
    HuggingFace,
    /// config.json and pytorch_model.pt with ModelCenter's names, for families it has. Not tried in ModelCenter itself.
    ModelCenter,
}

impl Layout {
    /// The option of the library.
    pub fn directory_layout(self) -> DirectoryLayout {
        match self {
            Layout::HuggingFace => DirectoryLayout::HuggingFace,
            Layout::ModelCenter => DirectoryLayout::ModelCenter,
        }
    }
}

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, |options, registry| run(options, registry))
}

/// Run the program.
pub fn run(options: &Options, registry: Registry<'_>) -> Result<ExitStatus> {
    StagedDirectory::require_free(&options.to)?;
    options.report.iter().try_for_each(|report| report::check(report, &options.to))?;
    let path = Path::new(&options.from);
    if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
        if options.layout != Layout::HuggingFace {
            let reason = "a GGUF file is brought into Hugging Face's files only";
            let fix = "leave it out, and convert the directory in a second step";
            return Err(Error::argument("--layout", reason, fix));
        }
        let without_effect = [
            ("--family", options.family.is_some(), "a GGUF file names its family itself"),
            ("--head", options.head.is_some(), "a GGUF file has the head for tokens alone"),
            ("--leave", !options.leave.is_empty(), "every tensor of a GGUF file is needed"),
            ("--merge", !options.merge.is_empty(), "updates are added to a model directory: convert the file first"),
            ("--merge-weight", !options.merge_weight.is_empty(), "it is for --merge, which a GGUF file does not take"),
        ];
        if let Some((option, _, reason)) = without_effect.into_iter().find(|(_, is_given, _)| *is_given) {
            return Err(Error::argument(option, reason, "leave it out"));
        }
        let written = gguf_to_directory(path, &options.to, gguf_dtype(path, options)?)?;
        let lines = report::of_gguf(&written)?;
        say(&format!("{written}\ntensors: {}", report::summary(&lines)), options)?;
        warn_of_narrowed(&lines, options);
        options.report.iter().try_for_each(|to| report::write(&lines, to))?;
        warn_of(&written.not_finite);
        return Ok(ExitStatus::Done);
    }
    if path.is_dir() && is_ranked(path) {
        return of_ranks(path, options);
    }
    // Its parts make a model directory's weights, whose configuration may be elsewhere.
    let is_distributed = path.is_dir() && is_distributed(path);
    let only_of_ranks = [
        ("--heads", options.heads.is_some()),
        ("--vocab-size", options.vocab_size.is_some()),
        ("--config", options.config.is_some() && !is_distributed),
    ];
    if let Some((option, _)) = only_of_ranks.into_iter().find(|(_, is_given)| *is_given) {
        let reason = match option {
            "--config" => "it is for checkpoints of Megatron-LM, DeepSpeed and torch.distributed.checkpoint",
            _ => "it is for checkpoints of Megatron-LM and DeepSpeed",
        };
        return Err(Error::argument(option, reason, "leave it out"));
    }
    let directory = match &options.config {
        Some(_) if options.revision.is_none() => path.to_owned(),
        _ => Pretrained::resolve(&options.from, options.revision.as_deref(), &model_places())?,
    };
    directory_to_directory(&directory, options, registry)?;
    Ok(ExitStatus::Done)
}

/// A checkpoint with one file for each rank.
fn of_ranks(directory: &Path, options: &Options) -> Result<ExitStatus> {
    if options.layout != Layout::HuggingFace {
        let reason = "a checkpoint of ranks is brought into Hugging Face's files only";
        let fix = "leave it out, and convert the directory in a second step";
        return Err(Error::argument("--layout", reason, fix));
    }
    let without_effect = [
        ("--family", options.family.is_some(), "the tensors of the checkpoint tell the family"),
        ("--head", options.head.is_some(), "the heads of the checkpoint are written"),
        ("--leave", !options.leave.is_empty(), "unknown tensors of a checkpoint are an error"),
        ("--revision", options.revision.is_some(), "a directory has no revisions"),
        ("--merge", !options.merge.is_empty(), "updates are added to a model directory: convert the checkpoint first"),
        ("--merge-weight", !options.merge_weight.is_empty(), "it is for --merge, which a checkpoint does not take"),
    ];
    if let Some((option, _, reason)) = without_effect.into_iter().find(|(_, is_given, _)| *is_given) {
        return Err(Error::argument(option, reason, "leave it out"));
    }
    let asked = RankedOptions {
        dtype: options.dtype.map(Stored::dtype),
        heads: options.heads,
        vocabulary: options.vocab_size,
        config: options.config.clone(),
    };
    let written = ranked_to_directory(directory, &options.to, &asked)?;
    let lines = report::of_ranks(&written)?;
    say(&format!("{written}\ntensors: {}", report::summary(&lines)), options)?;
    warn_of_narrowed(&lines, options);
    options.report.iter().try_for_each(|to| report::write(&lines, to))?;
    warn_of(&written.not_finite);
    Ok(ExitStatus::Done)
}

/// The type to write a GGUF file's weights in.
fn gguf_dtype(path: &Path, options: &Options) -> Result<DType> {
    if let Some(dtype) = options.dtype {
        return Ok(dtype.dtype());
    }
    let file = GgufFile::open(path)?;
    let is_quantised = |name: &str| file.stored(name).is_some_and(|stored| !stored.is_plain());
    if let Some(entry) = file.entries().into_iter().find(|entry| is_quantised(&entry.name)) {
        let reason = format!("the weights are quantised ({} among them), and are written as floats", entry.name);
        return Err(Error::argument("--dtype", printable(&reason, 300), "give --dtype bf16, f16 or f32"));
    }
    Ok(model_center_formats::weights::most_stored(file.entries()).unwrap_or(DType::F32))
}

/// Print results, beside a report on standard output as notes.
fn say(text: &str, options: &Options) -> Result<()> {
    if options.report.as_ref().is_some_and(|report| report.as_os_str() == "-") {
        terminal::note(text);
        return Ok(());
    }
    terminal::print(text)
}

fn directory_to_directory(directory: &Path, options: &Options, registry: Registry<'_>) -> Result<()> {
    let device = Device::cpu(1)?;
    let adapter = Adapter::of_directories(&options.merge, &options.merge_weight, "--merge-weight")?;
    // Where the configuration and the tokenizer are.
    let companions = options.config.as_deref().unwrap_or(directory);
    let config = |from: &PathBuf| ConfigSource::open(from, ConfigOverrides::default()).map(Arc::new);
    let asked = OpenOptions {
        mode: OpenMode::Check,
        family: options.family.clone(),
        config: options.config.as_ref().map(config).transpose()?,
        head: opened::head(options.head, (companions, adapter.as_ref()), false)?,
        ignored: options.leave.clone(),
        adapter,
        ..OpenOptions::new(&device)
    };
    let opened = registry.open(directory, &asked).map_err(|error| match error {
        Error::Argument { place, reason, .. } if place.starts_with("adapter.") => {
            Error::argument("--merge", reason, "merge another adapter, or leave it out")
        }
        // The family knows that it has no such head, but not where it was asked for.
        Error::Argument { reason, fix, .. } => Error::argument("--head", reason, fix),
        other => other,
    })?;
    if !opened.initialized.is_empty() {
        let names = printable(&opened.initialized.join(", "), 300);
        let place = directory.display().to_string();
        return Err(Error::model(place, format!("there are no values for {names}"), "use a complete model"));
    }
    let layout = options.layout.directory_layout();
    let weights = Weights::open(directory)?;
    let dtype = options.dtype.map(Stored::dtype).or(weights.dtype()).unwrap_or(DType::F32);
    let save = SaveOptions { dtype, companions: Some(companions), layout };
    opened.model.check_save(&save)?;
    opened.plan.check_twins(&weights)?;
    let staged = StagedDirectory::for_result_anywhere(&options.to, CONFIG_FILE)?;
    let mut not_finite = Vec::new();
    opened.adapter.as_ref().map_or(Ok(()), AdapterPlan::check_merge)?;
    let saved = opened.adapter.as_ref().map(AdapterPlan::saved_values).transpose()?.flatten();
    let mut fill = |name: &str, values: &mut Vec<f32>| {
        if let Some(found) = saved.as_ref().map(|saved| saved.get(name)).transpose()?.flatten() {
            *values = found;
            return Ok(());
        }
        not_finite.extend(opened.plan.read(&weights, name, values)?);
        saved.as_ref().map_or(Ok(false), |saved| saved.change(name, values)).map(drop)
    };
    match &opened.adapter {
        None => opened.model.write(staged.path(), &save, &mut fill)?,
        Some(plan) => opened.model.write(staged.path(), &save, &mut plan.merged(&mut fill))?,
    }
    staged.commit()?;
    opened::remarks_of(&opened).iter().chain(weights.notes()).for_each(|line| terminal::note(line));
    account(&opened, &weights, &save, options)?;
    warn_of(&not_finite);
    Ok(())
}

/// Report what became of every tensor, in short and in the report file.
fn account(opened: &OpenedModel, weights: &Weights, save: &SaveOptions<'_>, options: &Options) -> Result<()> {
    let names = opened.model.names_in(save.layout)?;
    let lines = report::of_directory(opened, weights, &names, &options.to)?;
    let mut said = vec![
        format!(
            "{} parameters of {} values written as {} to {}",
            opened.plan.loaded(),
            opened.parameters,
            save.dtype,
            options.to.display()
        ),
        format!("tensors: {}", report::summary(&lines)),
    ];
    for (what, names) in [
        ("left out:", opened.plan.left()),
        ("left out, of other heads:", opened.plan.unused()),
        ("left out, nothing learned:", &opened.plan.passed_over(weights)),
    ] {
        if !names.is_empty() {
            said.push(format!("  {what} {}", shortened(names)));
        }
    }
    for field in opened.model.left_out(save)? {
        said.push(format!("  config.json has no place for {}", printable(&field, 200)));
    }
    say(&said.join("\n"), options)?;
    warn_of_narrowed(&lines, options);
    options.report.iter().try_for_each(|to| report::write(&lines, to))
}

/// Without a requested dtype, most values' dtype is used; the tensors that lose bits by it are counted.
fn warn_of_narrowed(lines: &[report::Line], options: &Options) {
    if options.dtype.is_none() {
        report::narrowed(lines).iter().for_each(|warning| terminal::note(warning));
    }
}

/// Values that are not finite are part of the model that was given, and are written as they are: a conversion is also a
/// way to look at a damaged model. Programs that run a model refuse them.
fn warn_of(found: &[NotFinite]) {
    for found in found.iter().take(NAMED) {
        let place = format!("{}, tensor {}", found.file, printable(&found.tensor, 200));
        terminal::note(&format!("warning: {found}; written as it is\n  --> {place}"));
    }
    if let Some(further) = found.len().checked_sub(NAMED).filter(|further| *further > 0) {
        terminal::note(&format!("warning: further tensors with values that are not finite: {further}"));
    }
}
