//! What the configurations of CPM-1 and CPM-2 have in common.
//!
//! Defines [`CpmFields`]; called by the two [`Config`](super::Config)s. Only ModelCenter has these families, so there
//! is one dialect: its own, to which a written directory adds `model_type`, `architectures` and the type of the
//! weights.

use serde_json::{Map, Value};

use super::dialect::{Dialect, Fixed};
use super::ranges::Ranges;
use super::rows::{self, Row, RowConfig, Slot};
use super::text::UNLIMITED;
use super::{Fields, TextConfig};
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

/// How the files of one of them are written.
pub(crate) const fn dialect(title: &'static str, model_type: &'static str) -> Dialect {
    Dialect {
        title,
        model_type,
        fixed: &[
            Fixed::NO_BIASES,
            &[("post_layer_norm", Fixed::Flag(false)), ("pos_bias_type", Fixed::Text("relative"))],
        ],
        ..Dialect::MODEL_CENTER
    }
}

/// A configuration with these fields.
pub(crate) trait HasCpm: RowConfig {
    fn cpm_mut(&mut self) -> &mut CpmFields;
}

/// The rows of both families.
pub(crate) const fn rows<C: HasCpm>() -> [Row<C>; 5] {
    [
        Row::same(&["position_bias_num_buckets"], |c| Slot::Size(&mut c.cpm_mut().position_bias_num_buckets)),
        Row::same(&["position_bias_max_distance"], |c| Slot::Size(&mut c.cpm_mut().position_bias_max_distance)),
        Row::same(&["pos_init_std"], |c| Slot::Number(&mut c.cpm_mut().pos_init_std)),
        Row::same(&["length_scale"], |c| Slot::Flag(&mut c.cpm_mut().length_scale)),
        Row::same(&["attn_scale"], |c| Slot::Flag(&mut c.cpm_mut().attn_scale)),
    ]
}

/// Take a configuration of either family, all but what it has of its own.
pub(crate) fn take<C: HasCpm>(fields: &mut Fields) -> Result<C> {
    C::DIALECT.take_no_embedding_dropout(fields)?;
    let (mut config, _) = rows::take_config::<C>(fields)?;
    let cpm = config.cpm_mut();
    cpm.text.embedding_dropout_p = 0.0;
    let ranges = Ranges { place: fields.place() };
    ranges.deviations(&[("pos_init_std", cpm.pos_init_std)])?;
    let distances = [cpm.position_bias_num_buckets, cpm.position_bias_max_distance];
    ranges.distances(distances, ["position_bias_num_buckets", "position_bias_max_distance"])?;
    Ok(config)
}

/// Leave out what both families' files do not have: a rate of the embeddings, and a length that bounds nothing.
pub(crate) fn adjust_dict(cpm: &CpmFields, map: &mut Map<String, Value>) {
    map.shift_remove("embedding_dropout_p");
    if cpm.text.position_size == UNLIMITED {
        map.shift_remove("position_size");
    }
}
