//! A run that goes on from a checkpoint of the Trainer.
//!
//! Defines [`translate`]; where there is an adapter, [`adapter`] is the one of the checkpoint.

use super::settings::Settings;
use crate::Result;
use crate::import::checkpoint::begin_with;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_recipe::key;
use serde_json::Value;

const KEY: &str = "resume_from_checkpoint";

/// The checkpoint that is named, if one is.
fn named<'s>(s: &'s Settings<'_>) -> Option<&'s str> {
    s.get(KEY).and_then(Value::as_str).filter(|path| !path.is_empty())
}

/// Begins with the model of the checkpoint that `resume_from_checkpoint` names, if it names one; `model` is the key of
/// the model. A run with an adapter keeps that model, since its checkpoints have the adapter alone.
///
/// # Errors
/// A value of another kind; a directory of another kind than a checkpoint.
pub(super) fn translate(s: &Settings<'_>, model: &str, has_adapter: bool, sheet: &mut Sheet) -> Result<()> {
    match (s.get(KEY), named(s)) {
        (Some(Value::Bool(true)), _) => {
            let why = "the same command resumes the run in output.dir, from its own checkpoints";
            sheet.note(NoteKind::Unused, s.shown(KEY), why);
        }
        (_, Some(path)) if !has_adapter => begin_with(path, s.shown(KEY), s.text(model)?, sheet)?,
        (None | Some(Value::Bool(_) | Value::String(_)), _) => {}
        (Some(_), _) => return Err(s.wrong(KEY, "the path of a checkpoint, true or false")),
    }
    Ok(())
}

/// Begins with the adapter of that checkpoint, and returns whether there is one.
pub(super) fn adapter(s: &Settings<'_>, sheet: &mut Sheet) -> bool {
    let Some(path) = named(s) else { return false };
    sheet.text(key!(adapter.path), path, s.shown(KEY));
    let why = "training begins with the adapter in it; the optimizer's state and the step begin anew";
    sheet.note(NoteKind::Differs, s.shown(KEY), why);
    true
}
