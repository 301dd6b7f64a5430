//! Qwen 2 and 2.5 (Yang et al., 2024): a Llama with biases of queries, keys and values, and windows in some layers.

use super::decoder::{Classes, DecoderFamily, DecoderHead, DecoderModel, Layout};
use super::llama;
use crate::config::{Qwen2Config, TextConfig};
use crate::formats::NameTable;
use crate::layer::{AttentionConfig, BlockConfig};

/// A Qwen 2 with its head.
pub type Qwen2 = DecoderModel<Qwen2Config>;

impl DecoderFamily for Qwen2Config {
    const TITLE: &'static str = "Qwen 2";
    const CLASSES: Classes =
        Classes { base: "Qwen2Model", words: "Qwen2ForCausalLM", classifier: "Qwen2ForSequenceClassification" };

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
            attention: AttentionConfig { bias: true, window: self.windows.of(layer), ..block.attention },
            ..block
        }
    }

    fn names(&self, head: DecoderHead) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head)
    }
}
