//! The configuration of T5 and mT5.
//!
//! Defines [`T5Config`]; called by [`crate::model`]'s T5 and the binaries.

use bmtrain_core::dtype::DType;
use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::activations::{self, Between};
use super::dialect::{Dialect, Fixed, Spoken};
use super::json::number;
use super::ranges::Ranges;
use super::{ClassFields, Config, Fields, HfHeader, TextConfig, model_center};
use crate::{Error, Result};

/// Positions are distances, of which there are as many as a row has: the largest size that a configuration may state.
pub(super) const UNLIMITED: usize = 1 << 28;

/// Which of the two it is: they differ in names and defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum T5Kind {
    /// T5 1.0 and 1.1, FLAN-T5 and what derives from them.
    T5,
    /// The multilingual one, which is built as T5 1.1.
    MT5,
}

impl T5Kind {
    /// Its name in `model_type`.
    pub const fn model_type(self) -> &'static str {
        match self {
            T5Kind::T5 => "t5",
            T5Kind::MT5 => "mt5",
        }
    }

    const fn dialect(self) -> &'static Dialect {
        match self {
            T5Kind::T5 => &T5,
            T5Kind::MT5 => &MT5,
        }
    }
}

/// What the decoder's states in front of the head for words are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadScale {
    /// Nothing. ModelCenter: no `scale`.
    One,
    /// 1 / √D. Hugging Face: `scale_decoder_outputs`; files that do not have it mean that a tied head is scaled.
    Root,
    /// 100 / √D. ModelCenter: `scale`, for the words of T5 1.0, which its converter divides by 100.
    HundredRoot,
}

impl HeadScale {
    /// The factor.
    pub fn factor(self, dim_model: usize) -> f32 {
        let root = (dim_model as f32).sqrt();
        match self {
            HeadScale::One => 1.0,
            HeadScale::Root => 1.0 / root,
            HeadScale::HundredRoot => 100.0 / root,
        }
    }
}

/// Sizes and options of a T5.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/t5_config.py`; Raffel et al. 2020 for the architecture. New
/// values are drawn as ModelCenter draws them; `initializer_factor` of transformers is kept and means nothing here.
#[derive(Debug, Clone, PartialEq)]
pub struct T5Config {
    /// T5 or mT5.
    pub kind: T5Kind,
    /// What all families have; `num_layers` are the encoder's.
    pub text: TextConfig,
    /// Blocks of the decoder.
    pub num_decoder_layers: usize,
    /// Ranges of distances. Hugging Face: `relative_attention_num_buckets`.
    pub position_bias_num_buckets: usize,
    /// Distances from here on share the last range. Hugging Face: `relative_attention_max_distance`.
    pub position_bias_max_distance: usize,
    /// Standard deviation of the ranges' initial values.
    pub pos_init_std: f32,
    /// What states in front of the head are multiplied with.
    pub scale: HeadScale,
    /// The word in front of the first that the decoder is to predict, if the file says.
    pub decoder_start_token_id: Option<usize>,
}

/// How T5's files are written.
const T5: Dialect = Dialect {
    title: "T5",
    model_type: T5Kind::T5.model_type(),
    dim_model: &["d_model", "hidden_size"],
    num_layers: &["num_layers", "num_hidden_layers"],
    num_heads: &["num_heads", "num_attention_heads"],
    dim_ff: &["d_ff"],
    ff_factor: None,
    dim_head: &["d_kv", "head_dim"],
    position_size: &[],
    dropout: &["dropout_rate"],
    embedding_dropout: &[],
    attention_dropout: &[],
    init_std: &[],
    norm_eps: &["layer_norm_epsilon"],
    // They name it in a way of their own.
    activation: &[],
    gated: None,
    hugging_face: || TextConfig {
        dropout_p: 0.1,
        embedding_dropout_p: 0.1,
        attention_dropout_p: 0.1,
        ..T5Config::default().text
    },
    model_center: || T5Config::default().text,
    fixed: &[&[
        ("is_encoder_decoder", Fixed::Flag(true)),
        ("norm_bias", Fixed::Flag(false)),
        ("att_bias", Fixed::Flag(false)),
        ("ffn_bias", Fixed::Flag(false)),
        ("proj_bias", Fixed::Flag(false)),
        ("length_scale", Fixed::Flag(false)),
        ("attn_scale", Fixed::Flag(false)),
        ("post_layer_norm", Fixed::Flag(false)),
        ("pos_bias_type", Fixed::Text("relative")),
    ]],
};

/// How mT5's files are written.
const MT5: Dialect = Dialect {
    title: "mT5",
    model_type: T5Kind::MT5.model_type(),
    hugging_face: || TextConfig { ffn_activate_fn: Activation::GeluTanh, ffn_gated: true, ..(T5.hugging_face)() },
    ..T5
};

impl Default for T5Config {
    fn default() -> Self {
        let text = TextConfig {
            vocab_size: 32128,
            num_layers: 12,
            position_size: UNLIMITED,
            norm_eps: 1e-6,
            ffn_activate_fn: Activation::Relu,
            tied: true,
            pad_token_id: Some(0),
            ..TextConfig::default()
        };
        T5Config {
            kind: T5Kind::T5,
            text,
            num_decoder_layers: 12,
            position_bias_num_buckets: 32,
            position_bias_max_distance: 128,
            pos_init_std: 1.0,
            scale: HeadScale::One,
            decoder_start_token_id: Some(0),
        }
    }
}

impl T5Config {
    /// Check the fields that only this family has; `place` names the source.
    fn validate(&self, place: &str) -> Result<()> {
        let ranges = Ranges { place };
        ranges.sizes(&[("num_decoder_layers", self.num_decoder_layers)])?;
        ranges.deviations(&[("pos_init_std", self.pos_init_std)])?;
        let (buckets, distance) = (self.position_bias_num_buckets, self.position_bias_max_distance);
        let names = ["relative_attention_num_buckets", "relative_attention_max_distance"];
        ranges.distances([buckets, distance], names)?;
        ranges.first_word(self.decoder_start_token_id, self.text.vocab_size)
    }

    /// Put the fields that only this family has under the names of one program.
    fn write(&self, map: &mut Map<String, Value>, [buckets, distance]: [&str; 2]) {
        map.insert("num_decoder_layers".to_string(), json!(self.num_decoder_layers));
        map.insert(buckets.to_string(), json!(self.position_bias_num_buckets));
        map.insert(distance.to_string(), json!(self.position_bias_max_distance));
        map.insert("decoder_start_token_id".to_string(), json!(self.decoder_start_token_id));
    }
}

/// Take what states in front of the head are multiplied with; `is_scaled` says whether a silent file means by 1 / √D.
fn take_scale(fields: &mut Fields, kind: T5Kind, is_scaled: bool) -> Result<HeadScale> {
    let root = fields.take_flag("scale_decoder_outputs")?;
    let hundred = fields.take_flag("scale")?;
    let scale = match (root, hundred) {
        (Some(_), Some(true)) => {
            let reason =
                "scale_decoder_outputs and scale both say what states in front of the head are multiplied with";
            return Err(fields.error("scale", reason, "remove one of the two fields"));
        }
        (None, Some(true)) => HeadScale::HundredRoot,
        (Some(true), _) => HeadScale::Root,
        (None, None) if is_scaled => HeadScale::Root,
        (None, Some(false)) | (Some(false), _) | (None, None) => HeadScale::One,
    };
    match kind == T5Kind::MT5 && scale != HeadScale::One {
        true => Err(kind.dialect().unsupported(fields, "scale", "false")),
        false => Ok(scale),
    }
}

/// Take the encoder's blocks where they are named as ModelCenter names them.
pub(super) fn take_encoder_layers(fields: &mut Fields, text: &mut TextConfig, is_stated: bool) -> Result<()> {
    let Some(layers) = fields.take_size("num_encoder_layers")? else { return Ok(()) };
    if is_stated && layers != text.num_layers {
        let reason = format!("the file says num_layers = {} and num_encoder_layers = {layers}", text.num_layers);
        return Err(fields.error("num_encoder_layers", &reason, "remove one of the two fields, or make them equal"));
    }
    text.num_layers = layers;
    Ok(())
}

/// Take the feed-forward's function as transformers writes it: `feed_forward_proj`, which `dense_act_fn` and
/// `is_gated_act` repeat, on top of what ModelCenter's field, if there is one, has said.
///
/// Source: transformers reads `gated-gelu` as the function by the tangent, unless `dense_act_fn` says otherwise.
fn take_projection(fields: &mut Fields, text: &mut TextConfig, is_stated: bool) -> Result<()> {
    let name = fields.peek_text("feed_forward_proj")?.unwrap_or_default().to_owned();
    if name.starts_with("gated_") {
        let reason = "transformers separates the gate from the function by a hyphen";
        return Err(fields.error("feed_forward_proj", reason, "write gated-gelu or relu, for example"));
    }
    let projection = activations::take(fields, &["feed_forward_proj"])?;
    let function = activations::take(fields, &["dense_act_fn"])?;
    let gated = fields.take_flag("is_gated_act")?;
    let either_gelu = name == "gated-gelu";
    let mut between = match projection {
        None => Between { activation: text.ffn_activate_fn, gated: text.ffn_gated },
        Some(between) if either_gelu => Between { activation: Activation::GeluTanh, ..between },
        Some(between) => between,
    };
    if let Some(Between { activation, gated: has_gate }) = function {
        let is_gelu = matches!(activation, Activation::Gelu | Activation::GeluTanh);
        if has_gate || (activation != between.activation && !(either_gelu && is_gelu)) {
            let reason =
                format!("it is {}, and feed_forward_proj says another function", activations::name(activation));
            return Err(fields.error("dense_act_fn", &reason, "remove dense_act_fn, or correct one of the two"));
        }
        between.activation = activation;
    }
    if gated.is_some_and(|gated| gated != between.gated) {
        let reason = "it contradicts feed_forward_proj";
        return Err(fields.error("is_gated_act", reason, "remove is_gated_act, or correct one of the two"));
    }
    if is_stated && (between.activation, between.gated) != (text.ffn_activate_fn, text.ffn_gated) {
        let reason = "it contradicts feed_forward_proj";
        return Err(fields.error("ffn_activate_fn", reason, "remove one of the two fields, or make them equal"));
    }
    (text.ffn_activate_fn, text.ffn_gated) = (between.activation, between.gated);
    Ok(())
}

/// `feed_forward_proj` and `dense_act_fn`, as transformers writes them.
fn projection(text: &TextConfig) -> (String, &'static str) {
    let function = activations::name(text.ffn_activate_fn);
    let is_gelu = matches!(text.ffn_activate_fn, Activation::Gelu | Activation::GeluTanh);
    match text.ffn_gated {
        // Both are called so; the second field tells them apart.
        true if is_gelu => ("gated-gelu".to_string(), function),
        true => (format!("gated-{function}"), function),
        false => (function.to_string(), function),
    }
}

impl Config for T5Config {
    const MODEL_TYPE: &'static str = T5Kind::T5.model_type();

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let kind = match fields.peek_text("model_type")? {
            Some("mt5") => T5Kind::MT5,
            _ => T5Kind::T5,
        };
        let stated = |names: &[&str]| names.iter().any(|name| fields.peek(name).is_some());
        let (states_layers, states_function) =
            (stated(&["num_layers", "num_hidden_layers"]), stated(&["ffn_activate_fn"]));
        let states_head = stated(&["d_kv", "head_dim", "dim_head"]);
        let is_hugging_face = kind.dialect().spoken(&fields)? == Spoken::HuggingFace;
        if is_hugging_face && !states_head {
            return Err(fields.missing_sizes(&["d_kv"]));
        }
        let (mut text, _) = kind.dialect().take(&mut fields)?;
        take_encoder_layers(&mut fields, &mut text, states_layers)?;
        take_projection(&mut fields, &mut text, states_function)?;
        let defaults = T5Config::default();
        let silent = if is_hugging_face { text.num_layers } else { defaults.num_decoder_layers };
        let num_decoder_layers = fields.take_size("num_decoder_layers")?.unwrap_or(silent);
        kind.dialect().refuse_lone_stacks(&fields)?;
        let mut size = |theirs, ours, silent| {
            Ok::<_, Error>(fields.take_either(theirs, ours, Fields::take_size)?.unwrap_or(silent))
        };
        let position_bias_num_buckets = size("relative_attention_num_buckets", "position_bias_num_buckets", 32)?;
        let position_bias_max_distance = size("relative_attention_max_distance", "position_bias_max_distance", 128)?;
        let pos_init_std = fields.take_number("pos_init_std")?.unwrap_or(defaults.pos_init_std);
        let is_scaled = is_hugging_face && kind == T5Kind::T5 && text.tied;
        let scale = take_scale(&mut fields, kind, is_scaled)?;
        let start = fields.take_index("decoder_start_token_id")?;
        // transformers has a default for mT5 alone, and ModelCenter begins with the padding word.
        let silent = if is_hugging_face && kind == T5Kind::T5 { None } else { defaults.decoder_start_token_id };
        let mut config = T5Config {
            kind,
            text,
            num_decoder_layers,
            position_bias_num_buckets,
            position_bias_max_distance,
            pos_init_std,
            scale,
            decoder_start_token_id: start.or(silent),
        };
        config.validate(fields.place())?;
        kind.dialect().finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = self.kind.dialect().to_dict(&self.text);
        map.shift_remove("num_layers");
        map.insert("num_encoder_layers".to_string(), json!(self.text.num_layers));
        map.insert("pos_init_std".to_string(), number(self.pos_init_std));
        self.write(&mut map, ["position_bias_num_buckets", "position_bias_max_distance"]);
        map.insert("scale".to_string(), json!((self.scale == HeadScale::HundredRoot).then_some(true)));
        if self.scale == HeadScale::Root {
            map.insert("scale_decoder_outputs".to_string(), json!(true));
        }
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        if header.dtype == DType::F16 {
            let reason = "ModelCenter would compute in f16, whose range the hidden states may leave";
            return Err(Error::model("T5 in ModelCenter's layout", reason, "write the weights as f32"));
        }
        let mut written = model_center::class_fields(self, header)?;
        if self.scale == HeadScale::Root {
            // The rest of its factor goes into the decoder's last norm.
            written.map.insert("scale".to_string(), json!(true));
            written.left_out.retain(|name| name != "scale_decoder_outputs");
        }
        Ok(written)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        if self.kind == T5Kind::MT5 && self.scale != HeadScale::One {
            let reason = "transformers has no mT5 whose states are scaled in front of the head";
            let fix = "this model cannot be written as a Hugging Face directory";
            return Err(Error::model("mT5 configuration, field scale", reason, fix));
        }
        let mut map = self.kind.dialect().to_hf_json(&self.text, header)?;
        self.write(&mut map, ["relative_attention_num_buckets", "relative_attention_max_distance"]);
        if self.kind == T5Kind::T5 {
            // Of a factor of 100 / √D the 100 goes into the decoder's last norm.
            map.insert("scale_decoder_outputs".to_string(), json!(self.scale != HeadScale::One));
        }
        let (projection, function) = projection(&self.text);
        map.insert("feed_forward_proj".to_string(), json!(projection));
        map.insert("dense_act_fn".to_string(), json!(function));
        map.insert("is_gated_act".to_string(), json!(self.text.ffn_gated));
        map.insert("is_encoder_decoder".to_string(), json!(true));
        map.sort_keys();
        Ok(map)
    }
}
