//! The properties of an encoder-decoder family; everything else is shared.
//!
//! Defines [`Seq2SeqFamily`], which a family's configuration implements, and [`Layout`]. Called by
//! [`super::Seq2SeqModel`] and [`open`](crate::model::load::open).

use super::{Added, Seq2SeqHead};
use crate::layer::{BlockConfig, position::RelativeConfig};
use bmtrain_dist::nn::norm::NormOptions;
use model_center_formats::NameTable;
use model_center_formats::config::rows::RowConfig;
use model_center_formats::directory::DirectoryLayout;
use std::fmt::Debug;

/// A family of models with an encoder and a decoder, as its configuration describes it.
pub trait Seq2SeqFamily: RowConfig + Debug + 'static {
    /// Whether dropout is applied to the sum of the embeddings.
    const DROPS_EMBEDDINGS: bool;

    /// Whether its hidden states can overflow f16.
    const LEAVES_F16: bool = false;

    /// Whether the decoder input for span corruption begins with the sentinel token instead of the decoder start token.
    const BEGINS_WITH_SENTINELS: bool = false;

    /// Tensors of heads for other tasks in checkpoints of the family, by their `transformers` names; `*` matches any
    /// text. Tensors of the model's own head must be present.
    const OTHER_HEADS: &'static [&'static str] =
        &["lm_head.*", "final_logits_bias", "classification_head.*", "classifier.*", "qa_outputs.*", "v_head.*"];

    /// The `transformers` classes of the family.
    fn classes(&self) -> Classes;

    /// Overrides the dropout probability of hidden states.
    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text_mut().set_hidden_dropout(rate, Self::DROPS_EMBEDDINGS);
    }

    /// Number of decoder blocks.
    fn decoder_layers(&self) -> usize;

    /// The decoder start token; `None` if the configuration does not specify one.
    fn decoder_start_token(&self) -> Option<usize>;

    /// The EOS token, whose hidden state a classifier reads; `None` if the configuration does not specify one.
    fn eos_token(&self) -> Option<usize> {
        None
    }

    /// Whether the checkpoint, not the configuration, determines if the language-modelling head is untied.
    fn weights_tell_the_head(&self) -> bool {
        false
    }

    /// The modules around the blocks.
    fn layout(&self) -> Layout;

    /// Configuration of each encoder block.
    fn encoder_block(&self) -> BlockConfig;

    /// Configuration of each decoder block, with cross-attention.
    fn decoder_block(&self) -> BlockConfig;

    /// Parameter names in checkpoints, for a model with this head.
    fn names(&self, head: Seq2SeqHead) -> NameTable;

    /// Parameter names in ModelCenter's checkpoints; `None` if ModelCenter does not have the family.
    fn names_of_model_center(&self) -> Option<NameTable> {
        None
    }

    /// Conversion of the decoder's final norm weight, for directory layouts whose models scale the input of the
    /// language-modelling head by another factor.
    fn rescaled_norm(&self, _layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        None
    }
}

/// `transformers` classes by head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// Of the bare model.
    pub base: &'static str,
    /// With a language-modelling head on the decoder.
    pub words: &'static str,
    /// For sequence classification; `None` if the family has no such head here.
    pub classifier: Option<&'static str>,
}

/// The modules of an encoder-decoder model around its blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    /// Of the encoder.
    pub encoder: Around,
    /// Of the decoder.
    pub decoder: Around,
    /// Whether the embedding of the padding token gets a gradient.
    pub padding_learns: bool,
    /// Factor of the token embeddings.
    pub word_factor: f32,
    /// Factor of the decoder's hidden states before the language-modelling head.
    pub head_factor: f32,
    /// Whether the language-modelling head adds a bias that checkpoints hold but no optimizer trains.
    pub logits_bias: bool,
    /// Dropout probability before each linear layer of the classification head.
    pub classifier_dropout: f32,
}

impl Layout {
    /// Relative position biases, bidirectional only in the encoder, instead of added positions; a final norm, then this
    /// dropout. Token embeddings are not scaled, and the padding token's is trained too.
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

/// The modules around the blocks of the encoder or of the decoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Around {
    /// Positions added to the token embeddings.
    pub added: Added,
    /// After that sum.
    pub embedding_norm: Option<NormOptions>,
    /// Relative position biases.
    pub relative: Option<RelativeConfig>,
    /// After the last block.
    pub output_norm: Option<NormOptions>,
    /// Dropout probability after that norm.
    pub output_dropout: f32,
}
