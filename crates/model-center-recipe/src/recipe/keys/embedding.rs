//! The keys of `[embedding]` and the columns of its records: texts that belong together.

use super::super::data_source::DataSource;
use super::{Settings, adapter};
use crate::recipe::engine::kinds::{Expected, Range::Above};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;
use model_center_data::EmbeddingTask;
use model_center_models::contrastive::ContrastiveLoss;

const COLUMNS: [&str; 3] = ["data.columns.anchor", "data.columns.positive", "data.columns.negative"];

settings! {
    #[derive(Debug)]
    pub(super) struct EmbeddingKeys in "embedding" (r) {
        /// What cosines are divided by in the loss of embeddings, which compares all samples of a step. See
        /// [embeddings](embeddings.md).
        temperature: f32 = single(0.05, Above(0.0)), "0.2";
    }
}

/// Reads the columns.
pub(crate) fn read_columns(r: &mut Reader, column: Expected) -> EmbeddingTask {
    EmbeddingTask {
        anchor: r.text("data.columns.anchor", "anchor", column),
        positive: r.text("data.columns.positive", "positive", column),
        negative: r.optional_text("data.columns.negative", "not set: pairs", column),
        format: None,
    }
}

/// Refuses the columns, for another task.
pub(crate) fn refuse_columns(r: &mut Reader) {
    for key in COLUMNS {
        r.without_effect(key, "data.task", "it is for task embedding", "remove it");
    }
}

/// Reads the loss; `None` of another task.
pub(super) fn read(r: &mut Reader, source: &DataSource) -> Option<ContrastiveLoss> {
    let loss = ContrastiveLoss { temperature: EmbeddingKeys::read(r).temperature };
    if source.task_as::<EmbeddingTask>().is_some() {
        return Some(loss);
    }
    r.without_effect("embedding.temperature", "data.task", "it is for task embedding", "remove it");
    None
}

/// Adds what contradicts itself or has no effect.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    if s.contrastive.is_none() {
        return;
    }
    r.without_effect("train.label_smoothing", "data.task", "texts are no classes", "remove it");
    if s.parallel.pipeline > 1 {
        let reason = "embeddings are not compared over pipeline stages";
        r.contradiction(&["data.task", "parallel.pipeline"], reason, "set parallel.pipeline = 1");
    }
    if adapter::is_of(r, &["prompt"]) {
        let reason = "virtual tokens are no part of the texts whose embeddings are compared";
        r.contradiction(&["data.task", "adapter.method"], reason, "set adapter.method = \"lora\"");
    }
}
