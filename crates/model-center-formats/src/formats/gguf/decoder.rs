//! The sizes of a Llama or Qwen model out of a GGUF file's metadata, and the `config.json` they make.

use serde_json::{Map, Value, json};

use super::{GgufFile, Metadata, rope};
use crate::formats::TensorSource;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_base::json::number;

/// A kind of model, by what the format calls its architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `llama`: Llama, and Mistral, whose arithmetic is the same but for a window that these files do not record.
    Llama,
    /// `qwen2`: biases at queries, keys and values.
    Qwen2,
    /// `qwen3`: norms of queries and keys.
    Qwen3,
}

impl Family {
    const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// The name in `general.architecture` of the format and in `model_type` of Hugging Face, which are equal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The class of the model in `transformers`.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// Whether rows of queries and keys are stored in another order than Hugging Face's.
    pub fn interleaves_heads(self) -> bool {
        self == Self::Llama
    }

    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        const KEY: &str = "general.architecture";
        let name = metadata.text(KEY)?.ok_or_else(|| metadata.lacking(KEY))?;
        Self::ALL.into_iter().find(|family| family.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            let reason = format!("the architecture is {}; supported are {known}", printable(name, 60));
            metadata.unfit(KEY, reason, "use a model of one of these families (Mistral is llama here)")
        })
    }
}

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
}

/// The keys of the ids, and their names in `config.json`.
const IDS: [(&str, &str); 3] = [
    ("tokenizer.ggml.bos_token_id", "bos_token_id"),
    ("tokenizer.ggml.eos_token_id", "eos_token_id"),
    ("tokenizer.ggml.padding_token_id", "pad_token_id"),
];

/// Keys of computations that these families do not have, unless they are zero.
pub(crate) const FOREIGN: &[&str] = &[
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
];

/// The names of all keys that are understood, after the architecture's; with [`FOREIGN`] those that must be zero.
pub(crate) const KEYS: &[&str] = &[
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
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
        for key in FOREIGN {
            if metadata.get(&keys.key(key)).is_some() && keys.real(key)?.is_none_or(|value| value != 0.0) {
                let reason = "the model computes something that its family here does not";
                return Err(metadata.unfit(&keys.key(key), reason, "use a model without experts, windows or scales"));
            }
        }
        const CAUSAL: &str = "attention.causal";
        if metadata.truth(&keys.key(CAUSAL))? == Some(false) {
            let reason = "attention is not causal, which no decoder of this family supports";
            return Err(metadata.unfit(&keys.key(CAUSAL), reason, "use a file of a model that writes texts"));
        }
        let (dim_model, num_heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
        let num_kv_heads = keys.optional("attention.head_count_kv")?.unwrap_or(num_heads);
        if num_heads % num_kv_heads != 0 {
            let reason = format!("{num_kv_heads} heads of keys cannot be shared by {num_heads} heads of queries");
            return Err(keys.unfit("attention.head_count_kv", reason));
        }
        let dim_head = dim_head(&keys, dim_model, num_heads)?;
        let vocab_size = vocab_size(file, &keys)?;
        let has = |end: &str| file.entries().iter().any(|entry| entry.name.ends_with(end));
        let (rope_theta, rope_scaling) = rope::read(file, &keys, dim_head)?;
        let norm = "attention.layer_norm_rms_epsilon";
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
            num_layers: keys.size("block_count")?,
            dim_model,
            dim_ff: keys.size("feed_forward_length")?,
            num_heads,
            num_kv_heads,
            dim_head,
            vocab_size,
            max_positions: keys.size("context_length")?,
            norm_eps: keys.real(norm)?.ok_or_else(|| metadata.lacking(&keys.key(norm)))?,
            rope_theta,
            rope_scaling,
            is_tied: file.entry("output.weight").is_none(),
            attention_bias: family == Family::Qwen2 || has("attn_q.bias"),
            mlp_bias: family == Family::Llama && has("ffn_gate.bias"),
            special_ids,
        })
    }

    /// The configuration as `config.json` has it, without the type of the weights.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| drop(map.insert(key.to_string(), value));
        put("architectures", json!([self.family.architecture()]));
        put("model_type", json!(self.family.name()));
        put("vocab_size", json!(self.vocab_size));
        put("hidden_size", json!(self.dim_model));
        put("intermediate_size", json!(self.dim_ff));
        put("num_hidden_layers", json!(self.num_layers));
        put("num_attention_heads", json!(self.num_heads));
        put("num_key_value_heads", json!(self.num_kv_heads));
        put("head_dim", json!(self.dim_head));
        put("max_position_embeddings", json!(self.max_positions));
        put("hidden_act", json!("silu"));
        put("rms_norm_eps", number(self.norm_eps));
        put("rope_theta", number(self.rope_theta));
        if let Some(scaling) = &self.rope_scaling {
            put("rope_scaling", scaling.clone());
        }
        put("tie_word_embeddings", json!(self.is_tied));
        // Qwen2's class always has biases, whatever the configuration specifies.
        match self.family {
            Family::Llama => {
                put("attention_bias", json!(self.attention_bias));
                put("mlp_bias", json!(self.mlp_bias));
            }
            Family::Qwen2 => put("use_sliding_window", json!(false)),
            Family::Qwen3 => {
                put("attention_bias", json!(self.attention_bias));
                put("use_sliding_window", json!(false));
            }
        }
        for (id, (_, name)) in self.special_ids.iter().zip(IDS) {
            put(name, json!(id));
        }
        map
    }
}

/// The keys of one architecture, with its prefix.
#[derive(Debug)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    family: Family,
}

impl Keys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name())
    }

    /// A size: a whole number from 1 to 2³¹ − 1.
    fn size(&self, name: &str) -> Result<usize> {
        self.optional(name)?.ok_or_else(|| self.metadata.lacking(&self.key(name)))
    }

    pub(super) fn optional(&self, name: &str) -> Result<Option<usize>> {
        match self.metadata.whole(&self.key(name))? {
            Some(size @ 1..=0x7fff_ffff) => Ok(Some(size as usize)),
            Some(other) => Err(self.unfit(name, format!("{other} is not a valid size"))),
            None => Ok(None),
        }
    }

    /// A number, stored as a whole one or not.
    pub(super) fn real(&self, name: &str) -> Result<Option<f32>> {
        let key = self.key(name);
        match self.metadata.whole(&key) {
            Ok(whole) => Ok(whole.map(|whole| whole as f32)),
            Err(_) => self.metadata.real(&key),
        }
    }

    pub(super) fn unfit(&self, name: &str, reason: impl Into<String>) -> Error {
        self.metadata.unfit(&self.key(name), reason, "convert the model to GGUF again, or use another file of it")
    }
}

fn dim_head(keys: &Keys<'_>, dim_model: usize, num_heads: usize) -> Result<usize> {
    let dim_head = match keys.optional("attention.key_length")? {
        Some(length) => length,
        None if dim_model.is_multiple_of(num_heads) => dim_model / num_heads,
        None => return Err(keys.unfit("attention.head_count", format!("{num_heads} heads do not divide {dim_model}"))),
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = keys.optional(name)?.filter(|other| *other != dim_head) {
            let reason = format!("{other} is not the {dim_head} of a head, which this family needs");
            return Err(keys.unfit(name, reason));
        }
    }
    if !dim_head.is_multiple_of(2) {
        return Err(keys.unfit("attention.key_length", format!("heads of {dim_head} cannot be rotated in pairs")));
    }
    Ok(dim_head)
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
