//! Embedding tables.

use crate::error::Result;
use crate::param::{Builder, Init, Param, Split};
use bmtrain_core::ops::{self, LinearCrossEntropy};
use bmtrain_core::{Ctx, Tensor, Var};

/// What an [`Embedding`] is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingOptions {
    /// Number of rows.
    pub entries: usize,
    /// Length of a row.
    pub size: usize,
    /// Initial values.
    pub init: Init,
    /// The row of this id gets no gradient.
    pub padding_index: Option<i64>,
}

/// A table `[entries, size]`.
#[derive(Debug, Clone)]
pub struct Embedding {
    weight: Param,
    padding_index: Option<i64>,
}

impl Embedding {
    /// Declare `weight` under the builder's name.
    pub fn new(builder: &Builder, options: EmbeddingOptions) -> Result<Self> {
        let EmbeddingOptions { entries, size, init, padding_index } = options;
        let weight = builder.param("weight", [entries, size], init, Split::Replicated, true)?;
        Ok(Embedding { weight, padding_index })
    }

    /// The table.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// `ids [..]` to rows `[.., size]`.
    pub fn forward(&self, ids: &Tensor, cx: &Ctx) -> Result<Var> {
        Ok(ops::embedding(cx, ids, &self.weight.var(cx)?, self.padding_index)?)
    }

    /// Add the rows to `x [.., size]`, in place where `x` is not shared.
    pub fn add_to(&self, x: Var, ids: &Tensor, cx: &Ctx) -> Result<Var> {
        Ok(ops::add_embedding(cx, x, ids, &self.weight.var(cx)?, self.padding_index)?)
    }

    /// Logits over the table's rows: `x [.., size]` to `[.., entries]`, for heads tied to the input embedding.
    pub fn project(&self, x: &Var, bias: Option<&Var>, cx: &Ctx) -> Result<Var> {
        Ok(ops::linear(cx, x, &self.weight.var(cx)?, bias, None)?)
    }

    /// The cross-entropy of the logits of [`Embedding::project`] against ids `targets [..]`, without storing the logits
    /// of all rows of `x`: the loss of a language model with tied embeddings.
    pub fn cross_entropy(
        &self,
        x: &Var,
        bias: Option<&Var>,
        targets: &Tensor,
        options: &LinearCrossEntropy,
        cx: &Ctx,
    ) -> Result<Var> {
        Ok(ops::linear_cross_entropy(cx, x, &self.weight.var(cx)?, bias, targets, options)?)
    }
}
