//! Learned factors of a model's layers: which layers have them, and their part of a merged model.

use super::config::Ia3Config;
use super::modules::{LinearModule, check_targets, last_name, names_module};
use crate::{Error, Result};
use bmtrain_dist::nn::{ScaledSide, ScalingOptions};
use model_center_formats::TensorPart;
use std::ops::Range;

/// The learned factors of one of Hugging Face's modules.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedFactors {
    /// The module's path in Hugging Face's model.
    pub module: String,
    /// Our name of the layer; its weight is `<layer>.weight`.
    pub layer: String,
    /// The module's weight as a part of ours.
    pub(super) part: TensorPart,
    /// Whether they multiply inputs, not outputs.
    pub of_inputs: bool,
    /// Our name of the factors, one for each of the module's outputs or for each input.
    pub factors: String,
}

impl LearnedFactors {
    pub(super) fn new(module: &LinearModule, of_inputs: bool) -> Self {
        LearnedFactors {
            module: module.path.clone(),
            layer: module.layer.name.clone(),
            part: module.part.clone(),
            of_inputs,
            factors: format!("{}.ia3.{}", module.layer.name, module.last_name()),
        }
    }

    /// The last name of the module.
    pub(super) fn name(&self) -> &str {
        last_name(&self.module)
    }

    /// Their number.
    pub(super) fn count(&self) -> usize {
        if self.of_inputs { self.part.columns() } else { self.part.rows.len() }
    }

    /// The options of the builder that declares them.
    pub(super) fn options(&self) -> ScalingOptions {
        let side = if self.of_inputs { ScaledSide::Inputs } else { ScaledSide::Outputs(self.part.rows.clone()) };
        ScalingOptions { name: self.name().to_owned(), side }
    }

    /// PEFT's tensor of them, without the prefix: `[N, 1]` of outputs, `[1, K]` of inputs.
    pub(super) fn tensor(&self) -> TensorPart {
        let name = format!("{}.ia3_l", self.module);
        match self.of_inputs {
            true => {
                let shape = vec![1, self.count()];
                TensorPart { name, shape, rows: 0..1, transposed: false, interleaved: None }
            }
            // Outputs are in the order of the module's.
            false => TensorPart { name, ..self.part.with_columns(1) },
        }
    }

    /// Whether they multiply values of this parameter: of the weight, or of the bias where they are of outputs.
    pub(super) fn multiplies(&self, name: &str) -> bool {
        let kind = name.strip_prefix(self.layer.as_str()).and_then(|rest| rest.strip_prefix('.'));
        kind == Some("weight") || (!self.of_inputs && kind == Some("bias"))
    }

    /// Multiply the values of a parameter that they multiply.
    pub(super) fn apply(&self, name: &str, values: &mut [f32], factors: &[f32]) {
        let columns = if name.ends_with(".bias") { 1 } else { self.part.columns().max(1) };
        let Range { start, end } = self.part.rows;
        let rows = values.chunks_exact_mut(columns).take(end).skip(start);
        if self.of_inputs {
            rows.for_each(|row| row.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor));
        } else {
            rows.zip(factors).for_each(|(row, factor)| row.iter_mut().for_each(|value| *value *= factor));
        }
    }
}

/// The modules that a configuration names, each with whether its inputs are multiplied.
pub(super) fn chosen<'m>(config: &Ia3Config, modules: &'m [LinearModule]) -> Result<Vec<(&'m LinearModule, bool)>> {
    check_targets(&config.targets, modules)?;
    let is_chosen = |module: &&LinearModule| match config.targets.as_slice() {
        [] => is_second(module) || is_key_or_value(module),
        targets => module.is_target(targets),
    };
    let of_inputs = |module: &LinearModule| match config.feed_forward.as_slice() {
        [] => is_second(module),
        names => names_module(names, &module.path),
    };
    let chosen: Vec<_> = modules.iter().filter(is_chosen).map(|module| (module, of_inputs(module))).collect();
    let is_of_none =
        |name: &&String| !chosen.iter().any(|(module, _)| names_module(std::slice::from_ref(*name), &module.path));
    if let Some(name) = config.feed_forward.iter().find(is_of_none) {
        let reason = format!("\"{name}\" is none of the layers that have factors");
        return Err(Error::argument("adapter.feed_forward", reason, "name it in adapter.targets too, or remove it"));
    }
    if let Some((module, _)) = chosen.iter().find(|(module, of_inputs)| *of_inputs && !has_own_inputs(module)) {
        let fix = "leave it out of adapter.feed_forward: its outputs are multiplied then";
        return Err(Error::argument("adapter.feed_forward", shared_inputs(module), fix));
    }
    if chosen.is_empty() {
        let reason = "the model has no keys, values and second layers of feed-forwards";
        return Err(Error::argument("adapter.targets", reason, "name layers in adapter.targets"));
    }
    Ok(chosen)
}

/// Whether it is all of a layer: the modules of a fused layer have their inputs in common.
pub(super) fn has_own_inputs(module: &LinearModule) -> bool {
    module.part.rows.len() == module.layer.rows()
}

/// Why a module of a fused layer has no factors of inputs.
pub(super) fn shared_inputs(module: &LinearModule) -> String {
    format!("{} is computed together with other modules, whose inputs would be multiplied too", module.path)
}

/// Whether it is the second layer of a feed-forward.
pub(super) fn is_second(module: &LinearModule) -> bool {
    last_name(&module.layer.name) == "w_out"
}

/// Whether it projects to keys or values: to queries too, where one module has all of them.
fn is_key_or_value(module: &LinearModule) -> bool {
    let rows = &module.part.rows;
    match last_name(&module.layer.name) {
        "project_kv" => true,
        "project_qkv" => rows.start > 0 || rows.len() == module.layer.rows(),
        _ => false,
    }
}
