//! The properties of a decoder family; everything else is shared.
//!
//! Defines [`DecoderFamily`], which a family's configuration implements, and the parts of its answer. Called by
//! [`super::DecoderModel`] and [`open`](super::super::load::open).

use super::DecoderHead;
use crate::config::rows::RowConfig;
use crate::formats::{NameTable, model_center};
use crate::layer::{BlockConfig, PositionsConfig};
use crate::model::position_table::PositionTable;
use bmtrain_dist::nn::norm::NormOptions;
use std::fmt::Debug;

/// A family of decoders, as its configuration describes it.
pub trait DecoderFamily: RowConfig + Debug + 'static {
    /// The classes that `transformers` opens its models with.
    const CLASSES: Classes;

    /// Whether the sum of the embeddings is dropped out of.
    const DROPS_EMBEDDINGS: bool = false;

    /// Whether a batch may have a context, which is read from both sides, and spans, which do not see each other.
    const HAS_SPANS: bool = false;

    /// Tensors of heads for other tasks in files of the family, as `transformers` names them; `*` stands for any text.
    /// Those of the head that a model has are not among what it may leave out.
    const OTHER_HEADS: &'static [&'static str] = &["lm_head.*", "score.*", "classifier.*", "qa_outputs.*", "v_head.*"];

    /// What the model has besides its blocks.
    fn layout(&self) -> Layout;

    /// What block `layer` is made of, counted from 0.
    fn block(&self, layer: usize) -> BlockConfig;

    /// What a model with this head calls its parameters in files of Hugging Face; in those of ModelCenter, if nobody
    /// else has the family.
    fn names(&self, head: DecoderHead) -> NameTable;

    /// What ModelCenter calls the stack of blocks; `None` for a family that it does not have.
    fn stack_of_model_center(&self) -> Option<&'static str> {
        None
    }

    /// What ModelCenter's files call the parameters, if it has the family.
    fn names_of_model_center(&self) -> Option<NameTable> {
        let (block, theirs, layers) = (self.block(0), self.stack_of_model_center()?, self.text().num_layers);
        let stack = model_center::Stack { ours: "decoder", theirs, block: &block, layers };
        Some(model_center::table(&[stack], model_center::decoder_heads()))
    }
}

/// Classes of `transformers` by head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// The bare model's.
    pub base: &'static str,
    /// For the next word.
    pub words: &'static str,
    /// For classes of a sequence.
    pub classifier: &'static str,
}

/// What a decoder has besides its blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Length of a word's row; where it is not D, maps without bias lead from it and back to it.
    pub word_size: usize,
    /// Positions that are added to the words.
    pub table: Option<PositionTable>,
    /// Positions that attention is told.
    pub positions: PositionsConfig,
    /// Whether the row of the padding word gets a gradient where it is looked up.
    pub padding_learns: bool,
    /// Behind the embeddings' sum.
    pub embedding_norm: Option<NormOptions>,
    /// Divide the words' rows by the root of their length, and what the heads read too.
    pub length_scale: bool,
    /// Behind the last block.
    pub output_norm: Option<NormOptions>,
    /// Whether an untied head for words has a bias.
    pub head_bias: bool,
}

impl Layout {
    /// Words of D numbers, nothing added, a norm behind the last block.
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
