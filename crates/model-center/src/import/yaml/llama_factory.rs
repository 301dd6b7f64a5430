//! A configuration of LLaMA-Factory as a recipe.
//!
//! Defines [`llama_factory`].

use super::llama_factory_keys::KEYS;
use super::settings::Settings;
use super::trainer::{self, Defaults, Names};
use crate::Result;
use crate::file::printable;
use crate::import::ImportOptions;
use crate::import::keys;
use crate::import::sheet::{NoteKind, Sheet};
use crate::recipe::quote;
use serde_json::Value;

const NAMES: Names = Names {
    micro_batch: "per_device_train_batch_size",
    eval_batch: "per_device_eval_batch_size",
    epochs: "num_train_epochs",
    schedule: "lr_scheduler_type",
    optimizer: "optim",
};
const DEFAULTS: Defaults = Defaults { micro_batch: 8, epochs: 3.0, lr: Some(5e-5), schedule: "linear", seed: 42 };

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
    sheet.text(keys::MODEL_PATH, model, s.shown("model_name_or_path"));
    if let Some(revision) = s.text("model_revision")?.filter(|revision| *revision != "main") {
        sheet.text("model.revision", revision, s.shown("model_revision"));
    }
    let is_text = stage(&s, &mut sheet)?;
    adapter(&s, &mut sheet)?;
    let has_eval = data(&s, is_text, &mut sheet)?;
    trainer::translate(&s, (&NAMES, &DEFAULTS), (options, has_eval), &mut sheet)?;
    if s.flag("use_muon")? {
        sheet.text(keys::OPTIMIZER, "muon", s.shown("use_muon"));
    }
    // Blocks are recomputed unless that is switched off.
    let is_on = match s.get("gradient_checkpointing") {
        Some(Value::Bool(flag)) => *flag,
        _ => true,
    };
    if is_on && !s.flag("disable_gradient_checkpointing")? {
        sheet.text(keys::RECOMPUTE, "blocks", "gradient checkpointing, on by default");
    }
    let output = s.text("output_dir")?;
    let from = output.map_or_else(|| "no output_dir".to_owned(), |_| s.shown("output_dir"));
    sheet.text(keys::OUTPUT, output.unwrap_or("runs/imported"), from);
    if let Some(name) = s.text("run_name")? {
        sheet.text(keys::RUN_NAME, name, s.shown("run_name"));
    }
    s.account(options, &mut sheet)?;
    sheet.apply(&options.sets)?;
    Ok(sheet)
}

/// Whether whole texts are learned.
fn stage(s: &Settings<'_>, sheet: &mut Sheet) -> Result<bool> {
    let stage = s.text("stage")?.unwrap_or("sft");
    let from = if s.has("stage") { s.shown("stage") } else { "stage, default sft".to_owned() };
    match stage {
        "sft" | "pt" => {
            sheet.text(keys::TASK, "sft", from);
            Ok(stage == "pt")
        }
        other => {
            let reason = format!("stage {}: {}", printable(other, 30), super::PREFERENCES);
            s.refuse("stage", reason, "write stage: sft or stage: pt")
        }
    }
}

fn adapter(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    let kind = s.text("finetuning_type")?.unwrap_or("lora");
    let from =
        if s.has("finetuning_type") { s.shown("finetuning_type") } else { "finetuning_type, default lora".into() };
    let of_lora =
        ["lora_rank", "lora_alpha", "lora_dropout", "lora_target", "additional_target", "use_rslora", "use_dora"];
    match kind {
        "full" => {
            for key in of_lora {
                if s.get(key).is_some() {
                    sheet.note(NoteKind::Unused, s.shown(key), "the whole model is trained");
                }
            }
            sheet.note(NoteKind::Unused, from, "the whole model is trained without [adapter]");
            return Ok(());
        }
        "lora" => sheet.text(keys::ADAPTER, "lora", from),
        other => {
            let reason = format!("finetuning_type {} is not available", printable(other, 30));
            return s.refuse("finetuning_type", reason, "write lora or full");
        }
    }
    if let Some(path) = s.text("adapter_name_or_path")? {
        sheet.text(keys::ADAPTER_PATH, path, s.shown("adapter_name_or_path"));
        for key in of_lora {
            if s.get(key).is_some() {
                sheet.note(NoteKind::Unused, s.shown(key), "adapter_name_or_path has the adapter and its settings");
            }
        }
        return Ok(());
    }
    let rank = s.whole("lora_rank")?;
    let from = rank.map_or_else(|| "lora_rank, default 8".to_owned(), |_| s.shown("lora_rank"));
    let rank = rank.unwrap_or(8);
    sheet.whole(keys::RANK, rank, from);
    let alpha = s.number("lora_alpha")?;
    let from = alpha.map_or_else(|| "lora_alpha, default 2 * lora_rank".to_owned(), |_| s.shown("lora_alpha"));
    sheet.number(keys::ALPHA, alpha.unwrap_or(2.0 * rank as f64), from);
    if let Some(dropout) = s.number("lora_dropout")?.filter(|dropout| *dropout > 0.0) {
        sheet.number(keys::ADAPTER_DROPOUT, dropout, s.shown("lora_dropout"));
    }
    if s.flag("use_rslora")? {
        sheet.flag(keys::RANK_STABILIZED, true, s.shown("use_rslora"));
    }
    if s.flag("use_dora")? {
        sheet.flag(keys::DORA, true, s.shown("use_dora"));
    }
    let targets = s.texts("lora_target")?.unwrap_or_else(|| vec!["all".to_owned()]);
    let from = if s.has("lora_target") { s.shown("lora_target") } else { "lora_target, default all".to_owned() };
    match targets.iter().any(|target| target == "all") {
        true => sheet.list(keys::TARGETS, &["all-linear".to_owned()], from),
        false => sheet.list(keys::TARGETS, &targets, from),
    }
    if let Some(modules) = s.texts("additional_target")? {
        sheet.list(keys::ADAPTER_TRAINED, &modules, s.shown("additional_target"));
    }
    Ok(())
}

/// Whether there are evaluation data.
fn data(s: &Settings<'_>, is_text: bool, sheet: &mut Sheet) -> Result<bool> {
    let directory = s.text("dataset_dir")?.unwrap_or("data").trim_end_matches('/').to_owned();
    let Some(names) = s.texts("dataset")?.filter(|names| names.iter().any(|name| !name.is_empty())) else {
        return s.refuse("dataset", "there is no data set", "write dataset: NAME");
    };
    let shown = if s.has("dataset_dir") { s.shown("dataset_dir") } else { "dataset_dir, default data".to_owned() };
    let path = |name: &String| {
        if name.contains('.') { format!("{directory}/{name}") } else { format!("{directory}/{name}.json") }
    };
    let evals = s.texts("eval_dataset")?.unwrap_or_default();
    let why = "dataset_info.json names the file, its form and its columns: here it is NAME.json, and the form is the \
               first record's; set data.train and data.columns where they differ";
    sheet.note(NoteKind::Differs, format!("{}, {shown}", s.shown("dataset")), why);
    let probabilities = match s.get("interleave_probs") {
        Some(Value::String(text)) => {
            let numbers = text.split(',').map(|part| part.trim().parse::<f64>().ok().filter(|number| *number > 0.0));
            let numbers = numbers.collect::<Option<Vec<_>>>().filter(|numbers| numbers.len() == names.len());
            Some(numbers.ok_or_else(|| s.wrong("interleave_probs", "a number above 0 for each data set"))?)
        }
        Some(_) => return Err(s.wrong("interleave_probs", "numbers with commas")),
        None => None,
    };
    match (names.as_slice(), &probabilities) {
        ([one], None) => {
            sheet.text(keys::TRAIN, &path(one), s.shown("dataset"));
            if let Some(eval) = evals.first() {
                sheet.text(keys::EVAL, &path(eval), s.shown("eval_dataset"));
            }
            if is_text {
                sheet.text(keys::RECORDS, "text", "stage: pt");
            }
        }
        (several, probabilities) => {
            let set = |(at, name): (usize, &String)| {
                let mut fields = vec![format!("path = {}", quote(&path(name)))];
                fields.extend(evals.get(at).map(|eval| format!("eval = {}", quote(&path(eval)))));
                fields
                    .extend(probabilities.as_ref().and_then(|all| all.get(at)).map(|p| format!("proportion = {p:?}")));
                if is_text {
                    fields.push("records = \"text\"".to_owned());
                }
                format!("{{ {} }}", fields.join(", "))
            };
            let sets: Vec<String> = several.iter().enumerate().map(set).collect();
            let mut from = s.shown("dataset");
            for key in ["interleave_probs", "eval_dataset"].into_iter().filter(|key| s.has(key)) {
                from += &format!(", {}", s.shown(key));
            }
            sheet.raw(keys::SETS, format!("[{}]", sets.join(", ")), from);
        }
    }
    if evals.len() > names.len() {
        sheet.note(NoteKind::Differs, s.shown("eval_dataset"), "each data set has evaluation data of its own");
    }
    if let Some(strategy) = s.text("mix_strategy")? {
        let why = "an epoch has as many samples as all sets have, by `proportion`";
        let kind = if strategy == "concat" { NoteKind::Unused } else { NoteKind::Differs };
        sheet.note(kind, s.shown("mix_strategy"), why);
    }
    forms(s, is_text, sheet)?;
    Ok(!evals.is_empty())
}

fn forms(s: &Settings<'_>, is_text: bool, sheet: &mut Sheet) -> Result<()> {
    match s.text("template")? {
        Some("default" | "empty") => {
            sheet.note(NoteKind::Differs, s.shown("template"), "prompts are as they are; data.as_chat = false");
        }
        Some(_) if is_text => sheet.note(NoteKind::Unused, s.shown("template"), "whole texts have no template"),
        Some(_) => {
            sheet.flag(keys::AS_CHAT, true, s.shown("template"));
            let why = "the template in the model's directory is used, of whatever name";
            sheet.note(NoteKind::Differs, s.shown("template"), why);
        }
        None => {}
    }
    let length = s.whole("cutoff_len")?;
    let from = length.map_or_else(|| "cutoff_len, default 2048".to_owned(), |_| s.shown("cutoff_len"));
    sheet.whole(keys::MAX_LENGTH, length.unwrap_or(2048), from);
    let (packing, neat) = (s.flag("packing")?, s.flag("neat_packing")?);
    if packing || neat {
        let shown: Vec<String> =
            ["packing", "neat_packing"].into_iter().filter(|key| s.has(key)).map(|key| s.shown(key)).collect();
        sheet.flag(keys::PACKING, true, shown.join(", "));
        if !neat {
            let why = "samples that are packed together attend to themselves alone";
            sheet.note(NoteKind::Differs, s.shown("packing"), why);
        }
    }
    let (prompt, last) = (s.flag("train_on_prompt")?, s.flag("mask_history")?);
    match (prompt, last) {
        (true, true) => return s.refuse("mask_history", "train_on_prompt learns what it masks", "set one"),
        (true, false) => sheet.text(keys::LOSS_ON, "all", s.shown("train_on_prompt")),
        (false, true) => sheet.text(keys::LOSS_ON, "last", s.shown("mask_history")),
        (false, false) => {}
    }
    if let Some(share) = s.number("val_size")?.filter(|share| *share > 0.0) {
        let why = format!("{share} of the data are split off there: `init` writes such a split, or set data.eval");
        sheet.note(NoteKind::Differs, s.shown("val_size"), why);
    }
    if s.whole("max_samples")?.is_some() {
        let why = "all records are trained on; shorten the files";
        sheet.note(NoteKind::Differs, s.shown("max_samples"), why);
    }
    Ok(())
}
