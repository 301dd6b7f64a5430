//! The configuration of CPM-2.
//!
//! Defines [`Cpm2Config`]; called by [`crate::model`]'s CPM-2 and the binaries.

use serde_json::{Map, Value, json};

use super::dialect::Dialect;
use super::ranges::Ranges;
use super::t5::take_encoder_layers;
use super::{ClassFields, Config, CpmFields, Fields, HfHeader, TextConfig, model_center};
use crate::Result;

/// Sizes and options of a CPM-2.
///
/// Defaults are those of ModelCenter's class, whose scales are off; its published model, `cpm2-large`, has both on, and
/// weights of variance one. A tied head and one for classes, which newer versions have, are not supported here. Its 190
/// sentinels are words of the vocabulary like others.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/cpm2_config.py`.
#[derive(Debug, Clone, PartialEq)]
pub struct Cpm2Config {
    /// What CPM-1 has too; `num_layers` are the encoder's.
    pub cpm: CpmFields,
    /// Blocks of the decoder.
    pub num_decoder_layers: usize,
    /// The word in front of the first that the decoder is to predict, if the file says. ModelCenter has no such field:
    /// there the decoder reads what it is given, and begins with a sentinel.
    pub decoder_start_token_id: Option<usize>,
}

const DIALECT: Dialect = super::cpm::dialect("CPM-2", Cpm2Config::MODEL_TYPE, || Cpm2Config::default().cpm.text);

impl Default for Cpm2Config {
    fn default() -> Self {
        let cpm = CpmFields::default();
        let text = TextConfig { vocab_size: 26240, ..cpm.text };
        Cpm2Config { cpm: CpmFields { text, ..cpm }, num_decoder_layers: 12, decoder_start_token_id: None }
    }
}

impl Config for Cpm2Config {
    const MODEL_TYPE: &'static str = "cpm2";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let states_layers = fields.peek("num_layers").is_some();
        let mut cpm = CpmFields::take(&DIALECT, &mut fields)?;
        take_encoder_layers(&mut fields, &mut cpm.text, states_layers)?;
        let silent = Self::default().num_decoder_layers;
        let num_decoder_layers = fields.take_size("num_decoder_layers")?.unwrap_or(silent);
        let decoder_start_token_id = fields.take_index("decoder_start_token_id")?;
        // ModelCenter has more heads than are supported here: one for classes, and for words the table without its
        // scale.
        if cpm.text.tied {
            return Err(DIALECT.unsupported(&fields, "tied", "false"));
        }
        if cpm.text.cls_head.is_some() {
            return Err(DIALECT.unsupported(&fields, "cls_head", "null"));
        }
        let ranges = Ranges { place: fields.place() };
        ranges.sizes(&[("num_decoder_layers", num_decoder_layers)])?;
        ranges.first_word(decoder_start_token_id, cpm.text.vocab_size)?;
        DIALECT.finish(fields, &mut cpm.text)?;
        Ok(Cpm2Config { cpm, num_decoder_layers, decoder_start_token_id })
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = self.cpm.to_dict(&DIALECT);
        map.shift_remove("num_layers");
        map.insert("num_encoder_layers".to_string(), json!(self.cpm.text.num_layers));
        map.insert("num_decoder_layers".to_string(), json!(self.num_decoder_layers));
        map.insert("decoder_start_token_id".to_string(), json!(self.decoder_start_token_id));
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        model_center::class_fields(self, header)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        self.cpm.with_header(self.to_dict(), header)
    }
}
