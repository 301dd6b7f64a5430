//! The transform of hidden states before the last layer of a head.
//!
//! Defines [`Transform`], which masked-LM heads have, and, in some families, the classifiers too.

use super::HeadSpec;
use bmtrain_core::kernel::Activation;
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::nn::{
    linear::{Linear, LinearOptions},
    norm::{Norm, NormOptions},
};
use bmtrain_dist::{Builder, Result};

/// `norm(activation(dense(x)))`.
#[derive(Debug)]
pub(super) struct Transform {
    dense: Linear,
    activation: Activation,
    norm: Norm,
}

impl Transform {
    /// Declare `dense` and `layer_norm` under the builder's name.
    pub(super) fn new(
        builder: &Builder,
        spec: &HeadSpec,
        (norm, activation): (NormOptions, Activation),
    ) -> Result<Self> {
        let dense = LinearOptions::new(spec.size, norm.size, spec.dense_bias, spec.init);
        let dense = Linear::new(&builder.at("dense"), dense)?;
        Ok(Transform { dense, activation, norm: Norm::new(&builder.at("layer_norm"), norm)? })
    }

    /// `[.., D]` to `[.., E]`, E the size of the norm.
    pub(super) fn forward(&self, hidden: &Var, cx: &Ctx) -> Result<Var> {
        self.norm.forward(&self.dense.forward_activated(hidden, self.activation, cx)?, cx) // [.., E]
    }
}
