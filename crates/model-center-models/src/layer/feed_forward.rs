//! The position-wise feed-forward layer, plain or gated.

use super::attention::{length_scaled, scaled_by_length};
use bmtrain_core::kernel::{Activation, Dropout};
use bmtrain_core::ops::TokenShard;
use bmtrain_core::{Ctx, Var, ops};
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::param::{Init, SplitPart, TensorSplit};
use bmtrain_dist::{Builder, Result};

/// Options of a [`FeedForward`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForwardConfig {
    /// D, length of the input and of the output.
    pub dim_model: usize,
    /// F, length in between.
    pub dim_ff: usize,
    /// Function in between.
    pub activation: Activation,
    /// Whether `w_in` has twice the outputs: the activation of the first half is multiplied by the second half.
    pub gated: bool,
    /// Whether the two maps have a bias.
    pub bias: bool,
    /// Probability with which an element in between is dropped.
    pub dropout: f32,
    /// Divide what enters a map by the root of its length.
    pub length_scale: bool,
    /// Initial weights of the first map.
    pub init: Init,
    /// Initial weights of the second map, whose outputs are added up along the depth of the model.
    pub out_init: Init,
}

impl FeedForwardConfig {
    /// Two maps with biases, nothing dropped.
    pub fn new(dim_model: usize, dim_ff: usize, activation: Activation, init: Init) -> Self {
        FeedForwardConfig {
            dim_model,
            dim_ff,
            activation,
            gated: false,
            bias: true,
            dropout: 0.0,
            length_scale: false,
            init,
            out_init: init,
        }
    }
}

/// `w_out(activation(w_in(x)))`, or gated `w_out(activation(gate(x)) * up(x))` with both in `w_in`, the gate first.
#[derive(Debug, Clone)]
pub struct FeedForward {
    config: FeedForwardConfig,
    /// This rank among the tensor-parallel ranks.
    rank: usize,
    w_in: Linear,
    w_out: Linear,
}

impl FeedForward {
    /// Declare the two maps under the builder's name.
    pub fn new(builder: &Builder, config: FeedForwardConfig) -> Result<Self> {
        let FeedForwardConfig { dim_model, dim_ff, gated, bias, init, out_init, .. } = config;
        let outputs = vec![SplitPart::even(dim_ff); if gated { 2 } else { 1 }];
        let w_in = LinearOptions { inputs: dim_model, outputs, bias, init, split: TensorSplit::Columns };
        let w_out = LinearOptions::new(dim_ff, dim_model, bias, out_init).split(TensorSplit::Rows);
        Ok(FeedForward {
            config,
            rank: builder.tensor_ranks().map_or(0, |ranks| ranks.rank()),
            w_in: Linear::new(&builder.at("w_in"), w_in)?,
            w_out: Linear::new(&builder.at("w_out"), w_out)?,
        })
    }

    /// Whether hidden values may be dropped between the two maps.
    pub(super) fn has_dropout(&self) -> bool {
        self.config.dropout != 0.0
    }

    /// `x [.., D]` to `[.., D]`; with `tokens`, `[own, D]` to `[own, D]`. Where nothing happens in between but the
    /// activation it is one op: only the input and what enters the activation are kept for the backward pass.
    pub fn forward(&self, x: &Var, tokens: Option<&TokenShard>, cx: &mut Ctx) -> Result<Var> {
        self.run(x, None, tokens, cx)
    }

    /// `residual + dropout(forward(x))`. Without dropout the sum is a part of the last product.
    pub fn forward_residual(
        &self,
        x: &Var,
        residual: &Var,
        dropout: Option<Dropout>,
        tokens: Option<&TokenShard>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        if dropout.is_none() {
            return self.run(x, Some(residual), tokens, cx); // [.., D]
        }
        let y = self.run(x, None, tokens, cx)?; // [.., D]
        Ok(ops::add(cx, residual, &ops::dropout(cx, &y, dropout)?)?) // [.., D]
    }

    fn run(&self, x: &Var, residual: Option<&Var>, tokens: Option<&TokenShard>, cx: &mut Ctx) -> Result<Var> {
        let FeedForwardConfig { activation, gated, dropout, length_scale, .. } = self.config;
        let dropout = cx.dropout("ffn_hidden", dropout)?;
        let is_adapted = [&self.w_in, &self.w_out].iter().any(|layer| layer.is_adapted());
        if length_scale || dropout.is_some() || is_adapted {
            let x = length_scaled(x, length_scale, cx)?; // [.., D]
            let hidden = match gated {
                true => ops::gated(cx, &self.w_in.forward_tokens(&x, None, tokens, cx)?, activation)?, // [.., F]
                false => self.w_in.forward_tokens(&x, Some(activation), tokens, cx)?,                  // [.., F]
            };
            let dropout = dropout.map(|dropout| self.own_columns(dropout, hidden.shape().last()));
            let hidden = scaled_by_length(&hidden, self.config.dim_ff, length_scale, cx)?; // [.., F]
            let hidden = ops::dropout(cx, &hidden, dropout)?; // [.., F]
            let y = self.w_out.forward_tokens(&hidden, None, tokens, cx)?; // [.., D]
            return Ok(match residual {
                Some(residual) => ops::add(cx, residual, &y)?, // [.., D]
                None => y,
            });
        }
        let (w_in, b_in) = self.w_in.vars(cx)?;
        let (w_out, b_out) = self.w_out.vars(cx)?;
        let op = if gated { ops::gated_feed_forward } else { ops::feed_forward };
        let (x, w_out) = (self.w_in.input(x, tokens), self.w_out.output(&w_out, tokens));
        let w_out = match residual {
            Some(residual) => w_out.plus(residual),
            None => w_out,
        };
        Ok(op(cx, x, &w_in, b_in.as_ref(), activation, w_out, b_out.as_ref())?) // [.., D]
    }

    /// The dropout of this tensor-parallel rank's `columns` of the hidden values, addressed among all F columns.
    fn own_columns(&self, dropout: Dropout, columns: usize) -> Dropout {
        let all = self.config.dim_ff;
        match columns == all {
            true => dropout,
            false => Dropout { offset: (self.rank * columns) as u64, row_stride: all as u64, ..dropout },
        }
    }
}
