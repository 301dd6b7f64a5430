//! GPT-NeoX (Black et al., 2022) and Pythia (Biderman et al., 2023): attention and feed-forward in parallel with a norm
//! each, rotary embeddings of a part of each head.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a GPT-NeoX.
    ///
    /// ModelCenter has no GPT-NeoX: its names mean the same as for others, and defaults are taken from transformers.
    pub struct GptNeoxConfig {
        /// The common fields.
        text: TextConfig {
            vocab_size: 50432,
            dim_model: 6144,
            num_heads: 64,
            dim_head: 96,
            dim_ff: 24576,
            num_layers: 44,
            position_size: 2048,
            norm_eps: 1e-5,
            ..TextConfig::default()
        };
        /// Rotary embedding. Hugging Face: also `rotary_pct` and `rotary_emb_base`.
        rotary: RotaryFields = RotaryFields { share: 0.25, ..RotaryFields::PLAIN }, PartRotary();
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = true, Flag("attention_bias" => "att_bias");
        /// Whether attention and feed-forward have the same input; else the second follows the first.
        use_parallel_residual: bool = true, Flag("use_parallel_residual");
    }
}

/// The family's names in files, and what they are called elsewhere.
const OLDER: [(&str, &str); 2] = [("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")];

impl RowConfig for GptNeoxConfig {
    const DIALECT: Dialect = Dialect {
        title: "GPT-NeoX",
        model_type: "gpt_neox",
        dropout: &["hidden_dropout"],
        attention_dropout: &["attention_dropout"],
        fixed: &[Fixed::PRE_NORM, &[("norm_bias", Fixed::Flag(true)), ("ffn_bias", Fixed::Flag(true))]],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        for (own, general) in OLDER {
            fields.rename(own, general)?;
        }
        if let (Some(rate), false) = (fields.peek("hidden_dropout").cloned(), fields.has("embedding_dropout_p")) {
            fields.set("embedding_dropout_p", rate);
        }
        Ok(rows::take_config(fields)?.0)
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        map.extend(OLDER.map(|(own, general)| (own.to_owned(), map.get(general).cloned().unwrap_or_default())));
        Ok(())
    }
}

/// A GPT-NeoX with its head.
pub type GptNeox = Transformer<GptNeoxConfig>;

impl ModelFamily for GptNeoxConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        Classes::decoder("GPTNeoX")
    }

    fn spec(&self) -> Spec {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        let positions = PositionsConfig::Rotary(vec![self.rotary.of_heads(self.text.dim_head)]);
        Spec { padding_learns: true, ..Spec::decoder(self, StackSpec::decoder(&self.text, positions, norm)) }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let placement = if self.use_parallel_residual { Placement::ParallelNorms } else { Placement::Pre };
        let (block, bias) = (block(&self.text, placement), self.att_bias);
        let layout = RotaryLayout::Halves;
        let rotary = Some(RotaryHeads { table: 0, dims: self.rotary.dims(self.text.dim_head), layout });
        let attention = AttentionConfig { bias, out_bias: bias, causal: true, rotary, ..block.attention };
        BlockConfig { attention, ..block }
    }

    /// Queries, keys and values of a head are adjacent in files.
    fn names(&self, head: Head) -> NameTable {
        let TextConfig { num_heads, dim_model, .. } = self.text;
        let rule = |(ours, theirs): (&str, &str), kind: &str| {
            Rule::owned(format!("decoder.{ours}.{kind}"), format!("gpt_neox.{theirs}.{kind}"))
        };
        let mut rules = OUTER.to_vec();
        for kind in ["weight", "bias"] {
            rules.push(rule(QKV, kind).rows(vec![dim_model; 3]).interleaved(num_heads));
            rules.extend(MODULES.map(|names| rule(names, kind)));
        }
        let is_tied = head == Head::CausalLm { tied: true };
        NameTable {
            base_prefix: "gpt_neox.",
            rules: Cow::Owned(rules),
            aliases: if is_tied { Cow::Borrowed(&TIED) } else { Cow::default() },
            ignored: Cow::Borrowed(&STORED),
            ..NameTable::default()
        }
    }

    fn other_heads(_head: Head) -> &'static [&'static str] {
        &["embed_out.*", "score.*", "classifier.*", "qa_outputs.*", "v_head.*"]
    }
}

/// The parameters outside of the blocks.
static OUTER: [Rule; 3] = [
    Rule::new("input_embedding.weight", "gpt_neox.embed_in.weight"),
    Rule::new("lm_head.weight", "embed_out.weight"),
    Rule::new("cls_projection.weight", "score.weight"),
];
static TIED: [Alias; 1] = [Alias::new("embed_out.weight", "gpt_neox.embed_in.weight")];
/// Causal masks and frequencies that older versions stored.
static STORED: [&str; 3] = [
    "gpt_neox.layers.*.attention.bias",
    "gpt_neox.layers.*.attention.masked_bias",
    "gpt_neox.layers.*.attention.rotary_emb.inv_freq",
];
const QKV: (&str, &str) = ("layers.{i}.attention.project_qkv", "layers.{i}.attention.query_key_value");
const MODULES: [(&str, &str); 6] = [
    ("layers.{i}.attention_norm", "layers.{i}.input_layernorm"),
    ("layers.{i}.attention.attention_out", "layers.{i}.attention.dense"),
    ("layers.{i}.ffn_norm", "layers.{i}.post_attention_layernorm"),
    ("layers.{i}.ffn.w_in", "layers.{i}.mlp.dense_h_to_4h"),
    ("layers.{i}.ffn.w_out", "layers.{i}.mlp.dense_4h_to_h"),
    ("output_norm", "final_layer_norm"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "gpt_neox",
        doc: "GPT-NeoX and Pythia with heads for the next token and for classification",
        open: GptNeox::open,
        facts: GptNeox::FACTS,
    },
    class: None,
    class_prefix: "GPTNeoX",
    signatures: &[Signature {
        prefix: "gpt_neox.",
        has: &[&["embed_in.weight", "layers.0.attention.query_key_value.weight", "final_layer_norm.weight"]],
        lacks: &[],
    }],
};
