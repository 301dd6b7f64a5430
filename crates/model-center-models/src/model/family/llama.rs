//! Llama 1, 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024): RMS norms, rotary embeddings, gated feed-forward
//! layers, and grouped-query attention.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Llama.
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/llama_config.py`; Touvron et al. 2023 for the
    /// architecture.
    pub struct LlamaConfig {
        /// The common fields.
        text: TextConfig {
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
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`; ModelCenter writes -1 for N.
        num_heads_kv: usize = 32, KvHeads("num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = RotaryFields::PLAIN, Rotary();
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
        /// Whether the feed-forward's linear layers have biases. Hugging Face: `mlp_bias`.
        ffn_bias: bool = false, Flag("mlp_bias" => "ffn_bias");
    }
}

/// Fields of ModelCenter that have one value in Llama and related families.
pub(crate) const FIXED: FixedFields = &[
    ("norm_bias", Fixed::Flag(false)),
    ("proj_bias", Fixed::Flag(false)),
    ("length_scale", Fixed::Flag(false)),
    ("attn_scale", Fixed::Flag(true)),
    ("post_layer_norm", Fixed::Flag(false)),
    ("pos_bias_type", Fixed::Text("rotary")),
];

impl RowConfig for LlamaConfig {
    const DIALECT: Dialect = Dialect {
        class: Some(Class {
            family: "llama",
            order: 5,
            title: "Llama",
            pos_bias_type: "rotary",
            norm_bias: false,
            att_mask_value: "-inf",
            biases: (false, false, Some(false)),
            own: &["num_layers", "num_heads_kv"],
            ..Class::PRE_NORM
        }),
        title: "Llama",
        model_type: "llama",
        dim_head: &["head_dim"],
        dropout: &[],
        attention_dropout: &["attention_dropout"],
        norm_eps: &["rms_norm_eps"],
        gated: Some(true),
        fixed: &[FIXED],
        ..Dialect::HUGGING_FACE
    };

    fn to_class(&self, header: &HfHeader) -> Result<ClassFields> {
        let mut written = model_center::class_fields(self, header)?;
        // Version 1.0.3 does not have the field yet: it is written only if the model needs it.
        if self.num_heads_kv == self.text.num_heads {
            written.map.shift_remove("num_heads_kv");
        }
        Ok(written)
    }
}

/// A Llama with its head.
pub type Llama = Transformer<LlamaConfig>;

impl ModelFamily for LlamaConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Llama")
    }

    fn spec(&self) -> Spec {
        spec(self, &self.rotary)
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = block(&self.text, self.num_heads_kv);
        BlockConfig {
            attention: AttentionConfig { bias: self.att_bias, out_bias: self.att_bias, ..block.attention },
            ffn: FeedForwardConfig { bias: self.ffn_bias, ..block.ffn },
            ..block
        }
    }

    fn names_of_model_center(&self, _head: Head) -> Option<NameTable> {
        // ModelCenter's rotary embedding has this base and no scaling.
        (self.rotary == RotaryFields::PLAIN).then(|| model_center_names::decoder(self, "encoder"))
    }

    fn names(&self, head: Head) -> NameTable {
        names(&self.text, self.num_heads_kv, head)
    }

    fn names_of_torchtitan(&self, head: Head) -> Option<NameTable> {
        let TextConfig { num_heads, dim_head, .. } = self.text;
        let rows = [num_heads, self.num_heads_kv].map(|heads| heads * dim_head);
        let has_biases = self.att_bias || self.ffn_bias;
        (!has_biases).then(|| torchtitan::table(rows, Some(dim_head), head.is_tied()))
    }
}

/// The modules around the blocks of a Llama-like decoder.
pub(in crate::model) fn spec(config: &impl RowConfig, rotary: &RotaryFields) -> Spec {
    spec_of_tables(config, vec![rotary.of_heads(config.text().dim_head)])
}

/// The modules where blocks have rotary positions by one of these tables.
pub(in crate::model) fn spec_of_tables(config: &impl RowConfig, tables: Vec<RotaryConfig>) -> Spec {
    let text = config.text();
    let norm = NormOptions::rms(text.dim_model, text.norm_eps);
    Spec::decoder(config, StackSpec::decoder(text, PositionsConfig::Rotary(tables), norm))
}

/// A block of a Llama-like decoder, without biases.
pub(in crate::model) fn block(text: &TextConfig, num_heads_kv: usize) -> BlockConfig {
    let block = block_without_biases(text);
    BlockConfig {
        attention: AttentionConfig {
            num_heads_kv,
            causal: true,
            rotary: Some(RotaryHeads::halves(text.dim_head, 0)),
            ..block.attention
        },
        ffn: FeedForwardConfig { gated: true, ..block.ffn },
        ..block
    }
}

/// Take `use_sliding_window` as true and `max_window_layers` as 0 in a family whose windows do not depend on them.
///
/// # Errors
/// `use_sliding_window` is false: transformers does not know the field there, and has the windows.
pub(in crate::model) fn require_windows<C: RowConfig>(fields: &mut Fields) -> Result<()> {
    refuse_no_windows::<C>(fields)?;
    fields.set("max_window_layers", json!(0));
    Ok(())
}

/// Refuse `use_sliding_window = false` in a family that has windows all the same in transformers.
pub(in crate::model) fn refuse_no_windows<C: RowConfig>(fields: &Fields) -> Result<()> {
    match fields.peek_flag("use_sliding_window")? {
        Some(false) => Err(C::DIALECT.unsupported(fields, "use_sliding_window", "true")),
        _ => Ok(()),
    }
}

/// The name of gates and what they multiply in families whose files have both in one tensor.
pub(in crate::model) const GATE_UP: Rule =
    Rule::new("decoder.layers.{i}.ffn.w_in.weight", "model.layers.{i}.mlp.gate_up_proj.weight");

/// Parameter names of Llama-like decoders, with and without biases and query and key norms.
pub(in crate::model) fn names(text: &TextConfig, num_heads_kv: usize, head: Head) -> NameTable {
    let (q, kv) = (text.num_heads * text.dim_head, num_heads_kv * text.dim_head);
    let qkv = |ours: &'static str, theirs: &'static str| Rule::new(ours, theirs).rows(vec![q, kv, kv]);
    let rules = vec![
        Rule::new("input_embedding.weight", "model.embed_tokens.weight"),
        Rule::new("decoder.layers.{i}.attention_norm.weight", "model.layers.{i}.input_layernorm.weight"),
        qkv(
            "decoder.layers.{i}.attention.project_qkv.weight",
            "model.layers.{i}.self_attn.{q_proj|k_proj|v_proj}.weight",
        ),
        qkv("decoder.layers.{i}.attention.project_qkv.bias", "model.layers.{i}.self_attn.{q_proj|k_proj|v_proj}.bias"),
        Rule::new("decoder.layers.{i}.attention.query_norm.weight", "model.layers.{i}.self_attn.q_norm.weight"),
        Rule::new("decoder.layers.{i}.attention.key_norm.weight", "model.layers.{i}.self_attn.k_norm.weight"),
        Rule::new("decoder.layers.{i}.attention.attention_out.weight", "model.layers.{i}.self_attn.o_proj.weight"),
        Rule::new("decoder.layers.{i}.attention.attention_out.bias", "model.layers.{i}.self_attn.o_proj.bias"),
        Rule::new("decoder.layers.{i}.ffn_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
        Rule::new("decoder.layers.{i}.ffn.w_in.weight", "model.layers.{i}.mlp.{gate_proj|up_proj}.weight"),
        Rule::new("decoder.layers.{i}.ffn.w_in.bias", "model.layers.{i}.mlp.{gate_proj|up_proj}.bias"),
        Rule::new("decoder.layers.{i}.ffn.w_out.weight", "model.layers.{i}.mlp.down_proj.weight"),
        Rule::new("decoder.layers.{i}.ffn.w_out.bias", "model.layers.{i}.mlp.down_proj.bias"),
        Rule::new("decoder.output_norm.weight", "model.norm.weight"),
        Rule::new("lm_head.weight", "lm_head.weight"),
        Rule::new("cls_projection.weight", "score.weight"),
    ];
    NameTable {
        base_prefix: "model.",
        rules: Cow::Owned(rules),
        aliases: head.tied_alias("model.embed_tokens.weight").into_iter().collect(),
        // Older versions stored the rotary frequencies.
        ignored: Cow::Borrowed(&["model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]),
        ..NameTable::default()
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "llama",
        doc: "Llama 1, 2 and 3 with heads for the next token and for classification",
        open: Llama::open,
        facts: Llama::FACTS,
    },
    class: LlamaConfig::DIALECT.class,
    class_prefix: "Llama",
    signatures: &[
        PLAIN,
        Signature {
            prefix: "model.",
            has: &[TENSORS, &["layers.0.self_attn.o_proj.bias"]],
            lacks: &["layers.0.self_attn.q_norm.weight"],
        },
    ],
};

/// Llama-like decoders without biases and norms of heads.
pub(in crate::model) const PLAIN: Signature = Signature {
    prefix: "model.",
    has: &[TENSORS],
    lacks: &[
        "layers.0.self_attn.q_proj.bias",
        "layers.0.self_attn.q_norm.weight",
        "layers.0.pre_feedforward_layernorm.weight",
    ],
};

/// Tensors that identify the weights of Llama-like decoders.
pub(in crate::model) const TENSORS: &[&str] = &[
    "layers.0.self_attn.q_proj.weight",
    "layers.0.mlp.gate_proj.weight",
    "layers.0.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight",
    "norm.weight",
];
