//! Linear layers, split by columns or rows over tensor-parallel ranks.

use super::bottleneck::Bottleneck;
use super::embedding::shard_of;
use super::low_rank::LowRank;
use super::scaling::{self, Scaling};
use crate::error::{Error, Result};
pub use crate::param::TensorSplit;
use crate::param::{Builder, Init, Param, Split, SplitPart};
use bmtrain_core::comm::Communicator;
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{
    self, LinearCrossEntropy, ProductInput, ProductPrecision, ProductWeight, TokenShard, VocabularyShard,
};
use bmtrain_core::{Ctx, Tensor, Var};
use std::sync::Arc;

/// Options of a [`Linear`].
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
    /// Split of the weight over tensor-parallel ranks.
    pub split: TensorSplit,
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
///
/// Where there are several tensor-parallel ranks, a split layer communicates as [`ops::copy_to_ranks`] describes:
///
/// * [`TensorSplit::Columns`]: the input is alike on all ranks, and each rank gets its outputs, `[.., outputs / T]`. In
///   the backward pass the input's gradient is summed over the ranks.
/// * [`TensorSplit::Rows`]: each rank gives its inputs, `[.., inputs / T]`. The terms are summed over the ranks and the
///   bias is added once; the output is alike on all ranks.
///
/// Where a [`TokenShard`] is given, each rank has some of the tokens of what enters a column-parallel layer and of what
/// leaves a row-parallel one, `[own, ..]`; between the two are all tokens, `[B, L, .. / T]`.
///
/// Source: Shoeybi et al., 2019; Korthikanti et al., 2022.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
    parallel: Parallel,
    precision: ProductPrecision,
    /// Low-rank updates, of the builder's adapters.
    low_rank: Vec<LowRank>,
    /// Learned factors, of the builder's adapters.
    scaling: Scaling,
    /// Bottleneck after the outputs, of the builder's adapters.
    bottleneck: Option<Bottleneck>,
}

/// Work of the layer over several tensor-parallel ranks.
#[derive(Debug, Clone)]
pub(super) enum Parallel {
    /// Nothing, or there is one rank.
    None,
    Columns(Arc<dyn Communicator>),
    Rows(Arc<dyn Communicator>),
    Vocabulary(VocabularyShard),
}

impl Linear {
    /// Declare `weight` and, if asked for, `bias` under the builder's name.
    pub fn new(builder: &Builder, options: LinearOptions) -> Result<Self> {
        let layer = options.layer(builder.path());
        let LinearOptions { inputs, outputs, bias, init, split } = options;
        let total: usize = outputs.iter().map(|part| part.size).sum();
        let (weight_split, bias_split) = match split {
            TensorSplit::None => (Split::Replicated, Split::Replicated),
            TensorSplit::Columns => {
                (Split::Axis { axis: 0, parts: outputs.clone() }, Split::Axis { axis: 0, parts: outputs })
            }
            TensorSplit::Rows => (Split::even(1, inputs), Split::Replicated),
            TensorSplit::Vocabulary => (builder.vocabulary_split(0), builder.vocabulary_split(0)),
        };
        let weight = builder.param("weight", [total, inputs], init, weight_split, true)?;
        let bias = bias.then(|| builder.param("bias", [total], Init::ZEROS, bias_split, false)).transpose()?;
        let parallel = match (split, builder.tensor_ranks()) {
            (TensorSplit::Vocabulary, _) => shard_of(builder, &weight)?.map_or(Parallel::None, Parallel::Vocabulary),
            (TensorSplit::None, _) | (_, None) => Parallel::None,
            (TensorSplit::Columns, Some(ranks)) => Parallel::Columns(Arc::clone(ranks)),
            (TensorSplit::Rows, Some(ranks)) => Parallel::Rows(Arc::clone(ranks)),
        };
        let low_rank = LowRank::of_layer(builder, &layer, &weight)?;
        let scaling = Scaling::of_layer(builder, &layer, &weight)?;
        let bottleneck = Bottleneck::of_layer(builder, &layer)?;
        builder.note_linear(layer);
        let precision = builder.products_with(&weight);
        Ok(Linear { weight, bias, parallel, precision, low_rank, scaling, bottleneck })
    }

    /// The outputs of this rank, where they are split as a vocabulary over several ranks or padded.
    pub fn shard(&self) -> Option<&VocabularyShard> {
        match &self.parallel {
            Parallel::Vocabulary(shard) => Some(shard),
            _ => None,
        }
    }

    /// The weight, `[outputs, inputs]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// Whether it has low-rank updates, learned factors or a bottleneck
    /// ([`BuilderOptions::adapters`](crate::param::BuilderOptions::adapters)), which an op that fuses several layers
    /// does not compute.
    pub fn is_adapted(&self) -> bool {
        !self.low_rank.is_empty() || !self.scaling.is_empty() || self.bottleneck.is_some()
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }

    /// `x [.., inputs]` to `[.., outputs]`.
    pub fn forward(&self, x: &Var, cx: &Ctx) -> Result<Var> {
        self.forward_tokens(x, None, None, cx)
    }

    /// As [`Linear::forward`], with a fused activation.
    pub fn forward_activated(&self, x: &Var, activation: Activation, cx: &Ctx) -> Result<Var> {
        self.forward_tokens(x, Some(activation), None, cx)
    }

    /// As [`Linear::forward`], with an activation or sharded tokens.
    pub fn forward_tokens(
        &self,
        x: &Var,
        activation: Option<Activation>,
        tokens: Option<&TokenShard>,
        cx: &Ctx,
    ) -> Result<Var> {
        self.run(x, activation, None, tokens, cx)
    }

    /// Whether the product adds a residual as it is written: where its result is this rank's alone and nothing follows.
    pub fn adds_residual(&self) -> bool {
        matches!(self.parallel, Parallel::None) && !self.is_adapted()
    }

    /// `residual + forward(x)`, with the residual shaped as the result.
    pub fn forward_residual(&self, x: &Var, residual: &Var, tokens: Option<&TokenShard>, cx: &Ctx) -> Result<Var> {
        if self.adds_residual() {
            return self.run(x, None, Some(residual), tokens, cx); // [.., outputs]
        }
        Ok(ops::add(cx, residual, &self.run(x, None, None, tokens, cx)?)?) // [.., outputs]
    }

    fn run(
        &self,
        x: &Var,
        activation: Option<Activation>,
        residual: Option<&Var>,
        tokens: Option<&TokenShard>,
        cx: &Ctx,
    ) -> Result<Var> {
        let (weight, bias) = self.vars(cx)?;
        let scaled = self.scaling.of_inputs(x, cx)?; // [.., inputs]
        let x = scaled.as_ref().unwrap_or(x);
        let (input, weight) = (self.input(x, tokens), self.output(&weight, tokens));
        let weight = match residual {
            Some(residual) => weight.plus(residual),
            None => weight,
        };
        let is_whole = !matches!(self.parallel, Parallel::Rows(_)) && !self.is_adapted();
        let own_activation = activation.filter(|_| is_whole);
        // Magnitudes scale the products alone.
        let has_magnitudes = self.low_rank.iter().any(LowRank::scales);
        let own_bias = bias.as_ref().filter(|_| !has_magnitudes);
        let y = ops::linear(cx, input, weight, own_bias, own_activation)?; // [.., outputs]
        let update = |y, update: &LowRank| update.add_to(y, x, &self.parallel, tokens, cx);
        let y = self.low_rank.iter().try_fold(y, update)?; // [.., outputs]
        let y = if has_magnitudes { self.with_magnitudes(y, bias.as_ref(), cx)? } else { y }; // [.., outputs]
        let y = self.scaling.of_outputs(y, cx)?; // [.., outputs]
        let y = match &self.bottleneck {
            Some(bottleneck) => bottleneck.after(y, cx)?, // [.., outputs]
            None => y,
        };
        match (&self.parallel, activation, own_activation) {
            // Of the sum, not of its terms.
            (_, Some(activation), None) => Ok(ops::activation(cx, &y, activation)?),
            (Parallel::Vocabulary(shard), ..) => Ok(ops::gather_logits(cx, &y, shard)?),
            _ => Ok(y),
        }
    }

    /// The updated products times the factors of their magnitudes, and the bias.
    fn with_magnitudes(&self, y: Var, bias: Option<&Var>, cx: &Ctx) -> Result<Var> {
        let factors = self.low_rank.iter().filter_map(|update| update.factors(cx).transpose());
        let factors = scaling::of_columns(factors.collect::<Result<_>>()?, y.shape().last(), cx)?; // [outputs]
        Ok(ops::scale_columns(cx, y, &factors, bias)?)
    }

    /// The cross-entropy of `x [.., inputs] W^T + b` against class numbers `[..]`, without storing the logits of all
    /// rows. Where the layer is split as a vocabulary, nor are the logits of other ranks.
    pub fn cross_entropy(&self, x: &Var, targets: &Tensor, options: &LinearCrossEntropy, cx: &Ctx) -> Result<Var> {
        if self.is_adapted() {
            let reason = "has an adapter, and a loss is computed from its weight alone: update other layers";
            return Err(Error::parameter(self.weight.name(), reason));
        }
        let (weight, bias) = self.vars(cx)?;
        let options = LinearCrossEntropy { shard: self.shard().or(options.shard.as_ref()).cloned(), ..options.clone() };
        Ok(ops::linear_cross_entropy(cx, x, &weight, bias.as_ref(), targets, &options)?)
    }

    /// `x` as the input of a product with [`Linear::vars`]: with the tokens and the gradients of all ranks where the
    /// layer is column-parallel.
    pub fn input<'x>(&self, x: &'x Var, tokens: Option<&TokenShard>) -> ProductInput<'x> {
        let ranks = match &self.parallel {
            Parallel::None | Parallel::Rows(_) => None,
            Parallel::Columns(ranks) => Some(ranks),
            Parallel::Vocabulary(shard) => Some(shard.ranks()),
        };
        let input = match (ranks, tokens) {
            (None, _) => ProductInput::from(x),
            (Some(ranks), None) => ProductInput::copied(x, ranks),
            (Some(_), Some(tokens)) => ProductInput::gathered(x, tokens),
        };
        input.with_precision(self.precision)
    }

    /// `weight`, of [`Linear::vars`], for a product whose result goes to all ranks where the layer is row-parallel: the
    /// result is the sum, and with `tokens` this rank's tokens of it.
    pub fn output<'w>(&self, weight: &'w Var, tokens: Option<&TokenShard>) -> ProductWeight<'w> {
        let output = match (&self.parallel, tokens) {
            (Parallel::Rows(_), Some(tokens)) => ProductWeight::scattered(weight, tokens),
            (Parallel::Rows(ranks), None) => ProductWeight::summed(weight, ranks),
            (Parallel::None | Parallel::Columns(_) | Parallel::Vocabulary(_), _) => ProductWeight::from(weight),
        };
        output.with_precision(self.precision)
    }

    /// Weight and bias for an op that fuses several layers, with [`Linear::input`] and [`Linear::output`].
    pub fn vars(&self, cx: &Ctx) -> Result<(Var, Option<Var>)> {
        Ok((self.weight.var(cx)?, self.bias.as_ref().map(|bias| bias.var(cx)).transpose()?))
    }
}
