//! The configuration of BART.
//!
//! Defines [`BartConfig`]; called by [`crate::model`]'s BART and the binaries.

use serde_json::{Map, Value};

use super::dialect::Dialect;
use super::two_stacks::{self, TwoStacks};
use super::{Config, Fields, HfHeader};
use crate::Result;

/// The first word of its decoder is the one behind the last of a text.
const FIRST_WORD: usize = 2;

/// Sizes and options of a BART. ModelCenter has none; where a file has its names, sizes are those of BART-large.
///
/// Source: Lewis et al. 2019 for the architecture, transformers for fields and defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct BartConfig {
    /// All of it.
    pub stacks: TwoStacks,
}

/// How BART's files are written.
const DIALECT: Dialect = two_stacks::DIALECT;

/// What other models of those days were called BART with. transformers has stopped reading it.
const FLAGS: &[(&str, bool)] = &[
    ("normalize_before", false),
    ("normalize_embedding", true),
    ("add_final_layer_norm", false),
    ("static_position_embeddings", false),
];

impl Default for BartConfig {
    fn default() -> Self {
        BartConfig { stacks: TwoStacks::of(two_stacks::defaults(), Some(FIRST_WORD)) }
    }
}

impl Config for BartConfig {
    const MODEL_TYPE: &'static str = DIALECT.model_type;

    fn from_fields(fields: Fields) -> Result<Self> {
        Ok(BartConfig { stacks: TwoStacks::take(&DIALECT, fields, FLAGS, Some(FIRST_WORD))? })
    }

    fn to_dict(&self) -> Map<String, Value> {
        self.stacks.to_dict(&DIALECT)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        self.stacks.to_hf_json(&DIALECT, header)
    }
}
