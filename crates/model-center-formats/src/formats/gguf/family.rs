//! The families of models that GGUF files hold: their names in both formats, the names of their tensors, and the keys
//! that only one of them has.
//!
//! Defines [`Family`], and for [`super::names`] its [`Layout`].
//!
//! Source: the tables of the package `gguf` 0.19.0 (`MODEL_TENSORS`, `TENSOR_NAMES`, `get_tensor_name_map`) for names;
//! llama.cpp's converter and loader, as `llama-cpp-python` 0.3.36 ships them, for the order of rows and added numbers.

use super::Metadata;
use crate::Result;
use model_center_base::file::printable;

/// A kind of model, by what the format calls its architecture and by what the file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `llama`: Llama, and Mistral, whose arithmetic is the same but for a window that these files do not record.
    Llama,
    /// `qwen2`: biases at queries, keys and values.
    Qwen2,
    /// `qwen3`: norms of queries and keys.
    Qwen3,
    /// `granite`: factors of embeddings, scores, what layers add, and logits.
    Granite,
    /// `olmo2` without windows: norms after the layers.
    Olmo2,
    /// `olmo2` with windows.
    Olmo3,
    /// `smollm3`: each fourth layer has no positions.
    SmolLm3,
    /// `phi3`: fused projections, rotary embeddings of parts of heads, LongRoPE.
    Phi3,
    /// `glm4`: fused gates, norms before and after the layers.
    Glm4,
    /// `gptneox`: layer norms, and no gates.
    GptNeox,
    /// `gemma3`: norms that files store with 1 added to their weights.
    Gemma3,
}

/// The key of a file's architecture.
const ARCHITECTURE: &str = "general.architecture";
/// The key of the window's size, after the architecture's name.
pub(super) const WINDOW: &str = "attention.sliding_window";
/// The key of the layers with a window.
pub(super) const PATTERN: &str = "attention.sliding_window_pattern";
/// The key of the base of rotary angles in layers with a window.
pub(super) const WINDOW_BASE: &str = "rope.freq_base_swa";

impl Family {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Granite,
        Self::Olmo2,
        Self::Olmo3,
        Self::SmolLm3,
        Self::Phi3,
        Self::Glm4,
        Self::GptNeox,
        Self::Gemma3,
    ];

    /// The name in `general.architecture`, with which the names of keys begin.
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    /// The name in `model_type` of Hugging Face.
    pub fn model_type(self) -> &'static str {
        self.names()[1]
    }

    /// The class of the model in `transformers`.
    pub fn architecture(self) -> &'static str {
        self.names()[2]
    }

    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Llama => ["llama", "llama", "LlamaForCausalLM"],
            Self::Qwen2 => ["qwen2", "qwen2", "Qwen2ForCausalLM"],
            Self::Qwen3 => ["qwen3", "qwen3", "Qwen3ForCausalLM"],
            Self::Granite => ["granite", "granite", "GraniteForCausalLM"],
            Self::Olmo2 => ["olmo2", "olmo2", "Olmo2ForCausalLM"],
            Self::Olmo3 => ["olmo2", "olmo3", "Olmo3ForCausalLM"],
            Self::SmolLm3 => ["smollm3", "smollm3", "SmolLM3ForCausalLM"],
            Self::Phi3 => ["phi3", "phi3", "Phi3ForCausalLM"],
            Self::Glm4 => ["glm4", "glm4", "Glm4ForCausalLM"],
            Self::GptNeox => ["gptneox", "gpt_neox", "GPTNeoXForCausalLM"],
            Self::Gemma3 => ["gemma3", "gemma3_text", "Gemma3ForCausalLM"],
        }
    }

    /// Whether rows of queries and keys are stored in another order than Hugging Face's.
    pub fn interleaves_heads(self) -> bool {
        matches!(self, Self::Llama | Self::Granite | Self::SmolLm3)
    }

    /// Whether a part of each head may be without rotary embedding.
    pub(super) fn rotates_parts(self) -> bool {
        matches!(self, Self::Phi3 | Self::Glm4 | Self::GptNeox)
    }

    /// Whether some layers have windows, and rotary angles of their own with them.
    pub(super) fn has_layer_windows(self) -> bool {
        matches!(self, Self::Olmo3 | Self::Gemma3)
    }

    /// The keys that this family has besides the common ones, after the architecture's name.
    pub(crate) fn own_keys(self) -> &'static [&'static str] {
        match self {
            Self::Granite => &["attention.scale", "embedding_scale", "residual_scale", "logit_scale"],
            Self::Olmo3 | Self::Gemma3 => &[WINDOW, PATTERN, WINDOW_BASE],
            Self::Phi3 => &[WINDOW, "rope.scaling.attn_factor"],
            Self::GptNeox => &["use_parallel_residual", "attention.layer_norm_epsilon"],
            _ => &[],
        }
    }

    /// A property of the model that its files do not declare, with what it is taken to be.
    pub(crate) fn undeclared(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::SmolLm3 => Some((
                "layers without positions",
                "the file does not list them: each fourth layer has none, as in the published models",
            )),
            Self::GptNeox => Some((
                "activation",
                "the file does not declare it: gelu is used, as in Pythia (GPT-NeoX-20B has gelu_fast)",
            )),
            Self::Gemma3 => Some((
                "scale of attention scores",
                "the file does not declare it: it follows from the sizes, as in the published models",
            )),
            _ => None,
        }
    }

    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        let name = metadata.text(ARCHITECTURE)?.ok_or_else(|| metadata.lacking(ARCHITECTURE))?;
        let found = Self::ALL.into_iter().find(|family| family.name() == name).ok_or_else(|| {
            let mut known = Self::ALL.map(Self::name).to_vec();
            known.dedup();
            let reason = format!("the architecture is {}; supported are {}", printable(name, 60), known.join(", "));
            metadata.unfit(ARCHITECTURE, reason, "use a model of one of these families (Mistral is llama here)")
        })?;
        let has_windows = || metadata.whole(&format!("{name}.{WINDOW}")).map(|size| size.is_some_and(|size| size > 0));
        match found {
            Self::Olmo2 if has_windows()? => Ok(Self::Olmo3),
            found => Ok(found),
        }
    }

    /// The tensors of its files.
    pub(super) fn layout(self) -> &'static Layout {
        match self {
            Self::Llama | Self::Qwen2 | Self::Granite | Self::SmolLm3 => &PLAIN,
            Self::Qwen3 => &WITH_HEAD_NORMS,
            Self::Olmo2 | Self::Olmo3 => &NORMS_AFTER,
            Self::Phi3 => &FUSED,
            Self::Glm4 => &FUSED_GATES,
            Self::GptNeox => &GPT_NEOX,
            Self::Gemma3 => &FOUR_NORMS,
        }
    }
}

/// The rows and columns of a matrix by the sizes of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Query,
    Key,
    Value,
    /// Queries, then keys, then values; with the heads of each one after another where Hugging Face has the three of
    /// one head together.
    Fused {
        by_head: bool,
    },
    Output,
    Up,
    /// Gates, then what they multiply.
    GateUp,
    Down,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadNorms {
    None,
    /// One weight for each element of a head.
    OfHeads,
    /// One for each element of all heads.
    OfAll,
}

/// A tensor's name in the format, without `weight` or `bias`, and Hugging Face's.
pub(super) type Pair = (&'static str, &'static str);

/// The tensors of a family's files.
#[derive(Debug)]
pub(super) struct Layout {
    /// With which Hugging Face's names begin.
    pub prefix: &'static str,
    /// Hugging Face's name of the token embedding, after the prefix.
    pub embedding: &'static str,
    /// Name of the last norm, after the prefix.
    pub last_norm: &'static str,
    /// Name of the output projection.
    pub output: &'static str,
    /// The norms of a block.
    pub norms: &'static [Pair],
    /// Whether norms have biases.
    pub norm_bias: bool,
    /// Whether files have 1 added to the weights of norms.
    pub from_one: bool,
    /// Norms of queries and keys.
    pub head_norms: HeadNorms,
    /// The matrices of a block.
    pub matrices: &'static [(&'static str, &'static str, Shape)],
}

const PLAIN: Layout = Layout {
    prefix: "model.",
    embedding: "embed_tokens",
    last_norm: "norm",
    output: "lm_head.weight",
    norms: &[("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")],
    norm_bias: false,
    from_one: false,
    head_norms: HeadNorms::None,
    matrices: &[
        ("attn_q", "self_attn.q_proj", Shape::Query),
        ("attn_k", "self_attn.k_proj", Shape::Key),
        ("attn_v", "self_attn.v_proj", Shape::Value),
        ("attn_output", "self_attn.o_proj", Shape::Output),
        ("ffn_gate", "mlp.gate_proj", Shape::Up),
        ("ffn_up", "mlp.up_proj", Shape::Up),
        ("ffn_down", "mlp.down_proj", Shape::Down),
    ],
};

const WITH_HEAD_NORMS: Layout = Layout { head_norms: HeadNorms::OfHeads, ..PLAIN };

const NORMS_AFTER: Layout = Layout {
    norms: &[("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm")],
    head_norms: HeadNorms::OfAll,
    ..PLAIN
};

const FUSED: Layout = Layout {
    matrices: &[
        ("attn_qkv", "self_attn.qkv_proj", Shape::Fused { by_head: false }),
        ("attn_output", "self_attn.o_proj", Shape::Output),
        ("ffn_up", "mlp.gate_up_proj", Shape::GateUp),
        ("ffn_down", "mlp.down_proj", Shape::Down),
    ],
    ..PLAIN
};

const FUSED_GATES: Layout = Layout {
    norms: &[
        ("attn_norm", "input_layernorm"),
        ("post_attention_norm", "post_self_attn_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
    ],
    matrices: &[
        ("attn_q", "self_attn.q_proj", Shape::Query),
        ("attn_k", "self_attn.k_proj", Shape::Key),
        ("attn_v", "self_attn.v_proj", Shape::Value),
        ("attn_output", "self_attn.o_proj", Shape::Output),
        ("ffn_up", "mlp.gate_up_proj", Shape::GateUp),
        ("ffn_down", "mlp.down_proj", Shape::Down),
    ],
    ..PLAIN
};

const GPT_NEOX: Layout = Layout {
    prefix: "gpt_neox.",
    embedding: "embed_in",
    last_norm: "final_layer_norm",
    output: "embed_out.weight",
    norm_bias: true,
    matrices: &[
        ("attn_qkv", "attention.query_key_value", Shape::Fused { by_head: true }),
        ("attn_output", "attention.dense", Shape::Output),
        ("ffn_up", "mlp.dense_h_to_4h", Shape::Up),
        ("ffn_down", "mlp.dense_4h_to_h", Shape::Down),
    ],
    ..PLAIN
};

const FOUR_NORMS: Layout = Layout {
    norms: &[
        ("attn_norm", "input_layernorm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    from_one: true,
    head_norms: HeadNorms::OfHeads,
    ..PLAIN
};
