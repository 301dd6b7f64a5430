//! GPT-J (Wang and Komatsuzaki, 2021): attention and feed-forward in parallel after one norm, rotary embeddings on
//! adjacent pairs of the first elements of each head, an untied language-modelling head with a bias.
//!
//! ModelCenter's GPT-J has a norm for each of the two; its converter fills both with the same values.

use super::gpt2::Gpt2Config;
use crate::model::prelude::*;
use model_center_base::json::number;

model_config! {
    /// Sizes and options of a GPT-J.
    ///
    /// Defaults are taken from ModelCenter's `GPTjConfig`. It has no field for the maximum sequence length, whose
    /// default is from the model with 6 billion parameters.
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/gptj_config.py`; Wang and Komatsuzaki 2021 for the
    /// architecture.
    pub struct GptjConfig {
        /// The common fields. `outer_std` is `emb_init_std` and `proj_init_std` in ModelCenter's files; in Hugging
        /// Face's it equals the standard deviation of the blocks.
        text: TextConfig {
            vocab_size: 50400,
            dim_model: 4096,
            num_heads: 16,
            dim_head: 256,
            dim_ff: 16384,
            num_layers: 28,
            init_std: 0.1,
            outer_std: Some(1.0),
            ..TextConfig::default()
        };
        /// Number of elements of a head to rotate, from the first. Hugging Face: `rotary_dim`; ModelCenter:
        /// `pos_rotary_dim`.
        rotary_dim: usize = ROTARY_DIM, Size("rotary_dim" => "pos_rotary_dim");
    }
}

/// Elements of a head to rotate if a file does not specify them.
const ROTARY_DIM: usize = 64;

impl RowConfig for GptjConfig {
    const DIALECT: Dialect = Dialect {
        class: Some(Class {
            family: "gptj",
            order: 4,
            title: "GPT-J",
            pos_bias_type: "rotary",
            att_mask_value: "-inf",
            biases: (false, true, Some(true)),
            own: &["num_layers", "pos_rotary_dim"],
            ..Class::PRE_NORM
        }),
        title: "GPT-J",
        model_type: "gptj",
        hugging_face: |defaults| TextConfig {
            init_std: 0.02,
            outer_std: None,
            ffn_activate_fn: Activation::GeluTanh,
            ..defaults
        },
        fixed: &[
            Fixed::PRE_NORM,
            &[
                ("norm_bias", Fixed::Flag(true)),
                ("att_bias", Fixed::Flag(false)),
                ("ffn_bias", Fixed::Flag(true)),
                ("attn_scale", Fixed::Flag(true)),
                ("pos_bias_type", Fixed::Text("rotary")),
            ],
        ],
        ..Gpt2Config::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        if fields.has("rotary_dim") && fields.peek("rotary_dim").is_none() {
            let reason = "null would turn more elements than a head has";
            return Err(fields.error("rotary_dim", reason, "give the number of elements of a head that are turned"));
        }
        // Files of either dialect may have it in addition to the standard deviation of the blocks.
        let outer_std = fields.take_any(&["emb_init_std", "proj_init_std"], Fields::take_number)?;
        let (mut config, spoken) = rows::take_config::<Self>(fields)?;
        let text = &mut config.text;
        // If a transformers file omits it, one standard deviation applies to all weights.
        let silent = if spoken == Spoken::HuggingFace { None } else { Self::default().text.outer_std };
        text.outer_std = outer_std.or(silent).filter(|outer| *outer != text.init_std);
        if text.tied {
            // The head has a bias, which would be its only own parameter.
            return Err(Self::DIALECT.unsupported(fields, "tie_word_embeddings", "false"));
        }
        // The one field covers both heads: the language-modelling head has a bias, the classifier has none.
        let has_classes = text.cls_head.is_some();
        if fields.take_flag("proj_bias")?.is_some_and(|bias| bias == has_classes) {
            return Err(Self::DIALECT.unsupported(fields, "proj_bias", if has_classes { "false" } else { "true" }));
        }
        // Files inherit it from GPT-2, with the only value that is supported.
        if fields.peek_flag("scale_attn_weights")? == Some(false) {
            return Err(Self::DIALECT.unsupported(fields, "scale_attn_weights", "true"));
        }
        let rotary_dim = config.rotary_dim;
        if !rotary_dim.is_multiple_of(2) || rotary_dim > config.text.dim_head {
            let reason =
                format!("{rotary_dim} is not a number of pairs of a head of {} elements", config.text.dim_head);
            return Err(fields.error("rotary_dim", &reason, "give an even number up to the size of a head"));
        }
        Ok(config)
    }

    fn to_class(&self, header: &HfHeader) -> Result<ClassFields> {
        let mut written = model_center::class_fields(self, header)?;
        let has_classes = written.map.get("cls_head").is_some_and(|outputs| !outputs.is_null());
        written.map.insert("proj_bias".to_string(), json!(!has_classes));
        Ok(written)
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        if self.text.outer_std() != self.text.init_std {
            map.insert("emb_init_std".to_string(), number(self.text.outer_std()));
        }
        Ok(())
    }
}

/// A GPT-J with its head.
pub type Gptj = Transformer<GptjConfig>;

impl ModelFamily for GptjConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        Classes::decoder("GPTJ")
    }

    fn spec(&self) -> Spec {
        let rotary = RotaryConfig { dims: self.rotary_dim, base: 10_000.0, scaling: RotaryScaling::None };
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        let spec = Spec::decoder(self, StackSpec::decoder(&self.text, PositionsConfig::Rotary(vec![rotary]), norm));
        Spec { padding_learns: true, head: HeadSpec { lm_bias: true, ..spec.head }, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = block(&self.text, Placement::Parallel);
        let attention = AttentionConfig {
            bias: false,
            out_bias: false,
            causal: true,
            rotary: Some(RotaryHeads { table: 0, dims: self.rotary_dim, layout: RotaryLayout::Pairs }),
            ..block.attention
        };
        BlockConfig { attention, ..block }
    }

    fn names_of_model_center(&self, _head: Head) -> Option<NameTable> {
        Some(model_center_names::decoder(self, "encoder"))
    }

    fn names(&self, _head: Head) -> NameTable {
        NameTable {
            base_prefix: "transformer.",
            rules: Cow::Borrowed(&RULES),
            // Causal masks that older versions stored.
            ignored: Cow::Borrowed(&["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"]),
            ..NameTable::default()
        }
    }
}

/// The parameters.
static RULES: [Rule; 14] = [
    Rule::new("input_embedding.weight", "transformer.wte.weight"),
    Rule::new("decoder.layers.{i}.attention_norm.weight", "transformer.h.{i}.ln_1.weight"),
    Rule::new("decoder.layers.{i}.attention_norm.bias", "transformer.h.{i}.ln_1.bias"),
    Rule::new(
        "decoder.layers.{i}.attention.project_qkv.weight",
        "transformer.h.{i}.attn.{q_proj|k_proj|v_proj}.weight",
    ),
    Rule::new("decoder.layers.{i}.attention.attention_out.weight", "transformer.h.{i}.attn.out_proj.weight"),
    Rule::new("decoder.layers.{i}.ffn.w_in.weight", "transformer.h.{i}.mlp.fc_in.weight"),
    Rule::new("decoder.layers.{i}.ffn.w_in.bias", "transformer.h.{i}.mlp.fc_in.bias"),
    Rule::new("decoder.layers.{i}.ffn.w_out.weight", "transformer.h.{i}.mlp.fc_out.weight"),
    Rule::new("decoder.layers.{i}.ffn.w_out.bias", "transformer.h.{i}.mlp.fc_out.bias"),
    Rule::new("decoder.output_norm.weight", "transformer.ln_f.weight"),
    Rule::new("decoder.output_norm.bias", "transformer.ln_f.bias"),
    Rule::new("lm_head.weight", "lm_head.weight"),
    Rule::new("lm_head.bias", "lm_head.bias"),
    Rule::new("cls_projection.weight", "score.weight"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "gptj",
        doc: "GPT-J with heads for the next token and for classification",
        open: Gptj::open,
        facts: Gptj::FACTS,
    },
    class: GptjConfig::DIALECT.class,
    class_prefix: "GPTJ",
    signatures: &[Signature {
        prefix: "transformer.",
        has: &[&["wte.weight", "h.0.attn.q_proj.weight", "h.0.mlp.fc_in.weight"]],
        lacks: &["wpe.weight"],
    }],
};
