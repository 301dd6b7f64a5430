//! Mistral (Jiang et al., 2023): a Llama whose tokens see a window of keys.

use super::decoder::{Classes, DecoderFamily, DecoderHead, DecoderModel, Layout};
use super::llama;
use crate::config::{MistralConfig, TextConfig};
use crate::formats::NameTable;
use crate::layer::{AttentionConfig, BlockConfig};

/// A Mistral with its head.
pub type Mistral = DecoderModel<MistralConfig>;

impl DecoderFamily for MistralConfig {
    const TITLE: &'static str = "Mistral";
    const CLASSES: Classes =
        Classes { base: "MistralModel", words: "MistralForCausalLM", classifier: "MistralForSequenceClassification" };

    fn text(&self) -> &TextConfig {
        &self.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.text
    }

    fn layout(&self) -> Layout {
        llama::layout(&self.text, self.rotary)
    }

    fn block(&self, _layer: usize) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig { attention: AttentionConfig { window: self.sliding_window, ..block.attention }, ..block }
    }

    fn names(&self, head: DecoderHead) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head)
    }
}
