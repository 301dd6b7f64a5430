//! The objective of a program, for the runs of its recipes.
//!
//! Defines [`OwnObjective`], which [`FinetuneOptions::objective`](crate::FinetuneOptions) has.

use super::{Objective, Setup};
use crate::{Error, Result};
use model_center_recipe::Resolved;
use std::fmt;
use std::sync::Arc;

/// Makes the objective on a rank of a run.
type Open = dyn Fn(&Setup, &Resolved) -> Result<Box<dyn Objective>> + Send + Sync;

/// An objective in place of the loss of the labels.
#[derive(Clone)]
pub struct OwnObjective {
    name: String,
    open: Arc<Open>,
}

impl fmt::Debug for OwnObjective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnObjective").field(&self.name).finish()
    }
}

impl OwnObjective {
    /// An objective that each rank opens, once data and model are known. `name` has its parameters: a run goes on only
    /// with the name that it was begun with, as it does with the same recipe.
    pub fn new(
        name: impl Into<String>,
        open: impl Fn(&Setup, &Resolved) -> Result<Box<dyn Objective>> + Send + Sync + 'static,
    ) -> Self {
        OwnObjective { name: name.into(), open: Arc::new(open) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Refuses settings of a recipe that it does not go with.
    ///
    /// # Errors
    /// Another objective than the loss of the labels, settings of that loss, several pipeline stages.
    pub(crate) fn check(&self, resolved: &Resolved) -> Result<()> {
        let refuse = |key: &str, reason: String, fix: &str| Err(Error::recipe(resolved.place(key), reason, fix));
        let others = [
            ("preference.loss", resolved.preference.is_some()),
            ("data.task", resolved.contrastive.is_some()),
            ("distill.teacher", resolved.distill.is_some()),
        ];
        if let Some((key, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
            let reason = format!("the recipe has an objective of its own, and the program has {}", self.name);
            return refuse(key, reason, "remove one of the two");
        }
        let of_labels = [
            ("train.label_smoothing", resolved.train.label_smoothing != 0.0),
            ("train.prompt_loss", resolved.train.prompt_loss != 0.0),
            ("data.class_weights", resolved.data.class_weights.is_some()),
        ];
        if let Some((key, _)) = of_labels.into_iter().find(|(_, is_set)| *is_set) {
            let reason = format!("`{key}` is of the loss of the labels, and the program trains for {}", self.name);
            return refuse(key, reason, "remove it");
        }
        if resolved.parallel.pipeline > 1 {
            let reason = format!("{} computes its loss on one pipeline stage", self.name);
            return refuse("parallel.pipeline", reason, "set parallel.pipeline = 1");
        }
        Ok(())
    }

    /// Opens it for a run, whose recipe was checked.
    ///
    /// # Errors
    /// Errors of the program.
    pub(super) fn open(&self, setup: &Setup, resolved: &Resolved) -> Result<Box<dyn Objective>> {
        (self.open)(setup, resolved)
    }
}
