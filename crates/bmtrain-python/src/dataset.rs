//! `Dataset`: records of a Python iterable, tokenized, and their batches.

use crate::batch::Batch;
use crate::error::raise;
use crate::open::Head;
use model_center::data::{
    ColumnTask, Dataset as Data, LabelSpace, LabelSpec, LanguageModelingColumns, LanguageModelingTask, Loader,
    LoaderOptions, Order, Position, ReadOptions,
};
use model_center::model::ModelInfo;
use model_center::tokenizer::Tokenizer;
use model_center::{Error, Result};
use pyo3::prelude::*;
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, PoisonError};

/// The longest inputs by default.
const USUAL_LENGTH: usize = 512;

/// Task of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Classification,
    Regression,
    Language,
    Seq2seq,
}

impl Task {
    /// The task of this name, by default what a model with this head is for.
    pub(crate) fn named(name: Option<&str>, info: &ModelInfo, head: Option<Head>) -> Result<Self> {
        let usual = match (head, info.label_names.is_empty()) {
            (Some(Head::Regression), _) => "regression",
            (_, false) => "classification",
            (_, true) if info.generates_targets => "seq2seq",
            (_, true) => "language",
        };
        match name.unwrap_or(usual) {
            "classification" => Ok(Task::Classification),
            "regression" => Ok(Task::Regression),
            "language" => Ok(Task::Language),
            "seq2seq" => Ok(Task::Seq2seq),
            other => {
                let fix = "give classification, regression, language or seq2seq";
                Err(Error::argument("task", format!("unknown task {other:?}"), fix))
            }
        }
    }
}

/// The arguments of `Model.dataset`.
pub(crate) struct DatasetArguments {
    pub(crate) task: Task,
    pub(crate) text: String,
    pub(crate) text_pair: Option<String>,
    pub(crate) label: String,
    pub(crate) prompt: Option<String>,
    pub(crate) target: String,
    pub(crate) max_length: Option<usize>,
    pub(crate) target_length: Option<usize>,
    pub(crate) name: String,
}

impl DatasetArguments {
    /// The columns of a record that its task uses.
    pub(crate) fn columns(&self) -> Vec<&str> {
        let further = match self.task {
            Task::Classification | Task::Regression => [self.text_pair.as_deref(), Some(self.label.as_str())],
            Task::Language => [self.prompt.as_deref(), None],
            Task::Seq2seq => [Some(self.target.as_str()), None],
        };
        std::iter::once(self.text.as_str()).chain(further.into_iter().flatten()).collect()
    }

    /// Tokenizes records for a model.
    pub(crate) fn read(
        &self,
        rows: Vec<Map<String, Value>>,
        tokenizer: &dyn Tokenizer,
        info: &ModelInfo,
    ) -> Result<Dataset> {
        let longest = self.max_length.unwrap_or(USUAL_LENGTH.min(info.max_length));
        let target_length = self.target_length.unwrap_or(longest);
        for (key, length) in [("max_length", longest), ("target_length", target_length)] {
            if length > info.max_length {
                let reason = format!("{length} tokens, and the model has {} positions", info.max_length);
                return Err(Error::argument(key, reason, format!("give at most {}", info.max_length)));
            }
        }
        let options = ReadOptions { target_length, ..ReadOptions::new(tokenizer, longest) };
        let text = self.text.clone();
        let columns = |labels| ColumnTask {
            text: text.clone(),
            text_pair: self.text_pair.clone(),
            label: self.label.clone(),
            labels,
            format: None,
        };
        let language = |columns| LanguageModelingTask { columns, format: None };
        let mut data = match self.task {
            Task::Classification => {
                let labels = match info.label_names.is_empty() {
                    true => LabelSpec::Discover,
                    false => LabelSpec::Names(info.label_names.clone()),
                };
                columns(labels).read_rows(&self.name, rows, &options)?
            }
            Task::Regression => columns(LabelSpec::Value).read_rows(&self.name, rows, &options)?,
            Task::Language => {
                let columns = LanguageModelingColumns::Language { text, prompt: self.prompt.clone() };
                language(columns).read_rows(&self.name, rows, &options)?
            }
            Task::Seq2seq => {
                let columns = LanguageModelingColumns::Target { text, target: self.target.clone() };
                language(columns).read_rows(&self.name, rows, &options)?
            }
        };
        if let (LabelSpace::Classes(_), false) = (data.labels(), info.label_names.is_empty()) {
            data.order_labels(&info.label_names)?;
        }
        Ok(Dataset { data: Arc::new(data) })
    }
}

/// Tokenized samples in memory.
#[pyclass(frozen, module = "bmtrain")]
pub(crate) struct Dataset {
    data: Arc<Data>,
}

#[pymethods]
impl Dataset {
    /// Iterates over the batches of an epoch. The same `seed` and `epoch` give the same order. With `drop_last`,
    /// samples that do not fill the last batch are left out; `length_grouped` puts inputs of like length together;
    /// `packing` joins the texts of a batch to one row without padding, for next tokens.
    #[pyo3(signature = (batch_size, *, shuffle=true, seed=1234, epoch=0, drop_last=true, length_grouped=false,
        packing=false))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python call")]
    fn batches(
        &self,
        batch_size: usize,
        shuffle: bool,
        seed: u64,
        epoch: u64,
        drop_last: bool,
        length_grouped: bool,
        packing: bool,
    ) -> PyResult<BatchIterator> {
        let order = Order::training(shuffle, length_grouped);
        let options = LoaderOptions { order, drop_last, packing, ..LoaderOptions::training(batch_size, seed) };
        let loader = Loader::new(Arc::clone(&self.data), options).map_err(raise)?;
        Ok(BatchIterator { next: Mutex::new((loader, Position { epoch, index: 0 })) })
    }

    /// Names of its classes, in the order of their numbers; empty where labels are no classes.
    #[getter]
    fn labels(&self) -> Vec<String> {
        match self.data.labels() {
            LabelSpace::Classes(names) => names.clone(),
            _ => Vec::new(),
        }
    }

    /// Tokens of all samples, special tokens included.
    #[getter]
    fn tokens(&self) -> u64 {
        self.data.report().tokens
    }

    /// Samples that were longer than the limit and lost tokens.
    #[getter]
    fn truncated(&self) -> u64 {
        self.data.report().truncated
    }

    /// A hash of all that training sees of it.
    #[getter]
    fn fingerprint(&self) -> &str {
        self.data.fingerprint()
    }

    fn __len__(&self) -> usize {
        self.data.len()
    }

    fn __repr__(&self) -> String {
        format!("Dataset(samples={}, tokens={})", self.data.len(), self.data.report().tokens)
    }
}

/// The batches of an epoch, in order.
#[pyclass(frozen, module = "bmtrain")]
pub(crate) struct BatchIterator {
    next: Mutex<(Loader, Position)>,
}

#[pymethods]
impl BatchIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> PyResult<Option<Batch>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (loader, position) = &mut *next;
        if position.index >= loader.batches_per_epoch() {
            return Ok(None);
        }
        let batch = loader.batch(*position).map_err(raise)?;
        position.index += 1;
        Ok(Some(Batch { batch: Arc::new(batch) }))
    }

    /// Batches of the whole epoch.
    fn __len__(&self) -> usize {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).0.batches_per_epoch() as usize
    }
}
