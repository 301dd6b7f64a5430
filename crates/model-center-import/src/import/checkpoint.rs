//! Checkpoints that settings of another system begin with: the recipe has the path of the model that `convert` makes.
//!
//! Defines [`begin_with`], the one part of a translation that looks at files: what a checkpoint is shows in the names
//! of its directory, if that is on this machine.

use super::sheet::{NoteKind, Sheet};
use crate::Result;
use model_center_base::file::shell_word;
use model_center_formats::directory::CONFIG_FILE;
use model_center_formats::{KnownDirectory, weights::WeightsName};
use model_center_recipe::key;
use std::path::Path;

/// Writes `model.path` for a checkpoint, and how its model is made; `shown` is the setting that names it, `config` the
/// model that the settings name beside it, whose configuration and tokenizer it has.
///
/// A directory with Hugging Face's files, as the Trainer writes them, is the model as it is.
///
/// # Errors
/// [`Error::Model`](crate::Error::Model) for a directory of another program that `convert` does not read, with what to
/// do.
pub(super) fn begin_with(path: &str, shown: String, config: Option<&str>, sheet: &mut Sheet) -> Result<()> {
    const STATE: &str = "the optimizer's state and the step begin anew";
    let path = match path.trim_end_matches('/') {
        "" => path,
        bare => bare,
    };
    let directory = Path::new(path);
    // It was the revision of the model beside it.
    sheet.remove("model.revision");
    if directory.join(CONFIG_FILE).is_file() && WeightsName::of(directory)?.is_some() {
        sheet.text(key!(model.path), path, shown.clone());
        sheet.note(NoteKind::Differs, shown, format!("training begins with the weights of {path}; {STATE}"));
        return Ok(());
    }
    let from = match KnownDirectory::of(directory) {
        Some(known) => known.checkpoint().ok_or_else(|| known.no_model())?.display().to_string(),
        None => path.to_owned(),
    };
    let model = format!("{path}-model");
    let config = config.map_or_else(String::new, |config| format!(" --config {}", shell_word(config)));
    let command = format!("bmtrain convert {} {}{config}", shell_word(&from), shell_word(&model));
    sheet.text(key!(model.path), &model, shown.clone());
    sheet.note(NoteKind::Differs, shown, format!("first run `{command}`: training begins with that model; {STATE}"));
    Ok(())
}
