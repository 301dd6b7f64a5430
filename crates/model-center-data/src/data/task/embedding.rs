//! Texts that belong together, for embeddings: an anchor, its positive, and perhaps a text that is not to be near it.
//!
//! Defines [`EmbeddingTask`].

use std::path::Path;

use super::{SplitSource, Task};
use crate::Result;
use crate::data::{
    Example,
    dataset::Dataset,
    read::{ReadOptions, read},
};
use crate::metrics::{LabelKind, Metric, RETRIEVAL_METRICS};
use model_center_base::batch::{Label, LabelSpace};
use model_center_formats::io::record::Format;

/// Columns of files of pairs or triplets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingTask {
    /// Column of the anchor.
    pub anchor: String,
    /// Column of the text that belongs to it.
    pub positive: String,
    /// Column of a text that does not; `None` of pairs.
    pub negative: Option<String>,
    /// The format of files; `None` derives it from the file name.
    pub format: Option<Format>,
}

impl EmbeddingTask {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with the file or a record, with its place; an empty text.
    pub fn read(&self, path: &Path, options: &ReadOptions<'_>) -> Result<Dataset> {
        let format = self.format.map_or_else(|| Format::of(path), Ok)?;
        let columns: Vec<&str> = [Some(&self.anchor), Some(&self.positive), self.negative.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let labels = LabelSpace::Texts(columns.len());
        let mut dataset = read(path, format, options, labels, &mut |record, examples| {
            for column in &columns {
                let text = record.filled(column)?.to_owned();
                examples.push(Example { first: text, second: None, label: Label::Class(0) });
            }
            Ok(())
        })?;
        dataset.seal();
        Ok(dataset)
    }
}

impl Task for EmbeddingTask {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Embeddings
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        Some(RETRIEVAL_METRICS)
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        self.read(source.path, &source.options)
    }
}
