//! `Model.predict`: what a fine-tuned model predicts of texts and records.

use crate::error::{argument, raise, type_name};
use crate::records::records;
use crate::session::Session;
use crate::values::to_python;
use crate::worker::Worker;
use model_center::predict::{
    InputRecords, PredictColumns, PredictInput, PredictOptions, PredictionKind, Predictor, PreparedInput, RecordFields,
};
use model_center::run::StopFlag;
use model_center::tokenizer::Tokenizer;
use model_center::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Inputs that are predicted between two looks at signals.
const CHUNK: usize = 256;
/// The columns of inputs without names.
const COLUMNS: [&str; 6] = ["text", "text_pair", "tokens", "question", "context", "messages"];

/// Inputs as records, and whether one was given instead of a list.
pub(crate) struct Asked {
    rows: Vec<Map<String, Value>>,
    is_one: bool,
}

impl Asked {
    /// A text, a record, or an iterable of these.
    pub(crate) fn of(inputs: &Bound<'_, PyAny>, columns: &PredictColumns) -> PyResult<Self> {
        let text = columns.text.as_deref().unwrap_or("text");
        let is_one = inputs.cast::<PyString>().is_ok() || inputs.cast::<PyMapping>().is_ok();
        let items = match is_one {
            true => vec![inputs.clone()],
            false => {
                let items = inputs.try_iter().map_err(|_| {
                    let reason = format!("it is of type {}", type_name(inputs));
                    argument("inputs", reason, "give a text, a dict, or a list of texts or dicts")
                })?;
                items.collect::<PyResult<Vec<_>>>()?
            }
        };
        let is_table = !is_one && inputs.hasattr("columns").unwrap_or(false);
        let named = [&columns.text, &columns.text_pair, &columns.tokens].into_iter().flatten().map(String::as_str);
        let used: Vec<&str> = COLUMNS.into_iter().chain(named).collect();
        let rows = match is_table {
            // Its items are names of columns: the message states how a table gives its records.
            true => records(inputs, ("inputs", &used))?,
            false => {
                let items = items.into_iter().map(|item| as_record(item, text)).collect::<PyResult<Vec<_>>>()?;
                records(PyList::new(inputs.py(), items)?.as_any(), ("inputs", &used))?
            }
        };
        Ok(Asked { rows, is_one })
    }

    /// The predictions, dicts in the order of the inputs; of one input its dict.
    pub(crate) fn predict<'py>(
        self,
        py: Python<'py>,
        worker: &Worker<Session>,
        (tokenizer, columns): (Arc<dyn Tokenizer>, PredictColumns),
        options: PredictOptions,
    ) -> PyResult<Bound<'py, PyAny>> {
        let predictor = worker.call(py, &StopFlag::default(), |session| session.predictor(tokenizer, options))?;
        let predictor = Arc::new(predictor);
        let (rows, reading) = (self.rows, &predictor);
        let inputs = py.detach(move || read(reading, &columns, rows)).map_err(raise)?;
        let found = PyList::empty(py);
        for chunk in inputs.chunks(CHUNK) {
            let first = found.len();
            let prepared = py.detach(|| prepare(&predictor, chunk, first)).map_err(raise)?;
            let running = Arc::clone(&predictor);
            let predictions = worker.call(py, &StopFlag::default(), move |session| {
                running.predict_prepared((session.model()?, &session.device), &prepared)
            })?;
            for prediction in predictions {
                let fields = prediction.fields(predictor.kind().names());
                found.append(to_python(py, &Value::Object(fields))?)?;
            }
        }
        if self.is_one { found.get_item(0) } else { Ok(found.into_any()) }
    }
}

/// A text as a record of its column; everything else has to be one.
fn as_record<'py>(item: Bound<'py, PyAny>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    if item.cast::<PyString>().is_err() {
        return Ok(item);
    }
    let dict = PyDict::new(item.py());
    dict.set_item(text, &item)?;
    Ok(dict.into_any())
}

/// The inputs of records.
fn read(predictor: &Predictor, columns: &PredictColumns, rows: Vec<Map<String, Value>>) -> Result<Vec<PredictInput>> {
    let mut fields = RecordFields::new(predictor.kind(), columns)?;
    let (mut records, mut inputs) = (InputRecords::given("inputs", rows), Vec::new());
    while let Some(record) = records.next()? {
        inputs.push(record.and_then(|record| fields.read(&record))?.0);
    }
    Ok(inputs)
}

/// Rows of tokens of inputs; `first` is the number of the first.
fn prepare(predictor: &Predictor, inputs: &[PredictInput], first: usize) -> Result<Vec<PreparedInput>> {
    let prepare = |(number, input)| {
        predictor.prepare(input).map_err(|error| match error {
            Error::Data { reason, fix, .. } => Error::data(format!("inputs, row {}", first + number + 1), reason, fix),
            other => other,
        })
    };
    inputs.iter().enumerate().map(prepare).collect()
}

impl Session {
    /// The predictor of the model.
    fn predictor(&self, tokenizer: Arc<dyn Tokenizer>, options: PredictOptions) -> Result<Predictor> {
        let info = self.info()?;
        let kind = PredictionKind::of(info, &self.directory)?;
        Predictor::new((kind, info), tokenizer, options)?.with_chat_template(self.tokenizer_directory()?)
    }
}
