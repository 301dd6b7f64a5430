//! OPT (Zhang et al., 2022): learned positions that count tokens, pre-norm blocks with ReLU, a tied language-modelling
//! head. The model with 350 million parameters has post-norm blocks and a smaller token embedding dimension.

use crate::model::prelude::*;

/// The epsilon of OPT's norms, which its files do not state.
const NORM_EPS: f32 = 1e-5;

model_config! {
    /// Sizes and options of an OPT.
    ///
    /// Defaults are taken from ModelCenter's `OPTConfig`. Its `post_layer_norm` is unrelated to the post-norm blocks of
    /// the model with 350 million parameters, which ModelCenter does not have: see [`OptConfig::norm_before`].
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/opt_config.py`; Zhang et al. 2022 for the architecture.
    pub struct OptConfig {
        /// The common fields. There is no dropout after the embeddings. `extra` holds `layerdrop`, which is 0.
        text: TextConfig {
            vocab_size: 50272,
            dropout_p: 0.1,
            attention_dropout_p: 0.1,
            norm_eps: NORM_EPS,
            ffn_activate_fn: Activation::Relu,
            tied: true,
            pad_token_id: Some(1),
            ..TextConfig::default()
        };
        /// Pre-norm blocks if true, post-norm if false. Hugging Face: `do_layer_norm_before`.
        norm_before: bool = true, Flag("do_layer_norm_before");
        /// Whether a pre-norm model lacks the final norm. Hugging Face: `_remove_final_layer_norm`.
        no_final_norm: bool = false, Flag("_remove_final_layer_norm");
        /// Whether attention and feed-forward have biases. Hugging Face: `enable_bias`.
        bias: bool = true, Flag("enable_bias" => "att_bias", "ffn_bias");
        /// Dimension of the token embeddings; if it is not D, linear layers project to D and back. Hugging Face:
        /// `word_embed_proj_dim`.
        dim_word: usize = TextConfig::default().dim_model, Size("word_embed_proj_dim");
    }
}

impl OptConfig {
    /// Whether a norm follows the last block.
    pub fn has_final_norm(&self) -> bool {
        self.norm_before && !self.no_final_norm
    }
}

impl RowConfig for OptConfig {
    const DIALECT: Dialect = Dialect {
        class: Some(Class {
            family: "opt",
            order: 6,
            title: "OPT",
            att_mask_value: "-65504",
            biases: (true, true, None),
            own: &["num_layers", "position_size", "pad_token_id"],
            read: &["prefix"],
            ..Class::PRE_NORM
        }),
        title: "OPT",
        model_type: "opt",
        dim_model: &["hidden_size"],
        num_layers: &["num_hidden_layers"],
        num_heads: &["num_attention_heads"],
        dim_ff: &["ffn_dim"],
        hugging_face: |defaults| TextConfig { attention_dropout_p: 0.0, ..defaults },
        fixed: &[
            Fixed::PRE_NORM,
            &[
                ("norm_bias", Fixed::Flag(true)),
                ("layer_norm_elementwise_affine", Fixed::Flag(true)),
                ("proj_bias", Fixed::Flag(false)),
                ("attn_scale", Fixed::Flag(true)),
                ("pos_bias_type", Fixed::Text("none")),
            ],
        ],
        ..encoder_decoder::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        Self::DIALECT.take_no_embedding_dropout(fields)?;
        let has_embedding_size = fields.peek("word_embed_proj_dim").is_some();
        let (mut config, _) = rows::take_config::<Self>(fields)?;
        config.text.embedding_dropout_p = 0.0;
        if !has_embedding_size {
            config.dim_word = config.text.dim_model;
        }
        Self::DIALECT.refuse_layer_dropout(fields, &["layerdrop"])?;
        Ok(config)
    }

    fn adjust_dict(&self, map: &mut Map<String, Value>) {
        // A file without them means the same.
        map.shift_remove("embedding_dropout_p");
        if self.dim_word == self.text.dim_model {
            map.shift_remove("word_embed_proj_dim");
        }
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        map.insert("layer_norm_elementwise_affine".to_string(), json!(true));
        Self::DIALECT.check_norm_eps(&self.text, NORM_EPS)
    }

    fn to_class(&self, header: &HfHeader) -> Result<ClassFields> {
        if !self.text.tied {
            let reason = "its language-modelling head shares the token embedding, and this model's does not";
            let fix = "write the model as a Hugging Face directory";
            return Err(Error::model("OPT in ModelCenter's layout", reason, fix));
        }
        model_center::class_fields(self, header)
    }
}

/// An OPT with its head.
pub type Opt = Transformer<OptConfig>;

impl ModelFamily for OptConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("OPT")
    }

    fn spec(&self) -> Spec {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        let stack = StackSpec {
            output_norm: self.has_final_norm().then_some(norm),
            ..StackSpec::decoder(&self.text, PositionsConfig::None, norm)
        };
        // Row 1 is for padding; row 0 is unused.
        let table = PositionTable { first: 2, count: Count::Tokens };
        let spec = Spec::decoder(self, stack.adding(Added::Learned(table), &self.text));
        Spec { embedding_size: self.dim_word, head: HeadSpec { size: self.dim_word, ..spec.head }, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let bias = self.bias;
        let block = block(&self.text, if self.norm_before { Placement::Pre } else { Placement::Post });
        BlockConfig {
            attention: AttentionConfig { bias, out_bias: bias, causal: true, ..block.attention },
            ffn: FeedForwardConfig { bias, ..block.ffn },
            ..block
        }
    }

    fn names_of_model_center(&self, _head: Head) -> Option<NameTable> {
        // ModelCenter does not have the model with 350 million parameters, and always has a final norm.
        let is_there = self.has_final_norm() && self.dim_word == self.text.dim_model;
        is_there.then(|| model_center_names::decoder(self, "decoder"))
    }

    fn names(&self, head: Head) -> NameTable {
        let mut rules = RULES.to_vec();
        rules.extend(fairseq::rules("decoder", "model.decoder"));
        NameTable {
            base_prefix: "model.",
            rules: Cow::Owned(rules),
            aliases: head.tied_alias("model.decoder.embed_tokens.weight").into_iter().collect(),
            // A version number that fairseq left in its models.
            ignored: Cow::Borrowed(&["model.decoder.version"]),
            ..NameTable::default()
        }
    }
}

/// The parameters outside of the stack's blocks.
static RULES: [Rule; 6] = [
    Rule::new("input_embedding.weight", "model.decoder.embed_tokens.weight"),
    Rule::new("position_embedding.weight", "model.decoder.embed_positions.weight"),
    Rule::new("project_in.weight", "model.decoder.project_in.weight"),
    Rule::new("project_out.weight", "model.decoder.project_out.weight"),
    Rule::new("lm_head.weight", "lm_head.weight"),
    Rule::new("cls_projection.weight", "score.weight"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "opt",
        doc: "OPT with heads for the next token and for classification",
        open: Opt::open,
        facts: Opt::FACTS,
    },
    class: OptConfig::DIALECT.class,
    class_prefix: "OPT",
    signatures: &[Signature {
        prefix: "model.",
        has: &[&[
            "decoder.embed_positions.weight",
            "decoder.layers.0.self_attn.q_proj.weight",
            "decoder.layers.0.fc1.weight",
        ]],
        lacks: &["encoder.layers.0.self_attn.q_proj.weight", "decoder.layernorm_embedding.weight"],
    }],
};
