//! The sizes of a model out of a GGUF file's metadata, and the `config.json` they make.

use serde_json::{Map, Value, json};

use super::keys::Keys;
use super::own::LayerWindows;
use super::{Family, GgufFile, own, rope};
use crate::formats::TensorSource;
use crate::{Error, Result};
use model_center_base::json::number;

/// The sizes of a model and the other fields of its configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    /// The kind of model.
    pub family: Family,
    /// Blocks.
    pub num_layers: usize,
    /// D, the width of the states.
    pub dim_model: usize,
    /// F, the width of the feed-forward part.
    pub dim_ff: usize,
    /// N, heads of the queries.
    pub num_heads: usize,
    /// K, heads of keys and values.
    pub num_kv_heads: usize,
    /// H, the width of a head.
    pub dim_head: usize,
    /// V, vocabulary size: the rows of the embedding.
    pub vocab_size: usize,
    /// The longest text the model was made for.
    pub max_positions: usize,
    /// Added to the mean square of a norm.
    pub norm_eps: f32,
    /// The base of the rotary frequencies.
    pub rope_theta: f32,
    /// The `rope_scaling` of `config.json`, if there is one.
    pub rope_scaling: Option<Value>,
    /// Whether the output projection is tied to the embedding: the file has no `output.weight`.
    pub is_tied: bool,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Whether the projections of the feed-forward part have biases.
    pub mlp_bias: bool,
    /// The ids of begin, end and padding, where stated.
    pub special_ids: [Option<u64>; 3],
    /// Windows of some layers, in families that have them.
    pub layer_windows: Option<LayerWindows>,
    /// Fields of `config.json` that this family has and the others do not.
    pub own: Map<String, Value>,
}

/// The keys of the ids, and their names in `config.json`.
const IDS: [(&str, &str); 3] = [
    ("tokenizer.ggml.bos_token_id", "bos_token_id"),
    ("tokenizer.ggml.eos_token_id", "eos_token_id"),
    ("tokenizer.ggml.padding_token_id", "pad_token_id"),
];

impl Decoder {
    /// Read the sizes.
    pub fn read(file: &GgufFile) -> Result<Self> {
        let metadata = file.metadata();
        if let Some(parts) = metadata.whole("split.count")?.filter(|parts| *parts > 1) {
            let fix = "join the parts into one file first (llama-gguf-split --merge)";
            return Err(metadata.unfit("split.count", format!("the file is one of {parts} parts of a model"), fix));
        }
        let family = Family::read(metadata)?;
        let keys = Keys { metadata, family };
        keys.refuse_foreign()?;
        let (dim_model, num_heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
        let num_kv_heads = keys.optional("attention.head_count_kv")?.unwrap_or(num_heads);
        if num_heads % num_kv_heads != 0 {
            let reason = format!("{num_kv_heads} heads of keys cannot be shared by {num_heads} heads of queries");
            return Err(keys.unfit("attention.head_count_kv", reason));
        }
        if family == Family::GptNeox && num_kv_heads != num_heads {
            let reason = format!("a GPT-NeoX has as many heads of keys as of queries, not {num_kv_heads}");
            return Err(keys.unfit("attention.head_count_kv", reason));
        }
        let dim_head = dim_head(&keys, dim_model, num_heads)?;
        let rotary_dims = rotary_dims(&keys, dim_head)?;
        let vocab_size = vocab_size(file, &keys)?;
        let has = |end: &str| file.entries().iter().any(|entry| entry.name.ends_with(end));
        let max_positions = keys.size("context_length")?;
        let (rope_theta, rope_scaling) = rope::read(file, &keys, rotary_dims, max_positions)?;
        let num_layers = keys.size("block_count")?;
        // Lists in the configuration have a value for each layer, and each layer has tensors.
        if num_layers > file.entries().len() {
            let reason = format!("{num_layers} layers are stated, the file has {} tensors", file.entries().len());
            return Err(keys.unfit("block_count", reason));
        }
        let layer_windows = match family.has_layer_windows() {
            true => Some(LayerWindows::of(&keys, num_layers, rope_theta)?),
            false => None,
        };
        let mut special_ids = [None; 3];
        for (id, (key, _)) in special_ids.iter_mut().zip(IDS) {
            // Written for "none" by converters whose own value for it is -1.
            *id = metadata.whole(key)?.filter(|id| *id != u64::from(u32::MAX));
            if let Some(id) = id.filter(|id| *id >= vocab_size as u64) {
                let reason = format!("id {id} is not in the vocabulary of {vocab_size} tokens");
                return Err(metadata.unfit(key, reason, "convert the model to GGUF again"));
            }
        }
        Ok(Self {
            family,
            num_layers,
            dim_model,
            dim_ff: keys.size("feed_forward_length")?,
            num_heads,
            num_kv_heads,
            dim_head,
            vocab_size,
            max_positions,
            norm_eps: keys.required_real(norm_key(family))?,
            rope_theta,
            rope_scaling,
            is_tied: file.entry("output.weight").is_none(),
            attention_bias: match family {
                Family::Qwen2 => true,
                Family::Phi3 => false,
                Family::GptNeox => has("attn_qkv.bias"),
                _ => has("attn_q.bias"),
            },
            mlp_bias: match family {
                Family::GptNeox => true,
                Family::Llama | Family::Granite | Family::SmolLm3 => has("ffn_gate.bias"),
                _ => false,
            },
            special_ids,
            layer_windows,
            own: own::fields(&keys, dim_head, rotary_dims)?,
        })
    }

    /// The configuration as `config.json` has it, without the type of the weights.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| drop(map.insert(key.to_string(), value));
        put("architectures", json!([self.family.architecture()]));
        put("model_type", json!(self.family.model_type()));
        put("vocab_size", json!(self.vocab_size));
        put("hidden_size", json!(self.dim_model));
        put("intermediate_size", json!(self.dim_ff));
        put("num_hidden_layers", json!(self.num_layers));
        put("num_attention_heads", json!(self.num_heads));
        if self.family != Family::GptNeox {
            put("num_key_value_heads", json!(self.num_kv_heads));
            put("head_dim", json!(self.dim_head));
        }
        put("max_position_embeddings", json!(self.max_positions));
        let (activation, norm) = match self.family {
            Family::GptNeox => (("hidden_act", "gelu"), "layer_norm_eps"),
            Family::Gemma3 => (("hidden_activation", "gelu_pytorch_tanh"), "rms_norm_eps"),
            _ => (("hidden_act", "silu"), "rms_norm_eps"),
        };
        put(activation.0, json!(activation.1));
        put(norm, number(self.norm_eps));
        if self.layer_windows.is_none() {
            put("rope_theta", number(self.rope_theta));
            if let Some(scaling) = &self.rope_scaling {
                put("rope_scaling", scaling.clone());
            }
        }
        put("tie_word_embeddings", json!(self.is_tied));
        // Qwen2's class always has biases, whatever the configuration specifies, and Phi-3's never.
        if !matches!(self.family, Family::Qwen2 | Family::Phi3) {
            put("attention_bias", json!(self.attention_bias));
        }
        match self.family {
            Family::Llama | Family::Granite | Family::SmolLm3 => put("mlp_bias", json!(self.mlp_bias)),
            Family::Qwen2 | Family::Qwen3 => put("use_sliding_window", json!(false)),
            _ => {}
        }
        self.put_own(&mut put);
        for (id, (_, name)) in self.special_ids.iter().zip(IDS) {
            put(name, json!(id));
        }
        map
    }
}

fn dim_head(keys: &Keys<'_>, dim_model: usize, num_heads: usize) -> Result<usize> {
    let dim_head = match keys.optional("attention.key_length")? {
        Some(length) => length,
        None if dim_model.is_multiple_of(num_heads) => dim_model / num_heads,
        None => return Err(keys.unfit("attention.head_count", format!("{num_heads} heads do not divide {dim_model}"))),
    };
    if let Some(other) = keys.optional("attention.value_length")?.filter(|other| *other != dim_head) {
        let reason = format!("{other} is not the {dim_head} of a head, which this family needs");
        return Err(keys.unfit("attention.value_length", reason));
    }
    if keys.family == Family::GptNeox && dim_head.checked_mul(num_heads) != Some(dim_model) {
        let reason = format!("{num_heads} heads of {dim_head} are not the {dim_model} of the states");
        return Err(keys.unfit("attention.key_length", reason));
    }
    Ok(dim_head)
}

/// R, the elements of a head that are rotated.
fn rotary_dims(keys: &Keys<'_>, dim_head: usize) -> Result<usize> {
    const NAME: &str = "rope.dimension_count";
    let dims = keys.optional(NAME)?.unwrap_or(dim_head);
    let is_possible = if keys.family.rotates_parts() { dims <= dim_head } else { dims == dim_head };
    if !is_possible {
        let reason = format!("{dims} is not the {dim_head} of a head, which this family needs");
        return Err(keys.unfit(NAME, reason));
    }
    if !dims.is_multiple_of(2) {
        let name = if keys.has(NAME) { NAME } else { "attention.key_length" };
        return Err(keys.unfit(name, format!("heads of {dims} cannot be rotated in pairs")));
    }
    Ok(dims)
}

/// The key of the number that norms add.
fn norm_key(family: Family) -> &'static str {
    match family {
        Family::GptNeox => "attention.layer_norm_epsilon",
        _ => "attention.layer_norm_rms_epsilon",
    }
}

/// The rows of the embedding, which the stated numbers must not contradict.
fn vocab_size(file: &GgufFile, keys: &Keys<'_>) -> Result<usize> {
    const EMBEDDING: &str = "token_embd.weight";
    let rows = file.entry(EMBEDDING).and_then(|entry| entry.shape.first().copied()).ok_or_else(|| {
        let place = super::tensor_place(file.place(), EMBEDDING);
        let reason = "the file has no token embedding";
        Error::model(place, reason, "use a GGUF file of a whole model, not an adapter or a vocabulary")
    })?;
    if let Some(stated) = keys.optional("vocab_size")?.filter(|stated| *stated != rows) {
        return Err(keys.unfit("vocab_size", format!("{stated} tokens are stated, the embedding has {rows} rows")));
    }
    const TOKENS: &str = "tokenizer.ggml.tokens";
    if let Some(tokens) = keys.metadata.texts(TOKENS)?.filter(|tokens| tokens.len() > rows) {
        let reason = format!("there are {} tokens, the embedding has {rows} rows", tokens.len());
        return Err(keys.metadata.unfit(TOKENS, reason, "convert the model to GGUF again"));
    }
    Ok(rows)
}
