//! The properties of a decoder family; everything else is shared.
//!
//! Defines [`DecoderFamily`], which a family's configuration implements, [`DecoderBlock`] and [`Layout`]. Called by
//! [`super::DecoderModel`] and [`open`](crate::model::load::open).

use super::DecoderHead;
use crate::layer::{AttentionConfig, BlockCache, BlockConfig, Placement, PositionsConfig, Shared, TransformerBlock};
use crate::model::architecture::block::block;
use crate::model::architecture::model_center_names;
use crate::model::architecture::position_table::PositionTable;
use bmtrain_core::Var;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::{Block, Builder, Result};
use model_center_formats::NameTable;
use model_center_formats::config::rows::RowConfig;
use std::fmt::Debug;

/// A family of decoders, as its configuration describes it.
pub trait DecoderFamily: RowConfig + Debug + 'static {
    /// The `transformers` classes of the family.
    const CLASSES: Classes;

    /// Whether dropout is applied to the sum of the embeddings.
    const DROPS_EMBEDDINGS: bool = false;

    /// Whether a batch may have a context with bidirectional attention, and spans that do not attend to each other.
    const HAS_SPANS: bool = false;

    /// Tensors of heads for other tasks in checkpoints of the family, by their `transformers` names; `*` matches any
    /// text. Tensors of the model's own head must be present.
    const OTHER_HEADS: &'static [&'static str] = &["lm_head.*", "score.*", "classifier.*", "qa_outputs.*", "v_head.*"];

    /// The modules around the blocks.
    fn layout(&self) -> Layout;

    /// Configuration of block `layer`, counted from 0; by default pre-norm with layer norms and biases.
    fn block(&self, _layer: usize) -> BlockConfig {
        let block = block(self.text(), Placement::Pre);
        BlockConfig { attention: AttentionConfig { causal: true, ..block.attention }, ..block }
    }

    /// Parameter names in Hugging Face's checkpoints for a model with this head; in ModelCenter's, if only ModelCenter
    /// has the family.
    fn names(&self, head: DecoderHead) -> NameTable;

    /// Parameter names in torchtitan's checkpoints, if it has models like this.
    fn names_of_torchtitan(&self, _head: DecoderHead) -> Option<NameTable> {
        None
    }

    /// ModelCenter's name of the stack of blocks; `None` if it does not have the family.
    fn stack_of_model_center(&self) -> Option<&'static str> {
        None
    }

    /// Parameter names in ModelCenter's checkpoints, if it has the family.
    fn names_of_model_center(&self) -> Option<NameTable> {
        let (block, theirs, layers) = (self.block(0), self.stack_of_model_center()?, self.text().num_layers);
        let stack = model_center_names::Stack { ours: "decoder", theirs, block: &block, layers };
        Some(model_center_names::table(&[stack], model_center_names::decoder_heads()))
    }
}

/// A block for decoders with the configuration `C`.
pub trait DecoderBlock<C>: Block<Carry = Var, Shared = Shared, Cache = BlockCache> + Debug + Sized + 'static {
    /// Declares the parameters of block `layer` under the builder's name.
    fn build(builder: &Builder, config: &C, layer: usize) -> Result<Self>;
}

impl<C: DecoderFamily> DecoderBlock<C> for TransformerBlock {
    fn build(builder: &Builder, config: &C, layer: usize) -> Result<Self> {
        TransformerBlock::new(builder, config.block(layer))
    }
}

/// `transformers` classes by head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// Of the bare model.
    pub base: &'static str,
    /// With a language-modelling head.
    pub words: &'static str,
    /// For sequence classification.
    pub classifier: &'static str,
}

/// The modules of a decoder around its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Dimension of the token embeddings; if it is not D, linear layers without bias project to D and back.
    pub word_size: usize,
    /// Positions added to the token embeddings.
    pub table: Option<PositionTable>,
    /// Positions used in attention.
    pub positions: PositionsConfig,
    /// Whether the embedding of the padding token gets a gradient.
    pub padding_learns: bool,
    /// After the sum of the embeddings.
    pub embedding_norm: Option<NormOptions>,
    /// Divide the token embeddings and the heads' inputs by the square root of their dimension.
    pub length_scale: bool,
    /// After the last block.
    pub output_norm: Option<NormOptions>,
    /// Whether an untied language-modelling head has a bias.
    pub head_bias: bool,
}

impl Layout {
    /// Token embeddings of dimension D without added positions, and a norm after the last block.
    pub fn new(dim_model: usize, positions: PositionsConfig, output_norm: NormOptions) -> Self {
        Layout {
            word_size: dim_model,
            table: None,
            positions,
            padding_learns: false,
            embedding_norm: None,
            length_scale: false,
            output_norm: Some(output_norm),
            head_bias: false,
        }
    }
}
