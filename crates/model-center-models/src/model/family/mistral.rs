//! Mistral (Jiang et al., 2023): a Llama with sliding-window attention.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Mistral.
    ///
    /// ModelCenter has no Mistral: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: Jiang et al. 2023 for the architecture.
    pub struct MistralConfig {
        /// The common fields.
        text: TextConfig { dim_ff: 14336, position_size: 131_072, ..LlamaConfig::default().text };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 8, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = LlamaConfig::default().rotary, Rotary();
        /// Size of the sliding window: the number of keys a token attends to, its own included; `None` for no limit.
        /// The default is 4096 if the file omits the field; `null` means no limit.
        sliding_window: Option<usize> = Some(4096), OptionalSize("sliding_window");
    }
}

impl RowConfig for MistralConfig {
    const DIALECT: Dialect = Dialect {
        title: "Mistral",
        model_type: "mistral",
        fixed: &[llama::FIXED, &[("att_bias", Fixed::Flag(false)), ("ffn_bias", Fixed::Flag(false))]],
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config(fields)?;
        Self::DIALECT.refuse_raised(fields, &["attention_bias", "mlp_bias"])?;
        if fields.peek("layer_types").is_some() {
            let reason = "a Mistral has one window for all layers";
            return Err(fields.error(
                "layer_types",
                reason,
                "remove it if all layers have that window; else this model is not available here",
            ));
        }
        Ok(config)
    }
}

/// A Mistral with its head.
pub type Mistral = Transformer<MistralConfig>;

impl ModelFamily for MistralConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Mistral")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig { attention: AttentionConfig { window: self.sliding_window, ..block.attention }, ..block }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head)
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "mistral",
        doc: "Mistral with heads for the next token and for classification",
        open: Mistral::open,
        facts: Mistral::FACTS,
    },
    class: None,
    class_prefix: "Mistral",
    signatures: &[llama::PLAIN],
};
