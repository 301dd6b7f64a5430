//! A stack of blocks with what stands around it: what its attention goes by, and the norm behind the last block.
//!
//! Defines [`Stack`]; called by the sections of decoders and of models with two stacks.

use crate::layer::position::Rows;
use crate::layer::{BlockCache, BlockConfig, Memory, Positions, PositionsConfig, Shared, TransformerBlock, Visible};
use bmtrain_core::{Ctx, Tensor, Var, ops};
use bmtrain_dist::block::{BlockOptions, RunOptions};
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::{Builder, Result, TransformerBlockList};
use std::ops::Range;

/// What a [`Stack`] has besides its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct StackConfig {
    /// What dropout inside is told apart by from other stacks of the model.
    pub name: &'static str,
    /// How many blocks there are.
    pub layers: usize,
    /// Positions that self-attention is told.
    pub positions: PositionsConfig,
    /// Behind the last block.
    pub output_norm: Option<NormOptions>,
    /// Probability with which an element behind that norm is dropped.
    pub output_dropout: f32,
}

/// What goes through a [`Stack`].
#[derive(Debug)]
pub struct StackInput<'a> {
    /// `[B, L, D]`.
    pub hidden: Var,
    /// Which keys of the stack's own tokens are seen, of all S.
    pub visible: Visible,
    /// i64 `[B, S]`, see [`Rows::numbers`]; only some positions go by them.
    pub numbers: Option<&'a Tensor>,
    /// An encoder's hidden states, for blocks that attend to them.
    pub memory: Option<Memory>,
    /// What the blocks of the range keep of the tokens that were read before, which these L stand behind and join: S in
    /// all.
    pub caches: Option<&'a mut [BlockCache]>,
}

impl StackInput<'_> {
    /// Whole rows without padding, nothing kept.
    pub fn new(hidden: Var) -> Self {
        StackInput { hidden, visible: Visible::All, numbers: None, memory: None, caches: None }
    }
}

/// Blocks, and what normalises the sum that leaves the last of them.
#[derive(Debug)]
pub struct Stack {
    name: &'static str,
    positions: Positions,
    layers: TransformerBlockList<TransformerBlock>,
    output_norm: Option<Norm>,
    output_dropout: f32,
}

impl Stack {
    /// Declare what positions learn, the blocks and the norm under the builder's name; `block` says what each block is
    /// made of, by its number.
    ///
    /// # Errors
    /// Those of [`TransformerBlock::new`].
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

    /// The blocks of a range, and behind the last block the norm: `[B, L, D]` to `[B, L, D]`.
    ///
    /// # Errors
    /// Those of the blocks; a range outside.
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
