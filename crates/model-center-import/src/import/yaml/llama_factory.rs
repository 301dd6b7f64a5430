//! A configuration of LLaMA-Factory as a recipe.
//!
//! Defines [`llama_factory`].

use super::llama_factory_keys::KEYS;
use super::pairs::{self, Samples, pass_over_single};
use super::sets::{self, Fields};
use super::settings::Settings;
use super::trainer::{self, FoundData, Trainer};
use super::{lora, only, resumed};
use crate::Result;
use crate::import::ImportOptions;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_base::file::printable;
use model_center_recipe::{key, quote};
use serde_json::Value;

const TRAINER: Trainer = Trainer {
    micro_batch: "per_device_train_batch_size",
    eval_batch: "per_device_eval_batch_size",
    epochs: "num_train_epochs",
    schedule: "lr_scheduler_type",
    optimizer: "optim",
    split: "val_size",
    default_micro_batch: 8,
    default_epochs: 3.0,
    default_lr: Some(5e-5),
    default_schedule: "linear",
    default_warmup: None,
    floors_warmup: false,
    default_checkpoint: ("save_steps, default 500", "500 steps"),
    saves_last: true,
};
const LORA: lora::Names = lora::Names {
    path: "adapter_name_or_path",
    rank: "lora_rank",
    rank_stabilized: "use_rslora",
    dora: "use_dora",
    modules: "additional_target",
    targets: &["lora_target"],
};
const FREEZE: [&str; 3] = ["freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"];
/// The keys of a model that is held in fewer bits.
const QUANTIZATION: [&str; 3] = ["quantization_method", "quantization_type", "double_quantization"];

/// A recipe from the text of a configuration; `place` names it in errors.
///
/// # Errors
/// [`Error::Model`](crate::Error::Model) for a text that is not YAML, [`Error::Argument`](crate::Error::Argument) for
/// unknown and refused keys and values.
pub fn llama_factory(text: &str, place: &str, options: &ImportOptions) -> Result<Sheet> {
    let s = Settings::read(text, place, KEYS)?;
    let mut sheet = Sheet::new(format!("LLaMA-Factory, {}", printable(place, 200)));
    let Some(model) = s.text("model_name_or_path")? else {
        return s.refuse("model_name_or_path", "there is no model", "write model_name_or_path: ORG/NAME");
    };
    sheet.text(key!(model.path), model, s.shown("model_name_or_path"));
    if let Some(revision) = s.text("model_revision")?.filter(|revision| *revision != "main") {
        sheet.text("model.revision", revision, s.shown("model_revision"));
    }
    let has_adapter = s.text_or("finetuning_type", "lora")?.value == "lora";
    resumed::translate(&s, "model_name_or_path", has_adapter, &mut sheet)?;
    let (samples, is_text) = stage(&s, model, &mut sheet)?;
    method(&s, options, &mut sheet)?;
    let has_eval = data(&s, (samples, is_text), &mut sheet)?;
    trainer::translate(&s, &TRAINER, (options, FoundData { has_eval, samples }), &mut sheet)?;
    // Blocks are recomputed unless that is switched off.
    let is_on = match s.get("gradient_checkpointing") {
        Some(Value::Bool(flag)) => *flag,
        _ => true,
    };
    if is_on && !s.flag("disable_gradient_checkpointing")? {
        sheet.text(key!(train.recompute), "blocks", "gradient checkpointing, on by default");
    }
    match s.text("output_dir")? {
        Some(output) => sheet.text(key!(output.dir), output, s.shown("output_dir")),
        None => sheet.text(key!(output.dir), "runs/imported", "no output_dir"),
    }
    s.finish(options, sheet)
}

/// Kind of samples, and whether they are whole texts.
fn stage(s: &Settings<'_>, model: &str, sheet: &mut Sheet) -> Result<(Samples, bool)> {
    let stage = s.text_or("stage", "sft")?;
    let samples = match stage.value {
        "sft" | "pt" => Samples::Single,
        "rm" => Samples::Rewards,
        "dpo" => match s.text_or("pref_loss", "sigmoid")?.value {
            "sigmoid" => Samples::Pairs("dpo"),
            "ipo" => Samples::Pairs("ipo"),
            "simpo" => Samples::Pairs("simpo"),
            "orpo" => Samples::Pairs("orpo"),
            other => {
                let reason = format!("the loss {}: {}", printable(other, 30), super::PREFERENCES);
                return s.refuse("pref_loss", reason, "write pref_loss: sigmoid, ipo, simpo or orpo");
            }
        },
        "kto" => return s.refuse("stage", super::KTO, super::KTO_FIX),
        other => {
            let reason = format!("stage {}: {}", printable(other, 30), super::PREFERENCES);
            return s.refuse("stage", reason, "write stage: sft, pt, dpo or rm");
        }
    };
    sheet.text(key!(data.task), samples.task(), stage.from);
    if let Samples::Pairs(loss) = samples {
        pairs::translate(s, (loss, s.text_or("pref_loss", "sigmoid")?.from), "pref_beta", sheet)?;
        if s.number("pref_ftx")?.is_some_and(|share| share != 0.0) {
            return s.refuse("pref_ftx", "the plain loss of chosen completions is not added", "write pref_ftx: 0");
        }
        if s.text("ref_model")?.is_some_and(|reference| reference != model) {
            let reason = "the reference is the model that training begins with";
            return s.refuse("ref_model", reason, "remove it, or begin with that model");
        }
    }
    Ok((samples, stage.value == "pt"))
}

fn method(s: &Settings<'_>, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    let kind = s.text_or("finetuning_type", "lora")?;
    let bits = s.whole("quantization_bit")?;
    if bits.is_some() && kind.value != "lora" {
        return s.refuse("quantization_bit", super::NEEDS_UPDATES, "write finetuning_type: lora");
    }
    if kind.value != "freeze" {
        s.pass_over(&FREEZE, "they are for finetuning_type: freeze", sheet);
    }
    match kind.value {
        "full" => {
            LORA.pass_over(s, sheet);
            sheet.note(NoteKind::Unused, kind.from, "the whole model is trained without [adapter]");
            return Ok(());
        }
        "freeze" => {
            LORA.pass_over(s, sheet);
            return freeze(s, kind.from, options, sheet);
        }
        "lora" => {}
        other => {
            let reason = format!("finetuning_type {} is not translated", printable(other, 30));
            return s.refuse("finetuning_type", reason, "write lora, freeze or full");
        }
    }
    quantized(s, bits, sheet)?;
    if !lora::translate(s, (&LORA, kind.from), (|rank| 2.0 * rank as f64, "2 * lora_rank"), sheet)? {
        return Ok(());
    }
    let targets = s.texts("lora_target")?.unwrap_or_else(|| vec!["all".to_owned()]);
    lora::check_modules(s, "lora_target", &targets)?;
    let from = if s.has("lora_target") { s.shown("lora_target") } else { "lora_target, default all".to_owned() };
    match targets.iter().any(|target| target == "all") {
        true => sheet.list(key!(adapter.targets), &["all-linear".to_owned()], from),
        false => sheet.list(key!(adapter.targets), &targets, from),
    }
    Ok(())
}

/// Some blocks of a model: the first ones by their numbers, others by `--set`.
fn freeze(s: &Settings<'_>, from: String, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    let layers = s.number_or(FREEZE[0], 2.0)?;
    let modules = s.texts(FREEZE[1])?;
    let are_whole = modules.is_none_or(|modules| modules.iter().any(|module| module == "all"));
    let is_first = layers.value < 0.0 && layers.value.fract() == 0.0 && layers.value > -1000.0;
    if is_first && are_whole && !s.has(FREEZE[2]) {
        only::first_blocks(-layers.value as u64, format!("{from}, {}", layers.from), sheet);
        return Ok(());
    }
    only::by_set(s, ("finetuning_type", &FREEZE), options, sheet)?;
    sheet.note(NoteKind::Unused, from, "train.only names what is trained");
    Ok(())
}

/// A frozen model in 4 bits.
fn quantized(s: &Settings<'_>, bits: Option<u64>, sheet: &mut Sheet) -> Result<()> {
    match bits {
        None => {
            s.pass_over(&QUANTIZATION, "they are for quantization_bit", sheet);
            return Ok(());
        }
        Some(4) => {}
        Some(_) => return s.refuse("quantization_bit", super::QUANTIZED, "write quantization_bit: 4"),
    }
    for (key, known) in [(QUANTIZATION[0], &["bitsandbytes", "bnb"][..]), (QUANTIZATION[1], &["nf4"])] {
        match s.text(key)? {
            Some(name) if !known.contains(&name) => {
                return s.refuse(key, super::QUANTIZED, &format!("write {key}: {}", known[0]));
            }
            Some(_) => sheet.note(NoteKind::Unused, s.shown(key), "it is always so"),
            None => {}
        }
    }
    let double = s.get(QUANTIZATION[2]).is_none() || s.flag(QUANTIZATION[2])?;
    lora::in_4_bits(s, "quantization_bit", (QUANTIZATION[2], double), sheet);
    Ok(())
}

/// Whether there are evaluation data.
fn data(s: &Settings<'_>, (samples, is_text): (Samples, bool), sheet: &mut Sheet) -> Result<bool> {
    let directory = s.text_or("dataset_dir", "data")?;
    let Some(names) = s.texts("dataset")?.filter(|names| names.iter().any(|name| !name.is_empty())) else {
        return s.refuse("dataset", "there is no data set", "write dataset: NAME");
    };
    let path = |name: &String| {
        let directory = directory.value.trim_end_matches('/');
        if name.contains('.') { format!("{directory}/{name}") } else { format!("{directory}/{name}.json") }
    };
    let evals = s.texts("eval_dataset")?.unwrap_or_default();
    let why = match samples.are_pairs() {
        false => {
            "dataset_info.json names the file, its form and its columns: here it is NAME.json, and the form is the \
             first record's; set data.train and data.columns where they differ"
        }
        true => {
            "dataset_info.json names the file and its columns: here it is NAME.json with instruction, chosen and \
             rejected; set data.train and data.columns where they differ"
        }
    };
    sheet.note(NoteKind::Differs, format!("{}, {}", s.shown("dataset"), directory.from), why);
    let shares = match s.get("interleave_probs") {
        Some(Value::String(text)) => {
            let numbers = text.split(',').map(|part| part.trim().parse::<f64>().ok().filter(|number| *number > 0.0));
            let numbers = numbers.collect::<Option<Vec<_>>>().filter(|numbers| numbers.len() == names.len());
            Some(numbers.ok_or_else(|| s.wrong("interleave_probs", "a number above 0 for each data set"))?)
        }
        Some(_) => return Err(s.wrong("interleave_probs", "numbers with commas")),
        None => None,
    };
    let set = |(at, name): (usize, &String)| -> Fields {
        let mut fields = vec![("path", quote(&path(name)))];
        fields.extend(evals.get(at).map(|eval| ("eval", quote(&path(eval)))));
        fields.extend(shares.as_ref().and_then(|all| all.get(at)).map(|share| ("proportion", format!("{share:?}"))));
        fields.extend(is_text.then(|| ("records", quote("text"))));
        fields
    };
    let found: Vec<Fields> = names.iter().enumerate().map(set).collect();
    sets::write(&found, &s.shown_all(&["dataset", "interleave_probs", "eval_dataset"]), sheet);
    if samples.are_pairs() {
        sheet.text(
            key!(data.columns.prompt),
            "instruction",
            "the prompt of Alpaca's records, default of dataset_info.json",
        );
    }
    if evals.len() > names.len() {
        sheet.note(NoteKind::Differs, s.shown("eval_dataset"), "each data set has evaluation data of its own");
    }
    if let Some(strategy) = s.text("mix_strategy")? {
        let why = "an epoch has as many samples as all sets have, by `proportion`";
        let kind = if strategy == "concat" { NoteKind::Unused } else { NoteKind::Differs };
        sheet.note(kind, s.shown("mix_strategy"), why);
    }
    forms(s, (samples, is_text), sheet)?;
    Ok(!evals.is_empty())
}

fn forms(s: &Settings<'_>, (samples, is_text): (Samples, bool), sheet: &mut Sheet) -> Result<()> {
    match s.text("template")? {
        Some(_) if is_text => sheet.note(NoteKind::Unused, s.shown("template"), "whole texts have no template"),
        None if is_text => {}
        None => {
            let why = "where the tokenizer has a chat template, it formats prompts there: --set data.as_chat=true";
            sheet.note(NoteKind::Differs, "no template", why);
        }
        Some("default" | "empty") => {
            sheet.note(NoteKind::Differs, s.shown("template"), "prompts are as they are; data.as_chat = false");
        }
        Some(_) => {
            sheet.flag(key!(data.as_chat), true, s.shown("template"));
            let why = "the template in the model's directory is used, of whatever name";
            sheet.note(NoteKind::Differs, s.shown("template"), why);
        }
    }
    let length = s.whole_or("cutoff_len", 2048)?;
    sheet.whole(key!(data.max_length), length.value, length.from);
    match samples.are_pairs() {
        true => pass_over_single(s, &["packing", "neat_packing", "train_on_prompt", "mask_history"], sheet),
        false => single(s, is_text, sheet)?,
    }
    if s.whole("max_samples")?.is_some() {
        let why = "all records are trained on; shorten the files";
        sheet.note(NoteKind::Differs, s.shown("max_samples"), why);
    }
    Ok(())
}

/// Packing, and what is learned of a sequence.
fn single(s: &Settings<'_>, is_text: bool, sheet: &mut Sheet) -> Result<()> {
    let (packing, neat) = (s.flag("packing")?, s.flag("neat_packing")?);
    let by_default = is_text && !s.has("packing");
    if packing || neat || by_default {
        let shown = match by_default && !neat {
            true => "packing, default true of stage pt".to_owned(),
            false => s.shown_all(&["packing", "neat_packing"]),
        };
        sheet.flag(key!(data.packing), true, shown.clone());
        if !neat {
            sheet.note(NoteKind::Differs, shown, "samples that are packed together attend to themselves alone");
        }
    }
    match (s.flag("train_on_prompt")?, s.flag("mask_history")?) {
        (true, true) => return s.refuse("mask_history", "train_on_prompt learns what it masks", "set one"),
        (true, false) => sheet.text(key!(data.loss_on), "all", s.shown("train_on_prompt")),
        (false, true) => sheet.text(key!(data.loss_on), "last", s.shown("mask_history")),
        (false, false) => {}
    }
    Ok(())
}
