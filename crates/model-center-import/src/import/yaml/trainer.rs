//! Settings that configurations have from the Trainer of transformers: precision, length, schedule, layout; `optimizer`
//! and `intervals` have the rest.

use super::pairs::{Samples, pass_over_single};
use super::settings::Settings;
use super::{intervals, optimizer};
use crate::Result;
use crate::import::ImportOptions;
use crate::import::batch::BatchParts;
use crate::import::numbers;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_base::file::printable;
use model_center_recipe::key;
use serde_json::{Map, Value};

/// The learning rate at which the polynomial schedule of transformers ends.
const POLYNOMIAL_END: f64 = 1e-7;
/// Numbers of the schedule.
const KWARGS: &str = "lr_scheduler_kwargs";
/// The smallest rate of axolotl's cosine.
const MIN_RATIO: &str = "cosine_min_lr_ratio";
const WITH_MIN: &str = "cosine-with-min-lr";
const DROPS_NONE: &str = "dataloader_drop_last, default false";

/// Its schedules, with ours.
const SCHEDULES: [(&str, &str); 8] = [
    ("linear", "linear"),
    ("cosine", "cosine"),
    ("cosine_with_min_lr", "cosine-with-min-lr"),
    ("cosine_with_restarts", "cosine-restarts"),
    ("polynomial", "polynomial"),
    ("constant", "constant"),
    ("constant_with_warmup", "constant"),
    ("one_cycle", "one-cycle"),
];

/// Differences between the trainers: names of keys, and defaults.
pub(super) struct Trainer {
    pub(super) micro_batch: &'static str,
    pub(super) eval_batch: &'static str,
    pub(super) epochs: &'static str,
    pub(super) schedule: &'static str,
    pub(super) optimizer: &'static str,
    /// The share of the data that is split off for evaluation.
    pub(super) split: &'static str,
    pub(super) default_micro_batch: u64,
    pub(super) default_epochs: f64,
    pub(super) default_lr: Option<f64>,
    pub(super) default_schedule: &'static str,
    /// The warm-up as a share of the steps, with its name, and the most steps.
    pub(super) default_warmup: Option<(&'static str, f64, u64)>,
    /// Whether a share of the steps is rounded down, and one step is two, where the Trainer rounds up.
    pub(super) floors_warmup: bool,
    /// The interval of checkpoints, after its name.
    pub(super) default_checkpoint: (&'static str, &'static str),
    /// Whether the last weights are kept, although there are evaluation data.
    pub(super) saves_last: bool,
}

/// Results of the translation of the data.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundData {
    pub(super) has_eval: bool,
    pub(super) samples: Samples,
}

/// Steps, optimizer, schedule, intervals, the split of the data and the run's name.
pub(super) fn translate(
    s: &Settings<'_>,
    trainer: &Trainer,
    (options, data): (&ImportOptions, FoundData),
    sheet: &mut Sheet,
) -> Result<()> {
    precision(s, sheet)?;
    length_and_batch(s, trainer, options, sheet)?;
    optimizer::translate(s, trainer, sheet)?;
    schedule(s, trainer, sheet)?;
    intervals::translate(s, trainer, data.has_eval, sheet)?;
    layout(s, sheet)?;
    let seed = s.whole_or("seed", 42)?;
    sheet.whole(key!(train.seed), seed.value, seed.from);
    if let Some(every) = s.whole("logging_steps")? {
        sheet.whole(key!(log.every), every.max(1), s.shown("logging_steps"));
    }
    if data.samples.are_pairs() {
        pass_over_single(s, &["label_smoothing_factor"], sheet);
    } else if let Some(share) = s.number("label_smoothing_factor")?.filter(|share| *share > 0.0) {
        sheet.number(key!(train.label_smoothing), share, s.shown("label_smoothing_factor"));
    }
    if !s.flag("dataloader_drop_last")? {
        let from = if s.has("dataloader_drop_last") { s.shown("dataloader_drop_last") } else { DROPS_NONE.to_owned() };
        sheet.text(key!(data.last_batch), "keep", from);
    }
    if s.flag("group_by_length")? {
        sheet.flag(key!(data.length_grouped), true, s.shown("group_by_length"));
    }
    if let Some(share) = s.number(trainer.split)?.filter(|share| *share > 0.0) {
        let why = format!("{share} of the data are split off there: `init` writes such a split, or set data.eval");
        sheet.note(NoteKind::Differs, s.shown(trainer.split), why);
    }
    if let Some(name) = s.text("run_name")? {
        sheet.text(key!(run.name), name, s.shown("run_name"));
    }
    Ok(())
}

fn precision(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    let is_on = |key: &str| -> Result<bool> {
        match s.get(key).and_then(serde_json::Value::as_str) {
            Some("auto" | "full") => Ok(true),
            _ => s.flag(key),
        }
    };
    let mut on = Vec::new();
    for (key, dtype) in
        [("bf16", "bf16"), ("bfloat16", "bf16"), ("pure_bf16", "bf16"), ("fp16", "f16"), ("float16", "f16")]
    {
        if is_on(key)? {
            on.push((key, dtype));
        }
    }
    let Some((key, dtype)) = on.first().copied() else {
        sheet.text(key!(model.dtype), "f32", "neither bf16 nor fp16");
        return Ok(());
    };
    if let Some((other, _)) = on.iter().find(|(_, other)| *other != dtype) {
        return s.refuse(other, format!("{key} and {other} are both set"), "set one");
    }
    let shown: Vec<String> = on.iter().map(|(key, _)| s.shown(key)).collect();
    sheet.text(key!(model.dtype), dtype, shown.join(", "));
    if dtype == "f16" {
        let why = "the loss scale of f16 follows another rule: train.loss_scale";
        sheet.note(NoteKind::Differs, s.shown(key), why);
    }
    Ok(())
}

fn length_and_batch(s: &Settings<'_>, trainer: &Trainer, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    // -1 is none.
    let steps = s.number("max_steps")?.filter(|steps| *steps > 0.0);
    match steps {
        Some(steps) => {
            sheet.whole(key!(train.steps), steps as u64, s.shown("max_steps"));
            s.pass_over(&[trainer.epochs], "max_steps decides", sheet);
        }
        None => {
            let epochs = s.number_or(trainer.epochs, trainer.default_epochs)?;
            sheet.number(key!(train.epochs), epochs.value, epochs.from);
        }
    }
    let micro = s.whole_or(trainer.micro_batch, trainer.default_micro_batch)?;
    let accumulation = s.whole_or("gradient_accumulation_steps", 1)?;
    sheet.ranks = options.ranks;
    let parts = BatchParts {
        batch: None,
        micro: Some((micro.value, micro.from)),
        accumulation: Some((accumulation.value, accumulation.from)),
        ranks: options.ranks,
        model_ranks: 1,
    };
    parts.write(sheet)
}

fn schedule(s: &Settings<'_>, trainer: &Trainer, sheet: &mut Sheet) -> Result<()> {
    if trainer.default_lr.is_none() && !s.has("learning_rate") {
        return s.refuse("learning_rate", "it is missing", "write learning_rate: 0.0002");
    }
    let lr = s.number_or("learning_rate", trainer.default_lr.unwrap_or_default())?;
    sheet.number(key!(train.lr), lr.value, lr.from);
    let lr = lr.value;
    let given = s.text_or(trainer.schedule, trainer.default_schedule)?;
    let name = given.value;
    let Some((_, ours)) = SCHEDULES.iter().find(|(theirs, _)| *theirs == name) else {
        let known: Vec<&str> = SCHEDULES.iter().map(|(theirs, _)| *theirs).collect();
        let reason = format!("the schedule {name} is not available; available are {}", known.join(", "));
        return s.refuse(trainer.schedule, reason, "choose another one");
    };
    sheet.text(key!(train.schedule), ours, given.from);
    if name == "constant" {
        s.pass_over(&["warmup_steps", "warmup_ratio"], "the schedule constant has no warm-up there", sheet);
    } else {
        warmup(s, trainer, ours, sheet)?;
    }
    if let Some(share) = s.number(MIN_RATIO)?.filter(|share| *share > 0.0) {
        match *ours == "cosine" {
            true => {
                sheet.text(key!(train.schedule), WITH_MIN, s.shown_all(&[trainer.schedule, MIN_RATIO]));
                sheet.number(key!(train.final_lr_ratio), share, s.shown(MIN_RATIO));
            }
            false => sheet.note(NoteKind::Unused, s.shown(MIN_RATIO), "it is for the schedule cosine"),
        }
    }
    minimum(s, (*ours == WITH_MIN, lr), sheet)?;
    if *ours == "polynomial" && lr > POLYNOMIAL_END {
        let ratio = (POLYNOMIAL_END / lr * 1e9).round() / 1e9;
        sheet.number(key!(train.final_lr_ratio), ratio, "lr_end of the schedule, default 1e-7");
    }
    Ok(())
}

/// The smallest learning rate of a schedule that has one, and refuses other numbers of schedules.
fn minimum(s: &Settings<'_>, (has_minimum, lr): (bool, f64), sheet: &mut Sheet) -> Result<()> {
    let given = match s.get(KWARGS) {
        Some(Value::Object(given)) => given.clone(),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(given)) => given,
            _ => return Err(s.wrong(KWARGS, "a mapping")),
        },
        Some(_) => return Err(s.wrong(KWARGS, "a mapping")),
        None => Map::new(),
    };
    let number = |name: &str| -> Result<Option<f64>> {
        let Some(value) = given.get(name) else { return Ok(None) };
        let share = numbers::number(value).filter(|number| *number >= 0.0);
        share.map(Some).ok_or_else(|| s.wrong(KWARGS, "numbers at or above 0"))
    };
    if let Some(other) = given.keys().find(|name| !has_minimum || !["min_lr", "min_lr_rate"].contains(&name.as_str())) {
        let reason = format!("{}: numbers of schedules have keys of their own", printable(other, 40));
        return s.refuse(KWARGS, reason, "remove it, and set the keys of docs/optimizers.md with --set");
    }
    let ratio = match (number("min_lr")?, number("min_lr_rate")?) {
        _ if !has_minimum => return Ok(()),
        (Some(least), None) if lr > 0.0 => least / lr,
        (None, Some(share)) => share,
        _ => {
            let reason = "the schedule ends at min_lr or at min_lr_rate, one of the two";
            return s.refuse(KWARGS, reason, "write lr_scheduler_kwargs: { min_lr_rate: 0.1 }");
        }
    };
    sheet.number(key!(train.final_lr_ratio), ratio, s.shown(KWARGS));
    Ok(())
}

fn warmup(s: &Settings<'_>, trainer: &Trainer, schedule: &str, sheet: &mut Sheet) -> Result<()> {
    let steps = s.number("warmup_steps")?.filter(|steps| *steps > 0.0);
    let share = s.number("warmup_ratio")?.filter(|share| *share > 0.0);
    match (steps, share) {
        (Some(steps), _) if steps >= 1.0 => {
            // axolotl makes one step two.
            let whole = if trainer.floors_warmup && steps < 2.0 { 2 } else { steps as u64 };
            sheet.whole(key!(train.warmup), whole, s.shown("warmup_steps"));
            s.pass_over(&["warmup_ratio"], "warmup_steps decides", sheet);
        }
        // A newer Trainer takes a share as a number of steps below 1.
        (Some(share), _) => warmup_share(trainer, (share, u64::MAX), s.shown("warmup_steps"), sheet),
        (None, Some(share)) => warmup_share(trainer, (share, u64::MAX), s.shown("warmup_ratio"), sheet),
        // A warm-up of 0 that is written there is none.
        (None, None) => match trainer.default_warmup.filter(|_| !s.has("warmup_steps") && !s.has("warmup_ratio")) {
            Some((from, share, most)) => warmup_share(trainer, (share, most), from.to_owned(), sheet),
            None if schedule == "one-cycle" => {
                let reason = "one cycle rises over its warm-up, and there is none";
                return s.refuse(trainer.schedule, reason, "set warmup_ratio: 0.3");
            }
            None => {}
        },
    }
    Ok(())
}

/// A share of the steps, which is rounded up here as by the Trainer. Of a trainer that rounds down it is the number of
/// steps, where that is known.
fn warmup_share(trainer: &Trainer, (share, most): (f64, u64), from: String, sheet: &mut Sheet) {
    let steps = sheet.count(key!(train.steps)).filter(|_| trainer.floors_warmup);
    let Some(steps) = steps else {
        if trainer.floors_warmup {
            let why = "rounded up, where axolotl rounds down, and makes one step two";
            sheet.note(NoteKind::Differs, from.clone(), why);
        }
        return sheet.number(key!(train.warmup), share, from);
    };
    let whole = match (share * steps as f64) as u64 {
        1 => 2,
        whole => whole.min(most),
    };
    if whole >= steps {
        sheet.note(NoteKind::Differs, from.clone(), "shortened: a warm-up ends before the run");
    }
    sheet.whole(key!(train.warmup), whole.min(steps.saturating_sub(1)), format!("{from}, of {steps} steps"));
}

/// Layout of the ranks that share the model.
fn layout(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    if let Some(path) = s.get("deepspeed") {
        let shown = s.shown("deepspeed");
        let text = path.to_string().to_lowercase().replace(['_', '-'], "");
        let stage =
            (1..=3_u64).find(|stage| text.contains(&format!("zero{stage}")) || text.contains(&format!("z{stage}")));
        if let Some(stage) = stage {
            sheet.whole(key!(parallel.zero), stage, shown.clone());
        }
        let why = "only the stage in its name is read: `bmtrain import deepspeed` reads such a file";
        sheet.note(NoteKind::Differs, shown, why);
    }
    if s.get("fsdp").is_some() || s.get("fsdp_config").is_some() {
        sheet.whole(key!(parallel.zero), 3, s.shown_all(&["fsdp", "fsdp_config"]));
    }
    Ok(())
}
