//! Low-rank updates of a model's layers: which layers have them, and our names of their parameters.

use super::config::LoraConfig;
use super::modules::{LinearModule, check_targets, last_name};
use crate::{Error, Result};
use model_center_formats::TensorPart;

/// The update of one of Hugging Face's modules.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraUpdate {
    /// The module's path in Hugging Face's model.
    pub module: String,
    /// Our name of the updated weight, `[N, K]`.
    pub weight: String,
    /// The module's weight as a part of ours.
    pub(super) part: TensorPart,
    /// R.
    pub rank: usize,
    /// Factor of `b a`.
    pub scale: f32,
    /// Our name of `a`, `[R, K]`.
    pub a: String,
    /// Our name of `b`, `[rows, R]`.
    pub b: String,
    /// Our name of the lengths of the updated rows, `[rows]`, if they are trained: DoRA.
    pub magnitude: Option<String>,
    /// Which of the plan's directories has it.
    pub(super) source: usize,
}

impl LoraUpdate {
    pub(super) fn new(module: &LinearModule, rank: usize, scale: f32, dora: bool) -> Self {
        let matrix = |side: &str| matrix(&module.layer.name, module.last_name(), side);
        LoraUpdate {
            module: module.path.clone(),
            weight: module.layer.weight(),
            part: module.part.clone(),
            rank,
            scale,
            a: matrix("a"),
            b: matrix("b"),
            magnitude: dora.then(|| matrix("magnitude")),
            source: 0,
        }
    }

    /// The last name of the module.
    pub(super) fn name(&self) -> &str {
        last_name(&self.module)
    }

    /// Our name of the updated layer.
    pub(super) fn layer(&self) -> &str {
        self.weight.strip_suffix(".weight").unwrap_or(&self.weight)
    }

    /// Its name among the updates of its layer.
    pub(super) fn place(&self) -> String {
        match self.source {
            0 => self.name().to_owned(),
            source => format!("{}.{source}", self.name()),
        }
    }

    /// Make it one of another directory of several, beside the updates of the first.
    pub(super) fn number(&mut self, source: usize) {
        self.source = source;
        let layer = self.layer();
        (self.a, self.b) = (matrix(layer, &self.place(), "a"), matrix(layer, &self.place(), "b"));
    }

    /// Our names of its parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &str> {
        [Some(&self.a), Some(&self.b), self.magnitude.as_ref()].into_iter().flatten().map(String::as_str)
    }
}

/// Our name of a parameter of an update.
fn matrix(layer: &str, update: &str, side: &str) -> String {
    format!("{layer}.lora.{update}.{side}")
}

/// The modules that a configuration names.
pub(super) fn chosen<'m>(config: &LoraConfig, modules: &'m [LinearModule]) -> Result<Vec<&'m LinearModule>> {
    check_targets(&config.targets, modules)?;
    let chosen: Vec<&LinearModule> = modules.iter().filter(|module| module.is_target(&config.targets)).collect();
    if chosen.is_empty() {
        let fix = "set adapter.targets = [\"all-linear\"]";
        return Err(Error::argument("adapter.targets", "no layer is updated", fix));
    }
    Ok(chosen)
}
