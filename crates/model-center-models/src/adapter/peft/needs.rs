//! Requirements of PEFT directories on the base model's configuration: an output projection of its own, another
//! vocabulary, a head.

use super::pattern::is_saved_module;
use super::tensors::{PeftTensors, of_module};
use super::{PREFIX, PeftDirectory, read_settings, weights_file};
use crate::adapter::{Adapter, plan::HEADS};
use crate::{Error, Result};
use model_center_formats::config::TextHead;
use model_center_formats::{NameTable, Weights};
use std::path::Path;

/// Requirements of an adapter on its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BaseNeeds {
    /// An output projection of its own, whose values are the embedding's where the adapter does not have them: the
    /// adapter changes one of the two.
    pub(crate) is_untied: bool,
    /// The vocabulary that the adapter's embedding has.
    pub(crate) vocabulary: Option<usize>,
}

impl BaseNeeds {
    /// Requirements of an adapter on a model with these names; `tokens` is Hugging Face's name of the token embedding.
    ///
    /// # Errors
    /// A PEFT directory that cannot be opened.
    pub(crate) fn of(adapter: &Adapter, names: &NameTable, tokens: &str) -> Result<Self> {
        let mut needs = BaseNeeds::default();
        for directory in adapter.directories() {
            let saved = PeftDirectory::open(directory)?;
            let heads = names.aliases.iter().filter(|alias| alias.of() == tokens && !alias.name().contains("embed"));
            for alias in heads {
                let both = [alias.name(), alias.of()];
                let is_changed = both.iter().any(|name| saved.changes(name, names));
                needs.is_untied |= is_changed && !saved.keeps_tied(alias.name(), names);
            }
            let rows = of_module(&saved.tensors.base, tokens, names.base_prefix);
            let rows = rows.and_then(|(_, tensor)| tensor.entry.shape.first());
            needs.vocabulary = needs.vocabulary.max(rows.copied());
        }
        Ok(needs)
    }
}

impl PeftDirectory {
    /// Whether the directory updates this matrix or has it as a whole, by a name in the configuration.
    fn changes(&self, name: &str, names: &NameTable) -> bool {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let PeftTensors { updates, embeddings, base, .. } = &self.tensors;
        let has_update = of_module(updates, module, names.base_prefix).is_some()
            || of_module(embeddings, module, names.base_prefix).is_some();
        let is_saved = is_saved_module(&self.settings.saved_modules, module);
        has_update || (is_saved && of_module(base, name, names.base_prefix).is_some())
    }
}

/// The head that a PEFT directory has trained, if its task is one of a head beside the language model's.
///
/// # Errors
/// A directory that cannot be read; one for classes that has no classifier.
pub fn trained_head(directory: &Path) -> Result<Option<TextHead>> {
    let settings = read_settings(directory)?;
    let task = settings.task.as_deref().unwrap_or_default();
    if task == "QUESTION_ANS" {
        return Ok(Some(TextHead::QuestionAnswering));
    }
    if !matches!(task, "SEQ_CLS" | "TOKEN_CLS") {
        return Ok(None);
    }
    let file = weights_file(directory);
    let tensors = PeftTensors::of(&Weights::open(&file)?, PREFIX)?;
    let is_of_head = |name: &str| name.split('.').any(|part| HEADS.contains(&part));
    let last = ["score.weight", "classifier.weight", "out_proj.weight"];
    let mut found =
        tensors.base.iter().filter(|(name, _)| is_of_head(name) && last.iter().any(|end| name.ends_with(end)));
    let outputs = found.next().and_then(|(_, tensor)| match tensor.entry.shape.as_slice() {
        &[outputs, _] => Some(outputs),
        _ => None,
    });
    let outputs = outputs.ok_or_else(|| {
        let reason = format!("task_type is {task}, and the file has no classifier");
        Error::model(file.display().to_string(), reason, "save the adapter with its head (modules_to_save)")
    })?;
    Ok(Some(match task {
        "TOKEN_CLS" => TextHead::TokenClassification { outputs },
        _ => TextHead::Classification { outputs },
    }))
}
