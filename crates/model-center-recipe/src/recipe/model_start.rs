//! Beginning of a recipe's model: a directory with weights, or a configuration whose parameters are all initialized.
//!
//! Defines [`ModelStart`] and [`model_directory`]. Called by the programs once a recipe is read.

use super::engine::mistake::{Group, Mistake};
use super::keys::model::ModelInit;
use super::resolved::Resolved;
use crate::{Error, Result};
use model_center_formats::config::{ConfigOverrides, ConfigSource};
use model_center_formats::directory::CONFIG_FILE;
use model_center_formats::tokenizer::{AutoTokenizer, ChatTemplate, TextSpecials, Tokenizer};
use model_center_formats::{
    gguf::is_gguf,
    pretrained::{ModelCaches, Pretrained},
};
use model_center_models::adapter::is_adapter_directory;
use model_center_models::{MODELS, OpenOptions, Registry};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The model that a run begins with.
#[derive(Debug, Clone)]
pub struct ModelStart {
    /// The directory with the tokenizer's files and, unless the model is initialized, its weights.
    pub directory: PathBuf,
    /// The tokenizer's directory or file.
    pub tokenizer: PathBuf,
    /// The configuration of a model without weights.
    pub config: Option<Arc<ConfigSource>>,
    /// The file that it was read from, if there is one.
    pub config_file: Option<PathBuf>,
}

impl ModelStart {
    /// The model of a recipe. Weights are not read.
    ///
    /// # Errors
    /// No such model or tokenizer; a configuration that cannot be read.
    pub fn of(resolved: &Resolved, places: &ModelCaches) -> Result<ModelStart> {
        let directory = model_directory(resolved, places)?;
        let tokenizer = resolved.model.tokenizer.as_ref().map_or_else(|| directory.clone(), PathBuf::from);
        let (config, config_file) = match resolved.model.init {
            ModelInit::Weights => (None, None),
            ModelInit::Random => {
                let (config, file) = config(resolved, places)?;
                (Some(Arc::new(config)), file)
            }
        };
        Ok(ModelStart { directory, tokenizer, config, config_file })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// Files that are missing or malformed.
    pub fn open_tokenizer(&self) -> Result<Arc<dyn Tokenizer>> {
        AutoTokenizer::open(&self.tokenizer)
    }

    /// The same, which parses control tokens in texts where `parses_special`.
    ///
    /// # Errors
    /// As [`ModelStart::open_tokenizer`]; a tokenizer that reads no control tokens in texts.
    pub fn open_text_tokenizer(&self, parses_special: bool) -> Result<Arc<dyn Tokenizer>> {
        match parses_special {
            true => AutoTokenizer::open_with(&self.tokenizer, TextSpecials::AsTokens),
            false => self.open_tokenizer(),
        }
    }

    /// The chat template of the tokenizer's directory, or of the model's; `None` where they have none. `name` chooses
    /// one of several.
    ///
    /// # Errors
    /// Templates or settings that cannot be read; no template of that name.
    pub fn chat_template(&self, name: Option<&str>) -> Result<Option<ChatTemplate>> {
        let is_own = self.tokenizer != self.directory && (self.tokenizer.is_dir() || is_gguf(&self.tokenizer));
        ChatTemplate::named(if is_own { &self.tokenizer } else { &self.directory }, name)
    }

    /// The options with this configuration, where the model has no weights.
    #[must_use]
    pub fn with_config(&self, options: OpenOptions) -> OpenOptions {
        OpenOptions {
            from_config: options.from_config || self.config.is_some(),
            config: self.config.clone(),
            ..options
        }
    }

    /// The name of the model's family.
    ///
    /// # Errors
    /// A configuration that names no family, or another than `family`.
    pub fn family(&self, registry: Registry<'_>, family: Option<&str>) -> Result<&'static str> {
        let nowhere = bmtrain_core::Device::new(Arc::new(bmtrain_core::wrap::Counting::new(0)));
        let options = OpenOptions { family: family.map(str::to_owned), ..OpenOptions::new(&nowhere) };
        Ok(registry.find_for(&self.directory, &self.with_config(options))?.model_type)
    }
}

/// The configuration of a model without weights, with the sizes of the recipe and the special tokens of its tokenizer,
/// and its file.
fn config(resolved: &Resolved, places: &ModelCaches) -> Result<(ConfigSource, Option<PathBuf>)> {
    let model = &resolved.model;
    let mut special_tokens = Vec::new();
    if let Some(tokenizer) = &model.tokenizer {
        let ids = AutoTokenizer::open(tokenizer)?.special_ids();
        let named = [("bos_token_id", ids.bos), ("eos_token_id", ids.eos), ("pad_token_id", ids.pad)];
        special_tokens = named.into_iter().filter_map(|(name, id)| Some((name.to_owned(), id?))).collect();
        // Files of such a family state the token, and a family alone does not.
        let begins =
            |family: &str| MODELS.iter().any(|entry| entry.model_type == family && entry.facts.starts_with_padding);
        let family = model.family.as_deref().filter(|family| model.path.is_empty() && begins(family));
        if let (Some(_), Some(pad)) = (family, ids.pad) {
            special_tokens.push(("decoder_start_token_id".to_owned(), pad));
        }
    }
    let overrides = ConfigOverrides { special_tokens, ..model.shape.clone() };
    if model.path.is_empty() {
        return Ok((ConfigSource::of_family(model.family.as_deref().unwrap_or_default(), overrides), None));
    }
    let path = PathBuf::from(&model.path);
    let path = if path.exists() { path } else { found(resolved, places)? };
    let file = if path.is_dir() { path.join(CONFIG_FILE) } else { path.clone() };
    Ok((ConfigSource::open(&path, overrides)?, Some(file)))
}

/// The directory of a recipe's model, see [`Pretrained::resolve`]. Of one without weights it is the directory of its
/// tokenizer.
///
/// # Errors
/// No such model, or an invalid `model.revision`; the place is the key's.
pub fn model_directory(resolved: &Resolved, places: &ModelCaches) -> Result<PathBuf, Mistake> {
    let model = &resolved.model;
    if let Some(tokenizer) = &model.tokenizer {
        return directory_of(resolved, "model.tokenizer", tokenizer);
    }
    let is_file = Path::new(&model.path).is_file();
    match model.init {
        ModelInit::Random if is_file => directory_of(resolved, "model.path", &model.path),
        // Its weights stay as they are beside an adapter.
        ModelInit::Weights if resolved.adapter.is_some() && is_gguf(Path::new(&model.path)) => {
            Ok(PathBuf::from(&model.path))
        }
        _ => found(resolved, places),
    }
}

/// The configuration file of a recipe's model in its `directory`; `None` where it has none.
pub(super) fn config_file(resolved: &Resolved, directory: &Path) -> Option<PathBuf> {
    let (model, path) = (&resolved.model, Path::new(&resolved.model.path));
    match model.init {
        ModelInit::Random if model.path.is_empty() => None,
        ModelInit::Random if path.is_file() => Some(path.to_owned()),
        ModelInit::Random if path.is_dir() => Some(path.join("config.json")),
        // A name of the hub, whose directory has one if it was found.
        ModelInit::Random => None,
        // A GGUF file has its configuration in itself.
        ModelInit::Weights => directory.is_dir().then(|| directory.join("config.json")),
    }
}

/// A directory, or the parent of a file.
fn directory_of(resolved: &Resolved, key: &str, text: &str) -> Result<PathBuf, Mistake> {
    let path = Path::new(text);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match std::fs::metadata(path) {
        Ok(kind) if kind.is_dir() => Ok(path.to_owned()),
        Ok(_) => Ok(parent.to_owned()),
        Err(error) => Err(Mistake {
            group: Group::Model,
            place: resolved.place(key),
            reason: format!("`{key}`: cannot open {text}: {error}"),
            fix: "name a directory or a file that is there".into(),
        }),
    }
}

/// The directory of a recipe's teacher, see [`Pretrained::resolve`].
///
/// # Errors
/// No such model; the place is the key's.
pub fn teacher_directory(resolved: &Resolved, places: &ModelCaches) -> Result<PathBuf, Mistake> {
    let name = resolved.distill.as_ref().map(|settings| settings.teacher.as_str()).unwrap_or_default();
    found_as(resolved, "distill.teacher", (name, None), places)
}

fn found(resolved: &Resolved, places: &ModelCaches) -> Result<PathBuf, Mistake> {
    let (name, revision) = (resolved.model.path.as_str(), resolved.model.revision.as_deref());
    let path = Path::new(name);
    let key = if revision.is_some() && path.is_dir() { "model.revision" } else { "model.path" };
    found_as(resolved, key, (name, revision), places)
}

/// The directory of the model that a key names.
fn found_as(
    resolved: &Resolved,
    key: &str,
    (name, revision): (&str, Option<&str>),
    places: &ModelCaches,
) -> Result<PathBuf, Mistake> {
    let mistake = |reason: String, fix: String| Mistake {
        group: Group::Model,
        place: resolved.place(key),
        reason: format!("`{key}`: {reason}"),
        fix,
    };
    if is_adapter_directory(Path::new(name)) {
        let fix = match key.starts_with("model.") {
            true => "set adapter.path to it, and model.path to the model that it is of",
            false => "merge it into its model first: bmtrain convert MODEL OUT --merge ADAPTER",
        };
        return Err(mistake(format!("{name} is the PEFT directory of an adapter"), fix.into()));
    }
    Pretrained::resolve(name, revision, places).map_err(|error| match error {
        Error::Model { place, reason, fix } => mistake(format!("{place}: {reason}"), fix),
        Error::File { path, source, fix, .. } => mistake(format!("cannot open {}: {source}", path.display()), fix),
        other => mistake(other.to_string(), "name a Hugging Face model directory".into()),
    })
}
