//! What is known about a parameter before it exists.

use super::split::Split;
use bmtrain_core::kernel::Distribution;
use bmtrain_core::{DType, Shape};

/// Initial values: a pure function of the seed, the parameter's name and the element's index in the whole parameter, so
/// that they are the same for any number of ranks and no rank ever needs more than its own part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// One value everywhere.
    Constant(f32),
    /// Drawn.
    Random(Distribution),
}

impl Init {
    /// All zero.
    pub const ZEROS: Init = Init::Constant(0.0);
    /// All one.
    pub const ONES: Init = Init::Constant(1.0);

    /// Normal with mean 0.
    pub fn normal(deviation: f32) -> Self {
        Init::Random(Distribution::Normal(0.0, deviation))
    }
}

/// The only owner of these facts about a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Full name, path included.
    pub name: String,
    /// Shape of the whole parameter, over all tensor-parallel ranks.
    pub shape: Shape,
    /// Dtype of the values.
    pub dtype: DType,
    /// Initial values.
    pub init: Init,
    /// How it is cut over tensor-parallel ranks.
    pub split: Split,
    /// Whether it is trained, at birth. It decides the storage the parameter lies in; freezing later moves nothing.
    pub trainable: bool,
    /// Whether weight decay applies by default: not to biases and norms.
    pub decay: bool,
}
