//! GPT-2's configuration from and to JSON, in Hugging Face's and ModelCenter's dialects.
//!
//! Implements [`Config`] for [`Gpt2Config`].

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::json::number;
use super::labels::{self, ClassLabels};
use super::ranges::refuse_foreign;
use super::{Config, Gpt2Config, HfHeader, activations};
use crate::{Error, Result};

/// Sizes that a Hugging Face file must state: its name, the name that transformers has for all families, ModelCenter's.
const SHAPES: [[&str; 3]; 4] = [
    ["n_embd", "hidden_size", "dim_model"],
    ["n_layer", "num_hidden_layers", "num_layers"],
    ["n_head", "num_attention_heads", "num_heads"],
    ["n_positions", "max_position_embeddings", "position_size"],
];

/// The dropout of a file of transformers that does not say.
const DROPOUT: f32 = 0.1;

impl Config for Gpt2Config {
    const MODEL_TYPE: &'static str = "gpt2";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        refuse_other_models(&fields)?;
        let hugging_face = dialect(&fields)?;
        let mut config = Gpt2Config::default();
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
        for (name, value) in [
            ("model_type", json!(Self::MODEL_TYPE)),
            ("vocab_size", json!(self.vocab_size)),
            ("dim_model", json!(self.dim_model)),
            ("num_heads", json!(self.num_heads)),
            ("dim_head", json!(self.dim_head)),
            ("dim_ff", json!(self.dim_ff)),
            ("num_layers", json!(self.num_layers)),
            ("position_size", json!(self.position_size)),
            ("dropout_p", number(self.dropout_p)),
            ("embedding_dropout_p", number(self.embedding_dropout_p)),
            ("attention_dropout_p", number(self.attention_dropout_p)),
            ("emb_init_std", number(self.init_std)),
            ("att_init_std", number(self.init_std)),
            ("ffn_init_std", number(self.init_std)),
            ("proj_init_std", number(self.init_std)),
            ("norm_eps", number(self.norm_eps)),
            ("ffn_activate_fn", json!(activations::name(self.ffn_activate_fn))),
            ("attn_scale", json!(self.attn_scale)),
            ("scale_attn_by_inverse_layer_idx", json!(self.scale_by_layer)),
            ("tied", json!(self.tied)),
            ("pad_token_id", json!(self.pad_token_id)),
            ("cls_head", json!(self.cls_head)),
        ] {
            map.insert(name.to_string(), value);
        }
        labels::write(&self.labels, self.problem_type, &mut map);
        map
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        if self.num_heads.checked_mul(self.dim_head) != Some(self.dim_model) {
            let reason = format!("{} heads of {} are not {} together", self.num_heads, self.dim_head, self.dim_model);
            let fix = "this model cannot be written as a Hugging Face folder";
            return Err(Error::model("GPT-2 configuration, field dim_head", reason, fix));
        }
        let dtype = header.torch_dtype()?;
        let inner = if self.dim_ff == 4 * self.dim_model { Value::Null } else { json!(self.dim_ff) };
        let mut map = self.extra.clone();
        for (name, value) in [
            ("architectures", json!([header.architecture])),
            ("model_type", json!(Self::MODEL_TYPE)),
            ("vocab_size", json!(self.vocab_size)),
            ("n_embd", json!(self.dim_model)),
            ("n_layer", json!(self.num_layers)),
            ("n_head", json!(self.num_heads)),
            ("n_positions", json!(self.position_size)),
            ("n_inner", inner),
            ("activation_function", json!(activations::name(self.ffn_activate_fn))),
            ("resid_pdrop", number(self.dropout_p)),
            ("embd_pdrop", number(self.embedding_dropout_p)),
            ("attn_pdrop", number(self.attention_dropout_p)),
            ("layer_norm_epsilon", number(self.norm_eps)),
            ("initializer_range", number(self.init_std)),
            ("scale_attn_weights", json!(self.attn_scale)),
            ("scale_attn_by_inverse_layer_idx", json!(self.scale_by_layer)),
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

/// Errors for what carries GPT-2's name but is another computation.
fn refuse_other_models(fields: &Fields) -> Result<()> {
    refuse_foreign(fields, Gpt2Config::MODEL_TYPE, "GPT-2")?;
    if fields.peek_flag("add_cross_attention")? == Some(true) {
        let reason = "GPT-2 with cross-attention is not supported";
        return Err(fields.error("add_cross_attention", reason, "use a model without an encoder"));
    }
    // A flag without effect here must still be one.
    fields.peek_flag("reorder_and_upcast_attn").map(drop)
}

/// Whether this is Hugging Face's dialect (or both at once) rather than ModelCenter's.
fn dialect(fields: &Fields) -> Result<bool> {
    if SHAPES.iter().any(|[theirs, common, _]| fields.has(theirs) || fields.has(common)) {
        return Ok(true);
    }
    if SHAPES.iter().any(|[_, _, ours]| fields.has(ours)) {
        return Ok(false);
    }
    Err(fields.error(
        "n_embd",
        "the file states no size of the model: neither n_embd and its kin nor dim_model and its kin",
        "give the config.json of a GPT-2 model",
    ))
}

fn read_shapes(fields: &mut Fields, config: &mut Gpt2Config, hugging_face: bool) -> Result<()> {
    let mut missing = Vec::new();
    let targets = [&mut config.dim_model, &mut config.num_layers, &mut config.num_heads, &mut config.position_size];
    for (names, target) in SHAPES.iter().zip(targets) {
        match fields.take_any(names, Fields::take_size)? {
            Some(size) => *target = size,
            None if hugging_face => missing.push(names[0]),
            None => {}
        }
    }
    match fields.take_size("vocab_size")? {
        Some(size) => config.vocab_size = size,
        None if hugging_face => missing.push("vocab_size"),
        None => {}
    }
    if !missing.is_empty() {
        let names = missing.join(", ");
        let reason = "the file does not say, and there is no safe default for a size";
        return Err(fields.error(&names, reason, &format!("add {names}")));
    }
    let inner = fields.take_either("n_inner", "dim_ff", Fields::take_size)?;
    config.dim_ff = inner.unwrap_or(if hugging_face { 4 * config.dim_model } else { config.dim_ff });
    let (size, heads) = (config.dim_model, config.num_heads);
    let given = fields.take_size("dim_head")?;
    if hugging_face && size % heads != 0 {
        let reason = format!("n_embd {size} is not divisible by n_head {heads}");
        return Err(fields.error("n_head", &reason, "correct one of the two"));
    }
    if hugging_face && given.is_some_and(|head| head != size / heads) {
        let reason = format!("the head size is {} by n_embd and n_head", size / heads);
        return Err(fields.error("dim_head", &reason, "remove dim_head, or correct it"));
    }
    config.dim_head = if hugging_face { size / heads } else { given.unwrap_or(config.dim_head) };
    Ok(())
}

fn read_numbers(fields: &mut Fields, config: &mut Gpt2Config, hugging_face: bool) -> Result<()> {
    let residual = fields.take_either("resid_pdrop", "dropout_p", Fields::take_number)?;
    config.dropout_p = residual.unwrap_or(if hugging_face { DROPOUT } else { config.dropout_p });
    let further = if hugging_face { DROPOUT } else { config.dropout_p };
    let embedding = fields.take_either("embd_pdrop", "embedding_dropout_p", Fields::take_number)?;
    config.embedding_dropout_p = embedding.unwrap_or(further);
    let attention = fields.take_either("attn_pdrop", "attention_dropout_p", Fields::take_number)?;
    config.attention_dropout_p = attention.unwrap_or(further);
    let deviations = ["initializer_range", "emb_init_std", "att_init_std", "ffn_init_std", "proj_init_std"];
    config.init_std = fields.take_any(&deviations, Fields::take_number)?.unwrap_or(config.init_std);
    let epsilon = fields.take_either("layer_norm_epsilon", "norm_eps", Fields::take_number)?;
    config.norm_eps = epsilon.unwrap_or(config.norm_eps);
    config.pad_token_id = fields.take_index("pad_token_id")?;
    for (name, harmless) in [
        ("emb_init_mean", 0.0),
        ("att_init_mean", 0.0),
        ("ffn_init_mean", 0.0),
        ("proj_init_mean", 0.0),
        ("norm_init_var", 1.0),
    ] {
        if fields.take_number(name)?.is_some_and(|value| value != harmless) {
            return Err(unsupported(fields, name, &harmless.to_string()));
        }
    }
    // Masked positions are left out exactly; the value that stands for that in ModelCenter underflows to the same.
    fields.take_number("att_mask_value").map(drop)
}

fn read_flags(fields: &mut Fields, config: &mut Gpt2Config, hugging_face: bool) -> Result<()> {
    for (name, harmless) in [
        ("norm_bias", true),
        ("att_bias", true),
        ("ffn_bias", true),
        ("length_scale", false),
        ("int8", false),
        ("post_layer_norm", false),
    ] {
        if fields.take_flag(name)?.is_some_and(|value| value != harmless) {
            return Err(unsupported(fields, name, &harmless.to_string()));
        }
    }
    if fields.take_text("pos_bias_type")?.is_some_and(|kind| kind != "none") {
        return Err(unsupported(fields, "pos_bias_type", "none"));
    }
    let scaled = fields.take_either("scale_attn_weights", "attn_scale", Fields::take_flag)?;
    config.attn_scale = scaled.unwrap_or(config.attn_scale);
    let by_layer = fields.take_flag("scale_attn_by_inverse_layer_idx")?;
    config.scale_by_layer = by_layer.unwrap_or(config.scale_by_layer);
    config.tied = fields.take_either("tie_word_embeddings", "tied", Fields::take_flag)?.unwrap_or(config.tied);
    // What the weights were stored in; they carry it themselves.
    fields.take_either("torch_dtype", "dtype", Fields::take_text)?;
    fields.take_flag("half")?;
    // GPT-2 itself has the approximation, ModelCenter's class the exact function.
    let default = if hugging_face { Activation::GeluTanh } else { config.ffn_activate_fn };
    config.ffn_activate_fn = activations::take(fields, "activation_function", "ffn_activate_fn")?.unwrap_or(default);
    Ok(())
}

fn unsupported(fields: &Fields, name: &str, want: &str) -> Error {
    let reason = format!("GPT-2 is supported with {name} = {want} only");
    fields.error(name, &reason, &format!("set {name} to {want}, or use a model that was made that way"))
}
