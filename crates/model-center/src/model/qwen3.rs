//! Qwen 3 (Yang et al., 2025): a Llama with norms of the heads of queries and keys, and windows in some layers.

use super::decoder::{Classes, DecoderFamily, DecoderHead, DecoderModel, Layout};
use super::llama;
use crate::config::{Qwen3Config, TextConfig};
use crate::formats::NameTable;
use crate::layer::{AttentionConfig, BlockConfig};
use bmtrain_dist::nn::norm::NormOptions;

/// A Qwen 3 with its head.
pub type Qwen3 = DecoderModel<Qwen3Config>;

impl DecoderFamily for Qwen3Config {
    const TITLE: &'static str = "Qwen 3";
    const CLASSES: Classes =
        Classes { base: "Qwen3Model", words: "Qwen3ForCausalLM", classifier: "Qwen3ForSequenceClassification" };

    fn text(&self) -> &TextConfig {
        &self.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.text
    }

    fn layout(&self) -> Layout {
        llama::layout(&self.text, self.rotary)
    }

    fn block(&self, layer: usize) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig {
            attention: AttentionConfig {
                bias: self.att_bias,
                out_bias: self.att_bias,
                window: self.windows.of(layer),
                head_norm: Some(NormOptions::rms(self.text.dim_head, self.text.norm_eps)),
                ..block.attention
            },
            ..block
        }
    }

    fn names(&self, head: DecoderHead) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head)
    }
}
