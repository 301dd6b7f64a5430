//! Adapters of `Model`: which one a model is opened with, and what of it is saved.
//!
//! Defines [`AdapterArgument`], the arguments of `Model`, and [`Tuned`], what a session knows of its adapter.

use crate::error::{argument, type_name};
use crate::values::settings;
use model_center::adapter::{ADAPTER_CONFIG, Adapter, AdapterPlan, PeftDetails, tokenizer_directory};
use model_center::bmtrain_core::DType;
use model_center::directory::{CONFIG_FILE, copy_companions};
use model_center::formats::DirectoryLayout;
use model_center::model::{SaveOptions, TextModel, WeightForm};
use model_center::tokenizer::ChatTemplate;
use model_center::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::{Path, PathBuf};

/// The file of a chat template, which is read before the one in `tokenizer_config.json`.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The argument `adapter` of `Model`, with `adapter_weights`.
pub(crate) enum AdapterArgument {
    /// PEFT directories, perhaps none, and the factors of their updates.
    Directories(Vec<PathBuf>, Vec<f32>),
    /// The keys of a recipe's `[adapter]`, as `adapter.rank=8`.
    Settings(Vec<String>),
}

impl AdapterArgument {
    /// The arguments of a call.
    pub(crate) fn of(adapter: Option<&Bound<'_, PyAny>>, weights: Option<Vec<f32>>) -> PyResult<Self> {
        let weights = weights.unwrap_or_default();
        let Some(adapter) = adapter else { return Ok(AdapterArgument::Directories(Vec::new(), weights)) };
        if let Ok(keys) = adapter.cast::<PyDict>() {
            if !weights.is_empty() {
                let reason = "they are for adapters of PEFT directories, and adapter= has settings";
                return Err(argument("adapter_weights", reason, "leave them out"));
            }
            return Ok(AdapterArgument::Settings(settings("adapter.", keys)?));
        }
        if let Ok(directory) = adapter.extract::<PathBuf>() {
            return Ok(AdapterArgument::Directories(vec![directory], weights));
        }
        let directories: Vec<PathBuf> = adapter.extract().map_err(|_| {
            let fix = "give a PEFT directory, a list of them, or a dict such as {\"method\": \"lora\", \"rank\": 8}";
            argument("adapter", format!("it is of type {}", type_name(adapter)), fix)
        })?;
        Ok(AdapterArgument::Directories(directories, weights))
    }
}

/// The adapter of a model that is open.
pub(crate) struct Tuned {
    pub(crate) adapter: Adapter,
    pub(crate) plan: AdapterPlan,
    /// The model as it was named, which a PEFT directory names too.
    pub(crate) base_model: String,
    pub(crate) revision: Option<String>,
    pub(crate) weights: WeightForm,
}

impl Tuned {
    /// Writes a PEFT directory, or with `merged` the whole model with the adapter in its weights; `own` is the model's
    /// directory.
    pub(crate) fn save(
        &self,
        model: &dyn TextModel,
        directory: &Path,
        (dtype, merged): (DType, bool),
        own: &Path,
    ) -> Result<()> {
        if merged {
            self.save_merged(model, directory, dtype, own)
        } else {
            self.save_peft(model, directory, dtype, own)
        }
    }

    fn save_peft(&self, model: &dyn TextModel, directory: &Path, dtype: DType, own: &Path) -> Result<()> {
        self.plan.check_write()?;
        refuse_other(directory, CONFIG_FILE, "a whole model")?;
        std::fs::create_dir_all(directory)
            .map_err(|error| Error::file("create", directory, error, "choose a directory that you may write"))?;
        let details = PeftDetails { base_model: &self.base_model, revision: self.revision.as_deref(), dtype };
        self.plan.save(model, directory, &details, Some(tokenizer_directory(Some(&self.adapter), own)?))
    }

    fn save_merged(&self, model: &dyn TextModel, directory: &Path, dtype: DType, own: &Path) -> Result<()> {
        if self.weights != WeightForm::Dequantised {
            let reason = "a merged model has the model's own weights, and quantize= holds quantised ones";
            let fix = "save the adapter, open the model with it and without quantize, and save that merged";
            return Err(Error::argument("merged", reason, fix));
        }
        self.plan.check_merge()?;
        refuse_other(directory, ADAPTER_CONFIG, "an adapter")?;
        let options = SaveOptions { dtype, companions: Some(own), layout: DirectoryLayout::HuggingFace };
        model.check_save(&options)?;
        self.plan.save_merged(model, directory, &options)?;
        let texts = tokenizer_directory(Some(&self.adapter), own)?;
        if texts == own {
            return Ok(());
        }
        // The model's template would be read before one that the adapter has in tokenizer_config.json.
        let template = directory.join(CHAT_TEMPLATE);
        if template.is_file() && ChatTemplate::from_directory(texts)?.is_some() {
            std::fs::remove_file(&template)
                .map_err(|error| Error::file("remove", &template, error, "choose a directory that you may write"))?;
        }
        copy_companions(texts, directory).map(drop)
    }
}

/// Refuses a directory with the configuration of another kind of model, which would be opened in place of this one.
fn refuse_other(directory: &Path, config: &str, what: &str) -> Result<()> {
    if !directory.join(config).exists() {
        return Ok(());
    }
    let reason = format!("the directory has {what} ({config})");
    Err(Error::argument(directory.display().to_string(), reason, "name another directory"))
}
