//! BLOOM (Le Scao et al., 2022): ALiBi, a norm after the embedding, pre-norm blocks, a tied language-modelling head.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a BLOOM. ModelCenter does not have the family; its names of the common fields are accepted.
    ///
    /// Source: Le Scao et al. 2022 for the architecture.
    pub struct BloomConfig {
        /// The common fields. F is always 4 D and the activation the tanh form of GELU; there is no dropout after the
        /// embeddings. Hugging Face's `seq_length` is the length of the training sequences and limits nothing. `extra`
        /// holds `pretraining_tp` and `slow_but_exact`, which specify the number of parts to split sums into.
        text: TextConfig {
            vocab_size: 250_880,
            dim_model: 1024,
            num_heads: 16,
            dim_head: 64,
            dim_ff: FF_FACTOR * 1024,
            num_layers: 24,
            ffn_activate_fn: Activation::GeluTanh,
            tied: true,
            ..TextConfig::default()
        };
    }
}

/// F / D.
const FF_FACTOR: usize = 4;

impl RowConfig for BloomConfig {
    const DIALECT: Dialect = Dialect {
        title: "BLOOM",
        model_type: "bloom",
        dim_model: &["hidden_size", "n_embed"],
        num_layers: &["n_layer", "num_hidden_layers"],
        num_heads: &["n_head", "num_attention_heads"],
        dim_ff: &[],
        ff_factor: Some(FF_FACTOR),
        position_size: &[],
        dropout: &["hidden_dropout"],
        attention_dropout: &["attention_dropout"],
        norm_eps: &["layer_norm_epsilon"],
        activation: &[],
        fixed: &[
            Fixed::BIASES,
            Fixed::PRE_NORM,
            &[("attn_scale", Fixed::Flag(true)), ("apply_residual_connection_post_layernorm", Fixed::Flag(false))],
        ],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        Self::DIALECT.take_no_embedding_dropout(fields)?;
        let position_size = fields.take_either("seq_length", "position_size", Fields::take_size)?;
        let (mut text, _) = Self::DIALECT.take(fields, Self::default().text)?;
        text.position_size = position_size.unwrap_or(text.position_size);
        text.embedding_dropout_p = 0.0;
        let inner = fields.peek_size("n_inner")?.unwrap_or(text.dim_ff);
        if inner != FF_FACTOR * text.dim_model || inner != text.dim_ff {
            let name = if inner == text.dim_ff { "dim_ff" } else { "n_inner" };
            return Err(Self::DIALECT.unsupported(fields, name, &(FF_FACTOR * text.dim_model).to_string()));
        }
        if text.ffn_activate_fn != Activation::GeluTanh {
            return Err(Self::DIALECT.unsupported(fields, "ffn_activate_fn", "gelu_new"));
        }
        let parts = fields.peek_size("pretraining_tp")?.unwrap_or(1);
        if fields.peek_flag("slow_but_exact")? == Some(true) && parts > 1 {
            // transformers then omits the biases after attention and feed-forward.
            return Err(Self::DIALECT.unsupported(fields, "slow_but_exact", "false"));
        }
        Ok(BloomConfig { text })
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        map.insert("seq_length".to_string(), json!(self.text.position_size));
        map.insert("apply_residual_connection_post_layernorm".to_string(), json!(false));
        Ok(())
    }
}

/// A BLOOM with its head.
pub type Bloom = Transformer<BloomConfig>;

impl ModelFamily for BloomConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Bloom")
    }

    fn spec(&self) -> Spec {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        let stack = StackSpec {
            embedding_norm: Some(norm),
            ..StackSpec::decoder(&self.text, PositionsConfig::Alibi(self.text.num_heads), norm)
        };
        Spec { padding_learns: true, ..Spec::decoder(self, stack) }
    }

    /// Queries, keys and values of a head are adjacent in files.
    fn names(&self, head: Head) -> NameTable {
        let (heads, size) = (self.text.num_heads, self.text.num_heads * self.text.dim_head);
        let rule = |ours: &str, theirs: &str| {
            let both = |kind: &str| {
                let ours = format!("decoder.layers.{{i}}.{ours}.{kind}");
                Rule::owned(ours, format!("transformer.h.{{i}}.{theirs}.{kind}"))
            };
            ["weight", "bias"].map(both)
        };
        let qkv = rule("attention.project_qkv", "self_attention.query_key_value");
        let mut rules: Vec<Rule> = OUTER.to_vec();
        rules.extend(qkv.map(|rule| rule.rows(vec![size; 3]).interleaved(heads)));
        for (ours, theirs) in [
            ("attention_norm", "input_layernorm"),
            ("attention.attention_out", "self_attention.dense"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn.w_in", "mlp.dense_h_to_4h"),
            ("ffn.w_out", "mlp.dense_4h_to_h"),
        ] {
            rules.extend(rule(ours, theirs));
        }
        NameTable {
            base_prefix: "transformer.",
            rules: Cow::Owned(rules),
            aliases: head.tied_alias("transformer.word_embeddings.weight").into_iter().collect(),
            ..NameTable::default()
        }
    }
}

/// The parameters outside of the blocks.
static OUTER: [Rule; 7] = [
    Rule::new("input_embedding.weight", "transformer.word_embeddings.weight"),
    Rule::new("embedding_norm.weight", "transformer.word_embeddings_layernorm.weight"),
    Rule::new("embedding_norm.bias", "transformer.word_embeddings_layernorm.bias"),
    Rule::new("decoder.output_norm.weight", "transformer.ln_f.weight"),
    Rule::new("decoder.output_norm.bias", "transformer.ln_f.bias"),
    Rule::new("lm_head.weight", "lm_head.weight"),
    Rule::new("cls_projection.weight", "score.weight"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "bloom",
        doc: "BLOOM with heads for the next token and for classification",
        open: Bloom::open,
        facts: Bloom::FACTS,
    },
    class: None,
    class_prefix: "Bloom",
    signatures: &[Signature {
        prefix: "transformer.",
        has: &[&["word_embeddings_layernorm.weight", "h.0.self_attention.query_key_value.weight"]],
        lacks: &[],
    }],
};
