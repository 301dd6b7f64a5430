//! OLMo 3 (Ai2, 2025): an OLMo 2 with sliding windows in three of four layers, and rotary positions by kinds of layers.

use super::llama;
use super::olmo2::{self, Olmo2Config};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of an OLMo 3.
    ///
    /// ModelCenter has no OLMo: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: transformers 5.23.0, `models/olmo3`.
    pub struct Olmo3Config {
        /// The common fields.
        text: Olmo2Config::default().text;
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 32, KvHeads("num_key_value_heads" => "num_heads_kv");
        /// Rotary embeddings of layers with and without a window.
        rotary: LayerRotary = LayerRotary::of_bases(500_000.0, 500_000.0), LayerRotary("rope_theta");
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
        /// Sliding windows; where a file does not list them, of three of four layers.
        windows: LayerWindows = LayerWindows::all_but_last(4, 4096), LayerWindows("sliding_window");
    }
}

impl RowConfig for Olmo3Config {
    const DIALECT: Dialect = Dialect { title: "OLMo 3", model_type: "olmo3", ..Olmo2Config::DIALECT };

    fn read(fields: &mut Fields) -> Result<Self> {
        llama::refuse_no_windows::<Self>(fields)?;
        let (config, _) = rows::take_config::<Self>(fields)?;
        Self::DIALECT.refuse_raised(fields, &["mlp_bias"])?;
        Ok(config)
    }
}

/// An OLMo 3 with its head.
pub type Olmo3 = Transformer<Olmo3Config>;

impl ModelFamily for Olmo3Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Olmo3")
    }

    fn spec(&self) -> Spec {
        llama::spec_of_tables(self, self.rotary.of_heads(self.text.dim_head))
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = olmo2::block(&self.text, self.num_heads_kv, self.att_bias);
        let window = self.windows.of(place.layer);
        let table = usize::from(window.is_some());
        let rotary = block.attention.rotary.map(|rotary| RotaryHeads { table, ..rotary });
        BlockConfig { attention: AttentionConfig { window, rotary, ..block.attention }, ..block }
    }

    fn names(&self, head: Head) -> NameTable {
        olmo2::names(&self.text, self.num_heads_kv, head)
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "olmo3",
        doc: "OLMo 3 with heads for the next token and for classification",
        open: Olmo3::open,
        facts: Olmo3::FACTS,
    },
    class: None,
    class_prefix: "Olmo3",
    signatures: &[olmo2::SIGNATURE],
};
