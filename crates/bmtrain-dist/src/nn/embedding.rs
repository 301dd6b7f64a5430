//! Embedding tables.

use crate::error::Result;
use crate::param::{Builder, Init, Param, Split};
use bmtrain_core::ops::{self, LinearCrossEntropy, ProductInput, TokenShard, VocabularyShard};
use bmtrain_core::{Ctx, Tensor, Var};
use std::sync::Arc;

/// Options of an [`Embedding`].
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
    tied: Param,
    padding_index: Option<i64>,
    /// The rows of this rank, where they are sharded over tensor-parallel ranks or padded.
    shard: Option<VocabularyShard>,
}

impl Embedding {
    /// Declare `weight` under the builder's name.
    pub fn new(builder: &Builder, options: EmbeddingOptions) -> Result<Self> {
        Embedding::split(builder, options, Split::Replicated)
    }

    /// As [`Embedding::new`], with columns split over the tensor-parallel ranks, where each rank looks up its own: a
    /// table with a value for each attention head.
    pub fn of_heads(builder: &Builder, options: EmbeddingOptions) -> Result<Self> {
        Embedding::split(builder, options, Split::even(1, options.size))
    }

    /// As [`Embedding::new`], for a vocabulary, whose rows are sharded over the tensor-parallel ranks
    /// ([`Split::Vocabulary`]): rows that are looked up are summed over the ranks, logits are gathered from them.
    pub fn of_vocabulary(builder: &Builder, options: EmbeddingOptions) -> Result<Self> {
        let table = Embedding::split(builder, options, builder.vocabulary_split(0))?;
        let shard = shard_of(builder, &table.weight)?;
        Ok(Embedding { shard, ..table })
    }

    fn split(builder: &Builder, options: EmbeddingOptions, split: Split) -> Result<Self> {
        let EmbeddingOptions { entries, size, init, padding_index } = options;
        let weight = builder.tables().param("weight", [entries, size], init, split, true)?;
        let tied = weight.tied();
        Ok(Embedding { weight, tied, padding_index, shard: None })
    }

    /// The rows of this rank, where they are sharded over several tensor-parallel ranks or padded.
    pub fn shard(&self) -> Option<&VocabularyShard> {
        self.shard.as_ref()
    }

    /// The table.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The table as the output matrix of a head, whose gradient is summed apart: see [`Param::tied`].
    pub fn tied_weight(&self) -> &Param {
        &self.tied
    }

    /// `ids [..]` to rows `[.., size]`.
    pub fn forward(&self, ids: &Tensor, cx: &Ctx) -> Result<Var> {
        self.forward_tokens(ids, None, cx)
    }

    /// As [`Embedding::forward`]; with sharded tokens the rows of this rank's tokens: `ids [B, L]`, which all ranks
    /// have, to `[own, size]`.
    pub fn forward_tokens(&self, ids: &Tensor, tokens: Option<&TokenShard>, cx: &Ctx) -> Result<Var> {
        let (table, padding) = (self.weight.var(cx)?, self.padding_index);
        Ok(match (&self.shard, tokens) {
            (Some(shard), _) => ops::vocabulary_embedding(cx, ids, &table, shard, padding, tokens)?,
            (None, Some(tokens)) => ops::embedding(cx, &tokens.slice(ids)?, &table, padding)?,
            (None, None) => ops::embedding(cx, ids, &table, padding)?,
        })
    }

    /// Add the rows to `x [.., size]`, in place where `x` is not shared.
    pub fn add_to(&self, x: Var, ids: &Tensor, cx: &Ctx) -> Result<Var> {
        if self.shard.is_some() {
            return Ok(ops::add(cx, &x, &self.forward(ids, cx)?)?);
        }
        Ok(ops::add_embedding(cx, x, ids, &self.weight.var(cx)?, self.padding_index)?)
    }

    /// Logits over the table's rows: `x [.., size]` to `[.., entries]`, for heads tied to the input embedding. The bias
    /// is sharded as the rows are. An f32 table is rounded to the dtype of `x`.
    pub fn project(&self, x: &Var, bias: Option<&Var>, cx: &Ctx) -> Result<Var> {
        let table = self.tied.var_as(x.dtype(), cx)?;
        let Some(shard) = &self.shard else { return Ok(ops::linear(cx, x, &table, bias, None)?) };
        let own = ops::linear(cx, ProductInput::copied(x, shard.ranks()), &table, bias, None)?;
        Ok(ops::gather_logits(cx, &own, shard)?)
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
        let options = LinearCrossEntropy { shard: self.shard.clone().or(options.shard.clone()), ..options.clone() };
        let table = self.tied.var_as(x.dtype(), cx)?;
        Ok(ops::linear_cross_entropy(cx, x, &table, bias, targets, &options)?)
    }
}

/// The shard of a vocabulary that a parameter `[V, ..]` is split by, unless there is one rank without padding.
pub(super) fn shard_of(builder: &Builder, param: &Param) -> Result<Option<VocabularyShard>> {
    let (total, each) = (param.spec().shape.dims()[0], param.local_shape().dims()[0]);
    let ranks = &builder.options().tensor.ranks;
    let shards = ranks.size() > 1 || each > total;
    Ok(shards.then(|| VocabularyShard::new(Arc::clone(ranks), total).with_room(each)).transpose()?)
}
