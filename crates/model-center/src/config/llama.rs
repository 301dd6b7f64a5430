//! The configuration of Llama 1, 2 and 3.
//!
//! Defines [`LlamaConfig`], and what its kin take the same way; called by [`crate::model`]'s Llama, the configurations
//! of Mistral and Qwen, and the binaries.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, FixedFields};
use super::{ClassFields, Config, Fields, HfHeader, RotaryFields, TextConfig, model_center};
use crate::Result;
use crate::layer::position::RotaryScaling;

/// Sizes and options of a Llama.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/llama_config.py`; Touvron et al. 2023 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// What all families have.
    pub text: TextConfig,
    /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`; ModelCenter writes -1 for N.
    pub num_heads_kv: usize,
    /// Rotary positions.
    pub rotary: RotaryFields,
    /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
    pub att_bias: bool,
    /// Whether the feed-forward's maps have biases. Hugging Face: `mlp_bias`.
    pub ffn_bias: bool,
}

/// Fields of ModelCenter that have one value in Llama and its kin.
pub(super) const FIXED: FixedFields = &[
    ("norm_bias", Fixed::Flag(false)),
    ("proj_bias", Fixed::Flag(false)),
    ("length_scale", Fixed::Flag(false)),
    ("attn_scale", Fixed::Flag(true)),
    ("post_layer_norm", Fixed::Flag(false)),
    ("pos_bias_type", Fixed::Text("rotary")),
];

/// How Llama's files are written, and but for names and defaults those of its kin.
pub(super) const DIALECT: Dialect = Dialect {
    title: "Llama",
    model_type: LlamaConfig::MODEL_TYPE,
    dim_model: &["hidden_size"],
    num_layers: &["num_hidden_layers"],
    num_heads: &["num_attention_heads"],
    dim_ff: &["intermediate_size"],
    ff_factor: None,
    dim_head: &["head_dim"],
    position_size: &["max_position_embeddings"],
    dropout: &[],
    embedding_dropout: &[],
    attention_dropout: &["attention_dropout"],
    init_std: &["initializer_range"],
    norm_eps: &["rms_norm_eps"],
    activation: &["hidden_act"],
    gated: Some(true),
    hugging_face: || LlamaConfig::default().text,
    model_center: || LlamaConfig::default().text,
    fixed: &[FIXED],
};

impl Default for LlamaConfig {
    fn default() -> Self {
        let text = TextConfig {
            dim_model: 4096,
            num_heads: 32,
            dim_head: 128,
            dim_ff: 11008,
            num_layers: 32,
            norm_eps: 1e-6,
            ffn_activate_fn: Activation::Silu,
            ffn_gated: true,
            ..TextConfig::default()
        };
        let rotary = RotaryFields { base: 10_000.0, scaling: RotaryScaling::None };
        LlamaConfig { text, num_heads_kv: 32, rotary, att_bias: false, ffn_bias: false }
    }
}

/// Take K. `null`, and -1 in ModelCenter's files, is N; where the file says nothing `silent` counts.
///
/// # Errors
/// A number that does not divide N; none at all.
pub(super) fn take_kv_heads(fields: &mut Fields, heads: usize, silent: Option<usize>) -> Result<usize> {
    let name = "num_key_value_heads";
    let is_silent = !fields.has(name) && !fields.has("num_heads_kv");
    if fields.peek("num_heads_kv").and_then(Value::as_i64) == Some(-1) {
        fields.take("num_heads_kv");
    }
    let given = match fields.take_either(name, "num_heads_kv", Fields::take_size)? {
        Some(given) => given,
        None if !is_silent => heads,
        None => silent.ok_or_else(|| fields.missing_sizes(&[name]))?,
    };
    match heads % given {
        0 => Ok(given),
        _ => {
            let reason = format!("{given} key heads do not divide {heads} query heads");
            Err(fields.error(name, &reason, "correct one of the two"))
        }
    }
}

/// Take rotary positions that turn whole heads.
///
/// # Errors
/// Those of [`RotaryFields::take`]; heads that are turned in part, or that have no pairs; a trained length outside the
/// parameters that is another than the one inside.
pub(super) fn take_rotary(fields: &mut Fields, text: &TextConfig) -> Result<RotaryFields> {
    let share = fields.peek("partial_rotary_factor");
    if share.is_some_and(|share| share.as_f64() != Some(1.0)) {
        let fix = "set partial_rotary_factor to 1, or use a model that was made that way";
        return Err(fields.error("partial_rotary_factor", "only whole heads are turned here", fix));
    }
    if !text.dim_head.is_multiple_of(2) {
        let reason = format!("heads of {} elements cannot be turned by pairs", text.dim_head);
        return Err(fields.error("head_dim", &reason, "give an even number"));
    }
    let rotary = RotaryFields::take(fields, 10_000.0, text.position_size)?;
    let (name, trained) = ("original_max_position_embeddings", rotary.scaling.trained());
    // Transformers goes by this one where both are there.
    let outside = fields.peek(name).filter(|outside| {
        let is_used = matches!(rotary.scaling, RotaryScaling::Llama3 { .. } | RotaryScaling::Yarn { .. });
        is_used && outside.as_u64() != trained.map(|trained| trained as u64)
    });
    match outside {
        None => Ok(rotary),
        Some(_) => {
            let reason = "it is another than that of the rotary positions' parameters";
            Err(fields.error(name, reason, "state it there, and remove it here"))
        }
    }
}

/// Refuse flags of related families that make layers which this one has not, where a file raises them.
///
/// # Errors
/// The first flag that is raised, or none.
pub(super) fn refuse_raised(dialect: &Dialect, fields: &Fields, names: &[&str]) -> Result<()> {
    for name in names {
        if fields.peek_flag(name)? == Some(true) {
            return Err(dialect.unsupported(fields, name, "false"));
        }
    }
    Ok(())
}

impl Config for LlamaConfig {
    const MODEL_TYPE: &'static str = "llama";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let (text, _) = DIALECT.take(&mut fields)?;
        let num_heads_kv = take_kv_heads(&mut fields, text.num_heads, Some(text.num_heads))?;
        let rotary = take_rotary(&mut fields, &text)?;
        let att_bias = fields.take_either("attention_bias", "att_bias", Fields::take_flag)?.unwrap_or(false);
        let ffn_bias = fields.take_either("mlp_bias", "ffn_bias", Fields::take_flag)?.unwrap_or(false);
        let mut config = LlamaConfig { text, num_heads_kv, rotary, att_bias, ffn_bias };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = DIALECT.to_dict(&self.text);
        map.insert("num_heads_kv".to_string(), json!(self.num_heads_kv));
        map.insert("att_bias".to_string(), json!(self.att_bias));
        map.insert("ffn_bias".to_string(), json!(self.ffn_bias));
        self.rotary.write(&mut map);
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        let mut written = model_center::class_fields(self, header)?;
        // Version 1.0.3 does not have the field yet: only what needs it is written for what came later.
        if self.num_heads_kv == self.text.num_heads {
            written.map.shift_remove("num_heads_kv");
        }
        Ok(written)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("num_key_value_heads".to_string(), json!(self.num_heads_kv));
        map.insert("attention_bias".to_string(), json!(self.att_bias));
        map.insert("mlp_bias".to_string(), json!(self.ffn_bias));
        self.rotary.write(&mut map);
        map.sort_keys();
        Ok(map)
    }
}
