//! Layer norm and RMS norm, fused with the dropout and residual before them.

use crate::error::Result;
use crate::param::{Builder, Init, Param, Split};
use bmtrain_core::kernel::{Dropout, NormKind};
use bmtrain_core::ops::{self, NormRule};
use bmtrain_core::{Ctx, Var};

/// Options of a [`Norm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormOptions {
    /// Kind of normalization.
    pub kind: NormKind,
    /// Length of the last axis.
    pub size: usize,
    /// Whether there is a shift.
    pub bias: bool,
    /// Added to the variance.
    pub epsilon: f32,
    /// Initial scale.
    pub scale: f32,
    /// Number that stored scales are differences from: 1 where `weight` holds differences from 1, as in Gemma, else 0.
    pub weight_offset: f32,
}

impl NormOptions {
    /// Layer norm with a shift.
    pub fn layer(size: usize, epsilon: f32) -> Self {
        NormOptions { kind: NormKind::Layer, size, bias: true, epsilon, scale: 1.0, weight_offset: 0.0 }
    }

    /// RMS norm.
    pub fn rms(size: usize, epsilon: f32) -> Self {
        NormOptions { kind: NormKind::Rms, size, bias: false, epsilon, scale: 1.0, weight_offset: 0.0 }
    }

    /// RMS norm whose weight is stored as its difference from 1.
    pub fn rms_from_one(size: usize, epsilon: f32) -> Self {
        NormOptions { weight_offset: 1.0, ..NormOptions::rms(size, epsilon) }
    }
}

/// A normalisation along the last axis. Its parameters are f32 with
/// [`F32Parameters::norms`](crate::param::F32Parameters::norms), whatever the dtype of what it normalises.
#[derive(Debug, Clone)]
pub struct Norm {
    rule: NormRule,
    weight: Param,
    bias: Option<Param>,
}

impl Norm {
    /// Declare `weight` and, if asked for, `bias` under the builder's name.
    pub fn new(builder: &Builder, options: NormOptions) -> Result<Self> {
        Norm::declared(builder, options, &Split::Replicated)
    }

    /// As [`Norm::new`], for a norm of each head, where tensor-parallel ranks have different heads.
    pub fn of_heads(builder: &Builder, options: NormOptions) -> Result<Self> {
        Norm::declared(builder, options, &Split::ReplicatedTerms)
    }

    fn declared(builder: &Builder, options: NormOptions, split: &Split) -> Result<Self> {
        let NormOptions { kind, size, bias, epsilon, scale, weight_offset } = options;
        let builder = &builder.in_f32(builder.options().f32_parameters.norms);
        let weight = builder.param("weight", [size], Init::Constant(scale - weight_offset), split.clone(), false)?;
        let bias = bias.then(|| builder.param("bias", [size], Init::ZEROS, split.clone(), false)).transpose()?;
        Ok(Norm { rule: NormRule { kind, epsilon, weight_offset }, weight, bias })
    }

    /// The scale.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The shift.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }

    /// `x [.., size]` to the same shape.
    pub fn forward(&self, x: &Var, cx: &Ctx) -> Result<Var> {
        let (weight, bias) = self.vars(cx)?;
        Ok(ops::norm(cx, self.rule, x, &weight, bias.as_ref())?)
    }

    /// `sum = dropout(x) + residual` and its normalisation, in one pass.
    pub fn forward_residual(&self, x: &Var, residual: &Var, dropout: Option<Dropout>, cx: &Ctx) -> Result<(Var, Var)> {
        let (weight, bias) = self.vars(cx)?;
        Ok(ops::residual_norm(cx, self.rule, x, residual, dropout, &weight, bias.as_ref())?)
    }

    fn vars(&self, cx: &Ctx) -> Result<(Var, Option<Var>)> {
        Ok((self.weight.var(cx)?, self.bias.as_ref().map(|bias| bias.var(cx)).transpose()?))
    }
}
