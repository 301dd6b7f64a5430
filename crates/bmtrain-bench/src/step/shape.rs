//! How a model of given sizes is built.

use bmtrain_core::Device;
use bmtrain_core::kernel::Activation;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::BuilderOptions;
use model_center_base::Result;
use model_center_formats::config::TextConfig;
use model_center_models::Head;
use model_center_models::TextModel;
use model_center_models::bert::Bert;
use model_center_models::family::configs::{BertConfig, Gpt2Config, LlamaConfig, T5Config};
use model_center_models::gpt2::Gpt2;
use model_center_models::llama::Llama;
use model_center_models::t5::T5;

/// Which model it is, and with that what its labels are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Reads both ways; a class for each row.
    Bert,
    /// Every token is predicted from the tokens before it.
    Gpt2,
    /// As GPT-2, with RMS norms, rotary embeddings, gated feed-forward layers, and one key and value head for four
    /// query heads.
    Llama,
    /// Reads a row, and predicts every token of its target.
    T5,
}

/// The sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Which model it is.
    pub family: Family,
    /// Blocks; in an encoder-decoder, of each stack.
    pub num_layers: usize,
    /// Width, D.
    pub dim_model: usize,
    /// Heads of attention.
    pub num_heads: usize,
    /// Heads of keys and values; fewer than [`Shape::num_heads`] in a Llama alone.
    pub num_heads_kv: usize,
    /// Width of the feed-forward layer, F.
    pub dim_ff: usize,
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Probability of dropout, everywhere where Hugging Face's models have one; theirs is 0.1.
    pub dropout_p: f32,
}

impl Shape {
    /// The model with random weights.
    ///
    /// # Errors
    /// Sizes that make no model; no memory for it.
    pub fn build(self, device: &Device, blocks: BlockOptions, builder: BuilderOptions) -> Result<Box<dyn TextModel>> {
        Ok(match self.family {
            Family::Bert => {
                let config = self.bert();
                Box::new(Bert::new(device, config, Head::Classifier { outputs: 2 }, blocks, builder)?)
            }
            Family::Gpt2 => {
                let text = self.text(Gpt2Config::default().text);
                let text = TextConfig { ffn_activate_fn: Activation::GeluTanh, ..text };
                let config = Gpt2Config { text, ..Gpt2Config::default() };
                Box::new(Gpt2::new(device, config, Head::CausalLm { tied: true }, blocks, builder)?)
            }
            Family::Llama => {
                let text = self.text(LlamaConfig::default().text);
                let config = LlamaConfig { text, num_heads_kv: self.num_heads_kv, ..LlamaConfig::default() };
                Box::new(Llama::new(device, config, Head::CausalLm { tied: false }, blocks, builder)?)
            }
            Family::T5 => {
                let config = T5Config {
                    text: self.text(T5Config::default().text),
                    num_decoder_layers: self.num_layers,
                    ..T5Config::default()
                };
                Box::new(T5::new(device, config, Head::CausalLm { tied: true }, blocks, builder)?)
            }
        })
    }

    fn bert(self) -> BertConfig {
        let text = self.text(BertConfig::default().text);
        BertConfig { text, classifier_dropout_p: self.dropout_p, ..BertConfig::default() }
    }

    /// The sizes and dropout.
    fn text(self, family: TextConfig) -> TextConfig {
        let Shape { num_layers, dim_model, num_heads, dim_ff, vocab_size, dropout_p, .. } = self;
        TextConfig {
            vocab_size,
            dim_model,
            num_heads,
            dim_head: dim_model / num_heads,
            dim_ff,
            num_layers,
            dropout_p,
            embedding_dropout_p: dropout_p,
            attention_dropout_p: dropout_p,
            ..family
        }
    }
}
