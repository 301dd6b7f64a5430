//! `Trainer`: an optimizer over a model, and steps of it.

use crate::batch::Batch;
use crate::error::argument;
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
        Ok(StepResult { outcome })
    }

    fn __repr__(&self) -> String {
        format!("Trainer(number={})", self.number)
    }
}

fn wrong(object: &Bound<'_, PyAny>) -> PyErr {
    let kind = object.get_type().qualname().map_or_else(|_| "another type".to_owned(), |kind| kind.to_string());
    argument("batches", format!("it is of type {kind}"), "give a bmtrain.Batch, or a list of them")
}

/// What a step did.
#[pyclass(frozen, module = "bmtrain")]
pub(crate) struct StepResult {
    outcome: StepOutcome,
}

#[pymethods]
impl StepResult {
    /// Its number, from 1.
    #[getter]
    fn step(&self) -> u64 {
        self.outcome.step
    }

    /// The mean loss of its batches, before the update.
    #[getter]
    fn loss(&self) -> f32 {
        self.outcome.loss
    }

    /// Norm of the gradients before clipping.
    #[getter]
    fn grad_norm(&self) -> f32 {
        self.outcome.grad_norm
    }

    /// The learning rate.
    #[getter]
    fn lr(&self) -> f64 {
        self.outcome.lr
    }

    /// What the loss was multiplied by for the backward pass.
    #[getter]
    fn loss_scale(&self) -> f32 {
        self.outcome.loss_scale
    }

    /// Whether gradients were not finite, so that nothing was updated.
    #[getter]
    fn skipped(&self) -> bool {
        self.outcome.skipped
    }

    /// Samples of its batches.
    #[getter]
    fn samples(&self) -> u64 {
        self.outcome.samples
    }

    /// Tokens of its batches, without padding.
    #[getter]
    fn tokens(&self) -> u64 {
        self.outcome.tokens
    }

    /// How long it took.
    #[getter]
    fn seconds(&self) -> f64 {
        self.outcome.seconds
    }

    fn __repr__(&self) -> String {
        let StepOutcome { step, loss, grad_norm, lr, .. } = self.outcome;
        format!("StepResult(step={step}, loss={loss}, grad_norm={grad_norm}, lr={lr:e})")
    }
}
