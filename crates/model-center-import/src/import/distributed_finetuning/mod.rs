//! Commands of IBM's "Distributed finetuning": its training as a recipe, its generation and its export as commands.
//!
//! Defines [`distributed_finetuning`]: `flags` has the list of its flags, `data` the data sets of its training, and
//! `commands` what becomes of its generation and export. All flags are in `docs/from-distributed-finetuning.md`.

mod commands;
mod data;
mod flags;

pub(super) use flags::FLAGS;

use super::flags::Flags;
use super::ranks::ranks_of;
use super::sheet::{Commands, NoteKind, Sheet, Translated};
use super::shell::Command;
use super::{ImportOptions, batch::BatchParts};
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_recipe::key;

/// Its programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Train,
    Generate,
    Export,
}

/// A recipe from a command of its training, or the commands here that do what its generation or export does.
///
/// # Errors
/// [`Error::Argument`] for a text without a command, unknown and missing flags, lists of different lengths, and what
/// contradicts itself there as well.
pub fn distributed_finetuning(text: &str, options: &ImportOptions) -> Result<Translated> {
    let command = Command::parse(text)?;
    if command.arguments.is_empty() {
        let fix = "give the command line of src.train, src.generate or src.ds_to_hf, or the flags alone";
        return Err(Error::argument("the command", "there is no flag in it", fix));
    }
    let flags = Flags::parse(&command.arguments, FLAGS, &options.leave)?;
    let program = program(&command, &flags);
    let name = match program {
        Program::Train => "src.train",
        Program::Generate => "src.generate",
        Program::Export => "src.ds_to_hf",
    };
    let mut sheet = Sheet::new(format!("Distributed finetuning, {name}"));
    sheet.ranks = options.ranks.or_else(|| ranks_of(&command));
    let lines = match program {
        Program::Train => {
            train(&flags, options, &mut sheet)?;
            Vec::new()
        }
        Program::Generate => commands::generate(&flags, &mut sheet)?,
        Program::Export => commands::export(&flags)?,
    };
    flags.account(FLAGS, &options.leave, &mut sheet)?;
    if program == Program::Train {
        sheet.apply(&options.sets)?;
        return Ok(Translated::Recipe(sheet));
    }
    if !options.sets.is_empty() {
        return Err(Error::argument("--set", "this command makes no recipe", "remove it"));
    }
    Ok(Translated::Commands(Commands::of(sheet, lines)))
}

/// Program that a command starts: by its name, or by flags that it alone has.
fn program(command: &Command, flags: &Flags) -> Program {
    let name = command.program.as_deref().unwrap_or_default();
    let is = |part: &str| name.split(['.', '/']).any(|word| word == part);
    let has = |name| flags.has(name);
    if is("generate") || (!is("train") && (has("--output-file") || has("--batch-size"))) {
        Program::Generate
    } else if is("ds_to_hf") || (!is("train") && has("--load-path") && has("--save-path")) {
        Program::Export
    } else {
        Program::Train
    }
}

fn required<'f>(flags: &'f Flags, name: &'static str) -> Result<&'f str> {
    let fix = format!("give {name}, which its program requires too");
    flags.text(name)?.ok_or_else(|| Error::argument(name, "it is missing", fix))
}

/// One of a few names.
fn choice<'n>(flags: &Flags, name: &'static str, names: &[&'n str]) -> Result<Option<&'n str>> {
    let Some(text) = flags.text(name)? else { return Ok(None) };
    let found = names.iter().find(|known| **known == text);
    let reason = format!("\"{}\" is none of {}", printable(text, 60), names.join(", "));
    found.map(|name| Some(*name)).ok_or_else(|| Error::argument(name, reason, format!("write {}", names.join(" or "))))
}

fn train(flags: &Flags, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    sheet.text(key!(model.path), required(flags, "--model-name")?, flags.shown("--model-name"));
    let is_seq2seq = is_seq2seq(flags, sheet)?;
    method(flags, is_seq2seq, sheet)?;
    if let Some(dtype) = dtype(flags)? {
        sheet.text(key!(model.dtype), dtype, flags.shown("--dtype"));
        if dtype == "f16" {
            sheet.text(key!(train.loss_scale), "deepspeed", "DeepSpeed's dynamic loss scale");
        }
    }
    data::translate(flags, is_seq2seq, options, sheet)?;
    steps(flags, sheet)?;
    optimizer(flags, sheet)?;
    layout(flags, sheet)?;
    let save = required(flags, "--save-path")?;
    sheet.text(key!(output.dir), save, flags.shown("--save-path"));
    if flags.has("--load-path") {
        let why = "training begins with --model_name; `bmtrain finetune --init-from` begins with a checkpoint";
        sheet.note(NoteKind::Unused, flags.shown("--load-path"), why);
    }
    if let Some(name) = flags.text("--experiment-name")? {
        sheet.text(key!(run.name), name, flags.shown("--experiment-name"));
    }
    if let Some(every) = flags.maybe_whole("--steps-per-print")? {
        sheet.whole(key!(log.every), every.value.max(1), every.from);
    }
    let seed = flags.whole("--seed", 42)?;
    sheet.whole(key!(train.seed), seed.value, seed.from);
    let why = "decoders have BOS where their tokenizer adds one; there, only EOS is added";
    sheet.note(NoteKind::Differs, "special tokens", why);
    Ok(())
}

/// Its dtypes, by their names here.
fn dtype(flags: &Flags) -> Result<Option<&'static str>> {
    let dtype = choice(flags, "--dtype", &["float32", "float16", "bfloat16"])?;
    Ok(dtype.map(|dtype| match dtype {
        "float16" => "f16",
        "bfloat16" => "bf16",
        _ => "f32",
    }))
}

/// Whether the class is an encoder-decoder's.
fn is_seq2seq(flags: &Flags, sheet: &mut Sheet) -> Result<bool> {
    let classes = ["AutoModelForCausalLM", "AutoModelForSeq2SeqLM"];
    let class = choice(flags, "--model-class", &classes)?;
    if class.is_some() {
        let why = "config.json of the model states its family, and with it the class";
        sheet.note(NoteKind::Unused, flags.shown("--model-class"), why);
    }
    Ok(class == Some(classes[1]))
}

/// Whole models or prompt tuning, and what contradicts itself in its own program.
fn method(flags: &Flags, is_seq2seq: bool, sheet: &mut Sheet) -> Result<()> {
    let kind = choice(flags, "--training-inference-type", &["full_finetuning", "prompt_tuning"])?;
    let of_prompts = ["--prompt-tuning-init", "--prompt-tuning-init-text", "--num-virtual-tokens"];
    if kind != Some("prompt_tuning") {
        if let Some(name) = of_prompts.into_iter().find(|name| flags.has(name)) {
            let fix = "remove it, or set --training_inference_type prompt_tuning";
            return Err(Error::argument(name, "it is for prompt tuning", fix));
        }
        if kind.is_some() {
            let why = "adapter.method = \"none\" is the default";
            sheet.note(NoteKind::Unused, flags.shown("--training-inference-type"), why);
        }
        return Ok(());
    }
    sheet.text(key!(adapter.method), "prompt", flags.shown("--training-inference-type"));
    required(flags, "--num-virtual-tokens")?;
    let tokens = flags.whole("--num-virtual-tokens", 0)?;
    sheet.whole(key!(adapter.virtual_tokens), tokens.value, tokens.from);
    let text = flags.text("--prompt-tuning-init-text")?;
    match (choice(flags, "--prompt-tuning-init", &["RANDOM", "TEXT"])?, text) {
        (Some("TEXT"), Some(text)) => {
            let from = format!("--prompt-tuning-init TEXT, {}", flags.shown("--prompt-tuning-init-text"));
            sheet.text(key!(adapter.prompt_text), text, from);
        }
        (Some("TEXT"), None) => {
            let name = "--prompt-tuning-init-text";
            return Err(Error::argument(name, "it is missing", "give the text, or --prompt_tuning_init RANDOM"));
        }
        (_, Some(_)) => {
            let fix = "remove the text, or set --prompt_tuning_init TEXT";
            return Err(Error::argument("--prompt-tuning-init-text", "RANDOM takes no text", fix));
        }
        (init, None) => {
            let what =
                if init.is_some() { flags.shown("--prompt-tuning-init") } else { "no --prompt-tuning-init".into() };
            sheet.note(NoteKind::Unused, what, "without adapter.prompt_text embeddings begin at random");
        }
    }
    if is_seq2seq {
        sheet.text("adapter.prompt_stacks", "both", "its PEFT put virtual tokens before encoder and decoder");
    }
    Ok(())
}

/// Steps: its loop counts micro-batches, and its schedule optimizer steps.
fn steps(flags: &Flags, sheet: &mut Sheet) -> Result<()> {
    for name in ["--num-training-steps", "--eval-and-save-interval", "--batch-size-per-gpu", "--lr-schedule"] {
        required(flags, name)?;
    }
    let accumulation = flags.whole("--gradient-accumulation-steps", 1)?;
    let of_step = accumulation.value.max(1);
    let all = flags.whole("--num-training-steps", 0)?;
    let every = flags.whole("--eval-and-save-interval", 0)?;
    let micro = flags.whole("--batch-size-per-gpu", 0)?;
    let per_step = |from: &str| match of_step {
        1 => from.to_owned(),
        _ => format!("{from}, micro-batches there; a step has {of_step}"),
    };
    let steps = all.value.div_ceil(of_step).max(1);
    sheet.whole(key!(train.steps), steps, per_step(&all.from));
    if of_step > 1 {
        let why = "its schedule is made for the number of micro-batches, and ends early";
        sheet.whole(key!(train.decay_steps), all.value, why);
    }
    let interval = format!("{} steps", (every.value / of_step).max(1));
    if !flags.has("--no-eval") {
        sheet.text(key!(eval.every), &interval, per_step(&every.from));
    }
    sheet.text(key!(checkpoint.every), &interval, per_step(&every.from));
    let schedule = choice(flags, "--lr-schedule", &["linear", "cosine"])?.unwrap_or("linear");
    sheet.text(key!(train.schedule), schedule, flags.shown("--lr-schedule"));
    let warmup = flags.whole("--warmup-steps", 200)?;
    let end = if of_step > 1 { all.value } else { steps };
    if warmup.value >= end.max(1) {
        let why = "the warm-up ends before the run; there the learning rate never reaches its peak";
        sheet.note(NoteKind::Differs, warmup.from.clone(), why);
    }
    sheet.whole(key!(train.warmup), warmup.value.min(end.saturating_sub(1)), warmup.from);
    let parts = BatchParts {
        batch: None,
        micro: Some((micro.value, micro.from)),
        accumulation: Some((accumulation.value, accumulation.from)),
        ranks: sheet.ranks,
        model_ranks: 1,
    };
    parts.write(sheet)
}

fn optimizer(flags: &Flags, sheet: &mut Sheet) -> Result<()> {
    let lr = flags.number("--learning-rate", 1e-5)?;
    sheet.number(key!(train.lr), lr.value, lr.from);
    let decay = flags.number("--weight-decay", 0.1)?;
    sheet.number(key!(train.weight_decay), decay.value, decay.from);
    sheet.flag(key!(train.decay_norms_and_biases), true, "it decays all parameters, norms and biases among them");
    let (one, two) = (flags.number("--beta1", 0.9)?, flags.number("--beta2", 0.95)?);
    sheet.betas(one, two);
    let eps = flags.number("--eps", 1e-8)?;
    sheet.number(key!(train.eps), eps.value, eps.from);
    sheet.text(key!(train.clip_kind), "none", "it clips no gradients; train.clip_norm = 1.0 is safer");
    Ok(())
}

fn layout(flags: &Flags, sheet: &mut Sheet) -> Result<()> {
    let stage = flags.whole("--stage", 3)?;
    if stage.value > 3 {
        return Err(Error::argument("--stage", format!("stage {} is none of 0 to 3", stage.value), "write --stage 3"));
    }
    sheet.whole(key!(parallel.zero), stage.value, stage.from);
    if flags.is_given("--cpu-offload") {
        sheet.flag(key!(train.offload), true, "--cpu-offload");
        if stage.value == 3 {
            sheet.flag(key!(train.offload_parameters), true, "--cpu-offload with --stage 3");
        }
    }
    Ok(())
}
