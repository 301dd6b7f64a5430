//! Code World Model (Meta, 2025): a Llama with sliding windows in three of four layers.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;
use std::collections::BTreeSet;

model_config! {
    /// Sizes and options of a Code World Model.
    ///
    /// ModelCenter has none: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: transformers 5.23.0, `models/cwm`.
    pub struct CwmConfig {
        /// The common fields.
        text: TextConfig {
            vocab_size: 128_256,
            dim_model: 6144,
            num_heads: 48,
            dim_ff: 21504,
            num_layers: 64,
            position_size: 131_072,
            norm_eps: 1e-5,
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 8, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = RotaryFields { base: 1e6, share: 1.0, scaling: SCALING }, Rotary();
        /// Whether the feed-forward's linear layers have biases. Hugging Face: `mlp_bias`.
        ffn_bias: bool = false, Flag("mlp_bias" => "ffn_bias");
        /// Sliding windows; where a file does not list them, of all layers but the first of each four.
        windows: WindowFields = WindowFields {
            is_used: true,
            size: Some(8192),
            max_window_layers: 0,
            layers: after_each_fourth(64),
        }, Windows();
    }
}

/// The stretched angles where a file states none.
const SCALING: RotaryScaling = RotaryScaling::Llama3 { factor: 16.0, low: 1.0, high: 4.0, trained: 8192 };

/// All layers but those whose number is a multiple of 4.
fn after_each_fourth(layers: usize) -> BTreeSet<usize> {
    (0..layers).filter(|layer| !layer.is_multiple_of(4)).collect()
}

impl RowConfig for CwmConfig {
    const DIALECT: Dialect = Dialect {
        class: None,
        title: "CWM",
        model_type: "cwm",
        fixed: &[llama::FIXED, &[("att_bias", Fixed::Flag(false))]],
        // The default of transformers is 128, whatever the other sizes are.
        head_required: true,
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        llama::require_windows::<Self>(fields)?;
        if ["rope_parameters", "rope_scaling"].iter().all(|name| fields.peek(name).is_none()) {
            if fields.peek("rope_theta").and_then(Value::as_f64).is_some_and(|base| base != 1e6) {
                let reason = "without rope_parameters transformers takes 1000000 and stretched angles all the same";
                return Err(fields.error("rope_theta", reason, "state it in rope_parameters, with rope_type"));
            }
            let (positions, mut silent) = (Self::default().text.position_size, Map::new());
            Self::default().rotary.write(positions, &mut silent);
            fields.set("rope_parameters", silent.shift_remove("rope_parameters").unwrap_or_default());
        }
        let lists_windows = fields.peek("layer_types").is_some();
        let (mut config, _) = rows::take_config::<Self>(fields)?;
        Self::DIALECT.refuse_raised(fields, &["attention_bias"])?;
        if !lists_windows && config.windows.size.is_some() {
            config.windows.layers = after_each_fourth(config.text.num_layers);
        }
        Ok(config)
    }
}

/// A Code World Model with its head.
pub type Cwm = Transformer<CwmConfig>;

impl ModelFamily for CwmConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::language_model("Cwm")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig {
            attention: AttentionConfig { window: self.windows.of(place.layer), ..block.attention },
            ffn: FeedForwardConfig { bias: self.ffn_bias, ..block.ffn },
            ..block
        }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head)
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "cwm",
        doc: "Code World Model with a head for the next token",
        open: Cwm::open,
        facts: Cwm::FACTS,
    },
    class: None,
    class_prefix: "Cwm",
    signatures: &[llama::PLAIN],
};
