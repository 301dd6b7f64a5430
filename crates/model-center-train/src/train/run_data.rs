//! The samples of a run: records that were read whole, or samples of token files that are read when they are due.
//!
//! Defines [`RunData`] and [`EvalSet`], parts of the [`Setup`](super::Setup). `batches.rs` forms batches of them.

use super::class_weights;
use model_center_base::batch::LabelSpace;
use model_center_data::Dataset;
use model_center_data::pretraining::PretrainingSamples;
use model_center_recipe::{DataSettings, Resolved};
use std::sync::Arc;

/// Samples, with what training and evaluation have to know of them.
#[derive(Debug, Clone)]
pub enum RunData {
    /// Records, tokenized and in memory.
    Records(Arc<Dataset>),
    /// The first samples of a pretraining objective.
    Pretraining {
        /// The samples.
        samples: Arc<dyn PretrainingSamples>,
        /// How many of them are used.
        count: u64,
    },
}

/// The samples of all parts of a run.
#[derive(Debug)]
pub(super) struct Samples {
    pub(super) train: RunData,
    pub(super) eval: Vec<EvalSet>,
    pub(super) test: Vec<EvalSet>,
}

/// Data of an evaluation.
#[derive(Debug, Clone)]
pub struct EvalSet {
    /// Its name in reports, where there are several; the path of its file.
    pub name: String,
    /// Its samples.
    pub data: RunData,
}

impl RunData {
    /// Number of samples.
    pub fn len(&self) -> u64 {
        match self {
            RunData::Records(records) => records.len() as u64,
            RunData::Pretraining { count, .. } => *count,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Label space.
    pub fn labels(&self) -> &LabelSpace {
        match self {
            RunData::Records(records) => records.labels(),
            RunData::Pretraining { samples, .. } => samples.labels(),
        }
    }

    /// Whether batches have the decoder's input.
    pub(super) fn gives_decoder_inputs(&self) -> bool {
        match self {
            RunData::Records(_) => false,
            RunData::Pretraining { samples, .. } => samples.info().gives_decoder_inputs,
        }
    }

    /// A hash of all that batches depend on.
    pub fn fingerprint(&self) -> &str {
        match self {
            RunData::Records(records) => records.fingerprint(),
            RunData::Pretraining { samples, .. } => samples.fingerprint(),
        }
    }

    /// The records; `None` of token files.
    pub fn records(&self) -> Option<&Arc<Dataset>> {
        if let RunData::Records(records) = self { Some(records) } else { None }
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.records().map_or(0, |records| records.bytes() as u64)
    }

    /// A line about the samples; `name` is the part's.
    pub(super) fn describe(&self, name: &str, settings: &DataSettings) -> String {
        let data = match self {
            RunData::Records(records) => records,
            RunData::Pretraining { samples, count } => {
                return format!("{name}: {count} samples of {} tokens", samples.max_length());
            }
        };
        let report = data.report();
        let mut text = format!("{name}: {} samples, {} tokens, longest {}", data.len(), report.tokens, report.longest);
        if report.truncated > 0 {
            let DataSettings { max_length, target_length, .. } = settings;
            let limit = match data.labels() {
                LabelSpace::Target => format!("{max_length} and {target_length}"),
                _ => max_length.to_string(),
            };
            text += &format!(", {:.1} % cut to {limit}", 100.0 * report.truncated_share());
        }
        if report.skipped > 0 {
            text += &format!(", {} bad records left out ({})", report.skipped, report.first_skipped.join("; "));
        }
        if !report.unused_columns.is_empty() {
            text += &format!(", columns without effect: {}", report.unused_columns.join(", "));
        }
        text
    }

    /// The samples of each class, and their weights, on a line; `None` of data without named classes.
    pub(super) fn describe_classes(&self, weights: Option<&[f32]>) -> Option<String> {
        self.records().and_then(|records| class_weights::describe(records, weights))
    }
}

/// A hash of several sets: of one its own; empty of none.
pub(super) fn fingerprint(sets: &[EvalSet]) -> String {
    match sets {
        [] => String::new(),
        [one] => one.data.fingerprint().to_owned(),
        all => {
            let text: Vec<&str> = all.iter().map(|set| set.data.fingerprint()).collect();
            blake3::hash(text.join("\n").as_bytes()).to_hex().to_string()
        }
    }
}

/// Samples of all sets.
pub(super) fn samples(sets: &[EvalSet]) -> u64 {
    sets.iter().map(|set| set.data.len()).sum()
}

/// Weights of the classes of the training data.
///
/// # Errors
/// As [`class_weights::weights`].
pub(super) fn weights_of_classes(resolved: &Resolved, train: &RunData) -> crate::Result<Option<Vec<f32>>> {
    train.records().map_or(Ok(None), |records| class_weights::weights(resolved, records))
}
