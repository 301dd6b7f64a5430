//! The models that are timed: their sizes by name, and how they are built.

use anyhow::Result;
use bmtrain_core::Device;
use bmtrain_core::kernel::Activation;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::BuilderOptions;
use clap::ValueEnum;
use model_center::config::{BertConfig, Gpt2Config};
use model_center::model::TextModel;
use model_center::model::bert::{Bert, BertHead};
use model_center::model::decoder::DecoderHead;
use model_center::model::gpt2::Gpt2;

/// Models by name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Size {
    /// BERT of 12 layers of 768.
    BertBase,
    /// BERT of 6 layers of 384.
    Minilm,
    /// GPT-2 of 12 layers of 768; every token is a label.
    Gpt2,
    /// BERT of 2 layers of 64, for quick checks.
    Tiny,
    /// GPT-2 of 2 layers of 64, for quick checks.
    TinyGpt2,
}

impl Size {
    /// What the name stands for.
    pub fn shape(self) -> Shape {
        let (num_layers, dim_model, num_heads) = match self {
            Size::BertBase | Size::Gpt2 => (12, 768, 12),
            Size::Minilm => (6, 384, 12),
            Size::Tiny | Size::TinyGpt2 => (2, 64, 4),
        };
        let predicts_words = matches!(self, Size::Gpt2 | Size::TinyGpt2);
        let vocab_size = if predicts_words { 50257 } else { 30522 };
        Shape { num_layers, dim_model, num_heads, dim_ff: 4 * dim_model, vocab_size, predicts_words }
    }
}

/// The sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub num_layers: usize,
    pub dim_model: usize,
    pub num_heads: usize,
    pub dim_ff: usize,
    pub vocab_size: usize,
    /// Whether the labels are words, one for each token.
    pub predicts_words: bool,
}

impl Shape {
    /// The model, its values drawn.
    pub fn build(self, device: &Device, blocks: BlockOptions, builder: BuilderOptions) -> Result<Box<dyn TextModel>> {
        let Shape { num_layers, dim_model, num_heads, dim_ff, vocab_size, predicts_words } = self;
        let dim_head = dim_model / num_heads;
        if predicts_words {
            let config = Gpt2Config {
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
                ..Gpt2Config::default()
            };
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
        Ok(Box::new(Bert::new(device, config, BertHead::Classifier { outputs: 2 }, blocks, builder)?))
    }
}
