//! The description of a model family: what [`Transformer`](crate::model::Transformer) builds, opens and saves it by.
//!
//! Defines [`ModelFamily`], which a family's configuration implements, and [`FamilyBlock`], for a block of the family's
//! own. [`Spec`] is the modules around the blocks, [`Classes`] the classes of `transformers`. What families share of
//! their names in files is in `encoder_files`, `fairseq` and `model_center_names`.

pub(in crate::model) mod block;
mod classes;
pub(in crate::model) mod encoder_files;
pub(in crate::model) mod fairseq;
pub(in crate::model) mod heads;
pub(in crate::model) mod model_center_names;
pub mod position_table;
mod spec;

use crate::layer::{AttentionConfig, BlockConfig, Placement, TransformerBlock};
use crate::model::head::Head;
pub use crate::model::transformer::modules::StackBlock;
use bmtrain_dist::{Builder, Result};
pub use classes::Classes;
use model_center_formats::NameTable;
use model_center_formats::config::rows::RowConfig;
use model_center_formats::directory::DirectoryLayout;
pub use spec::{Added, Projection, Spec, StackSpec};
use std::fmt::Debug;

/// The arrangement of a family's stacks, which determines its heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// One stack with bidirectional attention, and BERT's heads.
    Encoder,
    /// One causal stack, with a language-modelling head or a classifier at the last token.
    Decoder,
    /// A decoder that attends to an encoder, with a language-modelling head or a classifier at the EOS token.
    EncoderDecoder,
}

/// A block of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockPlace {
    /// The index of its stack in [`Spec::stacks`].
    pub stack: usize,
    /// Its index in the stack.
    pub layer: usize,
}

impl BlockPlace {
    /// The first block of the first stack.
    pub const FIRST: BlockPlace = BlockPlace { stack: 0, layer: 0 };
}

/// A family of transformers, as its configuration describes it.
pub trait ModelFamily: RowConfig + Debug + 'static {
    /// The arrangement of its stacks.
    const ARCHITECTURE: Architecture;

    /// Whether the dropout of hidden states is applied to the sum of the embeddings too.
    const DROPS_EMBEDDINGS: bool = false;

    /// Whether its hidden states can overflow f16.
    const LEAVES_F16: bool = false;

    /// Whether the decoder input of a model begins with the padding token where a configuration states no other.
    const STARTS_WITH_PADDING: bool = false;

    /// Whether an encoder has a next-sentence prediction head.
    const HAS_SENTENCES: bool = false;

    /// The `transformers` classes of the family.
    fn classes(&self) -> Classes;

    /// The modules around the blocks.
    fn spec(&self) -> Spec;

    /// Configuration of a block; by default pre-norm with layer norms and biases.
    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = block::block(self.text(), Placement::Pre);
        match (Self::ARCHITECTURE, place.stack) {
            (Architecture::Decoder, _) => {
                BlockConfig { attention: AttentionConfig { causal: true, ..block.attention }, ..block }
            }
            (Architecture::EncoderDecoder, 1) => block.attending_to_encoder(),
            _ => block,
        }
    }

    /// Parameter names in Hugging Face's checkpoints for a model with this head; in ModelCenter's, if only ModelCenter
    /// has the family.
    fn names(&self, head: Head) -> NameTable;

    /// Parameter names in ModelCenter's checkpoints for a model with this head, if it has the family.
    fn names_of_model_center(&self, _head: Head) -> Option<NameTable> {
        None
    }

    /// Parameter names in torchtitan's checkpoints, if it has models like this.
    fn names_of_torchtitan(&self, _head: Head) -> Option<NameTable> {
        None
    }

    /// Tensors of other heads in checkpoints of the family, which a model with this head does not use, by their
    /// `transformers` names; `*` matches any text. Tensors of the model's own head must be present.
    fn other_heads(_head: Head) -> &'static [&'static str] {
        heads::others(Self::ARCHITECTURE)
    }

    /// Overrides the dropout probability of hidden states.
    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text_mut().set_hidden_dropout(rate, Self::DROPS_EMBEDDINGS);
    }

    /// Whether the checkpoint, not the configuration, determines if the language-modelling head is untied.
    fn weights_tell_the_head(&self) -> bool {
        false
    }

    /// Conversion of the decoder's final norm weight, for directory layouts whose models scale the input of the
    /// language-modelling head by another factor.
    fn rescaled_norm(&self, _layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        None
    }
}

/// A block of the models of a family with the configuration `C`.
pub trait FamilyBlock<C>: StackBlock + Sized {
    /// Declares the parameters of a block under the builder's name.
    fn build(builder: &Builder, config: &C, place: BlockPlace) -> Result<Self>;
}

impl<C: ModelFamily> FamilyBlock<C> for TransformerBlock {
    fn build(builder: &Builder, config: &C, place: BlockPlace) -> Result<Self> {
        TransformerBlock::new(builder, config.block(place))
    }
}
