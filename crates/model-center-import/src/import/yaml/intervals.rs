//! When a configuration evaluates and saves, and which weights it keeps.

use super::settings::Settings;
use super::trainer::Trainer;
use crate::Result;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_recipe::key;

/// Interval of the Trainer where it has no number of steps.
const TRAINER_STEPS: f64 = 500.0;
const NO_DATA: &str = "there are no evaluation data: set data.eval, or `eval` of a data set";

/// Writes intervals, what is kept, and when a run ends early.
pub(super) fn translate(s: &Settings<'_>, trainer: &Trainer, has_eval: bool, sheet: &mut Sheet) -> Result<()> {
    evaluations(s, has_eval, sheet)?;
    checkpoints(s, trainer, sheet)?;
    best(s, trainer, has_eval, sheet)?;
    let key = trainer.eval_batch;
    if let Some(batch) = s.whole(key)? {
        match has_eval {
            true => sheet.whole(key!(eval.batch_size), batch.max(1), s.shown(key)),
            false => sheet.note(NoteKind::Unused, s.shown(key), "there are no evaluation data"),
        }
    }
    if let Some(keep) = s.whole("save_total_limit")? {
        sheet.whole(key!(checkpoint.keep), keep.clamp(2, 1000), s.shown("save_total_limit"));
    }
    if let Some(patience) = s.whole("early_stopping_patience")?.filter(|patience| *patience > 0) {
        match has_eval {
            true => sheet.whole(key!(train.early_stop.patience), patience, s.shown("early_stopping_patience")),
            false => sheet.note(NoteKind::Differs, s.shown("early_stopping_patience"), "there are no evaluation data"),
        }
    }
    Ok(())
}

/// An interval and the setting that it is from.
struct Found {
    /// `None` for never.
    value: Option<String>,
    from: String,
}

/// The interval that some keys have; `None` where none of them is there.
fn found(
    s: &Settings<'_>,
    strategies: &[&str],
    (steps, default): (&str, f64),
    per_epoch: &str,
    sheet: &mut Sheet,
) -> Result<Option<Found>> {
    let strategy = strategies.iter().find(|name| s.has(name));
    let by_steps = in_steps(s, steps, sheet)?;
    let by_epoch = s.number(per_epoch)?.filter(|count| *count > 0.0).map(parts);
    let from = strategy.map_or_else(String::new, |name| s.shown(name));
    // `no` is a truth value of YAML.
    let name = strategy.map(|name| match s.get(name) {
        Some(serde_json::Value::Bool(false)) => "no",
        Some(serde_json::Value::String(text)) => text.as_str(),
        _ => "steps",
    });
    Ok(match (name, by_epoch, by_steps) {
        (Some("epoch"), ..) => Some(Found { value: Some("1 epoch".to_owned()), from }),
        (Some("no" | "best"), ..) => Some(Found { value: None, from }),
        (_, Some(value), _) => Some(Found { value: Some(value), from: s.shown(per_epoch) }),
        (_, None, Some(value)) => Some(Found { value: Some(value), from: s.shown(steps) }),
        (Some(_), None, None) if !s.has(steps) => {
            let from = format!("{from}, {steps}, default {default}");
            Some(Found { value: Some(format!("{} steps", default.max(1.0) as u64)), from })
        }
        _ => None,
    })
}

fn evaluations(s: &Settings<'_>, has_eval: bool, sheet: &mut Sheet) -> Result<()> {
    // Without a number it is the interval of the log.
    let default = s.number("logging_steps")?.unwrap_or(TRAINER_STEPS);
    let strategies = ["eval_strategy", "evaluation_strategy"];
    let Some(Found { value, from }) = found(s, &strategies, ("eval_steps", default), "evals_per_epoch", sheet)? else {
        return Ok(());
    };
    match (value, has_eval) {
        (Some(value), true) => sheet.text(key!(eval.every), &value, from),
        (None, true) => sheet.text(key!(eval.every), "end", from),
        (Some(_), false) => sheet.note(NoteKind::Differs, from, NO_DATA),
        (None, false) => sheet.note(NoteKind::Unused, from, "there are no evaluation data"),
    }
    Ok(())
}

fn checkpoints(s: &Settings<'_>, trainer: &Trainer, sheet: &mut Sheet) -> Result<()> {
    let keys = ["save_strategy", "save_steps", "saves_per_epoch"];
    match found(s, &keys[..1], (keys[1], TRAINER_STEPS), keys[2], sheet)? {
        Some(Found { value: Some(value), from }) => sheet.text(key!(checkpoint.every), &value, from),
        Some(Found { value: None, from }) => {
            sheet.note(NoteKind::Unused, from, "checkpoint.minutes alone decides, or the weights that are kept do");
        }
        None if keys.iter().any(|key| s.has(key)) => {}
        None => {
            let (from, every) = trainer.default_checkpoint;
            sheet.text(key!(checkpoint.every), every, from);
        }
    }
    Ok(())
}

/// Weights that a run ends with.
fn best(s: &Settings<'_>, trainer: &Trainer, has_eval: bool, sheet: &mut Sheet) -> Result<()> {
    let key = "load_best_model_at_end";
    if !has_eval {
        s.pass_over(&[key], "there are no evaluation data", sheet);
        return Ok(());
    }
    let is_best = s.get(key).is_some().then(|| s.flag(key)).transpose()?;
    match is_best {
        Some(is_best) => sheet.text(key!(save.which), if is_best { "best" } else { "last" }, s.shown(key)),
        None if trainer.saves_last => sheet.text(key!(save.which), "last", format!("{key}, default false")),
        None => {}
    }
    Ok(())
}

/// An interval in steps; a share of the run has none.
fn in_steps(s: &Settings<'_>, key: &str, sheet: &mut Sheet) -> Result<Option<String>> {
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
    let share = ((1e4 / count).round() / 1e4).max(1e-4);
    if share == 1.0 { "1 epoch".to_owned() } else { format!("{share} epochs") }
}
