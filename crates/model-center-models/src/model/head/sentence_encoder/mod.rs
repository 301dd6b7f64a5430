//! Sentence encoders: from a text to an embedding, as a directory of sentence-transformers states it.
//!
//! Defines [`SentenceEncoder`]. `settings` reads the directory's files: each field is used, known to be without effect,
//! or refused, as `meaning` lists. `dense` is a linear map over embeddings, `dense_layer` the same as parameters of a
//! model. Called by the server and, for the modules, where a model is opened whose embeddings are trained.
//!
//! Source: sentence-transformers 6.2, whose modules and defaults these are.

mod dense;
pub(in crate::model) mod dense_layer;
mod meaning;
mod settings;

pub use dense_layer::{DenseActivation, DenseSettings};
pub use meaning::meaning as sentence_field;
pub(in crate::model) use settings::{
    CROSS_ENCODER, PROMPTS_FILE, kept_prompts, only_transformer, transformer_settings,
};

use self::dense::Dense;
use self::dense_layer::DenseFile;
use super::pooling::PoolingMode;
use crate::{Error, Result};
use model_center_formats::tokenizer::{KeepSide, Limit, Tokenizer};
use serde_json::Map;
use std::path::Path;

/// The files of a directory that state how embeddings are made of texts, whether they are there or not.
///
/// # Errors
/// A list of modules that cannot be read.
pub fn sentence_files(directory: &Path) -> Result<Vec<String>> {
    settings::files(directory)
}

/// A step after the pooling.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// Scales an embedding to length one.
    Normalize,
    /// A linear map with an activation.
    Dense(Dense),
}

/// From a text to an embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct SentenceEncoder {
    /// Elements of an embedding, where the directory states it.
    pub size: Option<usize>,
    /// Tokens of an input, special tokens included, beyond which texts are truncated; `None` where the directory states
    /// nothing.
    pub max_length: Option<usize>,
    /// Whether longer texts are truncated, as directories with `modules.json` have it.
    truncates: bool,
    /// Which side of a longer text stays.
    keep: KeepSide,
    is_lower_case: bool,
    prompts: Map<String, serde_json::Value>,
    default_prompt: Option<String>,
    /// Pooling modes, one after the other.
    modes: Vec<PoolingMode>,
    steps: Vec<Step>,
    /// Whether elements of embeddings are dropped in training.
    drops: bool,
}

impl SentenceEncoder {
    /// The encoder of a directory; without `modules.json` the mean, scaled to length one, of texts of any length.
    ///
    /// # Errors
    /// [`Error::Model`] for files that cannot be read, and for modules and settings that are not supported.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        settings::read(directory)
    }

    /// The same for a model with this number of positions.
    #[must_use]
    pub fn within(self, positions: usize) -> Self {
        match self.truncates {
            true => SentenceEncoder { max_length: Some(self.max_length.unwrap_or(positions).min(positions)), ..self },
            false => self,
        }
    }

    /// The names of prompts that texts can have before them.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.prompts.keys().map(String::as_str)
    }

    /// The token ids of a text with a prompt before it, the directory's default one where `prompt` is `None`; of a text
    /// longer than [`SentenceEncoder::max_length`] those that it has room for.
    ///
    /// # Errors
    /// [`Error::Argument`] for a prompt that the directory does not name; what the tokenizer refuses.
    pub fn encode(&self, tokenizer: &dyn Tokenizer, text: &str, prompt: Option<&str>) -> Result<Vec<u32>> {
        Ok(self.encode_up_to(tokenizer, text, prompt, usize::MAX)?.unwrap_or_default())
    }

    /// The same; `None` of more than `most` tokens, for which a text that is not truncated is not tokenized to its end.
    ///
    /// # Errors
    /// As [`SentenceEncoder::encode`].
    pub fn encode_up_to(
        &self,
        tokenizer: &dyn Tokenizer,
        text: &str,
        prompt: Option<&str>,
        most: usize,
    ) -> Result<Option<Vec<u32>>> {
        let text = self.prompted(text, prompt)?;
        let ids = match self.max_length {
            Some(max_tokens) => tokenizer.encode(&text, None, Some(Limit { max_tokens, keep: self.keep }))?.input_ids,
            None => match tokenizer.tokenize_up_to(&text, most)? {
                Some(ids) => tokenizer.template(false).assemble(&ids, &[], None)?.input_ids,
                None => return Ok(None),
            },
        };
        Ok(Some(ids).filter(|ids| ids.len() <= most))
    }

    /// The text that is tokenized.
    fn prompted(&self, text: &str, prompt: Option<&str>) -> Result<String> {
        let name = prompt.or(self.default_prompt.as_deref());
        let before = match name.map(|name| (name, self.prompts.get(name))) {
            None => "",
            Some((_, Some(prompt))) => prompt.as_str().unwrap_or_default(),
            Some((name, None)) => {
                let known = self.prompts().collect::<Vec<_>>().join(", ");
                let (reason, fix) = match known.is_empty() {
                    true => (format!("the model has no prompts, and {name:?} is asked for"), "leave it out"),
                    false => {
                        (format!("the model has no prompt {name:?}; prompts: {known}"), "name one of these, or none")
                    }
                };
                return Err(Error::argument("prompt_name", reason, fix));
            }
        };
        let text = format!("{before}{text}");
        Ok(match self.is_lower_case {
            // As the normalizer does: one character after the other.
            true => text.chars().flat_map(char::to_lowercase).collect(),
            false => text,
        })
    }

    /// The embedding of hidden states, rows of `width` elements.
    ///
    /// Numerics: sums in `f64`.
    pub fn embed(&self, hidden: &[f32], width: usize) -> Vec<f32> {
        let pooled = self.modes.iter().flat_map(|mode| mode.pool(hidden, width));
        let embedding = self.steps.iter().fold(pooled.collect::<Vec<f64>>(), |embedding, step| match step {
            Step::Normalize => normalized(embedding),
            Step::Dense(dense) => dense.apply(&embedding),
        });
        embedding.into_iter().map(|x| x as f32).collect()
    }

    /// The one mode that is pooled, and whether the embedding is scaled at the end, after modules `Dense` alone; `None`
    /// of any other encoder.
    pub(in crate::model) fn plain(&self) -> Option<(PoolingMode, bool)> {
        let [mode] = self.modes[..] else { return None };
        let (maps, normalizes) = match &self.steps[..] {
            [maps @ .., Step::Normalize] => (maps, true),
            maps => (maps, false),
        };
        maps.iter().all(|step| matches!(step, Step::Dense(_))).then_some((mode, normalizes))
    }

    /// Its modules `Dense`, in order.
    pub(in crate::model) fn dense_files(&self) -> impl Iterator<Item = &DenseFile> {
        self.steps.iter().filter_map(|step| match step {
            Step::Dense(dense) => Some(&dense.file),
            Step::Normalize => None,
        })
    }

    /// Whether elements of embeddings are dropped in training.
    pub(in crate::model) fn drops(&self) -> bool {
        self.drops
    }

    /// Whether the end of a longer text stays.
    pub(super) fn keeps_end(&self) -> bool {
        self.keep == KeepSide::End
    }

    /// Whether texts are lower-cased before they are tokenized.
    pub(super) fn is_lower_case(&self) -> bool {
        self.is_lower_case
    }
}

fn normalized(mut embedding: Vec<f64>) -> Vec<f64> {
    // The smallest length of PyTorch's normalization.
    let length = embedding.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
    embedding.iter_mut().for_each(|x| *x /= length);
    embedding
}
