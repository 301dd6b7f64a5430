//! Recipes: the settings of a training run, from a TOML file and the command line.
//!
//! Settings come in three layers, the later one winning: the defaults written beside each key, the recipe file, and
//! `--set path=value` (also accepted bare, `path=value`). [`Recipe::load`] merges them, reads every key once with its
//! type and range, and returns [`Resolved`]: plain typed [`Settings`] plus the text of each value and where it came
//! from. [`Recipe::read`] does the same and keeps going at mistakes, so that a program can list them all.
//!
//! A key is one row of a table in `keys/`; its reader, its field, its default, its line on the page of settings, its
//! place in the schema and its part in the hashes follow from it. `engine/` reads and describes rows, and knows none.
//!
//! Called by the `finetune` program and by programs that use the same recipes.

mod class_weights;
mod data_source;
mod draft;
mod engine;
mod file_tasks;
mod keys;
mod model_start;
mod pretraining;
mod pretraining_objective;
mod ranks;
mod resolved;
mod rules;
mod sft;
mod sources;

pub use class_weights::ClassWeights;
pub use data_source::{DataFiles, DataSource};
pub use draft::Draft;
pub use engine::kinds::quote;
pub use engine::layers::{MAX_RECIPE_BYTES, Origin};
pub use engine::mistake::{Group, Mistake, as_error, as_error_with, list};
pub use keys::adapter::adapter_of_settings;
pub use keys::batch_ramp::BatchRamp;
pub use keys::checkpoint::{CheckpointSettings, OnSaveFailure};
pub use keys::data::{DataSettings, LastBatch};
pub use keys::device::{DeviceSettings, Threads};
pub use keys::distill::DistillSettings;
pub use keys::eval::{EvalMetric, EvalSettings, Interval};
pub use keys::groups::{ParamGroupSettings, param_groups};
pub use keys::log::LogSettings;
pub use keys::loss_scale::{LossScale, ScaleRule};
pub use keys::model::{Head, ModelInit, ModelSettings, is_of_random_model};
pub use keys::optimizer::OptimizerSettings;
pub use keys::parallel::{Parallel, StagePartition, recorded_partition};
pub use keys::run::{OutputSettings, RunSettings};
pub use keys::save::{SaveSettings, SaveWhich};
pub use keys::train::{DivergenceSettings, EarlyStopSettings, GradientDType, Products, TrainSettings};
pub use keys::{Settings, known_key, tables};
pub use model_start::{ModelStart, model_directory, teacher_directory};
pub use pretraining::{Corpus, PretrainingSettings};
pub use pretraining_objective::{MaskingSettings, ObjectiveSettings, PretrainingObjective, SpanPreset, SpanSettings};
pub use ranks::{Mismatch, nearest};
pub use resolved::{Resolved, flat, is_of_schedule};
pub use rules::preflight;

use crate::Result;
use engine::layers;
pub use model_center_data::OwnData;
use std::path::Path;

/// Reads recipes; see the module documentation.
#[derive(Debug, Clone, Copy)]
pub struct Recipe;

impl Recipe {
    /// Reads the recipe file, if any, applies `sets` (`path=value` each) and checks everything that can be checked
    /// without opening another file.
    ///
    /// # Errors
    /// The first mistake as [`crate::Error::Recipe`], with the number of further ones.
    pub fn load(path: Option<&Path>, sets: &[String]) -> Result<Resolved> {
        Self::read(path, sets).map_err(as_error)
    }

    /// Like [`Recipe::load`] for a recipe held in memory; `name` stands for the file in messages, empty for none.
    ///
    /// # Errors
    /// As [`Recipe::load`].
    pub fn load_text(name: &str, text: &str, sets: &[String]) -> Result<Resolved> {
        Self::read_text(name, text, sets).map_err(as_error)
    }

    /// Like [`Recipe::load`], and keeps going at mistakes.
    ///
    /// # Errors
    /// Every mistake.
    pub fn read(path: Option<&Path>, sets: &[String]) -> Result<Resolved, Vec<Mistake>> {
        Self::draft(path, sets, OwnData::default())?.resolved()
    }

    /// Like [`Recipe::read`] for a recipe held in memory; `name` stands for the file in messages, empty for none.
    ///
    /// # Errors
    /// As [`Recipe::read`].
    pub fn read_text(name: &str, text: &str, sets: &[String]) -> Result<Resolved, Vec<Mistake>> {
        Draft::read(name, text, sets, OwnData::default())?.resolved()
    }

    /// Like [`Recipe::draft`] for a recipe held in memory; `name` stands for the file in messages, empty for none.
    ///
    /// # Errors
    /// As [`Recipe::draft`].
    pub fn draft_text(name: &str, text: &str, sets: &[String], own: impl Into<OwnData>) -> Result<Draft, Vec<Mistake>> {
        Draft::read(name, text, sets, own.into())
    }

    /// The recipe as far as it can be read, for showing what is missing in it. `own` are the tasks and classes that a
    /// [`Registry`](model_center_models::Registry) adds.
    ///
    /// # Errors
    /// A file that cannot be read or is not TOML, an argument that is not a setting: every mistake of that kind.
    pub fn draft(path: Option<&Path>, sets: &[String], own: impl Into<OwnData>) -> Result<Draft, Vec<Mistake>> {
        let text = path.map_or_else(|| Ok(String::new()), layers::read_file).map_err(|mistake| vec![mistake])?;
        let name = path.map_or_else(String::new, |path| path.display().to_string());
        Draft::read(&name, &text, sets, own.into())
    }
}

/// Every setting of a recipe in Markdown: key, type and allowed values, default, meaning and first version; `own` is
/// what a program adds.
pub fn settings_page(own: impl Into<OwnData>) -> String {
    engine::page::settings_page(&keys::declared(own.into()))
}

/// The JSON schema of recipes, by which editors complete and check keys; `own` is what a program adds.
pub fn recipe_schema(own: impl Into<OwnData>) -> serde_json::Value {
    engine::schema::recipe_schema(&keys::declared(own.into()))
}
