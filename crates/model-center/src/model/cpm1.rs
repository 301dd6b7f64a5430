//! CPM-1 (Zhang et al., 2021) as ModelCenter implements it: a decoder whose sequences may begin with a context with
//! bidirectional attention and may pack several texts as spans; RMS norms, gated feed-forward layers, one table of
//! relative position biases shared by all blocks, and linear layers that divide their input by the square root of its
//! dimension.
//!
//! ModelCenter treats the last relative position bucket as padding and never trains it. Here it is trained.

use super::block::block_without_biases;
use super::decoder::{Classes, Decoder, DecoderFamily, DecoderHead, DecoderModel, Layout};
use super::load;
use super::registry::{Family, ModelEntry};
use crate::config::cpm::{self, HasCpm};
use crate::config::dialect::Dialect;
use crate::config::model_center::Class;
use crate::config::rows::{ConfigRows, Row, RowConfig};
use crate::config::{CpmFields, Fields, TextConfig};
use crate::error::Result;
use crate::formats::{NameTable, Rule, model_center};
use crate::layer::position::RelativeConfig;
use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, PositionsConfig};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use serde_json::{Map, Value};

/// Sizes and options of a CPM-1.
///
/// Defaults are taken from ModelCenter's class, whose scales are off; its published model, `cpm1-large`, has both on,
/// a tied head, and weights of variance one.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/cpm1_config.py`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cpm1Config {
    /// All fields.
    pub cpm: CpmFields,
}

impl ConfigRows for Cpm1Config {
    const ROWS: &'static [Row<Self>] = &cpm::rows();

    fn text(&self) -> &TextConfig {
        &self.cpm.text
    }

    fn text_mut(&mut self) -> &mut TextConfig {
        &mut self.cpm.text
    }
}

impl RowConfig for Cpm1Config {
    const DIALECT: Dialect = cpm::dialect("CPM-1", "cpm1");

    fn read(fields: &mut Fields) -> Result<Self> {
        cpm::take(fields)
    }

    fn adjust_dict(&self, map: &mut Map<String, Value>) {
        cpm::adjust_dict(&self.cpm, map);
    }
}

impl HasCpm for Cpm1Config {
    fn cpm_mut(&mut self) -> &mut CpmFields {
        &mut self.cpm
    }
}

/// A CPM-1 with its head.
pub type Cpm1 = DecoderModel<Cpm1Config>;

impl DecoderFamily for Cpm1Config {
    /// Only directories of this crate use these class names, to name the model's head.
    const CLASSES: Classes =
        Classes { base: "CPM1Model", words: "CPM1ForCausalLM", classifier: "CPM1ForSequenceClassification" };
    const HAS_SPANS: bool = true;

    fn layout(&self) -> Layout {
        let text = &self.cpm.text;
        // Keys after the query have relative position buckets of their own even without a context.
        let positions = PositionsConfig::Relative(relative(&self.cpm, true));
        Layout {
            padding_learns: true,
            length_scale: self.cpm.length_scale,
            ..Layout::new(text.dim_model, positions, NormOptions::rms(text.dim_model, text.norm_eps))
        }
    }

    fn block(&self, _layer: usize) -> BlockConfig {
        let block = block(&self.cpm);
        BlockConfig { attention: AttentionConfig { causal: true, ..block.attention }, ..block }
    }

    /// Only ModelCenter names its parameters.
    fn names(&self, _head: DecoderHead) -> NameTable {
        let (block, layers) = (self.block(0), self.cpm.text.num_layers);
        let mut rules = model_center::decoder_heads();
        rules.push(Rule::new("decoder.relative_attention_bias.weight", "position_bias.relative_attention_bias"));
        let stack = model_center::Stack { ours: "decoder", theirs: "encoder", block: &block, layers };
        model_center::table(&[stack], rules)
    }

    fn names_of_model_center(&self) -> Option<NameTable> {
        Some(self.names(DecoderHead::None))
    }
}

/// Relative position biases.
pub(super) fn relative(cpm: &CpmFields, bidirectional: bool) -> RelativeConfig {
    RelativeConfig {
        heads: cpm.text.num_heads,
        buckets: cpm.position_bias_num_buckets,
        max_distance: cpm.position_bias_max_distance,
        bidirectional,
        init: Init::normal(cpm.pos_init_std),
    }
}

/// A block with bidirectional attention.
pub(super) fn block(cpm: &CpmFields) -> BlockConfig {
    let (length_scale, block) = (cpm.length_scale, block_without_biases(&cpm.text));
    let scale = if cpm.attn_scale { block.attention.scale } else { 1.0 };
    BlockConfig {
        attention: AttentionConfig { scale, length_scale, ..block.attention },
        ffn: FeedForwardConfig { length_scale, ..block.ffn },
        ..block
    }
}

/// The registry entry.
pub(super) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "cpm1",
        doc: "CPM-1 with heads for the next token and for classification",
        open: load::open::<Decoder<Cpm1Config>>,
    },
    class: Some(Class { family: "cpm1", order: 9, title: "CPM-1", ..Class::DISTANCES }),
    class_prefix: "",
    signatures: &[],
};
