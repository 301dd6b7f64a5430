//! A stack of blocks with its positions and the norm after the last block.

use super::architecture::StackSpec;
use crate::layer::{BlockConfig, Positions, TransformerBlock};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::{Builder, Result, TransformerBlockList};

/// Blocks and the norm after them; run by [`super::Transformer`].
#[derive(Debug)]
pub(super) struct Stack {
    /// Distinguishes its dropout masks from other stacks'.
    pub name: &'static str,
    pub positions: Positions,
    pub layers: TransformerBlockList<TransformerBlock>,
    pub output_norm: Option<Norm>,
    pub output_dropout: f32,
}

impl Stack {
    /// Declares the parameters of positions, blocks and norm under the builder's name; `block` configures each block by
    /// its index.
    pub(super) fn new(
        builder: &Builder,
        spec: &StackSpec,
        options: BlockOptions,
        block: impl Fn(usize) -> BlockConfig,
    ) -> Result<Self> {
        let positions = Positions::new(builder, spec.positions.clone())?;
        let layers = TransformerBlockList::build(&builder.at("layers"), spec.layers, options, |index, builder| {
            TransformerBlock::new(builder, block(index))
        })?;
        let output_norm = spec.output_norm.map(|norm| Norm::new(&builder.at("output_norm"), norm)).transpose()?;
        Ok(Stack { name: spec.name, positions, layers, output_norm, output_dropout: spec.output_dropout })
    }
}
