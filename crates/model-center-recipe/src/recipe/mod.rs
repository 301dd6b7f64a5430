//! Recipes: the settings of a training run, from a TOML file and the command line.
//!
//! Settings come in three layers, the later one winning: the defaults written beside each key, the recipe file, and
//! `--set path=value` (also accepted bare, `path=value`). [`Recipe::load`] merges them, reads every key once with its
//! type and range, and returns [`Resolved`]: plain typed [`Settings`] plus the text of each value and where it came
//! from. [`Recipe::read`] does the same and keeps going at mistakes, so that `--dry-run` can list them all.
//!
//! The keys are declared by the code that reads them (`keys.rs`, `sources.rs`, `parallel.rs`) and nowhere else: a table
//! of keys beside serde structs would have to agree with them, and serde stops at the first mistake and forgets where a
//! value came from.
//!
//! Called by the `finetune` program and by programs that use the same recipes.

mod adapter;
mod average;
mod batch_ramp;
mod class_weights;
mod data_source;
mod distill;
mod draft;
mod elsewhere;
mod embedding;
mod file_tasks;
mod groups;
mod keys;
mod kinds;
mod layers;
mod loss_scale;
mod meanings;
mod memory;
mod mistake;
mod model;
mod model_start;
mod optimizer;
mod page;
mod parallel;
mod preference;
mod pretraining;
mod pretraining_objective;
mod ranks;
mod reader;
mod resolved;
mod rules;
mod schedule;
mod schema;
mod settings;
mod sft;
mod sources;
mod unknown;

pub use batch_ramp::BatchRamp;
pub use class_weights::ClassWeights;
pub use data_source::{DataFiles, DataSource};
pub use distill::DistillSettings;
pub use draft::Draft;
pub use groups::{ParamGroupSettings, param_groups};
pub use kinds::quote;
pub use layers::Origin;
pub use loss_scale::{LossScale, ScaleRule};
pub use mistake::{Group, Mistake, as_error, list};
pub use model::SHAPE;
pub use model_start::{ModelStart, model_directory, teacher_directory};
pub use optimizer::OptimizerSettings;
pub use page::settings_page;
pub use parallel::{Parallel, StagePartition, recorded_partition};
pub use pretraining::{Corpus, PretrainingSettings};
pub use pretraining_objective::{MaskingSettings, ObjectiveSettings, PretrainingObjective, SpanPreset, SpanSettings};
pub use ranks::Mismatch;
pub use ranks::nearest;
pub use resolved::flat;
pub use resolved::{Resolved, is_of_schedule};
pub use rules::preflight;
pub use schema::recipe_schema;
pub use settings::{
    CheckpointSettings, DataSettings, DeviceSettings, DivergenceSettings, EarlyStopSettings, EvalMetric, EvalSettings,
    GradientDType, Head, Interval, LastBatch, LogSettings, ModelInit, ModelSettings, OnSaveFailure, OutputSettings,
    SaveSettings, SaveWhich, Settings, Threads, TrainSettings,
};

use crate::Result;
pub use model_center_data::OwnData;
use std::path::Path;

/// The largest recipe file that is read, in bytes. Real recipes are about 2 KiB.
pub const MAX_RECIPE_BYTES: u64 = 1 << 20;

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
    pub fn load_text(name: &str, text: &str, sets: &[String]) -> Result<Resolved> {
        Self::read_text(name, text, sets).map_err(as_error)
    }

    /// Like [`Recipe::load`], and keeps going at mistakes.
    pub fn read(path: Option<&Path>, sets: &[String]) -> Result<Resolved, Vec<Mistake>> {
        Self::draft(path, sets, OwnData::default())?.resolved()
    }

    /// Like [`Recipe::read`] for a recipe held in memory; `name` stands for the file in messages, empty for none.
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
