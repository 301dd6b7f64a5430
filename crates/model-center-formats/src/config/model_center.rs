//! ModelCenter's own `config.json`: which fields its classes of configurations take.
//!
//! A class there takes the fields of its constructor and no others: a file with one more does not open.
//! [`class_fields`] writes those; by [`Class`] the registry of families tells which family a file without `model_type`
//! is of. Source: the constructors in
//! `model_center/model/config`, version 1.0.3. A family's [`Dialect`](super::Dialect) has its
//! class.

use bmtrain_core::dtype::DType;
use serde_json::{Map, Value, json};

use super::{Config, Fields, HfHeader};
use crate::{Error, Result};

/// One class of configurations.
#[derive(Debug, Clone, Copy)]
pub struct Class {
    /// Our name of the family.
    pub family: &'static str,
    /// Place in a list of families that a file can be of: similar families are together.
    pub order: u8,
    /// The family's name for people.
    pub title: &'static str,
    /// Kind of position bias, which a file may repeat: `none`, `relative` or `rotary`.
    pub pos_bias_type: &'static str,
    /// Whether norms have a bias and subtract the mean (LayerNorm); without, RMSNorm.
    pub norm_bias: bool,
    /// Whether blocks are post-norm.
    pub post_layer_norm: bool,
    /// Text of the value for minus infinity.
    pub att_mask_value: &'static str,
    /// Whether attention projections, feed-forward projections and heads have biases, where a configuration
    /// does not state it; `None` for a class without heads of this kind.
    pub biases: (bool, bool, Option<bool>),
    /// Whether scores are divided by the root of H, where a configuration does not state it.
    pub attn_scale: bool,
    /// Fields that not all classes have.
    pub own: &'static [&'static str],
    /// Fields that are read and never written.
    pub read: &'static [&'static str],
}

/// Fields of all classes but ViT's.
const COMMON: &[&str] = &[
    "vocab_size",
    "dim_model",
    "num_heads",
    "dim_head",
    "dim_ff",
    "dropout_p",
    "emb_init_mean",
    "emb_init_std",
    "pos_bias_type",
    "norm_init_var",
    "norm_bias",
    "norm_eps",
    "att_init_mean",
    "att_init_std",
    "att_bias",
    "att_mask_value",
    "ffn_init_mean",
    "ffn_init_std",
    "ffn_bias",
    "ffn_activate_fn",
    "length_scale",
    "attn_scale",
    "half",
    "int8",
    "tied",
    "cls_head",
    "post_layer_norm",
];

/// Those that heads have, in all classes but OPT's.
const HEADS: &[&str] = &["proj_init_mean", "proj_init_std", "proj_bias"];

/// Fields of learned biases for ranges of distances.
pub const RELATIVE: [&str; 4] =
    ["position_bias_num_buckets", "position_bias_max_distance", "pos_init_mean", "pos_init_std"];

/// Names of ours that have none there: each equals `dropout_p`.
const RATES: [&str; 3] = ["embedding_dropout_p", "attention_dropout_p", "classifier_dropout_p"];

/// The functions that its feed-forward layers have.
const FUNCTIONS: [&str; 7] = ["relu", "gelu", "gelu_new", "gated_relu", "gated_gelu", "gated_gelu_new", "gated_silu"];

impl Class {
    /// Class of most encoders: post-norm blocks, learned positions.
    pub const POST_NORM: Class = Class {
        family: "",
        order: 0,
        title: "",
        pos_bias_type: "none",
        norm_bias: true,
        post_layer_norm: true,
        att_mask_value: "-1e4",
        biases: (true, true, Some(true)),
        attn_scale: true,
        own: &[],
        read: &[],
    };

    /// Class of most decoders: pre-norm blocks, learned positions.
    pub const PRE_NORM: Class = Class {
        post_layer_norm: false,
        biases: (true, true, Some(false)),
        own: &["num_layers", "position_size"],
        ..Class::POST_NORM
    };

    /// Class of models with biases for ranges of distances.
    pub const DISTANCES: Class = Class {
        pos_bias_type: "relative",
        norm_bias: false,
        att_mask_value: "-inf",
        biases: (false, false, Some(false)),
        attn_scale: false,
        own: &["num_layers", RELATIVE[0], RELATIVE[1], RELATIVE[2], RELATIVE[3]],
        ..Class::PRE_NORM
    };

    fn takes(&self, name: &str) -> bool {
        let heads = if self.biases.2.is_some() { HEADS } else { &[] };
        [COMMON, heads, self.own, self.read].iter().any(|list| list.contains(&name))
    }

    /// Constant value of a field where our configuration has no such option.
    fn constant(&self, name: &str) -> Option<Value> {
        let (attention, feed_forward, heads) = self.biases;
        Some(match name {
            "emb_init_mean" | "att_init_mean" | "ffn_init_mean" | "proj_init_mean" | "pos_init_mean" => json!(0.0),
            "norm_init_var" => json!(1.0),
            "pos_bias_type" => json!(self.pos_bias_type),
            "norm_bias" => json!(self.norm_bias),
            "post_layer_norm" => json!(self.post_layer_norm),
            "att_mask_value" => json!(self.att_mask_value),
            "att_bias" => json!(attention),
            "ffn_bias" => json!(feed_forward),
            "proj_bias" => json!(heads?),
            "attn_scale" => json!(self.attn_scale),
            "length_scale" | "int8" => json!(false),
            _ => return None,
        })
    }

    /// Whether a model of the family can have the values of the file.
    pub fn fits(&self, fields: &Fields) -> bool {
        let is = |name: &str, want: Value| fields.peek(name).is_none_or(|value| *value == want);
        is("pos_bias_type", json!(self.pos_bias_type))
            && is("norm_bias", json!(self.norm_bias))
            && is("post_layer_norm", json!(self.post_layer_norm))
            && fields.names().all(|name| self.takes(name))
    }
}

/// Whether the fields are ModelCenter's: sizes under its names, none under other ones, and no class of `transformers`.
pub fn is_model_center(fields: &Fields) -> bool {
    let own = ["dim_model", "dim_head", "dim_ff", "num_encoder_layers"];
    let others = ["hidden_size", "d_model", "n_embd", "architectures"];
    own.iter().any(|name| fields.has(name)) && !others.iter().any(|name| fields.has(name))
}

/// Fields that are written, and those that the class lacks.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassFields {
    /// The fields.
    pub map: Map<String, Value>,
    /// Names of fields of the configuration that are not among them, with what becomes of them.
    pub left_out: Vec<String>,
}

/// Fields of a configuration that the class of its family takes, with those that the class has besides.
///
/// Absent fields of a file have the family's defaults; where the configuration states no more, nothing is left
/// out. Only the type of the weights and whether there is a head for classes are taken from `header`.
///
/// # Errors
/// A family without a class; a type of weights that it does not compute in; a function that its layers do not have; a
/// head for classes of a class that has none.
pub fn class_fields<C: Config + Default>(config: &C, header: &HfHeader) -> Result<ClassFields> {
    let (family, dict, silent) = (C::MODEL_TYPE, config.to_dict(), C::default().to_dict());
    // A dialect made of another family's has that family's class.
    let class = C::DIALECT.class.filter(|class| class.family == family);
    let Some(class) = class else { return Err(no_model_center(family)) };
    let refuse = |reason: String, fix: &str| {
        Err(Error::model(format!("{} in ModelCenter's layout", class.title), reason, fix.to_owned()))
    };
    let half = match header.dtype {
        DType::F32 => false,
        DType::F16 => true,
        other => {
            let reason = format!("ModelCenter computes in f32 or f16, and in no {other}");
            return refuse(reason, "write the weights as f32 or f16");
        }
    };
    if let Some(function) = dict.get("ffn_activate_fn").and_then(Value::as_str).filter(|f| !FUNCTIONS.contains(f)) {
        return refuse(
            format!("its feed-forward layers have no {function}"),
            "write the model as a Hugging Face directory",
        );
    }
    let classifies = header.architecture.ends_with("ForSequenceClassification");
    if classifies && class.biases.2.is_none() {
        return refuse("it has no head for classes".into(), "write the model as a Hugging Face directory");
    }
    let mut map = Map::new();
    let heads = if class.biases.2.is_some() { HEADS } else { &[] };
    for &name in COMMON.iter().chain(heads).chain(class.own) {
        let value = match name {
            "half" => Some(json!(half)),
            "cls_head" => Some(if classifies { dict.get(name).cloned().unwrap_or_default() } else { Value::Null }),
            _ => dict.get(name).cloned().or_else(|| class.constant(name)),
        };
        map.extend(value.map(|value| (name.to_owned(), value)));
    }
    let rate = dict.get("dropout_p");
    let is_said = |name: &str, value: &Value| {
        let meant = if RATES.contains(&name) { rate } else { silent.get(name) };
        let is_meant = meant == Some(value);
        name == "model_type" || name == "label2id" || is_meant || value.is_null() || map.contains_key(name)
    };
    let left_out = dict.iter().filter(|(name, value)| !is_said(name, value)).map(|(name, _)| name.clone()).collect();
    Ok(ClassFields { map, left_out })
}

/// The error for a family that has no names in ModelCenter's files; `title` is its name for people.
pub fn no_model_center(title: &str) -> Error {
    let reason = format!("a {title} like this is not written in ModelCenter's layout");
    Error::model("the directory to write", reason, "write it in Hugging Face's layout")
}
