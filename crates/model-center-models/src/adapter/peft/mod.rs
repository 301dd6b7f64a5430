//! PEFT's directories: `adapter_config.json` and `adapter_model.safetensors` or `adapter_model.bin`, read and written.
//!
//! - `fields`, `settings`, `pattern`: the configuration. `tensors`: the tensors by what they are for.
//! - `resolve`, `resolve_base`: what each tensor is of the model that the directory is opened with. `changes`: what
//!   changes the base model's weights, `initial` what PEFT subtracts from them. `needs`: what the model is opened with
//!   for it.
//! - `values`: the values under our names. `write`: a directory.
//!
//! Source: PEFT 0.21.2, `get_peft_model_state_dict`, `set_peft_model_state_dict`. Tensors have the path of their module
//! after `base_model.model.`; `lora_A` is `[R, K]` and `lora_B` `[N, R]`, whichever way the weight is stored, DoRA's
//! `lora_magnitude_vector` `[N]`; IA³'s `ia3_l` is `[N, 1]` of outputs and `[1, K]` of inputs. What virtual tokens have
//! is one tensor, `prompt_embeddings`.

pub(super) mod changes;
pub mod fields;
mod initial;
pub(super) mod needs;
mod pattern;
mod resolve;
mod resolve_base;
pub(super) mod settings;
mod tensors;
mod values;
mod write;

pub use values::SavedValues;
pub use write::PeftDetails;

use super::AdapterConfig;
use crate::{Error, Result};
use model_center_base::file::{printable, read_text};
use model_center_base::json::parse_object;
use model_center_formats::Weights;
use settings::PeftSettings;
use std::path::{Path, PathBuf};
use tensors::PeftTensors;

/// The configuration of a PEFT directory.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Its weights.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
/// Its weights as the first versions of PEFT wrote them.
pub const PICKLED_WEIGHTS: &str = "adapter_model.bin";

/// Suffix of a module's path in the name of its lengths of rows.
const MAGNITUDE: &str = ".lora_magnitude_vector";
/// Prefix of a module's path.
const PREFIX: &str = "base_model.model.";
/// Prefix of a module's path beside virtual tokens.
const VIRTUAL_PREFIX: &str = "base_model.";
/// The method of bottleneck adapters, which PEFT does not have.
const BOTTLENECK: &str = "BOTTLENECK";
/// The largest configuration that is read. Real ones have about 1 KiB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
pub(super) const SAVE_AGAIN: &str = "use an adapter of this model that PEFT or this program saved";

/// A PEFT directory whose configuration and header are read.
#[derive(Debug)]
pub(super) struct PeftDirectory {
    path: PathBuf,
    settings: PeftSettings,
    tensors: PeftTensors,
}

impl PeftDirectory {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let settings = read_settings(directory)?;
        let has_virtual_tokens = matches!(settings.config, AdapterConfig::Prompt(_) | AdapterConfig::Prefix(_));
        let prefix = if has_virtual_tokens { VIRTUAL_PREFIX } else { PREFIX };
        let tensors = PeftTensors::of(&Weights::open(&weights_file(directory))?, prefix)?;
        Ok(PeftDirectory { path: directory.to_owned(), settings, tensors })
    }

    pub(super) fn config(&self) -> &AdapterConfig {
        &self.settings.config
    }

    pub(super) fn base_model(&self) -> Option<&str> {
        self.settings.base_model.as_deref()
    }

    /// The file with its tensors.
    fn weights(&self) -> Result<Weights> {
        Weights::open(&weights_file(&self.path))
    }

    /// The place of its tensors, for messages.
    fn place(&self) -> String {
        weights_file(&self.path).display().to_string()
    }

    /// That what the directory has of a module cannot be used.
    fn misfit(&self, module: &str, reason: impl Into<String>) -> Error {
        Error::model(format!("{}, module {}", self.place(), printable(module, 120)), reason.into(), SAVE_AGAIN)
    }
}

/// The configuration of a directory.
fn read_settings(directory: &Path) -> Result<PeftSettings> {
    let path = directory.join(ADAPTER_CONFIG);
    let place = path.display().to_string();
    PeftSettings::read(&parse_object(&read_text(&path, MAX_CONFIG_BYTES)?, &place)?, &place)
}

/// The file with a directory's tensors: the pickle only where there is no other.
fn weights_file(directory: &Path) -> PathBuf {
    let (safetensors, pickle) = (directory.join(ADAPTER_WEIGHTS), directory.join(PICKLED_WEIGHTS));
    if !safetensors.exists() && pickle.exists() { pickle } else { safetensors }
}
