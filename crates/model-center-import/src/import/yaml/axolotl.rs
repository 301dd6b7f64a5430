//! A configuration of axolotl as a recipe.
//!
//! Defines [`axolotl`]; `axolotl_data` has the data sets and `axolotl_forms` the forms of their records.

use super::axolotl_data;
use super::axolotl_keys::KEYS;
use super::axolotl_tokens;
use super::pairs::{self, Samples};
use super::settings::Settings;
use super::trainer::{self, FoundData, Trainer};
use super::{lora, only, resumed};
use crate::Result;
use crate::import::ImportOptions;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_base::file::printable;
use model_center_recipe::key;
use serde_json::Value;

const TRAINER: Trainer = Trainer {
    micro_batch: "micro_batch_size",
    eval_batch: "eval_batch_size",
    epochs: "num_epochs",
    schedule: "lr_scheduler",
    optimizer: "optimizer",
    split: "val_set_size",
    default_micro_batch: 1,
    default_epochs: 1.0,
    default_lr: None,
    default_schedule: "cosine",
    default_warmup: Some(("warmup_ratio, default 0.03; there at most 100 steps", 0.03, 100)),
    floors_warmup: true,
    default_checkpoint: ("save_strategy, default epoch", "1 epoch"),
    // With evaluations and checkpoints at the same steps the best weights are loaded.
    saves_last: false,
};
const LORA: lora::Names = lora::Names {
    path: "lora_model_dir",
    rank: "lora_r",
    rank_stabilized: "peft_use_rslora",
    dora: "peft_use_dora",
    modules: "lora_modules_to_save",
    targets: &["lora_target_modules", "lora_target_linear"],
};

/// A recipe from the text of a configuration; `place` names it in errors.
///
/// # Errors
/// [`Error::Model`](crate::Error::Model) for a text that is not YAML, [`Error::Argument`](crate::Error::Argument) for
/// unknown and refused keys and values.
pub fn axolotl(text: &str, place: &str, options: &ImportOptions) -> Result<Sheet> {
    let s = Settings::read(text, place, KEYS)?;
    let mut sheet = Sheet::new(format!("axolotl, {}", printable(place, 200)));
    model(&s, &mut sheet)?;
    axolotl_tokens::special_tokens(&s, options, &mut sheet)?;
    let has_adapter = s.text("adapter")?.is_some_and(|kind| !kind.is_empty());
    resumed::translate(&s, "base_model", has_adapter, &mut sheet)?;
    adapter(&s, options, &mut sheet)?;
    let samples = samples(&s, &mut sheet)?;
    let has_eval = axolotl_data::translate(&s, samples, &mut sheet)?;
    trainer::translate(&s, &TRAINER, (options, FoundData { has_eval, samples }), &mut sheet)?;
    if s.flag("gradient_checkpointing").or_else(|error| match s.text("gradient_checkpointing")? {
        // "unsloth" and "offload" keep the inputs elsewhere.
        Some(_) => Ok(true),
        None => Err(error),
    })? {
        sheet.text(key!(train.recompute), "blocks", s.shown("gradient_checkpointing"));
    }
    watchdog(&s, &mut sheet)?;
    let output = s.text_or("output_dir", "./model-out")?;
    sheet.text(key!(output.dir), output.value, output.from);
    s.finish(options, sheet)
}

fn model(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    let Some(model) = s.text("base_model")? else {
        return s.refuse("base_model", "there is no model", "write base_model: ORG/NAME");
    };
    sheet.text(key!(model.path), model, s.shown("base_model"));
    if let Some(revision) = s.text("revision_of_model")? {
        sheet.text("model.revision", revision, s.shown("revision_of_model"));
    }
    if let Some(tokenizer) = s.text("tokenizer_config")? {
        let why = "the tokenizer is the one in the model's directory: copy its files there if they differ";
        let kind = if tokenizer == model { NoteKind::Unused } else { NoteKind::Differs };
        sheet.note(kind, s.shown("tokenizer_config"), why);
    }
    Ok(())
}

fn adapter(s: &Settings<'_>, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    let in_4_bits = s.flag("load_in_4bit")?;
    let kind = s.text("adapter")?.filter(|kind| !kind.is_empty());
    match kind {
        None if in_4_bits => return s.refuse("load_in_4bit", super::NEEDS_UPDATES, "write adapter: qlora"),
        None => {
            LORA.pass_over(s, sheet);
            if s.has("unfrozen_parameters") {
                only::by_set(s, ("unfrozen_parameters", &["unfrozen_parameters"]), options, sheet)?;
            }
            return Ok(());
        }
        Some("qlora") if !in_4_bits => {
            return s.refuse("adapter", "qlora trains beside a model in 4 bits", "write load_in_4bit: true");
        }
        Some("lora" | "qlora") => {}
        Some(other) => {
            let reason = format!("the adapter {} is not translated", printable(other, 60));
            return s.refuse("adapter", reason, "write adapter: lora, or remove it");
        }
    }
    s.pass_over(&["unfrozen_parameters"], "a model with an adapter is frozen but for lora_modules_to_save", sheet);
    if in_4_bits {
        quantized(s, sheet)?;
    }
    if s.flag("merge_lora")? {
        match in_4_bits {
            false => sheet.flag(key!(save.merged), true, s.shown("merge_lora")),
            true => {
                let why = "updates beside a model in 4 bits are merged after the run: `bmtrain convert \
                           MODEL OUT --merge RUN`";
                sheet.note(NoteKind::Differs, s.shown("merge_lora"), why);
            }
        }
    }
    if !lora::translate(s, (&LORA, s.shown("adapter")), (|_| 8.0, "8"), sheet)? {
        return Ok(());
    }
    match (s.flag("lora_target_linear")?, s.texts("lora_target_modules")?) {
        (true, _) => {
            s.pass_over(&["lora_target_modules"], "lora_target_linear names all layers", sheet);
            sheet.list(key!(adapter.targets), &["all-linear".to_owned()], s.shown("lora_target_linear"));
        }
        (false, Some(targets)) => {
            lora::check_modules(s, "lora_target_modules", &targets)?;
            sheet.list(key!(adapter.targets), &targets, s.shown("lora_target_modules"));
        }
        (false, None) => return s.refuse("adapter", "no layers are named", "write lora_target_linear: true"),
    }
    Ok(())
}

/// A frozen model in 4 bits, as bitsandbytes is asked for it.
fn quantized(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    let key = "bnb_config_kwargs";
    let given = match s.get(key) {
        None => None,
        Some(Value::Object(given)) => Some(given),
        Some(_) => return Err(s.wrong(key, "a mapping")),
    };
    let value = |name: &str| given.and_then(|given| given.get(name));
    if let Some(kind) = value("bnb_4bit_quant_type").filter(|kind| *kind != "nf4") {
        let reason = format!("blocks are nf4, not {}", printable(&kind.to_string(), 20));
        return s.refuse(key, reason, "write bnb_4bit_quant_type: nf4");
    }
    lora::in_4_bits(s, "load_in_4bit", (key, value("bnb_4bit_use_double_quant") != Some(&Value::Bool(false))), sheet);
    Ok(())
}

/// Kind of samples, which `rl` and `reward_model` choose.
fn samples(s: &Settings<'_>, sheet: &mut Sheet) -> Result<Samples> {
    let is_reward = s.flag("reward_model")?;
    let samples = match (s.text("rl")?.filter(|rl| !rl.is_empty()), is_reward) {
        (Some(_), true) => return s.refuse("rl", "reward_model trains on rewards alone", "set one of the two"),
        (None, true) => Samples::Rewards,
        (None, false) => Samples::Single,
        (Some("dpo"), false) => Samples::Pairs("dpo"),
        (Some("ipo"), false) => Samples::Pairs("ipo"),
        (Some("simpo"), false) => Samples::Pairs("simpo"),
        (Some("orpo"), false) => Samples::Pairs("orpo"),
        (Some("kto"), false) => return s.refuse("rl", super::KTO, super::KTO_FIX),
        (Some(other), false) => {
            let reason = format!("rl {}: {}", printable(other, 30), super::PREFERENCES);
            return s.refuse("rl", reason, "write rl: dpo, ipo, simpo or orpo, or reward_model: true");
        }
    };
    let from = match samples {
        Samples::Single => "axolotl's data sets".to_owned(),
        Samples::Pairs(_) => s.shown("rl"),
        Samples::Rewards => s.shown("reward_model"),
    };
    sheet.text(key!(data.task), samples.task(), from);
    if let Samples::Pairs(loss) = samples {
        let (beta, older) = if loss == "orpo" { ("orpo_alpha", "rl_beta") } else { ("rl_beta", "dpo_beta") };
        let beta = if s.has(older) && !s.has(beta) { older } else { beta };
        pairs::translate(s, (loss, s.shown("rl")), beta, sheet)?;
        if loss == "orpo" {
            let why =
                "the likelihood of a chosen completion is of its own tokens, a mean over pairs; TRL adds the prompt's";
            sheet.note(NoteKind::Differs, s.shown("rl"), why);
        }
        if loss == "simpo" {
            let alpha = s.number_or("cpo_alpha", 1.0)?;
            let why = "its share of the plain loss of chosen completions is not added";
            let kind = if alpha.value == 0.0 { NoteKind::Unused } else { NoteKind::Differs };
            sheet.note(kind, alpha.from, why);
        }
        if s.get("max_prompt_len").is_some() {
            let why = "data.max_length is the limit of a prompt with its completion";
            sheet.note(NoteKind::Differs, s.shown("max_prompt_len"), why);
        }
    }
    Ok(samples)
}

/// A limit of the loss ends the run there; here a loss that leaves its course does.
fn watchdog(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    let patience = s.whole("loss_watchdog_patience")?;
    if let Some(limit) = s.number("loss_watchdog_threshold")? {
        let from = s.shown_all(&["loss_watchdog_threshold", "loss_watchdog_patience"]);
        sheet.whole("train.divergence.patience", patience.unwrap_or(3).max(1), from.clone());
        let why =
            format!("losses above the first steps', or spikes, end the run, whatever they are; there {limit} does");
        sheet.note(NoteKind::Differs, from, why);
    }
    Ok(())
}
