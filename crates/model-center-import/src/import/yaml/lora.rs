//! Low-rank updates of a configuration, and the frozen model beside them.

use super::resumed;
use super::settings::Settings;
use crate::Result;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_base::file::printable;
use model_center_recipe::key;

const ON_CPU: &str = "matrices in 4 bits are multiplied on the CPU alone; scales have 32 bits, which bitsandbytes \
                      quantises too";

/// Keys that both trainers have.
const LORA_ALPHA: &str = "lora_alpha";
const LORA_DROPOUT: &str = "lora_dropout";

/// Names of keys that the trainers spell in their own way.
pub(super) struct Names {
    /// An adapter that training goes on with.
    pub(super) path: &'static str,
    pub(super) rank: &'static str,
    pub(super) rank_stabilized: &'static str,
    pub(super) dora: &'static str,
    /// Modules that are trained as a whole.
    pub(super) modules: &'static str,
    /// Keys of the layers that have updates.
    pub(super) targets: &'static [&'static str],
}

impl Names {
    fn all(&self) -> Vec<&'static str> {
        let own = [self.rank, LORA_ALPHA, LORA_DROPOUT, self.rank_stabilized, self.dora, self.modules];
        own.into_iter().chain(self.targets.iter().copied()).collect()
    }

    /// Notes the keys, of a configuration that trains a whole model or some of its parameters.
    pub(super) fn pass_over(&self, s: &Settings<'_>, sheet: &mut Sheet) {
        s.pass_over(&self.all(), "there is no adapter", sheet);
    }
}

/// Writes the method and its numbers; whether the layers are still to be named. `alpha` gives the trainer's default
/// from the rank, with its name.
pub(super) fn translate(
    s: &Settings<'_>,
    (names, method): (&Names, String),
    (alpha, alpha_name): (fn(u64) -> f64, &str),
    sheet: &mut Sheet,
) -> Result<bool> {
    sheet.text(key!(adapter.method), "lora", method);
    if resumed::adapter(s, sheet) {
        let others: Vec<&str> = names.all().into_iter().chain([names.path]).collect();
        s.pass_over(&others, "the checkpoint has the adapter and its settings", sheet);
        return Ok(false);
    }
    if let Some(path) = s.text(names.path)?.filter(|path| !path.is_empty()) {
        sheet.text(key!(adapter.path), path, s.shown(names.path));
        s.pass_over(&names.all(), &format!("{} has the adapter and its settings", names.path), sheet);
        return Ok(false);
    }
    let rank = s.whole_or(names.rank, 8)?;
    sheet.whole(key!(adapter.rank), rank.value, rank.from);
    match s.number(LORA_ALPHA)? {
        Some(alpha) => sheet.number(key!(adapter.alpha), alpha, s.shown(LORA_ALPHA)),
        None => sheet.number(key!(adapter.alpha), alpha(rank.value), format!("{LORA_ALPHA}, default {alpha_name}")),
    }
    if let Some(dropout) = s.number(LORA_DROPOUT)?.filter(|dropout| *dropout > 0.0) {
        sheet.number(key!(adapter.dropout), dropout, s.shown(LORA_DROPOUT));
    }
    if s.flag(names.rank_stabilized)? {
        sheet.flag(key!(adapter.rank_stabilized), true, s.shown(names.rank_stabilized));
    }
    if s.flag(names.dora)? {
        sheet.flag(key!(adapter.dora), true, s.shown(names.dora));
    }
    if let Some(modules) = s.texts(names.modules)? {
        check_modules(s, names.modules, &modules)?;
        sheet.list(key!(adapter.trained), &modules, s.shown(names.modules));
    }
    Ok(true)
}

/// Refuses names of modules that are patterns: a text is a regular expression to PEFT, and patterns of a recipe are of
/// another kind.
pub(super) fn check_modules(s: &Settings<'_>, key: &str, modules: &[String]) -> Result<()> {
    let is_plain = |module: &String| {
        !module.is_empty() && module.chars().all(|letter| letter.is_alphanumeric() || "._-".contains(letter))
    };
    match modules.iter().find(|module| !is_plain(module)) {
        None => Ok(()),
        Some(module) => {
            let reason = format!("\"{}\" is a regular expression, not the name of a module", printable(module, 60));
            s.refuse(key, reason, &format!("write {key}: [q_proj, v_proj], with the names of the layers"))
        }
    }
}

/// Writes that the frozen model is held in 4 bits; `double` is whether scales are quantised, with its key.
pub(super) fn in_4_bits(s: &Settings<'_>, key: &str, (double_key, double): (&str, bool), sheet: &mut Sheet) {
    let shown = s.shown(key);
    sheet.text(key!(adapter.quantize), "nf4", shown.clone());
    sheet.note(NoteKind::Differs, shown, ON_CPU);
    if !double {
        let why = "scales are rounded as with double quantisation";
        sheet.note(NoteKind::Differs, s.shown(double_key), why);
    }
}
