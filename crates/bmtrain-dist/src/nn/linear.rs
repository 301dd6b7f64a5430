//! Linear layers, split by columns or rows over tensor-parallel ranks.

use crate::error::Result;
use crate::param::{Builder, Init, Param, Split, SplitPart};
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, LinearCrossEntropy};
use bmtrain_core::{Ctx, Tensor, Var};

/// What a [`Linear`] is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearOptions {
    /// Length of the input.
    pub inputs: usize,
    /// Parts of the output, concatenated; more than one for fused projections.
    pub outputs: Vec<SplitPart>,
    /// Whether there is a bias, initialized to zero.
    pub bias: bool,
    /// Initial weights.
    pub init: Init,
    /// How the weight is split over tensor-parallel ranks.
    pub split: TensorSplit,
}

/// Which side of a weight is split over tensor-parallel ranks (Shoeybi et al., 2019).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorSplit {
    /// Not at all.
    None,
    /// Column-parallel: every rank computes some of the outputs. The bias is split too.
    Columns,
    /// Row-parallel: every rank computes a term of all outputs. The bias is replicated.
    Rows,
}

impl LinearOptions {
    /// One output, replicated on every rank.
    pub fn new(inputs: usize, outputs: usize, bias: bool, init: Init) -> Self {
        LinearOptions { inputs, outputs: vec![SplitPart::even(outputs)], bias, init, split: TensorSplit::None }
    }

    /// With a split.
    pub fn split(self, split: TensorSplit) -> Self {
        LinearOptions { split, ..self }
    }
}

/// `y = x W^T + b` with `W` `[outputs, inputs]`, the layout of PyTorch and of every weight file.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
}

impl Linear {
    /// Declare `weight` and, if asked for, `bias` under the builder's name.
    pub fn new(builder: &Builder, options: LinearOptions) -> Result<Self> {
        let LinearOptions { inputs, outputs, bias, init, split } = options;
        let total: usize = outputs.iter().map(|part| part.size).sum();
        let (weight_split, bias_split) = match split {
            TensorSplit::None => (Split::Replicated, Split::Replicated),
            TensorSplit::Columns => {
                (Split::Axis { axis: 0, parts: outputs.clone() }, Split::Axis { axis: 0, parts: outputs })
            }
            TensorSplit::Rows => (Split::even(1, inputs), Split::Replicated),
        };
        let weight = builder.param("weight", [total, inputs], init, weight_split, true)?;
        let bias = bias.then(|| builder.param("bias", [total], Init::ZEROS, bias_split, false)).transpose()?;
        Ok(Linear { weight, bias })
    }

    /// The weight, `[outputs, inputs]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }

    /// `x [.., inputs]` to `[.., outputs]`.
    pub fn forward(&self, x: &Var, cx: &Ctx) -> Result<Var> {
        self.apply(x, None, cx)
    }

    /// As [`Linear::forward`], with a fused activation.
    pub fn forward_activated(&self, x: &Var, activation: Activation, cx: &Ctx) -> Result<Var> {
        self.apply(x, Some(activation), cx)
    }

    fn apply(&self, x: &Var, activation: Option<Activation>, cx: &Ctx) -> Result<Var> {
        let (weight, bias) = self.vars(cx)?;
        Ok(ops::linear(cx, x, &weight, bias.as_ref(), activation)?)
    }

    /// The cross-entropy of `x [.., inputs] W^T + b` against class numbers `[..]`, without storing the logits of all
    /// rows. Where the layer is column-parallel, the options name the classes of this rank.
    pub fn cross_entropy(&self, x: &Var, targets: &Tensor, options: &LinearCrossEntropy, cx: &Ctx) -> Result<Var> {
        let (weight, bias) = self.vars(cx)?;
        Ok(ops::linear_cross_entropy(cx, x, &weight, bias.as_ref(), targets, options)?)
    }

    /// Weight and bias for an op that fuses several layers.
    pub fn vars(&self, cx: &Ctx) -> Result<(Var, Option<Var>)> {
        Ok((self.weight.var(cx)?, self.bias.as_ref().map(|bias| bias.var(cx)).transpose()?))
    }
}
