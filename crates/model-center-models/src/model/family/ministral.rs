//! Ministral (Mistral AI, 2024): a Llama with sliding windows in all layers, or in listed ones.

use super::llama::{self, LlamaConfig};
use super::mistral::MistralConfig;
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Ministral.
    ///
    /// ModelCenter has no Ministral: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: transformers 5.23.0, `models/ministral`.
    pub struct MinistralConfig {
        /// The common fields.
        text: MistralConfig::default().text;
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 8, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = LlamaConfig::default().rotary, Rotary();
        /// Sliding windows; where a file does not list them, all layers have them if it states a size.
        windows: WindowFields = WindowFields {
            is_used: true,
            size: Some(4096),
            max_window_layers: 0,
            layers: (0..32).collect(),
        }, Windows();
    }
}

impl RowConfig for MinistralConfig {
    const DIALECT: Dialect = Dialect {
        class: None,
        title: "Ministral",
        model_type: "ministral",
        // Transformers cannot open a file without it.
        head_required: true,
        ..MistralConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        llama::require_windows::<Self>(fields)?;
        let (config, _) = rows::take_config(fields)?;
        Self::DIALECT.refuse_raised(fields, &["attention_bias", "mlp_bias"])?;
        Ok(config)
    }
}

/// A Ministral with its head.
pub type Ministral = Transformer<MinistralConfig>;

impl ModelFamily for MinistralConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Ministral")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig { attention: AttentionConfig { window: self.windows.of(place.layer), ..block.attention }, ..block }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head)
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "ministral",
        doc: "Ministral with heads for the next token and for classification",
        open: Ministral::open,
        facts: Ministral::FACTS,
    },
    class: None,
    class_prefix: "Ministral",
    signatures: &[llama::PLAIN],
};
