//! Cross-encoders: from the logit of a query and a document to their score, as a directory of sentence-transformers'
//! `CrossEncoder` states it.
//!
//! Defines [`CrossEncoder`]. The model is a classifier of one output, which opens as any other; the directory states
//! the activation after it, and how long pairs may be. Called by the server.
//!
//! Source: sentence-transformers 6.2, and what versions 2 to 5 wrote.

use super::sentence_encoder::{
    CROSS_ENCODER, DenseActivation, PROMPTS_FILE, kept_prompts, only_transformer, transformer_settings,
};
use crate::{Error, Result};
use model_center_base::file::{is_inside, printable};
use model_center_formats::config::fields_of;
use model_center_formats::directory::CONFIG_FILE;
use model_center_formats::tokenizer::KeepSide;
use serde_json::Value;
use std::path::Path;

/// The block of `config.json` in which versions 4 and 5 wrote the activation, and its field there, which has a file of
/// its own since.
const BLOCK: (&str, &str) = ("sentence_transformers", "activation_fn");
/// The field of `config.json` in which versions before 4 wrote it.
const OLDER: &str = "sbert_ce_default_activation_function";

/// From a logit to a score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrossEncoder {
    /// Activation after the logit; a sigmoid where the directory states none, as sentence-transformers has it.
    pub activation: DenseActivation,
    /// Tokens of a pair, special tokens included, beyond which it is truncated; `None` where the directory states
    /// nothing.
    pub max_length: Option<usize>,
}

impl CrossEncoder {
    /// The cross-encoder of a directory with a classifier of one output.
    ///
    /// # Errors
    /// [`Error::Model`] for files that cannot be read, for modules and settings that are not supported, and for the
    /// directory of another kind of model.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        only_transformer(directory)?;
        let (mut stated, mut place) = (None, directory.join(CONFIG_FILE));
        if is_inside(directory, PROMPTS_FILE)? {
            place = directory.join(PROMPTS_FILE);
            stated = of_own_file(directory)?;
        }
        if stated.is_none() && is_inside(directory, CONFIG_FILE)? {
            place = directory.join(CONFIG_FILE);
            let fields = fields_of(directory, CONFIG_FILE)?;
            let of_block = fields.peek(BLOCK.0).and_then(|block| block.get(BLOCK.1));
            stated = of_block.or_else(|| fields.peek(OLDER)).cloned();
        }
        let wrong = |reason: String, fix: &str| Err(Error::model(place.display().to_string(), reason, fix));
        let activation = match stated {
            None | Some(Value::Null) => DenseActivation::Sigmoid,
            Some(Value::String(class)) => match DenseActivation::of(Some(&class)) {
                Some(activation) => activation,
                None => {
                    let reason = format!("the activation {:?} of scores is not supported", printable(&class, 80));
                    return wrong(reason, "use Sigmoid, Identity, Tanh, ReLU or SiLU of torch.nn");
                }
            },
            Some(_) => return wrong("the activation of scores is not the name of a class".to_owned(), "name one"),
        };
        let settings = transformer_settings(directory, &CROSS_ENCODER)?;
        let refused = |reason: &str, fix: &str| Err(Error::model(directory.display().to_string(), reason, fix));
        if settings.is_lower_case {
            let reason = "its texts are lower-cased (do_lower_case), which is not supported for pairs";
            return refused(reason, "use a model whose tokenizer does it");
        }
        if settings.keep == KeepSide::End {
            let reason = "longer pairs lose their beginning (truncation_side), which is not supported";
            return refused(reason, "use a model that keeps it");
        }
        Ok(CrossEncoder { activation, max_length: settings.max_length })
    }

    /// The score of a pair.
    pub fn score(&self, logit: f32) -> f32 {
        self.activation.apply(f64::from(logit)) as f32
    }
}

/// The activation that `config_sentence_transformers.json` states.
///
/// # Errors
/// The file of another kind of model; a prompt before texts.
fn of_own_file(directory: &Path) -> Result<Option<Value>> {
    let fields = fields_of(directory, PROMPTS_FILE)?;
    let wrong = |reason: String, fix: &str| Err(Error::model(fields.place().to_owned(), reason, fix));
    if let Some(kind) = fields.peek("model_type").filter(|kind| *kind != "CrossEncoder" && !kind.is_null()) {
        let reason = format!("it is the file of a model of type {}", printable(&kind.to_string(), 60));
        return wrong(reason, "use the directory of a CrossEncoder");
    }
    let kept = kept_prompts(directory)?.unwrap_or_default();
    let default = kept.get("default_prompt_name").and_then(Value::as_str);
    let prompt = default.and_then(|name| kept.get("prompts")?.get(name)?.as_str());
    if prompt.is_some_and(|prompt| !prompt.is_empty()) {
        let reason = format!("pairs have a prompt by default ({:?})", printable(default.unwrap_or_default(), 60));
        return wrong(reason, "write it into the queries, and set default_prompt_name to null");
    }
    Ok(fields.peek("activation_fn").cloned())
}
