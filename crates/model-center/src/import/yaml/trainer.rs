//! What configurations have from the Trainer of transformers: precision, optimizer, schedule, intervals, layout.

use super::settings::Settings;
use crate::Result;
use crate::import::ImportOptions;
use crate::import::batch::BatchParts;
use crate::import::keys;
use crate::import::sheet::{NoteKind, Sheet};

/// Its optimizers, with ours.
const OPTIMIZERS: [(&str, &str); 22] = [
    ("adamw_torch", "adamw"),
    ("adamw_torch_fused", "adamw"),
    ("adamw_hf", "adamw"),
    ("adamw_apex_fused", "adamw"),
    ("adamw_torch_8bit", "adamw"),
    ("adamw_8bit", "adamw"),
    ("adamw_bnb_8bit", "adamw"),
    ("paged_adamw", "adamw"),
    ("paged_adamw_32bit", "adamw"),
    ("paged_adamw_8bit", "adamw"),
    ("adamw", "adamw"),
    ("sgd", "sgd"),
    ("adagrad", "adagrad"),
    ("rmsprop", "rmsprop"),
    ("rmsprop_bnb", "rmsprop"),
    ("lion", "lion"),
    ("lion_32bit", "lion"),
    ("lion_8bit", "lion"),
    ("paged_lion_32bit", "lion"),
    ("paged_lion_8bit", "lion"),
    ("lion_pytorch", "lion"),
    ("muon", "muon"),
];

/// Its schedules, with ours.
const SCHEDULES: [(&str, &str); 7] = [
    ("linear", "linear"),
    ("cosine", "cosine"),
    ("cosine_with_restarts", "cosine-restarts"),
    ("polynomial", "polynomial"),
    ("constant", "constant"),
    ("constant_with_warmup", "constant"),
    ("one_cycle", "one-cycle"),
];

/// Names of keys that the trainers spell in their own way.
pub(super) struct Names {
    pub(super) micro_batch: &'static str,
    pub(super) eval_batch: &'static str,
    pub(super) epochs: &'static str,
    pub(super) schedule: &'static str,
    pub(super) optimizer: &'static str,
}

/// Defaults of the trainers.
pub(super) struct Defaults {
    pub(super) micro_batch: u64,
    pub(super) epochs: f64,
    pub(super) lr: Option<f64>,
    pub(super) schedule: &'static str,
    pub(super) seed: u64,
}

/// Steps, optimizer, schedule and intervals; `has_eval` is whether the recipe has evaluation data.
pub(super) fn translate(
    s: &Settings<'_>,
    (names, defaults): (&Names, &Defaults),
    (options, has_eval): (&ImportOptions, bool),
    sheet: &mut Sheet,
) -> Result<()> {
    precision(s, sheet)?;
    length_and_batch(s, (names, defaults), options, sheet)?;
    optimizer(s, names, sheet)?;
    schedule(s, (names, defaults), sheet)?;
    intervals(s, (names, has_eval), sheet)?;
    layout(s, sheet)?;
    let seed = s.whole("seed")?;
    let from = seed.map_or_else(|| format!("seed, default {}", defaults.seed), |_| s.shown("seed"));
    sheet.whole(keys::SEED, seed.unwrap_or(defaults.seed), from);
    if let Some(every) = s.whole("logging_steps")? {
        sheet.whole(keys::LOG_EVERY, every.max(1), s.shown("logging_steps"));
    }
    if let Some(share) = s.number("label_smoothing_factor")?.filter(|share| *share > 0.0) {
        sheet.number(keys::LABEL_SMOOTHING, share, s.shown("label_smoothing_factor"));
    }
    if s.flag("group_by_length")? {
        sheet.flag(keys::LENGTH_GROUPED, true, s.shown("group_by_length"));
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
        sheet.text(keys::DTYPE, "f32", "neither bf16 nor fp16");
        return Ok(());
    };
    if let Some((other, _)) = on.iter().find(|(_, other)| *other != dtype) {
        return s.refuse(other, format!("{key} and {other} are both set"), "set one");
    }
    let shown: Vec<String> = on.iter().map(|(key, _)| s.shown(key)).collect();
    sheet.text(keys::DTYPE, dtype, shown.join(", "));
    if dtype == "f16" {
        let why = "the loss scale of f16 follows another rule: train.loss_scale";
        sheet.note(NoteKind::Differs, s.shown(key), why);
    }
    Ok(())
}

fn length_and_batch(
    s: &Settings<'_>,
    (names, defaults): (&Names, &Defaults),
    options: &ImportOptions,
    sheet: &mut Sheet,
) -> Result<()> {
    // -1 is none.
    let steps = s.number("max_steps")?.filter(|steps| *steps > 0.0);
    match steps {
        Some(steps) => {
            sheet.whole(keys::STEPS, steps as u64, s.shown("max_steps"));
            if s.has(names.epochs) {
                sheet.note(NoteKind::Unused, s.shown(names.epochs), "max_steps decides");
                s.get(names.epochs);
            }
        }
        None => {
            let epochs = s.number(names.epochs)?;
            let from = epochs
                .map_or_else(|| format!("{}, default {}", names.epochs, defaults.epochs), |_| s.shown(names.epochs));
            sheet.number(keys::EPOCHS, epochs.unwrap_or(defaults.epochs), from);
        }
    }
    let micro = s.whole(names.micro_batch)?;
    let default = format!("{}, default {}", names.micro_batch, defaults.micro_batch);
    let micro = match micro {
        Some(micro) => (micro, s.shown(names.micro_batch)),
        None => (defaults.micro_batch, default),
    };
    let accumulation = match s.whole("gradient_accumulation_steps")? {
        Some(count) => (count, s.shown("gradient_accumulation_steps")),
        None => (1, "gradient_accumulation_steps, default 1".to_owned()),
    };
    sheet.ranks = options.ranks;
    let parts = BatchParts {
        batch: None,
        micro: Some(micro),
        accumulation: Some(accumulation),
        ranks: options.ranks,
        model_ranks: 1,
    };
    parts.write(sheet)
}

fn optimizer(s: &Settings<'_>, names: &Names, sheet: &mut Sheet) -> Result<()> {
    let name = s.text(names.optimizer)?.unwrap_or("adamw_torch");
    let Some((_, ours)) = OPTIMIZERS.iter().find(|(theirs, _)| *theirs == name) else {
        let known: Vec<&str> = OPTIMIZERS.iter().map(|(theirs, _)| *theirs).collect();
        let reason = format!("the optimizer {name} is not available; available are {}", known.join(", "));
        return s.refuse(names.optimizer, reason, "choose another one");
    };
    if s.has(names.optimizer) {
        sheet.text(keys::OPTIMIZER, ours, s.shown(names.optimizer));
        if name.contains("8bit") {
            let why = "moments are f32 here: `train.offload = true` keeps them in host memory";
            sheet.note(NoteKind::Differs, s.shown(names.optimizer), why);
        }
    }
    let decay = s.number("weight_decay")?;
    let from = decay.map_or_else(|| "weight_decay, default 0".to_owned(), |_| s.shown("weight_decay"));
    sheet.number(keys::WEIGHT_DECAY, decay.unwrap_or(0.0), from);
    let (one, two) = (s.number("adam_beta1")?, s.number("adam_beta2")?);
    if one.is_some() || two.is_some() {
        let value = format!("[{:?}, {:?}]", one.unwrap_or(0.9), two.unwrap_or(0.999));
        sheet.raw(keys::BETAS, value, format!("{}, {}", s.shown("adam_beta1"), s.shown("adam_beta2")));
    }
    if let Some(eps) = s.number("adam_epsilon")? {
        sheet.number(keys::EPS, eps, s.shown("adam_epsilon"));
    }
    match s.number("max_grad_norm")? {
        Some(norm) if norm > 0.0 => sheet.number(keys::CLIP_NORM, norm, s.shown("max_grad_norm")),
        Some(_) => sheet.text(keys::CLIP_KIND, "none", s.shown("max_grad_norm")),
        None => sheet.number(keys::CLIP_NORM, 1.0, "max_grad_norm, default 1"),
    }
    Ok(())
}

fn schedule(s: &Settings<'_>, (names, defaults): (&Names, &Defaults), sheet: &mut Sheet) -> Result<()> {
    match (s.number("learning_rate")?, defaults.lr) {
        (Some(lr), _) => sheet.number(keys::LR, lr, s.shown("learning_rate")),
        (None, Some(lr)) => sheet.number(keys::LR, lr, format!("learning_rate, default {lr}")),
        (None, None) => return s.refuse("learning_rate", "it is missing", "write learning_rate: 0.0002"),
    }
    let name = s.text(names.schedule)?.unwrap_or(defaults.schedule);
    let Some((_, ours)) = SCHEDULES.iter().find(|(theirs, _)| *theirs == name) else {
        let known: Vec<&str> = SCHEDULES.iter().map(|(theirs, _)| *theirs).collect();
        let reason = format!("the schedule {name} is not available; available are {}", known.join(", "));
        return s.refuse(names.schedule, reason, "choose another one");
    };
    let from = match s.has(names.schedule) {
        true => s.shown(names.schedule),
        false => format!("{}, default {name}", names.schedule),
    };
    sheet.text(keys::SCHEDULE, ours, from);
    let steps = s.number("warmup_steps")?.filter(|steps| *steps > 0.0);
    let share = s.number("warmup_ratio")?.filter(|share| *share > 0.0);
    match (steps, share) {
        (Some(steps), _) if steps >= 1.0 => {
            sheet.whole(keys::WARMUP, steps as u64, s.shown("warmup_steps"));
            if s.has("warmup_ratio") {
                sheet.note(NoteKind::Unused, s.shown("warmup_ratio"), "warmup_steps decides");
            }
        }
        // A newer Trainer takes a share as a number of steps below 1.
        (Some(share), _) => sheet.number(keys::WARMUP, share, s.shown("warmup_steps")),
        (None, Some(share)) => sheet.number(keys::WARMUP, share, s.shown("warmup_ratio")),
        (None, None) if *ours == "one-cycle" => {
            return s.refuse(
                names.schedule,
                "one cycle rises over its warm-up, and there is none",
                "set warmup_ratio: 0.3",
            );
        }
        (None, None) => {}
    }
    if let Some(share) = s.number("cosine_min_lr_ratio")?.filter(|share| *share > 0.0) {
        sheet.number(keys::FINAL_LR, share, s.shown("cosine_min_lr_ratio"));
    }
    Ok(())
}

/// An interval in steps, or as a share of the run.
fn interval(s: &Settings<'_>, key: &str, sheet: &mut Sheet) -> Result<Option<String>> {
    match s.number(key)? {
        Some(steps) if steps >= 1.0 => Ok(Some(format!("{} steps", steps as u64))),
        Some(share) if share > 0.0 => {
            let why = "an interval is a number of steps or epochs here, not a share of the run";
            sheet.note(NoteKind::Differs, s.shown(key), why);
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Parts of an epoch.
fn parts(count: f64) -> String {
    let share = (1e4 / count).round() / 1e4;
    if share == 1.0 { "1 epoch".to_owned() } else { format!("{share} epochs") }
}

fn intervals(s: &Settings<'_>, (names, has_eval): (&Names, bool), sheet: &mut Sheet) -> Result<()> {
    let kinds = [
        (keys::EVAL_EVERY, ["eval_strategy", "evaluation_strategy"], "eval_steps", "evals_per_epoch", has_eval),
        (keys::CHECKPOINT_EVERY, ["save_strategy", ""], "save_steps", "saves_per_epoch", true),
    ];
    for (key, strategies, steps, per_epoch, is_used) in kinds {
        let strategies: Vec<&str> = strategies.into_iter().filter(|name| s.has(name)).collect();
        // `no` is a truth value of YAML.
        let strategy = strategies.first().map(|name| match s.get(name) {
            Some(serde_json::Value::Bool(false)) => "no",
            Some(serde_json::Value::String(text)) => text.as_str(),
            _ => "steps",
        });
        let by_steps = interval(s, steps, sheet)?;
        let by_epoch = s.number(per_epoch)?.filter(|count| *count > 0.0).map(parts);
        let (value, from) = match strategy {
            Some("epoch") => (Some("1 epoch".to_owned()), s.shown(strategies[0])),
            Some("no" | "best") => (None, s.shown(strategies[0])),
            _ if by_epoch.is_some() => (by_epoch, s.shown(per_epoch)),
            _ => (by_steps, s.shown(steps)),
        };
        match value {
            Some(value) if is_used => sheet.text(key, &value, from),
            Some(_) => {
                let why = "there are no evaluation data: set data.eval, or `eval` of a data set";
                sheet.note(NoteKind::Differs, from, why);
            }
            None if !strategies.is_empty() => {
                sheet.note(NoteKind::Unused, from, "this interval is the default, or what decides it is another key");
            }
            None => {}
        }
    }
    if let Some(batch) = s.whole(names.eval_batch)? {
        match has_eval {
            true => sheet.whole(keys::EVAL_BATCH, batch.max(1), s.shown(names.eval_batch)),
            false => sheet.note(NoteKind::Unused, s.shown(names.eval_batch), "there are no evaluation data"),
        }
    }
    if let Some(keep) = s.whole("save_total_limit")? {
        sheet.whole(keys::CHECKPOINT_KEEP, keep.clamp(2, 1000), s.shown("save_total_limit"));
    }
    if let Some(patience) = s.whole("early_stopping_patience")?.filter(|patience| *patience > 0) {
        match has_eval {
            true => sheet.whole(keys::EARLY_STOP, patience, s.shown("early_stopping_patience")),
            false => {
                sheet.note(NoteKind::Differs, s.shown("early_stopping_patience"), "there are no evaluation data");
            }
        }
    }
    Ok(())
}

/// How ranks share the model.
fn layout(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    if let Some(path) = s.get("deepspeed") {
        let shown = s.shown("deepspeed");
        let text = path.to_string().to_lowercase().replace(['_', '-'], "");
        let stage =
            (1..=3_u64).find(|stage| text.contains(&format!("zero{stage}")) || text.contains(&format!("z{stage}")));
        if let Some(stage) = stage {
            sheet.whole(keys::ZERO, stage, shown.clone());
        }
        let why = "only the stage in its name is read: `import deepspeed` reads such a file";
        sheet.note(NoteKind::Differs, shown, why);
    }
    if s.get("fsdp").is_some() || s.get("fsdp_config").is_some() {
        let from: Vec<String> =
            ["fsdp", "fsdp_config"].into_iter().filter(|key| s.has(key)).map(|key| s.shown(key)).collect();
        sheet.whole(keys::ZERO, 3, from.join(", "));
    }
    Ok(())
}
