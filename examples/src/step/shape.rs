//! How a model of given sizes is built.
//!
//! Made of the libraries alone, so that their tests can include this file too.

use bmtrain_core::Device;
use bmtrain_core::kernel::Activation;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::BuilderOptions;
use model_center::Result;
use model_center::config::{BertConfig, Gpt2Config, TextConfig};
use model_center::model::TextModel;
use model_center::model::bert::Bert;
use model_center::model::decoder::DecoderHead;
use model_center::model::encoder::EncoderHead;
use model_center::model::gpt2::Gpt2;

/// The sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub num_layers: usize,
    /// Width, D.
    pub dim_model: usize,
    /// Heads of attention.
    pub num_heads: usize,
    /// Width of the feed-forward layer, F.
    pub dim_ff: usize,
    /// Words, V.
    pub vocab_size: usize,
    /// Whether the labels are words, one for each token.
    pub predicts_words: bool,
}

impl Shape {
    /// The model, its values drawn.
    ///
    /// # Errors
    /// Sizes that make no model; no memory for it.
    pub fn build(self, device: &Device, blocks: BlockOptions, builder: BuilderOptions) -> Result<Box<dyn TextModel>> {
        let Shape { num_layers, dim_model, num_heads, dim_ff, vocab_size, predicts_words } = self;
        let dim_head = dim_model / num_heads;
        if predicts_words {
            let text = TextConfig {
                vocab_size,
                dim_model,
                num_heads,
                dim_head,
                dim_ff,
                num_layers,
                dropout_p: 0.1,
                embedding_dropout_p: 0.1,
                attention_dropout_p: 0.1,
                ffn_activate_fn: Activation::GeluTanh,
                ..Gpt2Config::default().text
            };
            let config = Gpt2Config { text, ..Gpt2Config::default() };
            let head = DecoderHead::CausalLm { tied: true };
            return Ok(Box::new(Gpt2::new(device, config, head, blocks, builder)?));
        }
        let config = BertConfig {
            vocab_size,
            dim_model,
            num_heads,
            dim_head,
            dim_ff,
            num_layers,
            dropout_p: 0.1,
            attention_dropout_p: 0.1,
            classifier_dropout_p: 0.1,
            ..BertConfig::default()
        };
        Ok(Box::new(Bert::new(device, config, EncoderHead::Classifier { outputs: 2 }, blocks, builder)?))
    }
}
