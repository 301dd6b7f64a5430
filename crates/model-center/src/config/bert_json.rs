//! BERT's configuration from and to JSON, in Hugging Face's and ModelCenter's dialects.
//!
//! Implements [`Config`] for [`BertConfig`].

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::json::number;
use super::labels::{self, ClassLabels};
use super::ranges::{refuse_foreign, refuse_other_encoders};
use super::{BertConfig, ClassFields, Config, HfHeader, activations, model_center};
use crate::file::printable;
use crate::{Error, Result};

/// Sizes that a Hugging Face file must state, each with ModelCenter's name.
const SHAPES: [(&str, &str); 6] = [
    ("hidden_size", "dim_model"),
    ("num_hidden_layers", "num_layers"),
    ("num_attention_heads", "num_heads"),
    ("intermediate_size", "dim_ff"),
    ("max_position_embeddings", "position_size"),
    ("type_vocab_size", "type_size"),
];

impl Config for BertConfig {
    const MODEL_TYPE: &'static str = "bert";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        refuse_foreign(&fields, Self::MODEL_TYPE, "BERT")?;
        refuse_other_encoders(&fields, "BERT")?;
        let hugging_face = dialect(&fields)?;
        let mut config = BertConfig::default();
        read_shapes(&mut fields, &mut config, hugging_face)?;
        read_numbers(&mut fields, &mut config, hugging_face)?;
        read_flags(&mut fields, &mut config, hugging_face)?;
        let labels = ClassLabels::take(&mut fields)?;
        (config.cls_head, config.labels, config.problem_type) = (labels.outputs, labels.names, labels.problem);
        let place = fields.place().to_string();
        config.extra = fields.into_rest();
        config.extra.shift_remove("model_type");
        config.validate(&place)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = self.extra.clone();
        let mut set = |name: &str, value: Value| {
            map.insert(name.to_string(), value);
        };
        set("model_type", json!(Self::MODEL_TYPE));
        for (name, value) in [
            ("vocab_size", self.vocab_size),
            ("type_size", self.type_size),
            ("dim_model", self.dim_model),
            ("num_heads", self.num_heads),
            ("dim_head", self.dim_head),
            ("dim_ff", self.dim_ff),
            ("num_layers", self.num_layers),
            ("position_size", self.position_size),
        ] {
            set(name, json!(value));
        }
        for (name, value) in [
            ("dropout_p", self.dropout_p),
            ("emb_init_mean", self.emb_init_mean),
            ("emb_init_std", self.emb_init_std),
            ("norm_init_var", self.norm_init_var),
            ("norm_eps", self.norm_eps),
            ("att_init_mean", self.att_init_mean),
            ("att_init_std", self.att_init_std),
            ("ffn_init_mean", self.ffn_init_mean),
            ("ffn_init_std", self.ffn_init_std),
            ("proj_init_mean", self.proj_init_mean),
            ("proj_init_std", self.proj_init_std),
            ("attention_dropout_p", self.attention_dropout_p),
            ("classifier_dropout_p", self.classifier_dropout_p),
        ] {
            set(name, number(value));
        }
        let mask = self.att_mask_value;
        set("att_mask_value", if mask == f32::NEG_INFINITY { json!("-inf") } else { number(mask) });
        for (name, value) in [
            ("norm_bias", self.norm_bias),
            ("att_bias", self.att_bias),
            ("ffn_bias", self.ffn_bias),
            ("proj_bias", self.proj_bias),
            ("length_scale", self.length_scale),
            ("attn_scale", self.attn_scale),
            ("half", self.half),
            ("int8", self.int8),
            ("tied", self.tied),
            ("post_layer_norm", self.post_layer_norm),
        ] {
            set(name, json!(value));
        }
        set("pos_bias_type", json!(self.pos_bias_type));
        set("ffn_activate_fn", json!(activations::name(self.ffn_activate_fn)));
        set("cls_head", json!(self.cls_head));
        set("pad_token_id", json!(self.pad_token_id));
        labels::write(&self.labels, self.problem_type, &mut map);
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        model_center::class_fields(self, header)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let no_form = |field: &str, reason: String| {
            Error::model(
                format!("BERT configuration, field {field}"),
                reason,
                "this model cannot be written as a Hugging Face directory",
            )
        };
        if self.num_heads.checked_mul(self.dim_head) != Some(self.dim_model) {
            let reason = format!("{} heads of {} are not {} together", self.num_heads, self.dim_head, self.dim_model);
            return Err(no_form("dim_head", reason));
        }
        if !(self.att_bias && self.ffn_bias && self.attn_scale) {
            return Err(no_form("att_bias, ffn_bias, attn_scale", "Hugging Face's BERT has all three".to_string()));
        }
        let dtype = header.torch_dtype()?;
        let mut map = self.extra.clone();
        let classifier_dropout =
            if self.classifier_dropout_p == self.dropout_p { Value::Null } else { number(self.classifier_dropout_p) };
        for (name, value) in [
            ("architectures", json!([header.architecture])),
            ("model_type", json!(Self::MODEL_TYPE)),
            ("vocab_size", json!(self.vocab_size)),
            ("hidden_size", json!(self.dim_model)),
            ("num_hidden_layers", json!(self.num_layers)),
            ("num_attention_heads", json!(self.num_heads)),
            ("intermediate_size", json!(self.dim_ff)),
            ("max_position_embeddings", json!(self.position_size)),
            ("type_vocab_size", json!(self.type_size)),
            ("hidden_act", json!(activations::name(self.ffn_activate_fn))),
            ("hidden_dropout_prob", number(self.dropout_p)),
            ("attention_probs_dropout_prob", number(self.attention_dropout_p)),
            ("classifier_dropout", classifier_dropout),
            ("layer_norm_eps", number(self.norm_eps)),
            ("initializer_range", number(self.emb_init_std)),
            ("pad_token_id", json!(self.pad_token_id)),
            ("tie_word_embeddings", json!(self.tied)),
            // Before version 5 transformers read the first name, since then the second.
            ("torch_dtype", json!(dtype)),
            ("dtype", json!(dtype)),
        ] {
            map.insert(name.to_string(), value);
        }
        labels::write_counted(&self.labels, self.cls_head, self.problem_type, &mut map);
        map.sort_keys();
        Ok(map)
    }
}

/// Whether this is Hugging Face's dialect (or both at once) rather than ModelCenter's.
fn dialect(fields: &Fields) -> Result<bool> {
    if SHAPES.iter().any(|(theirs, _)| fields.has(theirs)) {
        return Ok(true);
    }
    // ModelCenter's files may state a size of the head alone, and mean the defaults of its class.
    if SHAPES.iter().any(|(_, ours)| fields.has(ours)) || model_center::is_model_center(fields) {
        return Ok(false);
    }
    Err(fields.error(
        "hidden_size",
        "the file states no size of the model: neither hidden_size and its kin nor dim_model and its kin",
        "give the config.json of a BERT model",
    ))
}

fn read_shapes(fields: &mut Fields, config: &mut BertConfig, hugging_face: bool) -> Result<()> {
    let mut missing = Vec::new();
    let targets = [
        &mut config.dim_model,
        &mut config.num_layers,
        &mut config.num_heads,
        &mut config.dim_ff,
        &mut config.position_size,
        &mut config.type_size,
    ];
    for ((theirs, ours), target) in SHAPES.into_iter().zip(targets) {
        match fields.take_either(theirs, ours, Fields::take_size)? {
            Some(size) => *target = size,
            None if hugging_face => missing.push(theirs),
            None => {}
        }
    }
    match fields.take_size("vocab_size")? {
        Some(size) => config.vocab_size = size,
        None if hugging_face => missing.push("vocab_size"),
        None => {}
    }
    if !missing.is_empty() {
        return Err(fields.missing_sizes(&missing));
    }
    let (size, heads) = (config.dim_model, config.num_heads);
    let given = fields.take_size("dim_head")?;
    if hugging_face && size % heads != 0 {
        let reason = format!("hidden_size {size} is not divisible by num_attention_heads {heads}");
        return Err(fields.error("num_attention_heads", &reason, "correct one of the two"));
    }
    if hugging_face && given.is_some_and(|head| head != size / heads) {
        let reason = format!("the head size is {} by hidden_size and num_attention_heads", size / heads);
        return Err(fields.error("dim_head", &reason, "remove dim_head, or correct it"));
    }
    config.dim_head = if hugging_face { size / heads } else { given.unwrap_or(config.dim_head) };
    Ok(())
}

fn read_numbers(fields: &mut Fields, config: &mut BertConfig, hugging_face: bool) -> Result<()> {
    // The defaults of transformers' BertConfig for what its files may leave out; ModelCenter's are in `config` already.
    let dropout = if hugging_face { 0.1 } else { config.dropout_p };
    config.dropout_p = fields.take_either("hidden_dropout_prob", "dropout_p", Fields::take_number)?.unwrap_or(dropout);
    let attention = fields.take_either("attention_probs_dropout_prob", "attention_dropout_p", Fields::take_number)?;
    config.attention_dropout_p = attention.unwrap_or(if hugging_face { 0.1 } else { config.dropout_p });
    let classifier = fields.take_either("classifier_dropout", "classifier_dropout_p", Fields::take_number)?;
    config.classifier_dropout_p = classifier.unwrap_or(config.dropout_p);
    config.norm_eps = fields.take_either("layer_norm_eps", "norm_eps", Fields::take_number)?.unwrap_or(config.norm_eps);
    let common = fields.take_number("initializer_range")?;
    for (name, target) in [
        ("emb_init_std", &mut config.emb_init_std),
        ("att_init_std", &mut config.att_init_std),
        ("ffn_init_std", &mut config.ffn_init_std),
        ("proj_init_std", &mut config.proj_init_std),
    ] {
        let own = fields.take_number(name)?;
        if let (Some(a), Some(b)) = (common, own)
            && a != b
        {
            let reason = format!("the file says initializer_range = {a} and {name} = {b}, two names of one thing");
            return Err(fields.error(name, &reason, "remove one of the two fields, or make them equal"));
        }
        *target = own.or(common).unwrap_or(*target);
    }
    for (name, target) in [
        ("emb_init_mean", &mut config.emb_init_mean),
        ("att_init_mean", &mut config.att_init_mean),
        ("ffn_init_mean", &mut config.ffn_init_mean),
        ("proj_init_mean", &mut config.proj_init_mean),
        ("norm_init_var", &mut config.norm_init_var),
    ] {
        *target = fields.take_number(name)?.unwrap_or(*target);
    }
    config.att_mask_value = fields.take_mask_value()?.unwrap_or(config.att_mask_value);
    let said = fields.has("pad_token_id");
    let pad = fields.take_index("pad_token_id")?;
    config.pad_token_id = if hugging_face && !said { Some(0) } else { pad };
    Ok(())
}

fn read_flags(fields: &mut Fields, config: &mut BertConfig, hugging_face: bool) -> Result<()> {
    for (name, target) in [
        ("norm_bias", &mut config.norm_bias),
        ("att_bias", &mut config.att_bias),
        ("ffn_bias", &mut config.ffn_bias),
        ("proj_bias", &mut config.proj_bias),
        ("length_scale", &mut config.length_scale),
        ("attn_scale", &mut config.attn_scale),
        ("int8", &mut config.int8),
        ("post_layer_norm", &mut config.post_layer_norm),
    ] {
        *target = fields.take_flag(name)?.unwrap_or(*target);
    }
    config.tied = fields.take_either("tie_word_embeddings", "tied", Fields::take_flag)?.unwrap_or(config.tied);
    let stored = fields.take_either("torch_dtype", "dtype", Fields::take_text)?;
    let stored_half = stored.as_deref().map(|name| name.trim_start_matches("torch.") == "float16");
    let half = fields.take_flag("half")?;
    if let (Some(a), Some(b)) = (stored_half, half)
        && a != b
    {
        return Err(fields.error("half", "torch_dtype and half contradict each other", "remove one of the two fields"));
    }
    config.half = half.or(stored_half).unwrap_or(!hugging_face && config.half);
    if let Some(kind) = fields.take_text("pos_bias_type")? {
        config.pos_bias_type = printable(&kind, 40);
    }
    if let Some(between) = activations::take(fields, &["hidden_act", "ffn_activate_fn"])? {
        if between.gated {
            let reason = "a BERT has no gates in its feed-forward layers";
            return Err(fields.error("ffn_activate_fn", reason, "use a function without gated_ in front"));
        }
        config.ffn_activate_fn = between.activation;
    }
    Ok(())
}
