//! What the configurations of CPM-1 and CPM-2 have in common.
//!
//! Defines [`CpmFields`]; called by the two [`Config`](super::Config)s. Only ModelCenter has these families, so there
//! is one dialect: its own, to which a written directory adds `model_type`, `architectures` and the type of the
//! weights.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, FixedFields};
use super::json::number;
use super::ranges::Ranges;
use super::t5::UNLIMITED;
use super::{Fields, HfHeader, TextConfig, labels};
use crate::Result;

/// Sizes and options that both CPMs have.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/cpm1_config.py` and `cpm2_config.py`; Zhang et al. 2021 (CPM
/// and CPM-2) for the models.
#[derive(Debug, Clone, PartialEq)]
pub struct CpmFields {
    /// What all families have. Nothing of the embeddings is dropped. The longest sequence bounds no table, and files
    /// need not state it: `position_size`.
    pub text: TextConfig,
    /// Ranges of distances.
    pub position_bias_num_buckets: usize,
    /// Distances from here on share the last range.
    pub position_bias_max_distance: usize,
    /// Standard deviation of the ranges' initial values.
    pub pos_init_std: f32,
    /// Divide what enters a linear map by the root of its length. Weights are of variance one then, whatever the sizes.
    pub length_scale: bool,
    /// Divide the scores of attention by the root of a head's length.
    pub attn_scale: bool,
}

impl Default for CpmFields {
    fn default() -> Self {
        let text = TextConfig {
            vocab_size: 30968,
            dim_ff: 1920,
            position_size: UNLIMITED,
            norm_eps: 1e-6,
            ffn_gated: true,
            ..TextConfig::default()
        };
        CpmFields {
            text,
            position_bias_num_buckets: 32,
            position_bias_max_distance: 128,
            pos_init_std: 1.0,
            length_scale: false,
            attn_scale: false,
        }
    }
}

/// Fields that have one value in both families.
const FIXED: FixedFields = &[
    ("norm_bias", Fixed::Flag(false)),
    ("att_bias", Fixed::Flag(false)),
    ("ffn_bias", Fixed::Flag(false)),
    ("proj_bias", Fixed::Flag(false)),
    ("post_layer_norm", Fixed::Flag(false)),
    ("pos_bias_type", Fixed::Text("relative")),
];

/// How the files of one of them are written; `defaults` are those of its class.
pub(super) const fn dialect(title: &'static str, model_type: &'static str, defaults: fn() -> TextConfig) -> Dialect {
    Dialect {
        title,
        model_type,
        dim_model: &[],
        num_layers: &[],
        num_heads: &[],
        dim_ff: &[],
        ff_factor: None,
        dim_head: &[],
        position_size: &[],
        dropout: &[],
        embedding_dropout: &[],
        attention_dropout: &[],
        init_std: &[],
        norm_eps: &[],
        activation: &[],
        gated: None,
        hugging_face: defaults,
        model_center: defaults,
        fixed: &[FIXED],
    }
}

impl CpmFields {
    /// Take what both families have.
    pub(super) fn take(dialect: &Dialect, fields: &mut Fields) -> Result<Self> {
        dialect.take_no_embedding_dropout(fields)?;
        let (mut text, _) = dialect.take(fields)?;
        text.embedding_dropout_p = 0.0;
        let silent = CpmFields::default();
        let mut size = |name: &str, silent: usize| Ok::<_, crate::Error>(fields.take_size(name)?.unwrap_or(silent));
        let position_bias_num_buckets = size("position_bias_num_buckets", silent.position_bias_num_buckets)?;
        let position_bias_max_distance = size("position_bias_max_distance", silent.position_bias_max_distance)?;
        let pos_init_std = fields.take_number("pos_init_std")?.unwrap_or(silent.pos_init_std);
        let length_scale = fields.take_flag("length_scale")?.unwrap_or(silent.length_scale);
        let attn_scale = fields.take_flag("attn_scale")?.unwrap_or(silent.attn_scale);
        let taken = CpmFields {
            text,
            position_bias_num_buckets,
            position_bias_max_distance,
            pos_init_std,
            length_scale,
            attn_scale,
        };
        taken.validate(fields.place())?;
        Ok(taken)
    }

    fn validate(&self, place: &str) -> Result<()> {
        let ranges = Ranges { place };
        ranges.deviations(&[("pos_init_std", self.pos_init_std)])?;
        let distances = [self.position_bias_num_buckets, self.position_bias_max_distance];
        ranges.distances(distances, ["position_bias_num_buckets", "position_bias_max_distance"])
    }

    /// The fields under ModelCenter's names.
    pub(super) fn to_dict(&self, dialect: &Dialect) -> Map<String, Value> {
        let mut map = dialect.to_dict(&self.text);
        // There is one rate, and it is not of the embeddings.
        map.shift_remove("embedding_dropout_p");
        if self.text.position_size == UNLIMITED {
            map.shift_remove("position_size");
        }
        for (name, value) in [
            ("position_bias_num_buckets", json!(self.position_bias_num_buckets)),
            ("position_bias_max_distance", json!(self.position_bias_max_distance)),
            ("pos_init_std", number(self.pos_init_std)),
            ("length_scale", json!(self.length_scale)),
            ("attn_scale", json!(self.attn_scale)),
        ] {
            map.insert(name.to_string(), value);
        }
        map
    }

    /// A family's fields with what a directory of ours says beyond them.
    pub(super) fn with_header(&self, mut map: Map<String, Value>, header: &HfHeader) -> Result<Map<String, Value>> {
        map.insert("architectures".to_string(), json!([header.architecture]));
        map.insert("torch_dtype".to_string(), json!(header.torch_dtype()?));
        labels::write_counted(&self.text.labels, self.text.cls_head, self.text.problem_type, &mut map);
        map.sort_keys();
        Ok(map)
    }
}
