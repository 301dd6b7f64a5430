//! A configuration file of DeepSpeed as a recipe, or over the recipe of the command that it belongs to.
//!
//! Defines [`deepspeed`]; `keys` has every key, `settings` the translation.

mod keys;
mod settings;

use super::ImportOptions;
use super::account::{Account, Setting};
use super::batch::BatchParts;
use super::flags::Role;
use super::megatron::beside_configuration;
use super::numbers;
use super::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use keys::KEYS;
use model_center_base::file::printable;
use model_center_base::json::parse_object;
use model_center_recipe::key;
use serde_json::{Map, Value};

/// The paths of all keys.
pub(super) fn known_keys() -> Vec<&'static str> {
    KEYS.iter().map(|(key, _)| *key).collect()
}

/// A recipe from the text of a configuration; `place` names it in errors, and `command` is the command of Megatron-LM
/// that it belongs to. The configuration counts where both set something, as it does in DeepSpeed.
///
/// # Errors
/// [`Error::Model`] for a text that is not JSON, [`Error::Argument`] for unknown and refused keys, and for a batch
/// that is not micro-batch x accumulation x data ranks.
pub fn deepspeed(text: &str, place: &str, command: Option<&str>, options: &ImportOptions) -> Result<Sheet> {
    let config = parse_object(text, place)?;
    let (mut sheet, flags) = match command {
        Some(command) => {
            let (sheet, flags) = beside_configuration(command, &ImportOptions { sets: Vec::new(), ..options.clone() })?;
            (sheet, Some(flags))
        }
        None => (Sheet::new(""), None),
    };
    let source = if command.is_some() { format!("{place} and {}", sheet.source) } else { place.to_owned() };
    sheet.source = format!("DeepSpeed, {}", printable(&source, 200));
    let reader = Config { map: &config, place };
    settings::translate(&reader, command.is_some(), &mut sheet)?;
    batch(&reader, options, &mut sheet)?;
    account(&reader, options, &mut sheet)?;
    if let Some(flags) = &flags {
        flags.note_unnamed("the file of DeepSpeed decides it", &mut sheet);
    }
    if command.is_none() && !options.sets.iter().any(|set| set.starts_with("model.path=")) {
        let why = "the file has neither: add --set model.path=… --set data.task=…, or --flags with the command";
        sheet.note(NoteKind::Differs, "model and data", why);
    }
    sheet.apply(&options.sets)?;
    Ok(sheet)
}

/// The configuration, by paths.
struct Config<'a> {
    map: &'a Map<String, Value>,
    place: &'a str,
}

impl Config<'_> {
    /// A value; `None` where it is absent, null, or "auto", which the Trainer of transformers fills in.
    fn get(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let last = parts.next_back()?;
        let table = parts.try_fold(self.map, |map, table| map.get(table)?.as_object())?;
        table.get(last).filter(|value| !value.is_null() && value.as_str() != Some("auto"))
    }

    fn wrong(&self, path: &str, value: &Value, wanted: &str) -> Error {
        let reason = format!("{} is not {wanted}", printable(&value.to_string(), 80));
        Error::argument(format!("{}, {path}", self.place), reason, format!("write {wanted}"))
    }

    fn number(&self, path: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(path) else { return Ok(None) };
        numbers::number(value).map(Some).ok_or_else(|| self.wrong(path, value, "a number"))
    }

    fn whole(&self, path: &str) -> Result<Option<u64>> {
        let Some(number) = self.number(path)? else { return Ok(None) };
        numbers::whole(number).map(Some).ok_or_else(|| self.wrong(path, &Value::from(number), "a whole number"))
    }

    fn flag(&self, path: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(path) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(path, value, "true or false"))
    }

    fn text(&self, path: &str) -> Result<Option<&str>> {
        let Some(value) = self.get(path) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(path, value, "a text"))
    }

    fn shown(&self, path: &str) -> String {
        shown(path, self.get(path))
    }
}

fn batch(config: &Config<'_>, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    let held = |key: &str| {
        let line = sheet.lines().iter().find(|line| line.key == key)?;
        Some((line.value.parse::<u64>().ok()?, line.from.clone()))
    };
    let part = |path: &str| -> Result<Option<(u64, String)>> {
        Ok(config.whole(path)?.map(|value| (value, format!("{path} {value}"))))
    };
    let batch = part("train_batch_size")?;
    let mut micro = part("train_micro_batch_size_per_gpu")?;
    let mut accumulation = part("gradient_accumulation_steps")?;
    if batch.is_none() || (micro.is_none() && accumulation.is_none()) {
        micro = micro.or_else(|| held(key!(train.micro_batch_size)));
    }
    if batch.is_none() && accumulation.is_none() && micro.is_some() {
        accumulation = Some((1, "DeepSpeed's default".to_owned()));
    }
    if batch.is_none() && micro.is_none() && accumulation.is_none() {
        return Ok(());
    }
    let parts = BatchParts {
        batch,
        micro,
        accumulation,
        ranks: options.ranks.or(sheet.ranks),
        model_ranks: sheet.model_ranks(),
    };
    let of_command = held(key!(train.accumulation)).filter(|(_, from)| from.starts_with("--"));
    parts.write(sheet)?;
    if let Some((count, from)) = of_command {
        note_accumulation(&parts, (count, from), sheet);
    }
    Ok(())
}

/// Tells what becomes of the accumulation of a command, which DeepSpeed does not read.
fn note_accumulation(parts: &BatchParts, (count, from): (u64, String), sheet: &mut Sheet) {
    let stated = parts.accumulation.as_ref().map(|(value, from)| (*value, from.clone()));
    let data_ranks = parts.ranks.map(|ranks| ranks / parts.model_ranks.max(1));
    let follows = || {
        let (batch, batch_from) = parts.batch.as_ref()?;
        let (micro, _) = parts.micro.as_ref()?;
        let of_pass = micro.checked_mul(data_ranks?).filter(|samples| *samples > 0)?;
        Some((batch / of_pass, format!("{batch_from} / ({micro} x {} data ranks)", data_ranks?)))
    };
    match stated.or_else(follows) {
        Some((value, by)) if value == count => sheet.note(NoteKind::Unused, from, format!("{by} is the same")),
        Some((value, by)) => {
            sheet.note(NoteKind::Differs, from, format!("DeepSpeed takes {value}, by its file: {by}"));
        }
        None => {
            let why = "DeepSpeed takes the number that follows from its file and the ranks: --ranks N checks it";
            sheet.note(NoteKind::Differs, from, why);
        }
    }
}

/// Notes every key that has no line, and refuses what cannot be kept.
fn account(config: &Config<'_>, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
    let mut account = Account::new(&options.leave);
    walk(config.map, "", &mut |path, value| {
        if value.as_str() == Some("auto") {
            sheet.note(NoteKind::Unused, format!("{path} auto"), "the Trainer of transformers would fill it in");
            return false;
        }
        let place = format!("{}, {}", config.place, printable(path, 80));
        let setting = Setting { name: path, place, shown: shown(path, Some(value)) };
        // An object that is listed only as a whole is not looked into.
        let is_table = value.is_object() && KEYS.iter().any(|(key, _)| key.starts_with(&format!("{path}.")));
        let is_off = *value == Value::Bool(false)
            || value.get("enabled") == Some(&Value::Bool(false))
            || value.as_f64() == Some(0.0);
        match KEYS.iter().find(|(key, _)| *key == path).map(|(_, role)| *role) {
            Some(Role::Read) => return is_table,
            Some(Role::Refused(why)) if is_off || (path == "sequence_parallel_size" && value.as_f64() == Some(1.0)) => {
                sheet.note(NoteKind::Unused, setting.shown, format!("it is off; {why}"));
            }
            Some(role) => account.settle(setting, role, sheet),
            None => account.unknown(setting, KEYS.iter().map(|(key, _)| *key), sheet),
        }
        false
    });
    account.finish()
}

/// Calls `visit` with each path; whether it returns true decides if an object is looked into.
fn walk(map: &Map<String, Value>, prefix: &str, visit: &mut impl FnMut(&str, &Value) -> bool) {
    for (key, value) in map {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        if visit(&path, value)
            && let Some(inner) = value.as_object()
        {
            walk(inner, &path, visit);
        }
    }
}

fn shown(path: &str, value: Option<&Value>) -> String {
    let value = value.map(Value::to_string).unwrap_or_default();
    printable(&format!("{path} {value}"), 120)
}
