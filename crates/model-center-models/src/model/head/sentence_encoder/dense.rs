//! A linear map with an activation over embeddings: the module `Dense`.

use crate::{Error, Result};
use model_center_formats::config::fields_of;
use model_center_formats::{TensorSource, Weights};
use serde_json::Value;
use std::path::Path;

/// More elements than any embedding has.
const MAX_WIDTH: usize = 1 << 16;

/// Activation after the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activation {
    Identity,
    Tanh,
    Relu,
    Sigmoid,
    Silu,
}

impl Activation {
    /// By the class that sentence-transformers writes; without one it is the hyperbolic tangent.
    fn of(name: Option<&str>) -> Option<Self> {
        Some(match name.map(|name| name.strip_prefix("torch.nn.modules.").unwrap_or(name)) {
            None | Some("activation.Tanh") => Activation::Tanh,
            Some("linear.Identity") => Activation::Identity,
            Some("activation.ReLU") => Activation::Relu,
            Some("activation.Sigmoid") => Activation::Sigmoid,
            Some("activation.SiLU") => Activation::Silu,
            Some(_) => return None,
        })
    }

    fn apply(self, x: f64) -> f64 {
        match self {
            Activation::Identity => x,
            Activation::Tanh => x.tanh(),
            Activation::Relu => x.max(0.0),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Activation::Silu => x / (1.0 + (-x).exp()),
        }
    }
}

/// The map.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dense {
    /// `[outputs, inputs]`, row by row.
    weight: Vec<f32>,
    /// `[outputs]`; empty without one.
    bias: Vec<f32>,
    inputs: usize,
    pub(super) outputs: usize,
    activation: Activation,
}

impl Dense {
    /// Reads the module in a directory of the model's; `inputs` is the size of embeddings before it.
    ///
    /// # Errors
    /// A setting that is not supported; weights that are missing or of another size.
    pub(super) fn read(directory: &Path, path: &str, inputs: Option<usize>) -> Result<Self> {
        let mut fields = fields_of(directory, &format!("{path}/config.json"))?;
        let sizes = (fields.take_size("in_features")?, fields.take_size("out_features")?);
        let (Some(from), Some(to)) = sizes else { return Err(fields.missing_sizes(&["in_features", "out_features"])) };
        let place = fields.place().to_owned();
        let wrong = |reason: String, fix: &str| Error::model(place.clone(), reason, fix);
        if from > MAX_WIDTH || to > MAX_WIDTH || inputs.is_some_and(|inputs| inputs != from) {
            let inputs = inputs.map_or_else(|| "some".to_owned(), |inputs| inputs.to_string());
            let reason = format!("it maps {from} elements to {to}, and embeddings before it have {inputs}");
            return Err(wrong(reason, "use a directory whose files belong together"));
        }
        let has_bias = fields.take_flag("bias")?.unwrap_or(true);
        let name = fields.take_text("activation_function")?;
        let Some(activation) = Activation::of(name.as_deref()) else {
            let reason = format!("the activation {:?} is not supported", name.unwrap_or_default());
            return Err(wrong(reason, "use Tanh, Identity, ReLU, Sigmoid or SiLU of torch.nn"));
        };
        if fields.take_flag("use_residual")?.unwrap_or(false) {
            let reason = "it adds its input (use_residual), which is not supported".to_owned();
            return Err(wrong(reason, "use a model without it"));
        }
        super::settings::take_names(&mut fields)?;
        super::settings::refuse_rest(fields)?;
        let weights = Weights::open(&directory.join(path))?;
        let read = |name: &str, shape: &[usize]| -> Result<Vec<f32>> {
            let entry = weights.entries().into_iter().find(|entry| entry.name == name);
            if entry.is_none_or(|entry| entry.shape != shape) {
                let reason = format!("there is no tensor {name} of shape {shape:?}");
                return Err(wrong(reason, "copy the whole model directory"));
            }
            let mut values = vec![0.0; shape.iter().product()];
            weights.read_f32(name, &mut values)?;
            Ok(values)
        };
        let weight = read("linear.weight", &[to, from])?;
        let bias = if has_bias { read("linear.bias", &[to])? } else { Vec::new() };
        Ok(Dense { weight, bias, inputs: from, outputs: to, activation })
    }

    /// The embedding after the map.
    pub(super) fn apply(&self, embedding: &[f64]) -> Vec<f64> {
        let rows = self.weight.chunks_exact(self.inputs.max(1));
        let bias = self.bias.iter().copied().chain(std::iter::repeat(0.0));
        rows.zip(bias)
            .map(|(row, bias)| {
                let sum: f64 = row.iter().zip(embedding).map(|(weight, x)| f64::from(*weight) * x).sum();
                self.activation.apply(sum + f64::from(bias))
            })
            .collect()
    }
}

/// The name of a class without its module, and whether it is one of sentence-transformers' own.
pub(super) fn class_of(module: &Value) -> (String, bool) {
    let name = module.get("type").and_then(Value::as_str).unwrap_or_default();
    let short = name.rsplit('.').next().unwrap_or_default();
    (short.to_owned(), name.starts_with("sentence_transformers."))
}
