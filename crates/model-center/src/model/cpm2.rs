//! CPM-2 (Zhang et al., 2021) as ModelCenter implements it: T5 with gated feed-forward layers. Linear layers, including
//! the heads, divide their input by the square root of its dimension; the embeddings are not scaled.
//!
//! ModelCenter treats the last relative position bucket as padding and never trains it. Here it is trained.

use super::cpm1::{block, relative};
use super::load;
use super::registry::{Family, ModelEntry};
use super::seq2seq::{Classes, EncoderDecoder, Layout, Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel};
use crate::config::cpm::{self, HasCpm};
use crate::config::dialect::Dialect;
use crate::config::model_center::{Class, RELATIVE};
use crate::config::ranges::Ranges;
use crate::config::rows::{ConfigRows, Row, RowConfig, Slot};
use crate::config::{CpmFields, Fields, TextConfig, encoder_decoder};
use crate::error::Result;
use crate::formats::{NameTable, model_center};
use crate::layer::BlockConfig;
use bmtrain_dist::nn::norm::NormOptions;
use serde_json::{Map, Value, json};

/// Sizes and options of a CPM-2.
///
/// Defaults are taken from ModelCenter's class, whose scales are off; its published model, `cpm2-large`, has both on,
/// and weights of variance one. A tied head and a classification head, which newer versions have, are not supported
/// here. Its 190 sentinels are ordinary tokens of the vocabulary.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/cpm2_config.py`.
#[derive(Debug, Clone, PartialEq)]
pub struct Cpm2Config {
    /// The fields of CPM-1; `num_layers` counts encoder blocks.
    pub cpm: CpmFields,
    /// Number of decoder blocks.
    pub num_decoder_layers: usize,
    /// The decoder start token, if the file specifies one. ModelCenter has no such field: its decoder gets its input as
    /// given, beginning with a sentinel.
    pub decoder_start_token_id: Option<usize>,
}

impl Default for Cpm2Config {
    fn default() -> Self {
        let cpm = CpmFields::default();
        let text = TextConfig { vocab_size: 26240, ..cpm.text };
        Cpm2Config { cpm: CpmFields { text, ..cpm }, num_decoder_layers: 12, decoder_start_token_id: None }
    }
}

impl ConfigRows for Cpm2Config {
    const ROWS: &'static [Row<Self>] = &{
        let [buckets, distance, init_std, length_scale, attn_scale] = cpm::rows();
        [
            buckets,
            distance,
            init_std,
            length_scale,
            attn_scale,
            Row::same(&["num_decoder_layers"], |c| Slot::Size(&mut c.num_decoder_layers)),
            Row::same(&["decoder_start_token_id"], |c| Slot::OptionalIndex(&mut c.decoder_start_token_id)),
        ]
    };

    fn text(&self) -> &TextConfig {
        &self.cpm.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.cpm.text
    }
}

impl RowConfig for Cpm2Config {
    const DIALECT: Dialect = cpm::dialect("CPM-2", "cpm2");

    fn read(fields: &mut Fields) -> Result<Self> {
        let states_layers = fields.peek("num_layers").is_some();
        let mut config: Self = cpm::take(fields)?;
        let text = &mut config.cpm.text;
        encoder_decoder::take_encoder_layers(fields, text, states_layers)?;
        // ModelCenter has two further heads, not supported here: a classifier, and a language-modelling head tied
        // to the embedding table without its scale.
        if text.tied {
            return Err(Self::DIALECT.unsupported(fields, "tied", "false"));
        }
        if text.cls_head.is_some() {
            return Err(Self::DIALECT.unsupported(fields, "cls_head", "null"));
        }
        let ranges = Ranges { place: fields.place() };
        ranges.sizes(&[("num_decoder_layers", config.num_decoder_layers)])?;
        ranges.decoder_start_token(config.decoder_start_token_id, text.vocab_size)?;
        Ok(config)
    }

    fn adjust_dict(&self, map: &mut Map<String, Value>) {
        cpm::adjust_dict(&self.cpm, map);
        map.shift_remove("num_layers");
        map.insert("num_encoder_layers".to_string(), json!(self.cpm.text.num_layers));
    }
}

impl HasCpm for Cpm2Config {
    fn cpm_mut(&mut self) -> &mut CpmFields {
        &mut self.cpm
    }
}

/// A CPM-2 with its head.
pub type Cpm2 = Seq2SeqModel<Cpm2Config>;

impl Seq2SeqFamily for Cpm2Config {
    const DROPS_EMBEDDINGS: bool = false;

    const BEGINS_WITH_SENTINELS: bool = true;

    /// Only directories of this crate use these class names, to name the model's head.
    fn classes(&self) -> Classes {
        Classes { base: "CPM2Model", words: "CPM2ForConditionalGeneration", classifier: None }
    }

    fn decoder_layers(&self) -> usize {
        self.num_decoder_layers
    }

    fn decoder_start_token(&self) -> Option<usize> {
        self.decoder_start_token_id
    }

    fn layout(&self) -> Layout {
        let text = &self.cpm.text;
        let output_norm = NormOptions::rms(text.dim_model, text.norm_eps);
        let head_factor = if self.cpm.length_scale { 1.0 / (text.dim_model as f32).sqrt() } else { 1.0 };
        Layout { head_factor, ..Layout::of_distances(relative(&self.cpm, true), output_norm, 0.0) }
    }

    fn encoder_block(&self) -> BlockConfig {
        block(&self.cpm)
    }

    fn decoder_block(&self) -> BlockConfig {
        block(&self.cpm).attending_to_encoder()
    }

    /// Only ModelCenter names its parameters.
    fn names(&self, _head: Seq2SeqHead) -> NameTable {
        let encoder = (&self.encoder_block(), self.cpm.text.num_layers);
        model_center::encoder_decoder(encoder, (&self.decoder_block(), self.num_decoder_layers))
    }

    fn names_of_model_center(&self) -> Option<NameTable> {
        Some(self.names(Seq2SeqHead::None))
    }
}

/// The registry entry.
pub(super) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "cpm2",
        doc: "CPM-2 with the head for the decoder's next token",
        open: load::open::<EncoderDecoder<Cpm2Config>>,
    },
    class: Some(Class {
        family: "cpm2",
        order: 10,
        title: "CPM-2",
        own: &["num_encoder_layers", "num_decoder_layers", RELATIVE[0], RELATIVE[1], RELATIVE[2], RELATIVE[3]],
        ..Class::DISTANCES
    }),
    class_prefix: "",
    signatures: &[],
};
