//! A stack of blocks with its positions and the norm after the last block.

use crate::layer::Positions;
use crate::model::architecture::StackSpec;
use bmtrain_dist::block::BlockPolicy;
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::pipeline::ModelPart;
use bmtrain_dist::{Block, Builder, Result, TransformerBlockList};

/// Blocks and the norm after them; run by [`crate::model::Transformer`].
#[derive(Debug)]
pub(in crate::model) struct Stack<B> {
    /// Distinguishes its dropout masks from other stacks'.
    pub name: &'static str,
    pub positions: Positions,
    pub layers: TransformerBlockList<B>,
    pub output_norm: Option<Norm>,
    pub output_dropout: f32,
}

/// The first and the last block of a stack, counted through all stacks: what runs with them is on their pipeline stage.
#[derive(Debug, Clone, Copy)]
pub(in crate::model) struct StackParts {
    pub first: usize,
    pub last: usize,
}

impl<B: Block + 'static> Stack<B> {
    /// Declares the parameters of positions, blocks and norm under the builder's name; `block` declares each block by
    /// its index. With an `order` blocks are fewer than layers: it has the block that runs in each.
    pub(in crate::model) fn new(
        builder: &Builder,
        spec: &StackSpec,
        StackParts { first, last }: StackParts,
        (policy, order): (BlockPolicy, Option<&[usize]>),
        block: impl Fn(usize, &Builder) -> Result<B>,
    ) -> Result<Self> {
        let positions = Positions::new(&builder.part(ModelPart::Block(first)), spec.positions.clone())?;
        let blocks = order.map_or(spec.layers, |order| order.iter().max().map_or(0, |last| last + 1));
        let mut layers = TransformerBlockList::build(&builder.at("layers"), blocks, policy, block)?;
        if let Some(order) = order {
            layers = layers.in_order(order)?;
        }
        let after = builder.part(ModelPart::Block(last));
        let output_norm = spec.output_norm.map(|norm| Norm::new(&after.at("output_norm"), norm)).transpose()?;
        Ok(Stack { name: spec.name, positions, layers, output_norm, output_dropout: spec.output_dropout })
    }
}
