//! The teacher of a run: a frozen model on the same ranks, whose outputs the model in training learns from.
//!
//! Defines [`TeacherSetup`], what is known of it before weights are read. Its objective is
//! `objective/distillation.rs`.

use super::model_options::{open_options, whole_options};
use super::objective::Opening;
use super::setup::of_key;
use crate::{Error, Result};
use bmtrain_core::Device;
use bmtrain_core::wrap::Counting;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::param::NamePatterns;
use model_center_base::batch::LabelSpace;
use model_center_formats::ModelCaches;
use model_center_formats::tokenizer::{AutoTokenizer, Tokenizer};
use model_center_models::{HeadInit, ModelInfo, OpenMode, OpenOptions, Registry, TextModel, WeightForm};
use model_center_recipe::{Resolved, teacher_directory};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KEY: &str = "distill.teacher";

/// A teacher that fits its student.
#[derive(Debug, Clone)]
pub struct TeacherSetup {
    /// Its directory.
    pub directory: PathBuf,
    /// Its parameter values.
    pub parameters: usize,
    /// A line on what is compared, where vocabularies are of two sizes.
    pub note: Option<String>,
}

impl TeacherSetup {
    /// The teacher of a recipe, compared with the student that it is for; `None` where the recipe has none.
    ///
    /// # Errors
    /// No such model; another vocabulary, other labels, too few positions; labels that no teacher has logits of.
    pub(super) fn prepare(
        resolved: &Resolved,
        (registry, places): (Registry<'_>, &ModelCaches),
        (student, tokenizer): (&ModelInfo, &dyn Tokenizer),
        labels: &LabelSpace,
    ) -> Result<Option<Self>> {
        if resolved.distill.is_none() {
            return Ok(None);
        }
        let wrong = |reason: String, fix: &str| Error::recipe(resolved.place(KEY), format!("`{KEY}`: {reason}"), fix);
        if student.generates_targets || !matches!(labels, LabelSpace::NextTokens | LabelSpace::Classes(_)) {
            let reason = "a student learns next tokens or one class of each text, and these samples have other labels";
            return Err(wrong(reason.to_owned(), "remove the table [distill], or choose another task"));
        }
        let directory = teacher_directory(resolved, places)?;
        let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
        let options = options(resolved, whole_options(resolved, labels, &nowhere));
        let options = OpenOptions { mode: OpenMode::Check, ..options };
        let opened = registry.open(&directory, &options).map_err(|error| of_key(resolved, KEY, error))?;
        let teacher = opened.model.info();
        compare_tokens(&directory, tokenizer).map_err(|error| of_key(resolved, KEY, error))?;
        let (tokens, rows) = (tokenizer.vocab_size(), teacher.vocab_size);
        if rows < tokens {
            let reason = format!("its token embedding has {rows} rows, the vocabulary of the student {tokens} tokens");
            return Err(wrong(reason, "take a teacher of the same vocabulary"));
        }
        if let LabelSpace::Classes(names) = labels
            && !teacher.label_names.is_empty()
            && teacher.label_names != *names
        {
            let [own, theirs] = [names, &teacher.label_names].map(|names| names.join(", "));
            let reason = format!("its classes are {theirs}; the student's are {own}");
            return Err(wrong(reason, "take a teacher of the same classes, and write data.labels in its order"));
        }
        if resolved.data.max_length > teacher.max_length {
            let (asked, positions) = (resolved.data.max_length, teacher.max_length);
            let reason = format!("it has {positions} positions, and data.max_length is {asked}");
            return Err(wrong(reason, "lower data.max_length, or take another teacher"));
        }
        let note = (*labels == LabelSpace::NextTokens && rows != student.vocab_size).then(|| {
            let (own, common) = (student.vocab_size, rows.min(student.vocab_size));
            format!(
                "the teacher has logits of {rows} tokens, the student of {own}, the vocabulary {tokens}: the rest is \
                 filling, and distributions are compared over the first {common}"
            )
        });
        Ok(Some(TeacherSetup { parameters: opened.parameters, directory, note }))
    }

    /// Opens the teacher on a rank of a run with these labels.
    ///
    /// # Errors
    /// Weights that cannot be read; no memory for them.
    pub(super) fn open(
        &self,
        resolved: &Resolved,
        labels: &LabelSpace,
        Opening { registry, device, groups, mode, .. }: Opening<'_>,
    ) -> Result<Box<dyn TextModel>> {
        let options = options(resolved, open_options(resolved, labels, device, groups)?);
        Ok(registry.open(&self.directory, &OpenOptions { mode, ..options })?.model)
    }

    /// Lines about it.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let of_model = format!("teacher: {} parameters from {}", self.parameters, self.directory.display());
        std::iter::once(of_model).chain(self.note.iter().map(|note| format!("note: {note}")))
    }
}

/// How a teacher is opened where its student is opened so: frozen, with its own configuration and head.
fn options(resolved: &Resolved, of_student: OpenOptions) -> OpenOptions {
    OpenOptions {
        family: None,
        ignored: Vec::new(),
        head_values: HeadInit::Directory,
        labels: Vec::new(),
        dtype: resolved.model.dtype,
        adapter: None,
        frozen: NamePatterns::new(["*"]),
        trained: None,
        weights: WeightForm::Dequantised,
        recompute: Recompute::Keep,
        hidden_dropout: None,
        attention_dropout: None,
        ..of_student
    }
}

/// Requires that ids are of the same tokens.
fn compare_tokens(directory: &Path, tokenizer: &dyn Tokenizer) -> Result<()> {
    let theirs = AutoTokenizer::open(directory)?;
    let (own, other) = (tokenizer.vocab_size(), theirs.vocab_size());
    let fix = "take a teacher of the same vocabulary";
    let first = (0..own.max(other) as u32).find(|id| tokenizer.token(*id) != theirs.token(*id));
    let Some(id) = first else { return Ok(()) };
    let shown = |token: Option<String>| token.map_or_else(|| "none".to_owned(), |token| format!("{token:?}"));
    let (ours, theirs) = (shown(tokenizer.token(id)), shown(theirs.token(id)));
    let reason = format!(
        "its vocabulary of {other} tokens is not the student's of {own}: token {id} is {theirs}, the student's {ours}"
    );
    Err(Error::model(directory.display().to_string(), reason, fix))
}
