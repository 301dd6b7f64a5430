//! Preferences and reward models of a configuration.

use super::settings::Settings;
use crate::Result;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_recipe::key;

/// Kind of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Samples {
    /// One sequence.
    Single,
    /// A better and a worse completion, with the loss by its name here.
    Pairs(&'static str),
    /// The same, of a model that rates sequences.
    Rewards,
}

impl Samples {
    /// The value of `data.task`.
    pub(super) fn task(self) -> &'static str {
        match self {
            Samples::Single => "sft",
            Samples::Pairs(_) => "preference",
            Samples::Rewards => "reward",
        }
    }

    pub(super) fn are_pairs(self) -> bool {
        self != Samples::Single
    }
}

/// Writes the loss and its numbers; `beta` is the key of its factor.
pub(super) fn translate(s: &Settings<'_>, (loss, from): (&str, String), beta: &str, sheet: &mut Sheet) -> Result<()> {
    sheet.text(key!(preference.loss), loss, from);
    let beta = s.number_or(beta, 0.1)?;
    sheet.number(key!(preference.beta), beta.value, beta.from);
    if loss == "simpo" {
        let gamma = s.number_or("simpo_gamma", 0.5)?;
        sheet.number(key!(preference.gamma), gamma.value, gamma.from);
    }
    let smoothing = "dpo_label_smoothing";
    if let Some(share) = s.number(smoothing)?.filter(|share| *share > 0.0) {
        let shown = s.shown(smoothing);
        match loss {
            "dpo" => sheet.number(key!(preference.label_smoothing), share, shown),
            _ => sheet.note(NoteKind::Unused, shown, "it is for the loss of DPO"),
        }
    }
    Ok(())
}

/// Notes keys that are for single samples.
pub(super) fn pass_over_single(s: &Settings<'_>, keys: &[&str], sheet: &mut Sheet) {
    s.pass_over(keys, "it is for single samples, not for pairs", sheet);
}
