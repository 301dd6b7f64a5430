//! `Batch`: token ids with masks and labels, for one forward pass.

use crate::arrays::{Numbers, array, numbers, rows_and_length, whole, whole_of};
use crate::error::argument;
use model_center::data::{Batch as Data, Labels};
use numpy::PyArrayDyn;
use pyo3::prelude::*;
use std::sync::Arc;

/// Padded token ids with labels. Immutable, so that a thread may compute with it while Python goes on.
///
/// `input_ids`, `attention_mask` (1 for tokens, 0 for padding) and `token_type_ids` are integers, `[rows, length]`.
/// `labels` are by `label_kind`: `classes`, `[rows]`; `values`, floats `[rows]`; `next-tokens`, `predicted` or
/// `token-classes`, `[rows, length]`; `spans`, `[rows, 2]`; `target`, `[rows, target length]`. By default integers for
/// each row are classes, floats are values, integers for each token are next tokens. -100 has no loss.
#[pyclass(frozen, module = "bmtrain")]
pub(crate) struct Batch {
    pub(crate) batch: Arc<Data>,
}

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(signature = (input_ids, *, attention_mask=None, token_type_ids=None, labels=None, label_kind=None))]
    fn new(
        input_ids: &Bound<'_, PyAny>,
        attention_mask: Option<&Bound<'_, PyAny>>,
        token_type_ids: Option<&Bound<'_, PyAny>>,
        labels: Option<&Bound<'_, PyAny>>,
        label_kind: Option<&str>,
    ) -> PyResult<Self> {
        let ids = whole("input_ids", input_ids)?;
        let shape = rows_and_length("input_ids", &ids.shape)?;
        let bit = |value: i64| match value {
            0 => Ok(0),
            1 => Ok(1),
            other => Err(argument("attention_mask", format!("it has {other}"), "give 1 for tokens, 0 for padding")),
        };
        let mask = attention_mask.map(|mask| whole_of("attention_mask", mask, &shape)).transpose()?;
        let mask = mask.map(|mask| mask.into_iter().map(bit).collect::<PyResult<Vec<u8>>>()).transpose()?;
        let types = token_type_ids.map(|types| whole_of("token_type_ids", types, &shape)).transpose()?;
        if labels.is_none() && label_kind.is_some() {
            return Err(argument("label_kind", "there are no labels", "leave it out, or give labels"));
        }
        let labels = labels.map(|labels| self::labels(labels, label_kind, shape)).transpose()?;
        let batch = Data { attention_mask: mask, token_type_ids: types, labels, ..Data::new(shape[1], ids.values) };
        Ok(Batch { batch: Arc::new(batch) })
    }

    /// Token ids, `[rows, length]`.
    #[getter]
    fn input_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<i64>>> {
        array(py, self.batch.input_ids.clone(), &[self.batch.rows, self.batch.length])
    }

    /// 1 for tokens and 0 for padding, `[rows, length]`.
    #[getter]
    fn attention_mask<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<u8>>> {
        let all = || vec![1; self.batch.input_ids.len()];
        let mask = self.batch.attention_mask.clone().unwrap_or_else(all);
        array(py, mask, &[self.batch.rows, self.batch.length])
    }

    /// Segments of pairs, `[rows, length]`; `None` where all are 0.
    #[getter]
    fn token_type_ids<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyArrayDyn<i64>>>> {
        let shape = [self.batch.rows, self.batch.length];
        self.batch.token_type_ids.clone().map(|types| array(py, types, &shape)).transpose()
    }

    /// The labels: `[samples]` of classes or values, `[rows, length]` of tokens; `None` without.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let rows = self.batch.rows.max(1);
        Ok(match self.batch.labels.as_ref() {
            None => None,
            Some(Labels::Classes(ids)) => Some(array(py, ids.clone(), &[ids.len()])?.into_any()),
            Some(Labels::Values(values)) => Some(array(py, values.clone(), &[values.len()])?.into_any()),
            Some(Labels::Spans(spans)) => Some(array(py, spans.as_flattened().to_vec(), &[spans.len(), 2])?.into_any()),
            Some(labels) => {
                let ids = labels.ids().unwrap_or_default();
                Some(array(py, ids.to_vec(), &[rows, ids.len() / rows])?.into_any())
            }
        })
    }

    /// Numbers of its samples in their data set; empty where a program made it.
    #[getter]
    fn samples(&self) -> Vec<u32> {
        self.batch.samples.clone()
    }

    /// Rows of its token ids.
    #[getter]
    fn rows(&self) -> usize {
        self.batch.rows
    }

    /// Length of its rows.
    #[getter]
    fn length(&self) -> usize {
        self.batch.length
    }

    /// Tokens without padding, targets included.
    #[getter]
    fn tokens(&self) -> usize {
        self.batch.tokens()
    }

    fn __repr__(&self) -> String {
        format!("Batch(rows={}, length={}, tokens={})", self.batch.rows, self.batch.length, self.batch.tokens())
    }
}

/// Every kind of labels by its name.
const LABEL_KINDS: [&str; 7] = ["classes", "values", "next-tokens", "predicted", "token-classes", "spans", "target"];

/// The labels of `[rows, length]` tokens.
fn labels(object: &Bound<'_, PyAny>, kind: Option<&str>, [rows, length]: [usize; 2]) -> PyResult<Labels> {
    if let Some(kind) = kind.filter(|kind| !LABEL_KINDS.contains(kind)) {
        let fix = format!("give one of {}", LABEL_KINDS.join(", "));
        return Err(argument("label_kind", format!("unknown kind {kind:?}"), &fix));
    }
    let found = numbers("labels", object)?;
    let dimensions = match &found {
        Numbers::Whole(shaped) => shaped.shape.clone(),
        Numbers::Real(shaped) => shaped.shape.clone(),
    };
    let usual = match (&found, dimensions.len()) {
        (Numbers::Real(_), _) => "values",
        (Numbers::Whole(_), 1) => "classes",
        _ => "next-tokens",
    };
    let kind = kind.unwrap_or(usual);
    let expected = match kind {
        "classes" | "values" => vec![rows],
        "target" => vec![rows, dimensions.get(1).copied().unwrap_or(1)],
        "spans" => vec![rows, 2],
        _ => vec![rows, length],
    };
    if dimensions != expected {
        let reason = format!("their shape is {dimensions:?}, and labels of kind {kind:?} are {expected:?} here");
        return Err(argument("labels", reason, "give one for each row or token, or another label_kind"));
    }
    let ids = match found {
        Numbers::Real(found) if kind == "values" => return Ok(Labels::Values(found.values)),
        Numbers::Real(_) => {
            let reason = format!("they are floats, and labels of kind {kind:?} are integers");
            return Err(argument("labels", reason, "give integers"));
        }
        Numbers::Whole(found) => found.values,
    };
    Ok(match kind {
        "classes" => Labels::Classes(ids),
        "values" => Labels::Values(ids.into_iter().map(|value| value as f32).collect()),
        "predicted" => Labels::Predicted(ids),
        "token-classes" => Labels::TokenClasses(ids),
        "spans" => Labels::Spans(ids.as_chunks::<2>().0.to_vec()),
        "target" => Labels::Target(ids),
        _ => Labels::NextTokens(ids),
    })
}
