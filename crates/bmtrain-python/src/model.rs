//! `Model`: a model on a thread of its own.

use crate::adapter::AdapterArgument;
use crate::arrays::{ids, of_tensor};
use crate::batch::Batch;
use crate::dataset::{Dataset, DatasetArguments, Task};
use crate::error::raise;
use crate::facts::Facts;
use crate::generate::{Prompts, overrides};
use crate::open::{Head, OpenArguments, dtype, open};
use crate::predict::Asked;
use crate::records::records;
use crate::session::Session;
use crate::worker::Worker;
use model_center::predict::{PredictColumns, PredictOptions};
use model_center::run::StopFlag;
use model_center::tokenizer::{AutoTokenizer, KeepSide, Limit, Tokenizer};
use numpy::{PyArray1, PyArrayDyn};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A transformer with its tokenizer, opened from a Hugging Face directory.
///
/// `path` is a directory, a name in the hub's cache (with `revision`) or a GGUF file. `head` is `lm`, `mlm`, `nsp`,
/// `cls`, `regression`, `tokens`, `qa` or `none`, by default the directory's own; `labels` names the classes of `cls`
/// and `tokens`. `dtype` of the parameters is `f32`, `bf16` or `f16`; `device` is `cpu`, `cuda`, `cuda:N` or `auto`,
/// with `threads` of the CPU. Parameters that the directory lacks are initialized by `seed`. With `recompute`,
/// activations of blocks are recomputed in place of being stored. Parameters whose names match a pattern of `frozen`
/// are not trained; with `only`, matching ones alone are. Raises `ModelError` for a directory that cannot be opened.
///
/// `adapter` is a PEFT directory, a list of PEFT directories of LoRA, whose updates are multiplied by
/// `adapter_weights`, or a dict with the keys of a recipe's `[adapter]`, such as `{"method": "lora", "rank": 8}`, for a
/// new one. A `path` that is itself a PEFT directory is the adapter of the model that it names. A model with an adapter
/// is frozen: a `Trainer` trains the adapter alone.
#[pyclass(frozen, module = "bmtrain")]
pub(crate) struct Model {
    pub(crate) worker: Arc<Worker<Session>>,
    facts: Facts,
    /// Opened with the first text.
    tokenizer: Mutex<Option<Arc<dyn Tokenizer>>>,
    head: Option<Head>,
}

impl Model {
    /// Runs a closure on the model's thread.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Session) -> model_center::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        self.worker.call(py, &StopFlag::default(), work)
    }

    fn tokenizer(&self, py: Python<'_>) -> PyResult<Arc<dyn Tokenizer>> {
        let kept = || self.tokenizer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tokenizer) = &*kept() {
            return Ok(Arc::clone(tokenizer));
        }
        let (directory, rows) = (&self.facts.texts, self.facts.info.vocab_size);
        let opened = py.detach(|| {
            let tokenizer = AutoTokenizer::open(directory)?;
            tokenizer.require_rows(rows)?;
            Ok(tokenizer)
        });
        let opened: Arc<dyn Tokenizer> = opened.map_err(raise)?;
        *kept() = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Text that follows prompts.
    fn continued<'py>(
        &self,
        py: Python<'py>,
        prompts: Prompts,
        options: Option<&Bound<'py, PyDict>>,
        on_text: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let overrides = overrides(options)?;
        let tokenizer = if prompts.need_tokenizer() { Some(self.tokenizer(py)?) } else { None };
        prompts.generate(py, &self.worker, (tokenizer, overrides), on_text)
    }
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (path, *, head=None, labels=None, dtype=None, device="cpu", threads=None, seed=1234,
        recompute=false, frozen=None, only=None, revision=None, adapter=None, adapter_weights=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python call")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        head: Option<&str>,
        labels: Option<Vec<String>>,
        dtype: Option<&str>,
        device: &str,
        threads: Option<usize>,
        seed: u64,
        recompute: bool,
        frozen: Option<Vec<String>>,
        only: Option<Vec<String>>,
        revision: Option<String>,
        adapter: Option<&Bound<'_, PyAny>>,
        adapter_weights: Option<Vec<f32>>,
    ) -> PyResult<Self> {
        let head = head.map(Head::named).transpose()?;
        let arguments = OpenArguments {
            path: path.display().to_string(),
            revision,
            head,
            labels: labels.unwrap_or_default(),
            dtype: dtype.map(self::dtype).transpose()?,
            device: device.to_owned(),
            threads,
            seed,
            recompute,
            frozen: frozen.unwrap_or_default(),
            only: only.unwrap_or_default(),
            adapter: AdapterArgument::of(adapter, adapter_weights)?,
        };
        let (worker, facts) = Worker::start(py, move || {
            let opened = open(&arguments)?;
            let facts = Facts::of(&opened)?;
            Ok((opened.session, facts))
        })?;
        Ok(Model { worker: Arc::new(worker), facts, tokenizer: Mutex::new(None), head })
    }

    /// The outputs of a forward pass without dropout, by name: `logits`, with labels `loss`, and further ones.
    fn forward<'py>(&self, py: Python<'py>, batch: &Bound<'py, Batch>) -> PyResult<Bound<'py, PyDict>> {
        let batch = Arc::clone(&batch.get().batch);
        let outputs = self.call(py, move |session| session.forward(&batch))?;
        let named = PyDict::new(py);
        for tensor in outputs {
            let name = tensor.name.clone();
            match (name.as_str(), tensor.values.first()) {
                ("loss", Some(loss)) => named.set_item(name, *loss)?,
                _ => named.set_item(name, of_tensor(py, tensor)?)?,
            }
        }
        Ok(named)
    }

    /// Tokenizes the records of an iterable: dicts with the columns that `text`, `text_pair`, `label`, `prompt` and
    /// `target` name, which the `task` uses: `classification`, `regression`, `language` or `seq2seq`, by default what
    /// the head is for; other columns may hold anything. Longer inputs than `max_length` tokens are cut, by default
    /// 512. `name` stands for a file in messages. Raises `DataError` for a record that cannot be used.
    #[pyo3(signature = (records, *, task=None, text="text", text_pair=None, label="label", prompt=None,
        target="target", max_length=None, target_length=None, name="records"))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python call")]
    fn dataset(
        &self,
        py: Python<'_>,
        records: &Bound<'_, PyAny>,
        task: Option<&str>,
        text: &str,
        text_pair: Option<String>,
        label: &str,
        prompt: Option<String>,
        target: &str,
        max_length: Option<usize>,
        target_length: Option<usize>,
        name: &str,
    ) -> PyResult<Dataset> {
        let arguments = DatasetArguments {
            task: Task::named(task, &self.facts.info, self.head).map_err(raise)?,
            text: text.to_owned(),
            text_pair,
            label: label.to_owned(),
            prompt,
            target: target.to_owned(),
            max_length,
            target_length,
            name: name.to_owned(),
        };
        let tokenizer = self.tokenizer(py)?;
        let rows = self::records(records, (name, &arguments.columns()))?;
        let info = &self.facts.info;
        py.detach(move || arguments.read(rows, &*tokenizer, info)).map_err(raise)
    }

    /// Text that follows a prompt: of a text, a text; of token ids, an array of token ids; of a list, a list.
    ///
    /// Options are `max_new_tokens`, `min_new_tokens`, `greedy`, `sample`, `temperature`, `top_k`, `top_p`, `min_p`,
    /// `seed`, `beams`, `length_penalty`, `repetition_penalty`, `no_repeat` (the size of n-grams) and `stop` (a list of
    /// texts), over the settings of the model's directory. `on_text` is called with each piece of the text. Ctrl-C
    /// ends it before the next token.
    #[pyo3(signature = (prompt, *, on_text=None, **options))]
    fn generate<'py>(
        &self,
        py: Python<'py>,
        prompt: &Bound<'py, PyAny>,
        on_text: Option<Py<PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.continued(py, Prompts::of(prompt)?, options, on_text)
    }

    /// The next message of a conversation, a list of messages with `role` and `content`, formatted by the model's chat
    /// template. Options as in `generate`.
    #[pyo3(signature = (messages, *, on_text=None, **options))]
    fn chat<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyList>,
        on_text: Option<Py<PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.continued(py, Prompts::of_messages(messages)?, options, on_text)
    }

    /// What a fine-tuned model predicts of a text, of a record, or of each of an iterable of these: dicts with
    /// `prediction` and, as the head has them, `score`, `probabilities`, `start`, `end` and `tags_predicted`.
    ///
    /// Records are dicts with `text` and perhaps `text_pair`, with `tokens`, a list of words, with `question` and
    /// `context`, or with `messages`; other columns are named by `text`, `text_pair` and `tokens`. Longer texts than
    /// `max_length` tokens are cut, by default to the positions of the model; words and passages are read in windows
    /// that share `stride` tokens. `threshold` is the probability of a label where there may be several, `may_be_none`
    /// allows questions without an answer, `prompt_name` names the prompt before texts that are embedded. Ctrl-C ends
    /// it between 256 inputs.
    #[pyo3(signature = (inputs, *, text=None, text_pair=None, tokens=None, max_length=None, threshold=0.5, stride=128,
        answer_length=30, may_be_none=false, prompt_name=None, batch_size=32))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python call")]
    fn predict<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        text: Option<String>,
        text_pair: Option<String>,
        tokens: Option<String>,
        max_length: Option<usize>,
        threshold: f32,
        stride: usize,
        answer_length: usize,
        may_be_none: bool,
        prompt_name: Option<String>,
        batch_size: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let columns = PredictColumns { text, text_pair, tokens, label: None, without_labels: true };
        let options = PredictOptions {
            max_length,
            threshold,
            stride,
            answer_length,
            may_be_none,
            prompt: prompt_name,
            batch: batch_size,
            ..PredictOptions::default()
        };
        let asked = Asked::of(inputs, &columns)?;
        asked.predict(py, &self.worker, (self.tokenizer(py)?, columns), options)
    }

    /// Token ids of a text, or of a pair, with special tokens, cut to `max_length` tokens.
    #[pyo3(signature = (text, pair=None, *, max_length=None))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        pair: Option<&str>,
        max_length: Option<usize>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let limit = max_length.map(|max_tokens| Limit { max_tokens, keep: KeepSide::default() });
        let encoded = self.tokenizer(py)?.encode(text, pair, limit).map_err(raise)?;
        Ok(PyArray1::from_vec(py, encoded.input_ids.into_iter().map(i64::from).collect()))
    }

    /// The text of token ids.
    #[pyo3(signature = (ids, *, skip_special=true))]
    fn decode(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, skip_special: bool) -> PyResult<String> {
        let ids = self::ids("ids", ids)?;
        self.tokenizer(py)?.decode(&ids, skip_special).map_err(raise)
    }

    /// Writes a Hugging Face directory: configuration, weights, tokenizer files. `dtype` of the weights is by default
    /// the parameters' own. Of a model with an adapter it is a PEFT directory, which has the adapter and names the
    /// model; with `merged` the whole model, with the adapter added to its weights.
    #[pyo3(signature = (directory, *, dtype=None, merged=false))]
    fn save(&self, py: Python<'_>, directory: PathBuf, dtype: Option<&str>, merged: bool) -> PyResult<()> {
        let dtype = dtype.map(self::dtype).transpose()?;
        self.call(py, move |session| session.save(&directory, dtype, merged))
    }

    /// The values of a parameter, as float32.
    fn parameter<'py>(&self, py: Python<'py>, name: String) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let tensor = self.call(py, move |session| session.parameter(&name))?;
        of_tensor(py, tensor)
    }

    /// Names of the parameters, in the order of the model.
    #[getter]
    fn parameter_names(&self) -> Vec<String> {
        self.facts.parameters.clone()
    }

    /// Names of the parameters that a `Trainer` trains, with an adapter the adapter's.
    #[getter]
    fn trainable_names(&self) -> Vec<String> {
        self.facts.trainable.clone()
    }

    /// What the adapter is and which layers it updates, in a line; `None` without one.
    #[getter]
    fn adapter(&self) -> Option<String> {
        self.facts.adapter.clone()
    }

    /// Number of parameter values.
    #[getter]
    fn parameter_count(&self) -> usize {
        self.facts.values
    }

    /// Names of the classes, in the order of the logits; empty where the head has none.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.facts.info.label_names.clone()
    }

    /// Rows of the token embedding: token ids are below this.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.facts.info.vocab_size
    }

    /// The longest sequence, in tokens.
    #[getter]
    fn max_length(&self) -> usize {
        self.facts.info.max_length
    }

    /// The directory that the model was opened from.
    #[getter]
    fn directory(&self) -> PathBuf {
        self.facts.directory.clone()
    }

    /// Parameters that the directory lacks, which were initialized at random.
    #[getter]
    fn initialized(&self) -> Vec<String> {
        self.facts.initialized.clone()
    }

    /// What was inferred because the directory does not state it, a sentence each.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.facts.notes.clone()
    }

    fn __repr__(&self) -> String {
        format!("Model({:?}, parameters={})", self.facts.directory.display().to_string(), self.facts.values)
    }
}
