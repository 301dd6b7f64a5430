//! The keys of `[embedding]` and the columns of its records: texts that belong together.

use super::data_source::DataSource;
use super::kinds::{Expected, Range};
use super::reader::Reader;
use super::settings::Settings;
use model_center_data::EmbeddingTask;
use model_center_models::adapter::{Adapter, AdapterConfig};
use model_center_models::contrastive::ContrastiveLoss;

const COLUMNS: [&str; 3] = ["data.columns.anchor", "data.columns.positive", "data.columns.negative"];

/// Reads the columns.
pub(super) fn read_columns(r: &mut Reader, column: Expected) -> EmbeddingTask {
    EmbeddingTask {
        anchor: r.text("data.columns.anchor", "anchor", column),
        positive: r.text("data.columns.positive", "positive", column),
        negative: r.optional_text("data.columns.negative", "not set: pairs", column),
        format: None,
    }
}

/// Refuses the columns, for another task.
pub(super) fn refuse_columns(r: &mut Reader) {
    for key in COLUMNS {
        r.without_effect(key, "data.task", "it is for task embedding", "remove it");
    }
}

/// Reads the loss; `None` of another task.
pub(super) fn read(r: &mut Reader, source: &DataSource) -> Option<ContrastiveLoss> {
    let loss = ContrastiveLoss { temperature: r.single("embedding.temperature", 0.05, Range::Above(0.0)) };
    if source.task_as::<EmbeddingTask>().is_some() {
        return Some(loss);
    }
    r.without_effect("embedding.temperature", "data.task", "it is for task embedding", "remove it");
    None
}

/// Adds what contradicts itself or has no effect.
pub(super) fn check(r: &mut Reader, s: &Settings) {
    if s.contrastive.is_none() {
        return;
    }
    r.without_effect("train.label_smoothing", "data.task", "texts are no classes", "remove it");
    if s.parallel.pipeline > 1 {
        let reason = "embeddings are not compared over pipeline stages";
        r.contradiction(&["data.task", "parallel.pipeline"], reason, "set parallel.pipeline = 1");
    }
    if matches!(s.adapter, Some(Adapter::New(AdapterConfig::Prompt(_)))) {
        let reason = "virtual tokens are no part of the texts whose embeddings are compared";
        r.contradiction(&["data.task", "adapter.method"], reason, "set adapter.method = \"lora\"");
    }
}
