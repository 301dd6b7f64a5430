//! A stack of blocks with its positions and the norm after the last block.
//!
//! Defines [`Stack`]; called by [`super::Transformer`].

use crate::layer::position::Rows;
use crate::layer::{BlockCache, BlockConfig, Memory, Positions, PositionsConfig, Shared, TransformerBlock, Visible};
use bmtrain_core::{Ctx, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, RunOptions};
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::{Builder, Result, TransformerBlockList};
use std::ops::Range;

/// The modules of a [`Stack`] around its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct StackConfig {
    /// Distinguishes its dropout masks from other stacks'.
    pub name: &'static str,
    /// Number of blocks.
    pub layers: usize,
    /// Positions in self-attention.
    pub positions: PositionsConfig,
    /// After the last block.
    pub output_norm: Option<NormOptions>,
    /// Dropout after that norm.
    pub output_dropout: f32,
}

/// The input of a [`Stack`].
#[derive(Debug)]
pub struct StackInput<'a> {
    /// `[B, L, D]`.
    pub hidden: Var,
    /// Attention mask over the S keys of the stack's own tokens.
    pub visible: Visible,
    /// i64 `[B, S]`, see [`Rows::numbers`]; only ALiBi uses them.
    pub numbers: Option<&'a Tensor>,
    /// An encoder's hidden states, for cross-attention.
    pub memory: Option<Memory>,
    /// KV caches of the blocks of the range. These L tokens follow the cached ones: S in all.
    pub caches: Option<&'a mut [BlockCache]>,
}

impl StackInput<'_> {
    /// Sequences without padding or cache.
    pub fn new(hidden: Var) -> Self {
        StackInput { hidden, visible: Visible::All, numbers: None, memory: None, caches: None }
    }
}

/// Blocks and the norm after them.
#[derive(Debug)]
pub struct Stack {
    name: &'static str,
    positions: Positions,
    layers: TransformerBlockList<TransformerBlock>,
    output_norm: Option<Norm>,
    output_dropout: f32,
}

impl Stack {
    /// Declares the parameters of positions, blocks and norm under the builder's name; `block` configures each block by
    /// its index.
    ///
    /// # Errors
    /// As [`TransformerBlock::new`].
    pub fn new(
        builder: &Builder,
        config: StackConfig,
        options: BlockOptions,
        block: impl Fn(usize) -> BlockConfig,
    ) -> Result<Self> {
        let StackConfig { name, layers, positions, output_norm, output_dropout } = config;
        let positions = Positions::new(builder, positions)?;
        let layers = TransformerBlockList::build(&builder.at("layers"), layers, options, |index, builder| {
            TransformerBlock::new(builder, block(index))
        })?;
        let output_norm = output_norm.map(|norm| Norm::new(&builder.at("output_norm"), norm)).transpose()?;
        Ok(Stack { name, positions, layers, output_norm, output_dropout })
    }

    /// The blocks.
    pub fn layers(&self) -> &TransformerBlockList<TransformerBlock> {
        &self.layers
    }

    /// Runs a range of blocks and, after the last block, the norm: `[B, L, D]` to `[B, L, D]`.
    ///
    /// # Errors
    /// A range outside the stack; errors of the blocks.
    pub fn run(&self, range: Range<usize>, input: StackInput<'_>, cx: &mut Ctx) -> Result<Var> {
        let StackInput { hidden, visible, numbers, memory, caches } = input;
        let is_last = range.end == self.layers.len();
        let past = caches.as_deref().and_then(<[_]>::first).map_or(0, |cache| cache.own.len());
        let [_, length, _] = hidden.dims("stack")?;
        let rows = Rows { past, length, numbers };
        let options = RunOptions { range, caches, return_hidden: false };
        let scope = self.positions.scope(visible, rows, cx)?;
        let shared = Shared { scope, memory };
        let hidden = cx.at(self.name, |cx| self.layers.run(hidden, &shared, options, cx))?.carry; // [B, L, D]
        let hidden = match &self.output_norm {
            Some(norm) if is_last => norm.forward(&hidden, cx)?, // [B, L, D]
            _ => hidden,
        };
        if !is_last || self.output_dropout == 0.0 {
            return Ok(hidden);
        }
        let dropout = cx.at(self.name, |cx| cx.dropout("output", self.output_dropout))?;
        Ok(ops::dropout(cx, &hidden, dropout)?) // [B, L, D]
    }
}
