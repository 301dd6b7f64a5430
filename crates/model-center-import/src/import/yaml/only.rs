//! Training some parameters of a model alone.
//!
//! Patterns match the names that parameters have here, which depend on the family, and no file is read: patterns other
//! than of blocks come from `--set train.only=…`.

use super::settings::Settings;
use crate::Result;
use crate::import::ImportOptions;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_recipe::key;

/// Whether `--set` names the parameters that are trained.
fn is_set(options: &ImportOptions) -> bool {
    options.sets.iter().any(|set| set.split('=').next().map(str::trim) == Some(key!(train.only)))
}

/// Takes the parameters from `--set`, or refuses `key`, which names them as `names`.
///
/// # Errors
/// [`crate::Error::Argument`] without the setting.
pub(super) fn by_set(
    s: &Settings<'_>,
    (key, names): (&str, &[&str]),
    options: &ImportOptions,
    sheet: &mut Sheet,
) -> Result<()> {
    if !is_set(options) {
        let reason = "parameters have other names here: `train.only` has patterns of them";
        let fix = "give them, such as --set 'train.only=[\"*.layers.30.*\", \"*.layers.31.*\"]'; train.inspect_every = \
                   1 prints all names";
        return s.refuse(key, reason, fix);
    }
    for name in names.iter().filter(|name| s.get(name).is_some()) {
        sheet.note(NoteKind::Differs, s.shown(name), "train.only of --set names what is trained");
    }
    Ok(())
}

/// Writes that the first blocks are trained.
pub(super) fn first_blocks(count: u64, from: String, sheet: &mut Sheet) {
    let patterns: Vec<String> = (0..count).map(|block| format!("*.layers.{block}.*")).collect();
    sheet.list(key!(train.only), &patterns, from);
}
