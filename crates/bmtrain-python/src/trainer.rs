//! `Trainer`: an optimizer over a model, and steps of it.

use crate::batch::Batch;
use crate::error::{argument, type_name};
use crate::model::Model;
use crate::session::Session;
use crate::values::settings;
use crate::worker::Worker;
use model_center::run::StopFlag;
use model_center::train::StepOutcome;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;

/// Trains a model step by step, with the optimizer and the schedule of its settings.
///
/// Settings are the keys of a recipe's `[train]` that concern a step, such as `lr`, `schedule`, `warmup`, `optimizer`,
/// `weight_decay`, `clip_norm`, `seed`. The learning-rate schedule is made for `steps`; further steps keep its last
/// rate. A new trainer of a model starts with a new optimizer and takes over from an earlier one.
#[pyclass(frozen, module = "bmtrain")]
pub(crate) struct Trainer {
    worker: Arc<Worker<Session>>,
    /// The number of trainers that the model had with it.
    number: u64,
}

#[pymethods]
impl Trainer {
    #[new]
    #[pyo3(signature = (model, *, steps, **settings))]
    fn new(
        py: Python<'_>,
        model: &Bound<'_, Model>,
        steps: u64,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut lines = vec![format!("train.steps={steps}")];
        if let Some(values) = settings {
            lines.extend(self::settings("train.", values)?);
        }
        let worker = Arc::clone(&model.get().worker);
        let number = worker.call(py, &StopFlag::default(), move |session| session.train(&lines))?;
        Ok(Trainer { worker, number })
    }

    /// A step with a batch, or with several whose gradients add up, weighted by their samples or predicted tokens.
    /// Raises `DivergedError` after too many steps in a row whose gradients are not finite.
    fn step(&self, py: Python<'_>, batches: &Bound<'_, PyAny>) -> PyResult<StepResult> {
        let batches = match batches.cast::<Batch>() {
            Ok(batch) => vec![Arc::clone(&batch.get().batch)],
            Err(_) => {
                let batch = |item: PyResult<Bound<'_, PyAny>>| {
                    let item = item?;
                    let batch = item.cast::<Batch>().map_err(|_| wrong(&item))?;
                    Ok(Arc::clone(&batch.get().batch))
                };
                batches.try_iter().map_err(|_| wrong(batches))?.map(batch).collect::<PyResult<Vec<_>>>()?
            }
        };
        let number = self.number;
        let outcome = self.worker.call(py, &StopFlag::default(), move |session| {
            session.step(number, batches.into_iter().map(Arc::unwrap_or_clone).collect())
        })?;
        Ok(outcome.into())
    }

    fn __repr__(&self) -> String {
        format!("Trainer(number={})", self.number)
    }
}

fn wrong(object: &Bound<'_, PyAny>) -> PyErr {
    argument("batches", format!("it is of type {}", type_name(object)), "give a bmtrain.Batch, or a list of them")
}

/// Outcome of a step.
#[pyclass(frozen, get_all, module = "bmtrain")]
pub(crate) struct StepResult {
    /// Its number, from 1.
    step: u64,
    /// The mean loss of its batches, before the update.
    loss: f32,
    /// Norm of the gradients before clipping.
    grad_norm: f32,
    /// The learning rate.
    lr: f64,
    /// Loss scale of the backward pass.
    loss_scale: f32,
    /// Whether gradients were not finite, so that nothing was updated.
    skipped: bool,
    /// Samples of its batches.
    samples: u64,
    /// Tokens of its batches, without padding.
    tokens: u64,
    /// How long it took.
    seconds: f64,
}

impl From<StepOutcome> for StepResult {
    fn from(outcome: StepOutcome) -> Self {
        let StepOutcome { step, loss, grad_norm, lr, loss_scale, skipped, samples, tokens, seconds, .. } = outcome;
        StepResult { step, loss, grad_norm, lr, loss_scale, skipped, samples, tokens, seconds }
    }
}

#[pymethods]
impl StepResult {
    fn __repr__(&self) -> String {
        let StepResult { step, loss, grad_norm, lr, .. } = self;
        format!("StepResult(step={step}, loss={loss}, grad_norm={grad_norm}, lr={lr:e})")
    }
}
