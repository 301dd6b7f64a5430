//! A stack of blocks with its positions and the norm after the last block.

use super::architecture::StackSpec;
use crate::layer::Positions;
use bmtrain_dist::block::BlockPolicy;
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::pipeline::ModelPart;
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

/// The first and the last block of a stack, counted through all stacks: what runs with them is on their pipeline stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct StackParts {
    pub first: usize,
    pub last: usize,
}

impl<B: Block + 'static> Stack<B> {
    /// Declares the parameters of positions, blocks and norm under the builder's name; `block` declares each block by
    /// its index.
    pub(super) fn new(
        builder: &Builder,
        spec: &StackSpec,
        StackParts { first, last }: StackParts,
        policy: BlockPolicy,
        block: impl Fn(usize, &Builder) -> Result<B>,
    ) -> Result<Self> {
        let positions = Positions::new(&builder.part(ModelPart::Block(first)), spec.positions.clone())?;
        let layers = TransformerBlockList::build(&builder.at("layers"), spec.layers, policy, block)?;
        let after = builder.part(ModelPart::Block(last));
        let output_norm = spec.output_norm.map(|norm| Norm::new(&after.at("output_norm"), norm)).transpose()?;
        Ok(Stack { name: spec.name, positions, layers, output_norm, output_dropout: spec.output_dropout })
    }
}
