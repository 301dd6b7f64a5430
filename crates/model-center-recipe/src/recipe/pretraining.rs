//! The keys of `[data]` that `data.task = "pretrain"` has: token files with weights, their parts, and how samples are
//! formed.
//!
//! Defines [`PretrainingSettings`] and [`Corpus`], a task of a [`DataSource`](super::DataSource).

use super::engine::kinds::MAX_INTEGER;
use super::engine::kinds::{Expected, Range, as_float, quote};
use super::engine::layers::Value;
use super::engine::reader::{Otherwise, Reader, Spec};
use super::engine::schema::Shape;
use super::keys::MAX_SAMPLES;
use super::pretraining_objective::{self, ObjectiveSettings, PretrainingObjective};
use super::sources::COLUMN_KEYS;
use crate::{Error, Result};
use model_center_data::corpus::{SampleOrder, SplitShares};
use model_center_data::metrics::LabelKind;
use model_center_data::{Dataset, Split, SplitSource, Task};
use model_center_formats::config::TextHead;
use std::path::PathBuf;

const SPLIT: &str = "969,30,1";
const MAP_DIRECTORY: Expected = Expected { what: "the path of a directory", example: "data/maps" };
/// More threads than any objective needs to keep a step waiting for nothing.
const MAX_THREADS: u64 = 64;
/// Evaluations are of this number of training batches by default, as in Megatron-LM.
const ITERATIONS: u64 = 100;

/// The keys of this task alone.
const KEYS: [&str; 9] = [
    "data.corpora",
    "data.split",
    "data.permute_documents",
    "data.valid",
    "data.test",
    "data.sequence_length",
    "data.sample_order",
    "data.maps",
    "data.loading_threads",
];
/// The keys of other tasks.
const OTHERS: [&str; 19] = [
    "data.path",
    "data.train",
    "data.eval",
    "data.format",
    "data.delimiter",
    "data.labels",
    "data.template",
    "data.words",
    "data.stride",
    "data.answer_length",
    "data.max_length",
    "data.too_long",
    "data.on_bad_record",
    "data.bad_record_limit",
    "data.shuffle",
    "data.last_batch",
    "data.length_grouped",
    "data.packing",
    "data.eval_limit",
];

/// A token file.
#[derive(Debug, Clone, PartialEq)]
pub struct Corpus {
    /// Its path without `.bin` and `.idx`.
    pub path: PathBuf,
    /// Its share of the samples compared with others; `None` for its number of tokens.
    pub weight: Option<f64>,
}

/// Settings of pretraining.
#[derive(Debug, Clone, PartialEq)]
pub struct PretrainingSettings {
    /// Objective of pretraining.
    pub objective: ObjectiveSettings,
    /// The token files of training, and by [`PretrainingSettings::split`] of validation and test.
    pub corpora: Vec<Corpus>,
    /// The shares of training, validation and test.
    pub split: String,
    /// Whether the parts of a corpus are of a random order of its documents instead of consecutive ones.
    pub permute_documents: bool,
    /// Validation sets with files of their own.
    pub valid: Vec<Corpus>,
    /// Test sets with files of their own.
    pub test: Vec<Corpus>,
    /// Tokens of a sample that the model reads.
    pub sequence_length: usize,
    /// The rule of the orders of documents and samples.
    pub order: SampleOrder,
    /// The directory of index maps; `None` for beside the token files.
    pub maps: Option<PathBuf>,
    /// Threads that read and form samples.
    pub loading_threads: usize,
    /// Decides the orders, the split and what an objective chooses at random.
    pub seed: u64,
    /// Training batches that an evaluation has samples for.
    pub iterations: u64,
}

impl PretrainingSettings {
    /// The shares of training, validation and test, where parts with files of their own have none.
    ///
    /// # Errors
    /// A `data.split` that is not one; no part without files of its own.
    pub fn shares(&self) -> Result<SplitShares> {
        SplitShares::parse(&self.split)?.without(!self.valid.is_empty(), !self.test.is_empty())
    }

    /// Its token files, with the key that names them.
    pub(super) fn corpora_by_key(&self) -> [(&'static str, &[Corpus]); 3] {
        [("data.corpora", &self.corpora), ("data.valid", &self.valid), ("data.test", &self.test)]
    }
}

impl Task for PretrainingSettings {
    fn name(&self) -> &'static str {
        "pretrain"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Tokens
    }

    fn has_split(&self, split: Split) -> bool {
        let has_share = |shares: SplitShares| shares.shares()[1] > 0.0;
        split == Split::Train || !self.valid.is_empty() || self.shares().is_ok_and(has_share)
    }

    fn has_teachable_labels(&self) -> bool {
        false
    }

    fn can_be_packed(&self) -> bool {
        false
    }

    fn has_rendered_texts(&self) -> bool {
        false
    }

    fn pipeline_tag(&self, generates_targets: bool) -> &'static str {
        match self.objective.head() {
            TextHead::CausalLm if generates_targets => "text2text-generation",
            TextHead::CausalLm => "text-generation",
            _ => "fill-mask",
        }
    }

    /// Samples of token files are numbered over a run, and are no data set in memory.
    fn read_split(&self, _source: &SplitSource<'_>) -> Result<Dataset> {
        let reason = "task pretrain has samples of token files, which are no records";
        Err(Error::argument("data.task", reason, "read them with model_center::pretraining"))
    }
}

/// Reads the keys; `objective` is what `data.objective` sets.
pub(super) fn read(r: &mut Reader, objective: PretrainingObjective) -> PretrainingSettings {
    let orders = [SampleOrder::Addressed, SampleOrder::Megatron, SampleOrder::MegatronV1];
    let orders = orders.map(|order| (order.name(), order));
    PretrainingSettings {
        corpora: read_corpora(r, "data.corpora", "not set").unwrap_or_default(),
        split: read_split(r),
        permute_documents: r.flag("data.permute_documents", false),
        valid: read_corpora(r, "data.valid", "not set: a part of data.corpora").unwrap_or_default(),
        test: read_corpora(r, "data.test", "not set: a part of data.corpora").unwrap_or_default(),
        sequence_length: r.integer("data.sequence_length", 1024, 2..=MAX_SAMPLES),
        order: r.choice("data.sample_order", &orders, SampleOrder::Addressed),
        maps: r.optional_path("data.maps", "not set: beside the token files", MAP_DIRECTORY),
        loading_threads: r.integer("data.loading_threads", 1, 1..=MAX_THREADS),
        objective: pretraining_objective::read(r, objective),
        seed: 0,
        iterations: 0,
    }
}

/// Settings that this task does not use, or that only it uses; `objective` is its objective, `None` of other tasks.
pub(super) fn refuse_foreign(r: &mut Reader, objective: Option<PretrainingObjective>) {
    pretraining_objective::refuse_foreign(r, objective);
    match objective.is_some() {
        true => {
            for key in OTHERS.iter().chain(&COLUMN_KEYS) {
                r.without_effect(key, "data.task", "task pretrain reads token files", "remove it");
            }
            r.without_effect("model.head", "data.task", "the objective determines the head", "remove it");
        }
        false => {
            for key in KEYS {
                r.without_effect(key, "data.task", "it is for task pretrain", "remove it");
            }
        }
    }
}

/// Reads the keys of other tables that belong to the task; `train_seed` is their default.
pub(super) fn read_others(r: &mut Reader, train_seed: u64, settings: Option<&mut PretrainingSettings>) {
    let seed = r.integer("data.seed", train_seed, 0..=MAX_INTEGER);
    let iterations = r.integer("eval.iterations", ITERATIONS, 1..=MAX_SAMPLES);
    match settings {
        Some(settings) => (settings.seed, settings.iterations) = (seed, iterations),
        None => {
            for key in ["data.seed", "eval.iterations"] {
                r.without_effect(key, "data.task", "it is for task pretrain", "remove it");
            }
        }
    }
}

/// Adds what is missing.
pub(super) fn check(r: &mut Reader, settings: &PretrainingSettings) {
    if settings.corpora.is_empty() {
        let fix = "set data.corpora = [\"data/books\"], the token files of `bmtrain corpus build`";
        r.absent(&["data.task", "data.corpora"], "`data.corpora` is missing: the token files to learn from", fix);
    }
    let given = settings.corpora.iter().filter(|corpus| corpus.weight.is_some()).count();
    if given != 0 && given != settings.corpora.len() {
        let reason = format!("{given} of {} corpora have a weight", settings.corpora.len());
        r.contradiction(&["data.corpora"], reason, "give every corpus a weight, or none");
    }
    for (key, corpora) in [("data.valid", &settings.valid), ("data.test", &settings.test)] {
        if corpora.iter().any(|corpus| corpus.weight.is_some()) {
            r.contradiction(&[key], format!("`{key}` has weights, and each of its files is a set"), "remove them");
        }
    }
}

fn read_split(r: &mut Reader) -> String {
    r.shape("data.split", Shape::Text);
    r.read(Spec {
        key: "data.split",
        textual: true,
        wanted: "the shares of training, validation and test".into(),
        example: quote("949,50,1"),
        otherwise: Otherwise::Default(SPLIT.to_owned()),
        read: &|value| match value {
            Value::Text(text) => SplitShares::parse(text).ok().map(|_| text.clone()),
            _ => None,
        },
        render: &|text: &String| quote(text),
    })
    .unwrap_or_else(|| SPLIT.to_owned())
}

/// A path, a table with path and weight, or a list of them.
fn read_corpora(r: &mut Reader, key: &'static str, absent: &str) -> Option<Vec<Corpus>> {
    let one = Shape::Either(vec![Shape::Text, Shape::Table(&["path", "weight"], None)]);
    r.shape(key, Shape::Either(vec![one.clone(), Shape::List(one.into())]));
    r.read(Spec {
        key,
        textual: false,
        wanted: "a list of paths of token files, or of tables with path and weight".into(),
        example: "[{ path = \"data/books\", weight = 0.3 }, { path = \"data/web\", weight = 0.7 }]".into(),
        otherwise: Otherwise::Absent(absent),
        read: &|value| match value {
            Value::Array(items) if !items.is_empty() => items.iter().map(corpus).collect(),
            one => Some(vec![corpus(one)?]),
        },
        render: &|corpora: &Vec<Corpus>| format!("[{}]", corpora.iter().map(render).collect::<Vec<_>>().join(", ")),
    })
}

fn corpus(value: &Value) -> Option<Corpus> {
    let path = |text: &str| (!text.trim().is_empty()).then(|| PathBuf::from(text));
    match value {
        Value::Text(text) => Some(Corpus { path: path(text)?, weight: None }),
        Value::Table(entries) => {
            let (mut found, mut weight) = (None, None);
            for (name, value) in entries {
                match (name.as_str(), value) {
                    ("path", Value::Text(text)) => found = path(text),
                    ("weight", value) => weight = Some(as_float(value).filter(|w| Range::Above(0.0).contains(*w))?),
                    _ => return None,
                }
            }
            Some(Corpus { path: found?, weight })
        }
        _ => None,
    }
}

fn render(corpus: &Corpus) -> String {
    let path = quote(&corpus.path.to_string_lossy());
    corpus.weight.map_or_else(|| path.clone(), |weight| format!("{{ path = {path}, weight = {weight:?} }}"))
}
