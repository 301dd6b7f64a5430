//! The declaration of a parameter.

use super::split::Split;
use bmtrain_core::kernel::Distribution;
use bmtrain_core::{DType, Shape};

/// Initial values: a pure function of the seed, the parameter's name and the element's index in the full parameter, so
/// that they are the same for any number of ranks and no rank ever needs more than its own part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// One value everywhere.
    Constant(f32),
    /// Sampled.
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

/// What is declared of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Full name, path included.
    pub name: String,
    /// Shape of the full parameter, over all tensor-parallel ranks.
    pub shape: Shape,
    /// Dtype of the values.
    pub dtype: DType,
    /// Initial values.
    pub init: Init,
    /// How it is split over tensor-parallel ranks.
    pub split: Split,
    /// Whether it is trained from the start, which decides its storage; freezing it later moves no memory.
    pub trainable: bool,
    /// Whether weight decay applies by default: not to biases and norms.
    pub decay: bool,
}
