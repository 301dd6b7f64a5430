//! What a family of decoders says of itself; everything else is shared.
//!
//! Defines [`DecoderFamily`], which a family's configuration implements, and the parts of its answer. Called by
//! [`super::DecoderModel`] and [`super::folder`].

use super::DecoderHead;
use crate::config::{Config, TextConfig};
use crate::hf::NameTable;
use crate::layer::{BlockConfig, PositionsConfig};
use bmtrain_dist::nn::norm::NormOptions;
use std::fmt::Debug;

/// A family of decoders, as its configuration describes it.
pub trait DecoderFamily: Config + Clone + Debug + 'static {
    /// Its name for people.
    const TITLE: &'static str;

    /// The classes that `transformers` opens its models with.
    const CLASSES: Classes;

    /// What all families have.
    fn text(&self) -> &TextConfig;

    /// The same, to be changed.
    fn text_mut(&mut self) -> &mut TextConfig;

    /// What the model has besides its blocks.
    fn layout(&self) -> Layout;

    /// What block `layer` is made of, counted from 0.
    fn block(&self, layer: usize) -> BlockConfig;

    /// What a model with this head calls its parameters in files.
    fn names(&self, head: DecoderHead) -> NameTable;
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
    /// Divide the words' rows by the root of their length, and what is projected onto them too.
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

/// Learned positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionTable {
    /// Rows in front of that of the first token.
    pub first: usize,
    /// What counts a token's position.
    pub count: Count,
}

/// What counts a token's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Count {
    /// Its place in the row, padding or not.
    Places,
    /// The tokens in front of it, without padding, which stands one before the first.
    Tokens,
}
