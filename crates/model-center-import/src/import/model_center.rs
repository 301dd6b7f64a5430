//! Commands of ModelCenter's examples as recipes.
//!
//! Defines [`model_center`].

use super::ImportOptions;
use super::flags::{Flag, Flags, read, unused};
use super::ranks::ranks_of;
use super::sheet::{NoteKind, Sheet};
use super::shell::Command;
use crate::{Error, Result};
use model_center_data::{PROMPTS, SUPERGLUE};
use model_center_formats::pretrained::aliases::{family_of, unavailable_family};
use model_center_recipe::key;

pub(super) const MODEL_CENTER: &[Flag] = &[
    read("--model-config"),
    read("--base-path"),
    read("--dataset-name"),
    read("--load"),
    read("--save"),
    read("--save-name"),
    read("--save-iters"),
    read("--inspect-iters"),
    read("--batch-size"),
    read("--clip-grad"),
    read("--train-iters"),
    read("--max-length"),
    read("--max-encoder-length"),
    read("--max-decoder-length"),
    unused("--start-step", "a resumed run knows its step"),
    read("--seed"),
    read("--epochs"),
    read("--lr"),
    read("--weight-decay"),
    read("--loss-scale"),
    read("--warmup-iters"),
    read("--lr-decay-iters"),
    read("--lr-decay-style"),
    unused("--local-rank", "the launcher's variables tell each rank its place"),
];

/// Epochs that a program runs whatever its flags.
fn epochs_of(family: &str) -> u64 {
    match family {
        "bert" | "roberta" => 12,
        "cpm1" | "cpm2" => 5,
        _ => 20,
    }
}

/// A recipe from a command of one of ModelCenter's programs.
///
/// # Errors
/// [`Error::Argument`] for a text without a command, an unknown flag, and a task or family that is not available.
pub fn model_center(text: &str, options: &ImportOptions) -> Result<Sheet> {
    let command = Command::parse(text)?;
    if command.arguments.is_empty() {
        let fix = "give the command line of finetune_bert.py or its like, or the flags alone";
        return Err(Error::argument("the command", "there is no flag in it", fix));
    }
    let flags = Flags::parse(&command.arguments, MODEL_CENTER, &options.leave)?;
    let program = command.program.as_deref().unwrap_or("finetune.py");
    let mut sheet = Sheet::new(format!("ModelCenter, {program}"));
    if program.starts_with("pretrain") {
        let reason = "ModelCenter's pretraining programs read data of their own, which are not read here";
        let fix = "build a corpus with `bmtrain corpus build`, and write a recipe with data.task = \"pretrain\"";
        return Err(Error::argument(program, reason, fix));
    }
    let family = model(&flags, program, &mut sheet)?;
    data(&flags, program, family, &mut sheet)?;
    train(&flags, family, &mut sheet)?;
    files(&flags, &mut sheet)?;
    sheet.whole(key!(parallel.zero), 3, "BMTrain shards parameters, gradients and optimizer state");
    sheet.ranks = options.ranks.or_else(|| ranks_of(&command));
    flags.account(MODEL_CENTER, &options.leave, &mut sheet)?;
    sheet.apply(&options.sets)?;
    sheet.check(program)?;
    Ok(sheet)
}

fn model(flags: &Flags, program: &str, sheet: &mut Sheet) -> Result<&'static str> {
    let Some(name) = flags.text("--model-config")? else {
        return Err(Error::argument("--model-config", "there is no model", "give --model-config bert-large-cased"));
    };
    let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
    let of_program = ["roberta", "bert", "gptj", "gpt2", "llama", "t5", "cpm1", "cpm2"];
    let family =
        family_of(last).or_else(|| of_program.into_iter().find(|family| program.contains(family))).unwrap_or("bert");
    if unavailable_family(last).is_some() {
        let reason = format!("the family {family} is not available");
        return Err(Error::argument("--model-config", reason, "choose a model of another family"));
    }
    sheet.text(key!(model.path), name, flags.shown("--model-config"));
    sheet.text(key!(model.dtype), "f16", "ModelCenter's parameters are f16");
    let scale = flags.number("--loss-scale", 65536.0)?;
    sheet.text(key!(train.loss_scale), "bmtrain", "BMTrain's rule");
    sheet.power(key!(train.loss_scale_start), scale.value, "--loss-scale", scale.from)?;
    let every = if ["bert", "roberta", "cpm1", "cpm2", "gptj"].contains(&family) { 1024 } else { 100 };
    sheet.whole(key!(train.loss_scale_window), every, "steps until the scale grows, as the program sets them");
    Ok(family)
}

fn data(flags: &Flags, program: &str, family: &str, sheet: &mut Sheet) -> Result<()> {
    let task = match flags.text("--dataset-name")? {
        Some(task) => task,
        None if program.contains("squad") => "SQuAD",
        None => {
            return Err(Error::argument("--dataset_name", "there is no data set", "give --dataset_name BoolQ"));
        }
    };
    let known = SUPERGLUE.iter().map(|entry| entry.name).chain(PROMPTS.iter().map(|entry| entry.name));
    let known: Vec<&str> = known.chain(["SQuAD"]).collect();
    let Some(task) = known.iter().find(|known| known.eq_ignore_ascii_case(task)) else {
        let reason = format!("the data set {task} is not available");
        let fix = format!("choose one of {}", known.join(", "));
        return Err(Error::argument("--dataset_name", reason, fix));
    };
    let from = match flags.is_given("--dataset-name") {
        true => flags.shown("--dataset-name"),
        false => program.to_owned(),
    };
    sheet.text(key!(data.task), task, from);
    let is_encoder = ["bert", "roberta"].contains(&family);
    if SUPERGLUE.iter().any(|entry| entry.name == *task) && *task != "SQuAD" && !is_encoder {
        sheet.text(key!(data.objective), "verbalizer", "its decoders and T5 learn the token of a label");
    }
    let base = flags.text("--base-path")?.unwrap_or(".");
    let directory = match *task {
        "LCQMC" => format!("{base}/down_data"),
        "SQuAD" => format!("{base}/down_data/squad"),
        _ => format!("{base}/down_data/superglue"),
    };
    sheet.text(key!(data.path), &directory, format!("{}: where its scripts keep the data", flags.shown("--base-path")));
    let names = ["--max-encoder-length", "--max-length"];
    let name = names.into_iter().find(|name| flags.is_given(name)).unwrap_or("--max-encoder-length");
    let length = flags.whole(name, 512)?;
    sheet.whole(key!(data.max_length), length.value, length.from);
    let target = flags.maybe_whole("--max-decoder-length")?;
    match target {
        Some(found) if *task == "SQuAD" => sheet.whole(key!(data.target_length), found.value, found.from),
        Some(found) => sheet.note(NoteKind::Unused, found.from, "the target is the token of a label"),
        None => {}
    }
    Ok(())
}

fn train(flags: &Flags, family: &str, sheet: &mut Sheet) -> Result<()> {
    sheet.text(key!(data.last_batch), "keep", "its loader keeps the last batch of an epoch");
    let epochs = epochs_of(family);
    sheet.whole(key!(train.epochs), epochs, format!("its program of {family} runs this number of epochs"));
    if let Some(found) = flags.maybe_whole("--epochs")? {
        sheet.note(NoteKind::Unused, found.from, format!("the program runs {epochs} epochs whatever it is"));
    }
    let steps = flags.whole("--train-iters", 1_000_000)?;
    let batch = flags.whole("--batch-size", 32)?;
    sheet.whole(key!(train.batch_size), batch.value, batch.from);
    let lr = flags.number("--lr", 1e-4)?;
    sheet.number(key!(train.lr), lr.value, lr.from);
    let given = flags.text_or("--lr-decay-style", "noam")?;
    let style = given.value;
    if !["constant", "linear", "cosine", "exponential", "noam"].contains(&style) {
        let reason = format!("the schedule {style} has no counterpart");
        let fix = "constant, linear, cosine, exponential or noam";
        return Err(Error::argument("--lr-decay-style", reason, fix));
    }
    sheet.text(key!(train.schedule), style, given.from);
    let end = flags.maybe_whole("--lr-decay-iters")?;
    match ["linear", "cosine"].contains(&style) {
        true => {
            let why = "the schedule here ends with the run, after its epochs";
            let what = end.map_or(steps.from, |found| found.from);
            sheet.note(NoteKind::Differs, what, why);
        }
        false => {
            let why = format!("it tells the schedule its length, and {style} has none");
            sheet.note(NoteKind::Unused, steps.from, why.clone());
            if let Some(found) = end {
                sheet.note(NoteKind::Unused, found.from, why);
            }
        }
    }
    // Its help calls the value a fraction, and its programs count iterations.
    let warmup = flags.number("--warmup-iters", 0.01)?;
    match warmup.value.max(0.0) as u64 {
        0 if style == "noam" => {
            // Its formula begins with the learning rate itself after a warm-up of no step as of one.
            sheet.whole(key!(train.warmup), 1, format!("{}: no step, which is as one step here", warmup.from));
        }
        steps => sheet.whole(key!(train.warmup), steps, warmup.from),
    }
    let decay = flags.number("--weight-decay", 0.01)?;
    sheet.number(key!(train.weight_decay), decay.value, decay.from);
    sheet.flag(key!(train.decay_norms_and_biases), true, "its programs decay all parameters");
    let clip = flags.number("--clip-grad", 1.0)?;
    sheet.clip(clip.value, clip.from);
    let seed = flags.whole("--seed", 1234)?;
    sheet.whole(key!(train.seed), seed.value, seed.from);
    sheet.flag(key!(train.offload), true, "its programs use AdamOffloadOptimizer");
    sheet.text(key!(train.recompute), "blocks", "BMTrain recomputes every block");
    sheet.text(key!(eval.every), "1 epoch", "its programs evaluate after each epoch");
    Ok(())
}

fn files(flags: &Flags, sheet: &mut Sheet) -> Result<()> {
    let save = flags.text("--save")?;
    let name = flags.text("--save-name")?;
    let (path, from) = match (save, name) {
        (Some(save), Some(name)) => {
            (format!("{}/{name}", save.trim_end_matches('/')), format!("--save {save} --save-name {name}"))
        }
        (Some(save), None) => (save.to_owned(), format!("--save {save}")),
        (None, Some(name)) => (format!("runs/{name}"), format!("--save-name {name}")),
        (None, None) => ("runs/imported".to_owned(), "no --save".to_owned()),
    };
    sheet.text(key!(output.dir), &path, from);
    if let Some(found) = flags.maybe_whole("--save-iters")? {
        sheet.note(
            NoteKind::Unused,
            found.from,
            "its fine-tuning programs do not read it; checkpoint.every does it here",
        );
    }
    if let Some(found) = flags.maybe_whole("--inspect-iters")? {
        let why = format!(
            "its fine-tuning programs do not read it; train.inspect_every = {} prints such statistics",
            found.value.max(1)
        );
        sheet.note(NoteKind::Unused, found.from, why);
    }
    if let Some(load) = flags.text("--load")? {
        let why = format!(
            "`bmtrain convert` makes a directory of {load} and its config.json: model.path = that \
                           directory"
        );
        sheet.note(NoteKind::Differs, flags.shown("--load"), why);
    }
    Ok(())
}
