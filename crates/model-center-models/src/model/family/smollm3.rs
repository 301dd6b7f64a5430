//! SmolLM3 (Hugging Face, 2025): a Llama without positions in some layers, which may have sliding windows.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;
use std::collections::BTreeSet;

model_config! {
    /// Sizes and options of a SmolLM3.
    ///
    /// ModelCenter has no SmolLM: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: transformers 5.23.0, `models/smollm3`; Yang et al. 2025 for layers without positions.
    pub struct SmolLm3Config {
        /// The common fields.
        text: TextConfig {
            vocab_size: 128_256,
            dim_model: 2048,
            num_heads: 16,
            num_layers: 36,
            position_size: 32768,
            tied: true,
            pad_token_id: Some(128_004),
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 4, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding of the layers that have positions.
        rotary: RotaryFields = RotaryFields { base: 2_000_000.0, ..RotaryFields::PLAIN }, Rotary();
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
        /// Whether the feed-forward's linear layers have biases. Hugging Face: `mlp_bias`.
        ffn_bias: bool = false, Flag("mlp_bias" => "ffn_bias");
        /// Sliding windows; where a file does not list them, the layers without positions have them.
        windows: WindowFields = WindowFields { size: None, ..WindowFields::default() }, Windows();
        /// Where a file does not list them, every such layer has no positions.
        no_rope_layer_interval: usize = 4, Size("no_rope_layer_interval");
        /// Layers without positions, counted from 0. Hugging Face: `no_rope_layers`, which has a 1 for the others.
        without_positions: BTreeSet<usize> = every(4, 36);
    }
}

/// The last of every `interval` layers.
fn every(interval: usize, layers: usize) -> BTreeSet<usize> {
    (0..layers).filter(|layer| (layer + 1).is_multiple_of(interval)).collect()
}

impl RowConfig for SmolLm3Config {
    const DIALECT: Dialect = Dialect { class: None, title: "SmolLM3", model_type: "smollm3", ..LlamaConfig::DIALECT };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (listed, lists_windows) = (fields.take("no_rope_layers"), fields.peek("layer_types").is_some());
        let (mut config, _) = rows::take_config::<Self>(fields)?;
        let layers = config.text.num_layers;
        config.without_positions = match listed {
            None => every(config.no_rope_layer_interval, layers),
            Some(listed) => {
                let flags = listed.as_array().filter(|flags| flags.len() >= layers);
                let flags =
                    flags.and_then(|flags| flags.iter().map(|flag| flag.as_u64().filter(|f| *f <= 1)).collect());
                let Some(flags): Option<Vec<u64>> = flags else {
                    let reason = format!("this is not a list of {layers} numbers, each 0 or 1");
                    return Err(fields.error("no_rope_layers", &reason, "give a 0 for each layer without positions"));
                };
                (0..layers).filter(|layer| flags[*layer] == 0).collect()
            }
        };
        if !lists_windows {
            let has_windows = config.windows.is_used && config.windows.size.is_some();
            config.windows.layers = if has_windows { config.without_positions.clone() } else { BTreeSet::new() };
        }
        Ok(config)
    }

    fn adjust_dict(&self, map: &mut Map<String, Value>) {
        let flag = |layer| u8::from(!self.without_positions.contains(&layer));
        map.insert("no_rope_layers".to_owned(), (0..self.text.num_layers).map(flag).collect());
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        self.adjust_dict(map);
        Ok(())
    }
}

/// A SmolLM3 with its head.
pub type SmolLm3 = Transformer<SmolLm3Config>;

impl ModelFamily for SmolLm3Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("SmolLM3")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, BlockPlace { layer, .. }: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig {
            attention: AttentionConfig {
                bias: self.att_bias,
                out_bias: self.att_bias,
                window: self.windows.of(layer),
                rotary: block.attention.rotary.filter(|_| !self.without_positions.contains(&layer)),
                ..block.attention
            },
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
        model_type: "smollm3",
        doc: "SmolLM3 with heads for the next token and for classification",
        open: SmolLm3::open,
        facts: SmolLm3::FACTS,
    },
    class: None,
    class_prefix: "SmolLM3",
    signatures: &[llama::PLAIN],
};
