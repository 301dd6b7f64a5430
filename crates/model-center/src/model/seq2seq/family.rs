//! The properties of an encoder-decoder family; everything else is shared.
//!
//! Defines [`Seq2SeqFamily`], which a family's configuration implements, and the parts of its answer. Called by
//! [`super::Seq2SeqModel`] and [`open`](super::super::load::open).

use super::{Added, Seq2SeqHead};
use crate::config::rows::RowConfig;
use crate::formats::{DirectoryLayout, NameTable};
use crate::layer::BlockConfig;
use crate::layer::position::RelativeConfig;
use bmtrain_dist::nn::norm::NormOptions;
use std::fmt::Debug;

/// A family of models with an encoder and a decoder, as its configuration describes it.
pub trait Seq2SeqFamily: RowConfig + Debug + 'static {
    /// Whether the sum of the embeddings is dropped out of.
    const DROPS_EMBEDDINGS: bool;

    /// Whether its hidden states leave the range of f16.
    const LEAVES_F16: bool = false;

    /// Whether a decoder that is to fill in what a sentinel stands for begins with that sentinel, and not with the
    /// first word.
    const BEGINS_WITH_SENTINELS: bool = false;

    /// Tensors of heads for other tasks in files of the family, as `transformers` names them; `*` stands for any text.
    /// Those of the head that a model has are not among what it may leave out.
    const OTHER_HEADS: &'static [&'static str] =
        &["lm_head.*", "final_logits_bias", "classification_head.*", "classifier.*", "qa_outputs.*", "v_head.*"];

    /// The classes that `transformers` opens its models with.
    fn classes(&self) -> Classes;

    /// Take this rate of dropout for hidden states, whatever the file says.
    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text_mut().set_hidden_dropout(rate, Self::DROPS_EMBEDDINGS);
    }

    /// Blocks of the decoder.
    fn decoder_layers(&self) -> usize;

    /// The word in front of the first that a decoder is to predict; `None` where the configuration does not say.
    fn decoder_start_token(&self) -> Option<usize>;

    /// The word that ends a text, at which a classifier reads; `None` where the configuration does not say.
    fn last_word(&self) -> Option<usize> {
        None
    }

    /// Whether the configuration leaves it to the weights if the head for words has a matrix of its own.
    fn weights_tell_the_head(&self) -> bool {
        false
    }

    /// What the model has besides its blocks.
    fn layout(&self) -> Layout;

    /// What each block of the encoder is made of.
    fn encoder_block(&self) -> BlockConfig;

    /// What each block of the decoder is made of, which attends to the encoder.
    fn decoder_block(&self) -> BlockConfig;

    /// What a model with this head calls its parameters in files.
    fn names(&self, head: Seq2SeqHead) -> NameTable;

    /// What ModelCenter's files call them, if it has the family here.
    fn names_of_model_center(&self) -> Option<NameTable> {
        None
    }

    /// What becomes of the values of the decoder's last norm in files of this layout, whose models have another factor
    /// in front of the head than this one.
    fn rescaled_norm(&self, _layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        None
    }
}

/// Classes of `transformers` by head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// The bare model's.
    pub base: &'static str,
    /// For the next word of the decoder.
    pub words: &'static str,
    /// For classes of a text; `None` for a family without one here.
    pub classifier: Option<&'static str>,
}

/// What a model with two stacks has besides its blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    /// Of the encoder.
    pub encoder: Around,
    /// Of the decoder.
    pub decoder: Around,
    /// Whether the row of the padding word gets a gradient where it is looked up.
    pub padding_learns: bool,
    /// Factor of the words' rows where they are looked up.
    pub word_factor: f32,
    /// Factor of the decoder's states in front of the head for words.
    pub head_factor: f32,
    /// Whether the head for words adds a bias that files have and nobody trains.
    pub logits_bias: bool,
    /// Probability with which an element in front of each map of a classifier is dropped.
    pub classifier_dropout: f32,
}

impl Layout {
    /// Stacks that add no positions and have biases of distances, which go both ways in the encoder alone, and a norm
    /// behind the last block with this dropout behind it. The words' rows are taken as they are, and all of them learn.
    pub fn of_distances(relative: RelativeConfig, output_norm: NormOptions, output_dropout: f32) -> Self {
        let around = |bidirectional: bool| Around {
            added: Added::None,
            embedding_norm: None,
            relative: Some(RelativeConfig { bidirectional, ..relative }),
            output_norm: Some(output_norm),
            output_dropout,
        };
        Layout {
            encoder: around(true),
            decoder: around(false),
            padding_learns: true,
            word_factor: 1.0,
            head_factor: 1.0,
            logits_bias: false,
            classifier_dropout: 0.0,
        }
    }
}

/// What stands around the blocks of one stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Around {
    /// Positions that are added to the words.
    pub added: Added,
    /// Behind that sum.
    pub embedding_norm: Option<NormOptions>,
    /// Learned biases of distances.
    pub relative: Option<RelativeConfig>,
    /// Behind the last block.
    pub output_norm: Option<NormOptions>,
    /// Probability with which an element behind that norm is dropped.
    pub output_dropout: f32,
}
