//! Parameter-efficient fine-tuning: what is trained beside a frozen model, and the directories that hold it.
//!
//! - [`LoraConfig`]: low-rank updates of linear layers, by the names that Hugging Face's PEFT has for them, with
//!   trained lengths of rows as DoRA. [`Ia3Config`]: learned factors of what they compute. [`PromptConfig`]: virtual
//!   tokens before every sequence. [`PrefixConfig`]: keys and values of virtual tokens.
//!   [`BottleneckConfig`]: two maps after attention and feed-forward.
//! - [`Adapter`]: a new one, or a PEFT directory's; [`OpenOptions::adapter`] opens a model with one. No family knows
//!   of it: the [builder](bmtrain_dist::Builder) declares the updates beside the weights.
//! - [`AdapterPlan`]: what is trained of a model: loads and writes PEFT
//!   directories, and gives the values of the model with the updates added.
//!
//! ```no_run
//! use model_center_models::adapter::{Adapter, AdapterConfig, LoraConfig};
//! use bmtrain_dist::prelude::*;
//! use model_center_models::{OpenOptions, Registry, Result};
//! use std::path::Path;
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu(2)?;
//! let lora = LoraConfig { rank: 8, alpha: 16.0, ..LoraConfig::default() };
//! let options = OpenOptions { adapter: Some(Adapter::New(AdapterConfig::Lora(lora))), ..OpenOptions::new(&device) };
//! let opened = Registry::default().open(Path::new("models/SmolLM2-135M"), &options)?;
//! let trained = opened.model.parameters().iter().filter(|param| param.is_trainable());
//! println!("{} values are trained", trained.map(|param| param.spec().shape.elements()).sum::<usize>());
//! # Ok(())
//! # }
//! ```
//!
//! [`OpenOptions::adapter`]: crate::model::OpenOptions::adapter

mod bottleneck;
mod combined;
mod config;
mod lora;
mod merge;
mod modules;
mod peft;
mod plan;
mod scaling;
mod virtual_tokens;

pub use bottleneck::BottleneckLayer;
pub use config::{
    AdapterConfig, BottleneckConfig, BottleneckPlacement, Ia3Config, LoraConfig, PrefixConfig, PromptConfig,
};
pub use lora::LoraUpdate;
pub use peft::PICKLED_WEIGHTS;
pub use peft::needs::{BaseNeeds, trained_head};
pub use peft::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, PeftDetails, SavedValues, fields};
pub use plan::AdapterPlan;
pub(crate) use plan::TOKENS;
pub use scaling::LearnedFactors;
pub use virtual_tokens::{DECODERS_ALONE, OTHER_METHOD, PROMPT_EMBEDDINGS, PROMPT_NAMES};

use crate::{Error, Result};
use model_center_formats::known_directory::has_model;
use model_center_formats::tokenizer::{AutoTokenizer, ChatTemplate};
use peft::PeftDirectory;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Adapter that a model is opened with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Adapter {
    /// A new one: updates that change nothing at first, or virtual tokens.
    New(AdapterConfig),
    /// The one of a PEFT directory: `adapter_config.json` and `adapter_model.safetensors`.
    Saved(PathBuf),
    /// Several at once, the updates of each multiplied by its weight: of LoRA alone, for inference and merging.
    Several(Vec<WeightedAdapter>),
}

/// A PEFT directory among several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightedAdapter {
    /// The directory.
    pub path: PathBuf,
    /// Factor of its updates.
    pub weight: f32,
}

impl Adapter {
    /// The adapter of these PEFT directories with these weights, in their order; without weights each has 1. `option`
    /// is what names the weights, for the message of an error.
    ///
    /// # Errors
    /// Other than one weight for each directory.
    pub fn of_directories(directories: &[PathBuf], weights: &[f32], option: &str) -> Result<Option<Adapter>> {
        match directories {
            _ if !weights.is_empty() && weights.len() != directories.len() => {
                let reason = format!("there are {} for {} adapters", weights.len(), directories.len());
                Err(Error::argument(option, reason, "give one for each adapter, in their order"))
            }
            [] => Ok(None),
            [one] if weights.is_empty() => Ok(Some(Adapter::Saved(one.clone()))),
            _ => {
                let weights = weights.iter().copied().chain(std::iter::repeat(1.0));
                let weighted = |(path, weight): (&PathBuf, f32)| WeightedAdapter { path: path.clone(), weight };
                Ok(Some(Adapter::Several(directories.iter().zip(weights).map(weighted).collect())))
            }
        }
    }

    /// Its PEFT directories.
    pub fn directories(&self) -> Vec<&Path> {
        match self {
            Adapter::New(_) => Vec::new(),
            Adapter::Saved(directory) => vec![directory],
            Adapter::Several(adapters) => adapters.iter().map(|adapter| adapter.path.as_path()).collect(),
        }
    }

    /// The same with each directory's path changed.
    pub fn map_paths(self, change: impl Fn(PathBuf) -> PathBuf) -> Adapter {
        match self {
            Adapter::New(config) => Adapter::New(config),
            Adapter::Saved(directory) => Adapter::Saved(change(directory)),
            Adapter::Several(adapters) => {
                let changed = |adapter: WeightedAdapter| WeightedAdapter { path: change(adapter.path), ..adapter };
                Adapter::Several(adapters.into_iter().map(changed).collect())
            }
        }
    }
}

/// Whether a directory is PEFT's: it has a configuration of updates and no model. Some programs write the model's
/// `config.json` beside the updates.
pub fn is_adapter_directory(directory: &Path) -> bool {
    directory.join(ADAPTER_CONFIG).is_file() && !has_model(directory)
}

/// The model that a PEFT directory's updates are of, as its configuration names it: a path or a name of the hub. A
/// relative path that leads nowhere from here is looked for from the directory on upwards, since it was written in one
/// of the directories above it.
///
/// # Errors
/// A directory that cannot be opened with [`Adapter::Saved`].
pub fn base_model(directory: &Path) -> Result<Option<String>> {
    let base = PeftDirectory::open(directory)?.base_model().map(str::to_owned);
    Ok(base.map(|base| {
        let path = Path::new(&base);
        if path.is_absolute() || path.exists() {
            return base;
        }
        let above = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let found = above.ancestors().map(|above| above.join(path)).find(|path| path.join("config.json").is_file());
        found.map_or(base, |found| found.display().to_string())
    }))
}

/// The model to open and the adapter to open it with: what was asked for, or, where `model` is a PEFT directory and no
/// adapter is `given`, the model that it names with the adapter in it. `option` is what takes adapters, for the message
/// of an error.
///
/// # Errors
/// A PEFT directory that cannot be read or names no model, or that is given besides another adapter.
pub fn base_and_adapter(model: &str, given: Option<Adapter>, option: &str) -> Result<(String, Option<Adapter>)> {
    let directory = Path::new(model);
    if !is_adapter_directory(directory) {
        return Ok((model.to_owned(), given));
    }
    if given.is_some() {
        let reason = format!("it is the PEFT directory of an adapter, and {option} gives another one");
        return Err(Error::model(model, reason, "give the directory of the adapter's model here"));
    }
    let base = base_model(directory)?.ok_or_else(|| {
        let reason = "adapter_config.json does not name the model that the adapter is of";
        Error::model(model, reason, format!("give the model's directory, and this one with {option}"))
    })?;
    Ok((base, Some(Adapter::Saved(directory.to_owned()))))
}

/// Where the tokenizer of a model with this adapter is: in the adapter's directory, if that has one, else in the
/// model's. Those who tune a base model save the tokenizer that they tuned it with beside the adapter.
///
/// # Errors
/// What the disk refuses.
pub fn tokenizer_directory<'a>(adapter: Option<&'a Adapter>, model: &'a Path) -> Result<&'a Path> {
    match adapter {
        Some(Adapter::Saved(directory)) if AutoTokenizer::is_in(directory)? => Ok(directory),
        _ => Ok(model),
    }
}

/// The chat template of a model with this adapter, likewise; `name` chooses one of several, as in
/// [`ChatTemplate::named`].
///
/// # Errors
/// A template that cannot be read, a name that no template has.
pub fn chat_template(adapter: Option<&Adapter>, model: &Path, name: Option<&str>) -> Result<Option<ChatTemplate>> {
    if let Some(Adapter::Saved(directory)) = adapter
        && let Some(template) = ChatTemplate::named_if_any(directory, name)?
    {
        return Ok(Some(template));
    }
    ChatTemplate::named(model, name)
}
