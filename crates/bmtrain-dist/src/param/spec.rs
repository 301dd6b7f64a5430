//! The declaration of a parameter.

use super::fusion::Fusion;
use super::split::Split;
use bmtrain_core::kernel::Distribution;
use bmtrain_core::{DType, Shape};
use std::fmt;

/// Initial values: a pure function of the seed, the parameter's name and the element's index in the full parameter, so
/// that they are the same for any number of ranks and no rank ever needs more than its own part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// One value everywhere.
    Constant(f32),
    /// Sampled.
    Random(Distribution),
    /// A function of one's own.
    Function(InitFunction),
}

/// Elements that an [`InitFunction`] is asked for.
#[derive(Debug, Clone, Copy)]
pub struct InitElements<'a> {
    /// [`BuilderOptions::seed`](super::BuilderOptions::seed).
    pub seed: u64,
    /// Full name of the parameter.
    pub name: &'a str,
    /// Shape of the full parameter.
    pub shape: Shape,
    /// Index of the first element in the full parameter, row by row.
    pub first: usize,
}

/// Fills a slice with the initial values of consecutive elements; they are rounded to the dtype of the parameter. Each
/// value is to be a function of name, shape, seed and its own index alone, so that it is the same however the parameter
/// is cut over ranks.
#[derive(Clone, Copy)]
pub struct InitFunction(pub fn(InitElements<'_>, &mut [f32]));

impl PartialEq for InitFunction {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl fmt::Debug for InitFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InitFunction")
    }
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

    /// A function of the parameter's name and shape and of the index of each element.
    pub fn function(fill: fn(InitElements<'_>, &mut [f32])) -> Self {
        Init::Function(InitFunction(fill))
    }
}

/// Declaration of a parameter.
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
    /// Split over tensor-parallel ranks.
    pub split: Split,
    /// The tensors of the original model that it has in one.
    pub fusion: Fusion,
    /// Whether it is trained from the start, which decides its storage; freezing it later moves no memory.
    pub trainable: bool,
    /// Whether weight decay applies by default: not to biases and norms.
    pub decay: bool,
    /// Whether it is an adapter's: no parameter of the model itself.
    pub is_adapter: bool,
    /// Whether its rows are looked up by number, where other matrices are multiplied with.
    pub is_table: bool,
}
