//! The keys of a recipe, one row each: a table a file.
//!
//! Defines [`Settings`] and [`read`]. A key of one's own is a row in its table, and the code that uses its field. Keys
//! whose value needs code have a method of [`Reader`] beside their table.

pub(super) mod adapter;
pub(super) mod average;
pub(super) mod batch_ramp;
pub(super) mod checkpoint;
pub(super) mod data;
pub(super) mod device;
pub(super) mod distill;
pub(super) mod elsewhere;
pub(super) mod embedding;
pub(super) mod eval;
pub(super) mod groups;
pub(super) mod log;
pub(super) mod loss_scale;
pub(super) mod model;
pub(super) mod optimizer;
pub(super) mod parallel;
pub(super) mod preference;
pub(super) mod recompute;
pub(super) mod run;
pub(super) mod save;
pub(super) mod schedule;
pub(super) mod train;

use super::engine::layers::{Origin, Tree, merge};
use super::engine::mistake::Mistake;
use super::engine::reader::{Declared, Reader};
use super::engine::table::{Row, Table, rows_of};
use super::pretraining;
use super::sources::read_data;
use crate::{Error, Result};
use bmtrain_core::DType;
use checkpoint::CheckpointSettings;
use data::DataSettings;
use device::DeviceSettings;
use distill::DistillSettings;
use eval::EvalSettings;
use log::LogSettings;
use model::{ModelSettings, SeedKey};
use model_center_data::OwnData;
use model_center_models::WeightForm;
use model_center_models::adapter::Adapter;
use model_center_models::contrastive::ContrastiveLoss;
use model_center_models::preference::PreferenceLoss;
use parallel::Parallel;
use run::{OutputSettings, RunSettings};
use save::SaveSettings;
use std::sync::LazyLock;
use train::TrainSettings;

pub(super) const MAX_STEPS: u64 = 1_000_000_000_000;
/// Seed of a recipe without one.
const DEFAULT_SEED: u64 = 1234;
pub(super) const MAX_SAMPLES: u64 = 1 << 20;

const DTYPES: [(&str, DType); 3] = [("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)];

/// The tables, in the order of the printed recipe.
const TABLES: &[&Table] = &[
    &ModelSettings::TABLE,
    &adapter::AdapterKeys::TABLE,
    &data::DATA,
    &data::COLUMNS,
    &data::MASKING,
    &data::SPANS,
    &preference::PreferenceKeys::TABLE,
    &embedding::EmbeddingKeys::TABLE,
    &distill::DistillKeys::TABLE,
    &TrainSettings::TABLE,
    &eval::PRETRAINING,
    &EvalSettings::TABLE,
    &SaveSettings::TABLE,
    &CheckpointSettings::TABLE,
    &LogSettings::TABLE,
    &RunSettings::TABLE,
    &OutputSettings::TABLE,
    &DeviceSettings::TABLE,
    &Parallel::TABLE,
];

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| rows_of(TABLES));

/// Every key, in the order of the printed recipe.
pub(super) fn rows() -> &'static [Row] {
    &ROWS
}

/// The row of a key.
pub(super) fn row(key: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.key == key)
}

/// A key as it is written here, `key!(train.lr)`; one that no table has does not compile.
#[macro_export]
macro_rules! key {
    ($first:ident $(.$rest:ident)+) => {
        const { $crate::recipe::known_key(concat!(stringify!($first) $(, ".", stringify!($rest))+)) }
    };
}

/// The key, for [`key!`].
///
/// # Panics
/// Where no table has it.
#[doc(hidden)]
pub const fn known_key(key: &'static str) -> &'static str {
    let mut at = 0;
    while at < TABLES.len() {
        if TABLES[at].has(key) {
            return key;
        }
        at += 1;
    }
    panic!("no such key of a recipe")
}

/// Its place in the printed recipe.
pub(super) fn place(key: &str) -> usize {
    ROWS.iter().position(|row| row.key == key).unwrap_or(usize::MAX)
}

/// The tables of a recipe, in the order in which they are printed.
pub fn tables() -> Vec<&'static str> {
    let mut tables: Vec<&str> = ROWS.iter().filter_map(|row| Some(row.key.rsplit_once('.')?.0)).collect();
    tables.dedup();
    tables
}

/// The declarations of all keys, read from an empty recipe; `own` is what a program adds.
pub(super) fn declared(own: OwnData) -> Vec<Declared> {
    let mut reader = Reader::new(Tree::new(Origin::Default), rows(), "", own);
    read(&mut reader);
    let mut declared = reader.into_declared();
    declared.sort_by_key(|one| place(one.row.key));
    declared
}

/// Reads keys of texts such as `train.lr=1e-4` alone, without a recipe. `refuse` gives reason and fix for a key that is
/// not taken.
///
/// # Errors
/// [`Error::Argument`] with the first key that is refused, or the first mistake.
fn read_texts<T>(
    texts: &[String],
    refuse: impl Fn(&str) -> Option<(&'static str, &'static str)>,
    read: impl FnOnce(&mut Reader) -> T,
) -> Result<T> {
    let (tree, mistakes) = merge("", "", texts, &[]);
    let mut reader = Reader::new(tree, rows(), "", OwnData::default());
    for key in reader.left() {
        if let Some((reason, fix)) = refuse(&key) {
            return Err(Error::argument(key, reason, fix));
        }
    }
    let settings = read(&mut reader);
    match mistakes.into_iter().chain(reader.finish(elsewhere::NAMES).mistakes).next() {
        Some(Mistake { place, reason, fix, .. }) => Err(Error::argument(place, reason, fix)),
        None => Ok(settings),
    }
}

/// All settings of a recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `[model]`
    pub model: ModelSettings,
    /// `[adapter]`: what is trained where the model is frozen.
    pub adapter: Option<Adapter>,
    /// `adapter.quantize`: how the frozen model is held.
    pub base_weights: WeightForm,
    /// `[data]`
    pub data: DataSettings,
    /// `[preference]`: the loss of pairs of completions; `None` of other samples.
    pub preference: Option<PreferenceLoss>,
    /// `[embedding]`: the loss of texts that belong together; `None` of other samples.
    pub contrastive: Option<ContrastiveLoss>,
    /// `[distill]`: what is learned from a teacher; `None` without one.
    pub distill: Option<DistillSettings>,
    /// `[train]`
    pub train: TrainSettings,
    /// `[eval]`
    pub eval: EvalSettings,
    /// `[save]`
    pub save: SaveSettings,
    /// Settings of checkpoints.
    pub checkpoint: CheckpointSettings,
    /// `[log]`
    pub log: LogSettings,
    /// `[run]`
    pub run: RunSettings,
    /// `[output]`
    pub output: OutputSettings,
    /// `[device]`
    pub device: DeviceSettings,
    /// `[parallel]`
    pub parallel: Parallel,
}

/// Reads every key. After a mistake the value is a placeholder, and the caller drops the settings.
pub(super) fn read(r: &mut Reader) -> Settings {
    let mut model = ModelSettings::read(r);
    let (adapter, base_weights) = adapter::read(r);
    let mut data = read_data(r);
    let preference = preference::read(r, &mut data.source);
    let contrastive = embedding::read(r, &data.source);
    let distill = distill::read(r);
    let mut train = TrainSettings::read(r);
    pretraining::read_others(r, train.seed, data.source.pretraining_mut());
    let eval = EvalSettings::read(r, &data, train.micro_batch_size);
    train.early_stop = train::read_early_stop(r, eval.metric);
    train.divergence = train::read_divergence(r);
    model.init_seed = SeedKey::read(r, train.seed).init_seed;
    let save = SaveSettings::read(r, &data, model.dtype);
    Settings {
        model,
        adapter,
        base_weights,
        data,
        preference,
        contrastive,
        distill,
        train,
        eval,
        save,
        checkpoint: CheckpointSettings::read(r),
        log: LogSettings::read(r),
        run: RunSettings::read(r),
        output: OutputSettings::read(r),
        device: DeviceSettings::read(r),
        parallel: Parallel::read(r),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read_once_and_has_a_sentence() {
        let declared: Vec<&str> = declared(OwnData::default()).iter().map(|one| one.row.key).collect();
        let keys: Vec<&str> = rows().iter().map(|row| row.key).collect();
        assert_eq!(declared, keys);
        for row in rows() {
            assert!(row.text().ends_with('.') && !row.text().contains("  "), "{}: {}", row.key, row.text());
            assert!(row.follows.is_none_or(|key| super::row(key).is_some()), "{}", row.key);
        }
    }

    #[test]
    fn defaults_are_those_of_an_empty_recipe() {
        let mut reader = Reader::new(Tree::new(Origin::Default), rows(), "", OwnData::default());
        let settings = read(&mut reader);
        assert_eq!(settings.model, ModelSettings::default());
        assert_eq!(settings.train, TrainSettings::default());
        assert_eq!(settings.checkpoint, CheckpointSettings::default());
        assert_eq!(settings.parallel, Parallel::default());
    }

    #[test]
    fn keys_are_checked_when_they_are_compiled() {
        assert_eq!([key!(train.lr), key!(train.batch_ramp.start)], ["train.lr", "train.batch_ramp.start"]);
        assert_eq!(tables().iter().filter(|table| **table == "train.early_stop").count(), 1);
    }
}
