//! The configuration of Marian's models for translation.
//!
//! Defines [`MarianConfig`]; called by [`crate::model`]'s Marian and the binaries.

use serde_json::{Map, Value};

use super::dialect::Dialect;
use super::two_stacks::{self, TwoStacks};
use super::{Config, Fields, HfHeader, TextConfig};
use crate::Result;

/// The padding word, which is also the first of the decoder.
const PADDING: usize = 58_100;

/// Sizes and options of a Marian. ModelCenter has none; where a file has its names, sizes are those of a large one.
///
/// Source: Junczys-Dowmunt et al. 2018 for the program, transformers for fields and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct MarianConfig {
    /// All of it.
    pub stacks: TwoStacks,
}

/// How Marian's files are written.
const DIALECT: Dialect = Dialect {
    title: "Marian",
    model_type: "marian",
    hugging_face: defaults,
    model_center: defaults,
    ..two_stacks::DIALECT
};

/// What its files say of themselves since the days when they were BART's, and one word table for both languages.
const FLAGS: &[(&str, bool)] = &[
    ("normalize_before", false),
    ("normalize_embedding", false),
    ("add_final_layer_norm", false),
    ("static_position_embeddings", true),
    ("share_encoder_decoder_embeddings", true),
];

fn defaults() -> TextConfig {
    TextConfig { vocab_size: 58_101, pad_token_id: Some(PADDING), ..two_stacks::defaults() }
}

impl Default for MarianConfig {
    fn default() -> Self {
        MarianConfig { stacks: TwoStacks::of(defaults(), Some(PADDING)) }
    }
}

impl Config for MarianConfig {
    const MODEL_TYPE: &'static str = DIALECT.model_type;

    fn from_fields(fields: Fields) -> Result<Self> {
        let words = fields.peek_size("decoder_vocab_size")?;
        let both = fields.peek_size("vocab_size")?;
        if words.is_some_and(|words| both.is_some_and(|both| both != words)) {
            return Err(DIALECT.unsupported(&fields, "decoder_vocab_size", "vocab_size"));
        }
        Ok(MarianConfig { stacks: TwoStacks::take(&DIALECT, fields, FLAGS, Some(PADDING))? })
    }

    fn to_dict(&self) -> Map<String, Value> {
        self.stacks.to_dict(&DIALECT)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        self.stacks.to_hf_json(&DIALECT, header)
    }
}
