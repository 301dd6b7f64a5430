//! The modules `Dense` of sentence-transformers as layers of a model, whose parameters are trained, and their files.
//!
//! Defines [`DenseSettings`], which the directory of a sentence encoder has for each module, [`DenseFile`], one of them
//! in a directory, and [`DenseLayer`], its parameters in a model. The modules follow the pooling.

use crate::{Error, Result};
use bmtrain_core::kernel::{self, Distribution};
use bmtrain_core::{Ctx, DType, Segment, Tensor, Var, ops};
use bmtrain_dist::param::{Init, Param, Split};
use bmtrain_dist::{Builder, Parameters};
use model_center_base::file::write_atomic;
use model_center_formats::config::fields_of;
use model_center_formats::{
    Allow, Fill, LoadPlan, NameTable, NotFinite, ParamShape, Rule, SHARD_BYTES, Weights, export,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::borrow::Cow;
use std::path::Path;

/// More elements than any embedding has.
const MAX_WIDTH: usize = 1 << 16;
/// Where the parameters of all modules are.
const PLACE: &str = "sentence_dense";
/// Module of PyTorch's classes.
const TORCH: &str = "torch.nn.modules.";

/// Activation after the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DenseActivation {
    /// `x`.
    Identity,
    /// Hyperbolic tangent.
    Tanh,
    /// `max(x, 0)`.
    Relu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x / (1 + exp(-x))`.
    Silu,
}

impl DenseActivation {
    /// Every one with its class in PyTorch, without [`TORCH`].
    const ALL: [(DenseActivation, &str); 5] = [
        (DenseActivation::Identity, "linear.Identity"),
        (DenseActivation::Tanh, "activation.Tanh"),
        (DenseActivation::Relu, "activation.ReLU"),
        (DenseActivation::Sigmoid, "activation.Sigmoid"),
        (DenseActivation::Silu, "activation.SiLU"),
    ];

    /// By the class that sentence-transformers writes; without one it is the hyperbolic tangent.
    pub(in crate::model) fn of(name: Option<&str>) -> Option<Self> {
        let Some(name) = name else { return Some(DenseActivation::Tanh) };
        let short = name.strip_prefix(TORCH).unwrap_or(name);
        DenseActivation::ALL.into_iter().find(|(_, class)| *class == short).map(|(activation, _)| activation)
    }

    /// The class that sentence-transformers reads.
    fn class(self) -> String {
        let found = DenseActivation::ALL.into_iter().find(|(activation, _)| *activation == self);
        format!("{TORCH}{}", found.map_or("", |(_, class)| class))
    }

    /// Of one element.
    pub(in crate::model) fn apply(self, x: f64) -> f64 {
        match self {
            DenseActivation::Identity => x,
            DenseActivation::Tanh => x.tanh(),
            DenseActivation::Relu => x.max(0.0),
            DenseActivation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            DenseActivation::Silu => x / (1.0 + (-x).exp()),
        }
    }
}

/// Settings of a module: `activation(W x + b)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseSettings {
    /// Elements of the embedding before it (`in_features`).
    pub inputs: usize,
    /// Elements of the embedding after it (`out_features`).
    pub outputs: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Activation.
    pub activation: DenseActivation,
}

impl DenseSettings {
    /// Reads the `config.json` of the module in a directory of the model's; `inputs` is the size of embeddings before
    /// it, where it is known.
    ///
    /// # Errors
    /// A setting that is not supported; sizes that do not fit.
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
        let bias = fields.take_flag("bias")?.unwrap_or(true);
        let name = fields.take_text("activation_function")?;
        let Some(activation) = DenseActivation::of(name.as_deref()) else {
            let reason = format!("the activation {:?} is not supported", name.unwrap_or_default());
            return Err(wrong(reason, "use Tanh, Identity, ReLU, Sigmoid or SiLU of torch.nn"));
        };
        if fields.take_flag("use_residual")?.unwrap_or(false) {
            let reason = "it adds its input (use_residual), which is not supported".to_owned();
            return Err(wrong(reason, "use a model without it"));
        }
        super::settings::take_names(&mut fields)?;
        super::settings::refuse_rest(fields)?;
        Ok(DenseSettings { inputs: from, outputs: to, bias, activation })
    }

    /// The module with this number, counted from 0, in a directory that is written here: after the transformer and the
    /// pooling.
    pub(in crate::model) fn written(self, number: usize) -> DenseFile {
        DenseFile { path: format!("{}_Dense", number + 2), number, settings: self }
    }

    /// Names and shapes of the parameters of the module with this number.
    fn shapes(self, number: usize) -> Vec<ParamShape> {
        let weight = ParamShape::new(format!("{PLACE}.{number}.weight"), [self.outputs, self.inputs]);
        let bias = self.bias.then(|| ParamShape::new(format!("{PLACE}.{number}.bias"), [self.outputs]));
        [weight].into_iter().chain(bias).collect()
    }
}

/// A module in a directory of the model's.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseFile {
    /// Its own directory.
    path: String,
    /// Number among the modules `Dense`, from 0.
    number: usize,
    pub(in crate::model) settings: DenseSettings,
}

impl DenseFile {
    /// The module with this number, counted from 0, whose own directory is `path`.
    pub(super) fn new(path: &str, number: usize, settings: DenseSettings) -> Self {
        DenseFile { path: path.to_owned(), number, settings }
    }

    /// The name of its own directory.
    pub(in crate::model) fn path(&self) -> &str {
        &self.path
    }

    fn names(&self) -> NameTable {
        let rule = |part: &str| Rule::owned(format!("{PLACE}.{}.{part}", self.number), format!("linear.{part}"));
        NameTable { rules: Cow::Owned(vec![rule("weight"), rule("bias")]), ..NameTable::default() }
    }

    /// Its weights, and which of them each parameter has.
    ///
    /// # Errors
    /// Weights that are missing, or of another shape.
    pub(in crate::model) fn plan(&self, directory: &Path) -> Result<(Weights, LoadPlan)> {
        let weights = Weights::open(&directory.join(&self.path))?;
        let plan = LoadPlan::build(&self.names(), &self.settings.shapes(self.number), &weights, &Allow::default())?;
        Ok((weights, plan))
    }

    /// All values of its weight `[outputs, inputs]`, row by row, and of its bias `[outputs]`, empty without one.
    ///
    /// # Errors
    /// As [`DenseFile::plan`].
    pub(super) fn values(&self, directory: &Path) -> Result<(Vec<f32>, Vec<f32>)> {
        let (weights, plan) = self.plan(directory)?;
        let mut values = [Vec::new(), Vec::new()];
        for (shape, values) in self.settings.shapes(self.number).iter().zip(&mut values) {
            NotFinite::refuse(&plan.read(&weights, &shape.name, values)?)?;
        }
        let [weight, bias] = values;
        Ok((weight, bias))
    }

    /// Writes its directory into the one of a model, with the values that `fill` gives.
    ///
    /// # Errors
    /// What the disk refuses; errors of `fill`.
    pub(in crate::model) fn write(&self, directory: &Path, dtype: DType, fill: Fill<'_>) -> Result<()> {
        let (own, DenseSettings { inputs, outputs, bias, activation }) = (directory.join(&self.path), self.settings);
        let fix = "choose a directory that you may write";
        std::fs::create_dir_all(&own).map_err(|error| Error::file("create", &own, error, fix))?;
        export(&self.names(), &self.settings.shapes(self.number), &own, dtype, true, SHARD_BYTES, fill)?;
        let config = json!({
            "in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": activation.class(),
        });
        write_atomic(&own.join("config.json"), format!("{config:#}\n").as_bytes())
    }
}

/// Whether a parameter is one of these modules, whose values are in files of their own.
pub(in crate::model) fn is_dense(name: &str) -> bool {
    name.strip_prefix(PLACE).is_some_and(|rest| rest.starts_with('.'))
}

/// The names of a model with such modules, if there are some: reports and adapters name all parameters.
pub(in crate::model) fn named(mut names: NameTable, has_some: bool) -> NameTable {
    if has_some {
        let rules = ["weight", "bias"]
            .map(|part| Rule::owned(format!("{PLACE}.{{i}}.{part}"), format!("{PLACE}.{{i}}.linear.{part}")));
        names.rules.to_mut().extend(rules);
    }
    names
}

/// A module whose parameters are a model's.
#[derive(Debug)]
pub(in crate::model) struct DenseLayer {
    pub(in crate::model) settings: DenseSettings,
    weight: Param,
    bias: Option<Param>,
}

impl DenseLayer {
    /// Declares the modules' parameters, in f32: they follow the pooling, which is computed in f32.
    ///
    /// # Errors
    /// Out of memory.
    pub(in crate::model) fn list(builder: &Builder, all: &[DenseSettings]) -> bmtrain_dist::Result<Vec<Self>> {
        let place = builder.at(PLACE).in_f32(true);
        let layer = |(number, settings): (usize, &DenseSettings)| {
            let (place, [rows, columns]) = (place.index(number), [settings.outputs, settings.inputs]);
            // PyTorch's initial values of a linear layer.
            let bound = 1.0 / (columns.max(1) as f32).sqrt();
            let init = Init::Random(Distribution::Uniform(-bound, bound));
            let weight = place.param("weight", [rows, columns], init, Split::Replicated, true)?;
            let bias =
                settings.bias.then(|| place.param("bias", [rows], init, Split::Replicated, false)).transpose()?;
            Ok(DenseLayer { settings: *settings, weight, bias })
        };
        all.iter().enumerate().map(layer).collect()
    }

    /// The embeddings `[R, inputs]` after the map, f32 `[R, outputs]`.
    ///
    /// # Errors
    /// Embeddings of another size.
    pub(in crate::model) fn forward(&self, x: &Var, cx: &Ctx) -> bmtrain_dist::Result<Var> {
        let (weight, bias) = (self.weight.var(cx)?, self.bias.as_ref().map(|bias| bias.var(cx)).transpose()?);
        let fused = match self.settings.activation {
            DenseActivation::Tanh => Some(kernel::Activation::Tanh),
            DenseActivation::Relu => Some(kernel::Activation::Relu),
            DenseActivation::Silu => Some(kernel::Activation::Silu),
            DenseActivation::Identity | DenseActivation::Sigmoid => None,
        };
        let y = ops::linear(cx, x, &weight, bias.as_ref(), fused)?; // [R, outputs]
        if self.settings.activation != DenseActivation::Sigmoid {
            return Ok(y);
        }
        // 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2.
        let half = ops::activation(cx, &ops::scale(cx, &y, 0.5)?, kernel::Activation::Tanh)?; // [R, outputs]
        let one = Tensor::full_in(cx.device(), y.shape(), y.dtype(), 1.0, Segment::Activations)?;
        Ok(ops::scale(cx, &ops::add(cx, &half, &Var::constant(one))?, 0.5)?) // [R, outputs]
    }
}

/// Reads the values of the modules in a directory into the parameters of a model, and adds tensors that are not finite
/// to `found`.
///
/// # Errors
/// What the disk refuses.
pub(in crate::model) fn load(
    plans: &[(Weights, LoadPlan)],
    parameters: &Parameters,
    found: &mut Vec<NotFinite>,
) -> Result<()> {
    plans.iter().try_for_each(|(weights, plan)| {
        plan.load_noting(weights, found, |name, read| match parameters.get(name) {
            Some(param) => param.load_part(read),
            None => Ok(()),
        })
    })
}
