//! Which family a ModelCenter `config.json` without `model_type` is of, by the fields of its class.
//!
//! Called by [`super::registry`].

use crate::model::family::FAMILIES;
use model_center_formats::config::{Fields, model_center::Class};

/// Classes of text models whose families are not supported.
const OTHERS: &[Class] = &[
    Class {
        family: "longformer",
        order: 2,
        title: "Longformer",
        own: &["type_size", "num_layers", "position_size", "pad_token_id"],
        read: &["position_bias_max_distance", "sep_tok_id", "attention_window"],
        ..Class::POST_NORM
    },
    Class {
        family: "glm",
        order: 7,
        title: "GLM",
        att_mask_value: "-inf",
        read: &["sop_tok_id", "eop_tok_id", "mask_tok_id"],
        ..Class::PRE_NORM
    },
    Class {
        family: "cpm3",
        order: 11,
        title: "CPM-3",
        read: &[
            "prompt_types",
            "prompt_length",
            "segment_types",
            "max_exact_rate",
            "max_distance_rate",
            "absolute_inner_segment",
        ],
        ..Class::DISTANCES
    },
];

/// All classes, each once: families may share one.
fn classes() -> impl Iterator<Item = &'static Class> {
    let known = FAMILIES.iter().filter_map(|f| f.class.as_ref().filter(|class| class.family == f.entry.model_type));
    known.chain(OTHERS)
}

fn class(family: &str) -> Option<&'static Class> {
    let known = FAMILIES.iter().find(|known| known.entry.model_type == family);
    known.and_then(|known| known.class.as_ref()).or_else(|| OTHERS.iter().find(|class| class.family == family))
}

/// The families whose class takes all these fields and can have their values. ModelCenter's files do not name theirs.
pub(in crate::model) fn candidates(fields: &Fields) -> Vec<&'static str> {
    let mut fitting: Vec<_> = classes().filter(|class| class.fits(fields)).collect();
    fitting.sort_by_key(|class| class.order);
    fitting.into_iter().map(|class| class.family).collect()
}

/// Whether a file can be one of this family.
pub(in crate::model) fn can_be(fields: &Fields, family: &str) -> bool {
    class(family).is_some_and(|class| class.fits(fields))
}
