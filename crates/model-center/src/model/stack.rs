//! A stack of blocks with its positions and the norm after the last block.

use super::architecture::StackSpec;
use crate::layer::Positions;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::{Block, Builder, Result, TransformerBlockList};

/// Blocks and the norm after them; run by [`super::Transformer`].
#[derive(Debug)]
pub(super) struct Stack<B> {
    /// Distinguishes its dropout masks from other stacks'.
    pub name: &'static str,
    pub positions: Positions,
    pub layers: TransformerBlockList<B>,
    pub output_norm: Option<Norm>,
    pub output_dropout: f32,
}

impl<B: Block + 'static> Stack<B> {
    /// Declares the parameters of positions, blocks and norm under the builder's name; `block` declares each block by
    /// its index.
    pub(super) fn new(
        builder: &Builder,
        spec: &StackSpec,
        options: BlockOptions,
        block: impl Fn(usize, &Builder) -> Result<B>,
    ) -> Result<Self> {
        let positions = Positions::new(builder, spec.positions.clone())?;
        let layers = TransformerBlockList::build(&builder.at("layers"), spec.layers, options, block)?;
        let output_norm = spec.output_norm.map(|norm| Norm::new(&builder.at("output_norm"), norm)).transpose()?;
        Ok(Stack { name: spec.name, positions, layers, output_norm, output_dropout: spec.output_dropout })
    }
}
