//! Whole runs: `finetune` trains as a recipe specifies, `read_metrics` reads what a run wrote.

use crate::error::{Error, raise};
use crate::values::{settings, to_python};
use model_center::model::Registry;
use model_center::recipe::Recipe;
use model_center::run::{ExitStatus, LineReader, metrics_file};
use model_center::train::FinetuneOptions;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::thread::Builder;

/// Trains as a recipe specifies, a TOML file with further settings such as `{"train.lr": 1e-4}` over it. Returns the
/// output directory of the run, or `None` if it was asked to stop before its end; the same call resumes it. With
/// `overwrite`, an earlier run with the same settings in the output directory is replaced; one with others is an error.
#[pyfunction]
#[pyo3(signature = (recipe=None, settings=None, *, overwrite=false))]
pub(crate) fn finetune(
    py: Python<'_>,
    recipe: Option<PathBuf>,
    settings: Option<&Bound<'_, PyDict>>,
    overwrite: bool,
) -> PyResult<Option<PathBuf>> {
    let sets = settings.map_or_else(|| Ok(Vec::new()), |values| self::settings("", values))?;
    let status = py.detach(move || {
        let run = move || {
            let resolved = Recipe::load(recipe.as_deref(), &sets)?;
            let directory = resolved.output.dir.clone();
            let options = FinetuneOptions { overwrite, ..FinetuneOptions::default() };
            let status = model_center::train::finetune(resolved, &options, Registry::default())?;
            Ok((status, directory))
        };
        // The ranks of a run are threads of their own, which signals do not reach.
        let thread = Builder::new().name("finetune".to_owned()).spawn(run);
        thread.map_or(None, |thread| thread.join().ok())
    });
    py.check_signals()?;
    match status {
        Some(Ok((ExitStatus::Done, directory))) => Ok(Some(directory)),
        Some(Ok(_)) => Ok(None),
        Some(Err(error)) => Err(raise(error)),
        None => Err(Error::new_err("the run: its thread ended unexpectedly (fix: report this)")),
    }
}

/// The records of a run's `metrics.jsonl`, without any that a later resume overtook, as dicts. `run` is the run's
/// directory or the file; `kind` selects records such as `step`, `eval` or `end`.
#[pyfunction]
#[pyo3(signature = (run, kind=None))]
pub(crate) fn read_metrics<'py>(py: Python<'py>, run: PathBuf, kind: Option<String>) -> PyResult<Bound<'py, PyList>> {
    let records = py.detach(move || {
        let metrics = if run.is_file() { run } else { metrics_file(&run)? };
        let mut reader = LineReader::open(&metrics)?;
        let mut records = Vec::new();
        while let Some(record) = reader.advance()? {
            let is_wanted = |wanted: &String| record.get("kind").and_then(serde_json::Value::as_str) == Some(wanted);
            if kind.as_ref().is_none_or(is_wanted) {
                records.push(record);
            }
        }
        Ok(records)
    });
    let records: Vec<serde_json::Value> = records.map_err(raise)?;
    let values = records.iter().map(|record| to_python(py, record)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, values)
}
