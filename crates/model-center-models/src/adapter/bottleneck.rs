//! Bottleneck adapters of a model: after which layers they are, their parameters and the tensors of a directory.
//!
//! Source: Houlsby et al., 2019; Pfeiffer et al., 2021; what is computed as in OpenDelta's `AdapterModel`. PEFT has
//! none: directories are in a form of their own, which `docs/adapters.md` describes.

use super::config::{BottleneckConfig, BottleneckPlacement};
use super::modules::{LinearModule, check_targets, last_name};
use super::scaling::{has_own_inputs, is_second};
use crate::{Error, Result};
use bmtrain_dist::nn::TensorSplit;
use model_center_formats::TensorPart;
use model_center_formats::names::ParamShape;

/// Suffixes of a module's path in the names of its four tensors, in the order of [`BottleneckLayer::parameters`].
pub(super) const TENSORS: [&str; 4] =
    [".bottleneck.down.weight", ".bottleneck.down.bias", ".bottleneck.up.weight", ".bottleneck.up.bias"];

/// The bottleneck after one of Hugging Face's modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BottleneckLayer {
    /// The module's path in Hugging Face's model.
    pub module: String,
    /// Our name of the layer.
    pub layer: String,
    /// Our names of its parameters: weight and bias of the map to the bottleneck, then of the map from it.
    pub parameters: [String; 4],
    /// Length of the layer's outputs.
    outputs: usize,
    /// Length in between.
    size: usize,
}

impl BottleneckLayer {
    pub(super) fn new(module: &LinearModule, size: usize) -> Self {
        let layer = module.layer.name.clone();
        let parameters = TENSORS.map(|end| format!("{layer}{end}"));
        BottleneckLayer { module: module.path.clone(), layer, parameters, outputs: module.layer.rows(), size }
    }

    /// The last name of the module.
    pub(super) fn name(&self) -> &str {
        last_name(&self.module)
    }

    /// The full shapes of its parameters, in their order.
    pub(super) fn shapes(&self) -> impl Iterator<Item = ParamShape> {
        let BottleneckLayer { outputs, size, .. } = *self;
        let shapes = [vec![size, outputs], vec![size], vec![outputs, size], vec![outputs]];
        self.parameters.iter().zip(shapes).map(|(name, shape)| ParamShape::new(name.clone(), shape))
    }

    /// The tensor of one of its parameters, without the prefix; `None` of any other.
    pub(super) fn tensor(&self, name: &str) -> Option<TensorPart> {
        let (ParamShape { shape, .. }, end) = self.shapes().zip(TENSORS).find(|(param, _)| param.name == name)?;
        let (name, rows) = (format!("{}{end}", self.module), 0..shape.first().copied().unwrap_or(0));
        Some(TensorPart { name, shape, rows, transposed: false, interleaved: None })
    }
}

/// The modules that a configuration names.
pub(super) fn chosen<'m>(config: &BottleneckConfig, modules: &'m [LinearModule]) -> Result<Vec<&'m LinearModule>> {
    check_targets(&config.targets, modules)?;
    let is_after = |module: &LinearModule| {
        module.layer.is_in_block
            && module.layer.split == TensorSplit::Rows
            && match config.placement {
                BottleneckPlacement::Both => true,
                BottleneckPlacement::Attention => !is_second(module),
                BottleneckPlacement::FeedForward => is_second(module),
            }
    };
    let is_chosen = |module: &&LinearModule| match config.targets.as_slice() {
        [] => is_after(module),
        targets => module.is_target(targets),
    };
    let chosen: Vec<&LinearModule> = modules.iter().filter(is_chosen).collect();
    if let Some(module) = chosen.iter().find(|module| !may_have_one(module)) {
        let reason = format!("{} does not end an attention or a feed-forward, and has no bottleneck", module.path);
        let fix = "name their last layers, or leave adapter.targets out";
        return Err(Error::argument("adapter.targets", reason, fix));
    }
    if chosen.is_empty() {
        let reason = "the model has no attention and no feed-forward in blocks";
        return Err(Error::argument("adapter.targets", reason, "name layers in adapter.targets"));
    }
    Ok(chosen)
}

/// Whether each rank has all outputs of a layer that is one module.
pub(super) fn may_have_one(module: &LinearModule) -> bool {
    has_own_inputs(module) && matches!(module.layer.split, TensorSplit::Rows | TensorSplit::None)
}
