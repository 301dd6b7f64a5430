//! GPT-2 (Radford et al., 2019): learned positions, pre-norm blocks, a tied language-modelling head.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a GPT-2.
    ///
    /// Defaults are taken from ModelCenter's `GPT2Config`. Its options that no GPT-2 uses (means of initializers,
    /// `length_scale`, `int8`, …) are accepted with the value that has no effect.
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/gpt2_config.py`; Radford et al. 2019 for the architecture.
    pub struct Gpt2Config {
        /// The common fields. ModelCenter's vocabulary has one token more than GPT-2. `init_std` applies to most
        /// weights: see [`Gpt2Config::residual_std`]. `extra` holds `reorder_and_upcast_attn`, which requests attention
        /// scores in f32: they always are.
        text: TextConfig {
            vocab_size: 50258,
            dim_model: 1024,
            num_heads: 16,
            dim_head: 64,
            dim_ff: 4096,
            num_layers: 24,
            position_size: 1024,
            tied: true,
            ..TextConfig::default()
        };
        /// Divide attention scores by the square root of H. Hugging Face: `scale_attn_weights`.
        attn_scale: bool = true, Flag("scale_attn_weights" => "attn_scale");
        /// Divide attention scores by the number of the block, counted from 1. Hugging Face:
        /// `scale_attn_by_inverse_layer_idx`.
        scale_by_layer: bool = false, Flag("scale_attn_by_inverse_layer_idx");
    }
}

impl Gpt2Config {
    /// Standard deviation of the initializer of the two residual projections of each block.
    pub fn residual_std(&self) -> f32 {
        self.text.init_std / self.text.residual_divisor(true)
    }

    /// The scale of the attention scores of block `layer`, counted from 0.
    pub fn score_factor(&self, layer: usize) -> f32 {
        let root = if self.attn_scale { (self.text.dim_head as f32).sqrt() } else { 1.0 };
        let number = if self.scale_by_layer { (layer + 1) as f32 } else { 1.0 };
        1.0 / (root * number)
    }
}

impl RowConfig for Gpt2Config {
    const DIALECT: Dialect = Dialect {
        class: Some(Class { family: "gpt2", order: 3, title: "GPT-2", ..Class::PRE_NORM }),
        title: "GPT-2",
        model_type: "gpt2",
        dim_model: &["n_embd", "hidden_size"],
        num_layers: &["n_layer", "num_hidden_layers"],
        num_heads: &["n_head", "num_attention_heads"],
        dim_ff: &["n_inner"],
        ff_factor: Some(4),
        position_size: &["n_positions", "max_position_embeddings"],
        dropout: &["resid_pdrop"],
        embedding_dropout: &["embd_pdrop"],
        attention_dropout: &["attn_pdrop"],
        norm_eps: &["layer_norm_epsilon"],
        activation: &["activation_function"],
        hugging_face: |defaults| TextConfig {
            dropout_p: 0.1,
            embedding_dropout_p: 0.1,
            attention_dropout_p: 0.1,
            ffn_activate_fn: Activation::GeluTanh,
            ..defaults
        },
        fixed: &[Fixed::BIASES, Fixed::PRE_NORM, &[("pos_bias_type", Fixed::Text("none"))]],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config(fields)?;
        if fields.peek_flag("add_cross_attention")? == Some(true) {
            let reason = "GPT-2 with cross-attention is not supported";
            return Err(fields.error("add_cross_attention", reason, "use a model without an encoder"));
        }
        // A flag without effect must still be a flag.
        fields.peek_flag("reorder_and_upcast_attn")?;
        Ok(config)
    }
}

/// A GPT-2 with its head.
pub type Gpt2 = Transformer<Gpt2Config>;

impl ModelFamily for Gpt2Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        Classes { prefix: "GPT2", suffixes: CLASSES }
    }

    fn other_heads(_head: Head) -> &'static [&'static str] {
        &["lm_head.*", "score.*", "classifier.*", "qa_outputs.*", "multiple_choice_head.*", "v_head.*"]
    }

    fn spec(&self) -> Spec {
        let norm = NormOptions::layer(self.text.dim_model, self.text.norm_eps);
        let stack = StackSpec::decoder(&self.text, PositionsConfig::None, norm);
        let stack = stack.adding(Added::Learned(PositionTable::PLACES), &self.text);
        Spec { padding_learns: true, ..Spec::decoder(self, stack) }
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = block(&self.text, Placement::Pre);
        let out_init = Init::normal(self.residual_std());
        BlockConfig {
            attention: AttentionConfig {
                scale: self.score_factor(place.layer),
                causal: true,
                out_init,
                ..block.attention
            },
            ffn: FeedForwardConfig { out_init, ..block.ffn },
            ..block
        }
    }

    fn names_of_model_center(&self, _head: Head) -> Option<NameTable> {
        // ModelCenter divides scores by the square root of H only.
        (!self.scale_by_layer).then(|| model_center_names::decoder(self, "encoder"))
    }

    fn names(&self, head: Head) -> NameTable {
        NameTable {
            base_prefix: "transformer.",
            rules: Cow::Borrowed(&RULES),
            aliases: head.tied_alias("transformer.wte.weight").into_iter().collect(),
            ignored: Cow::Borrowed(MASKS),
            ..NameTable::default()
        }
    }
}

/// The classes by head.
const CLASSES: &[(TextHead, &str)] = &[
    (TextHead::None, "Model"),
    (TextHead::CausalLm, "LMHeadModel"),
    (TextHead::Classification { outputs: 0 }, "ForSequenceClassification"),
];

/// The parameters. Weights of the blocks' linear layers are `[in, out]` in files.
static RULES: [Rule; 18] = [
    Rule::new("input_embedding.weight", "transformer.wte.weight"),
    Rule::new("position_embedding.weight", "transformer.wpe.weight"),
    Rule::new("decoder.layers.{i}.attention_norm.weight", "transformer.h.{i}.ln_1.weight"),
    Rule::new("decoder.layers.{i}.attention_norm.bias", "transformer.h.{i}.ln_1.bias"),
    Rule::new("decoder.layers.{i}.attention.project_qkv.weight", "transformer.h.{i}.attn.c_attn.weight").transposed(),
    Rule::new("decoder.layers.{i}.attention.project_qkv.bias", "transformer.h.{i}.attn.c_attn.bias"),
    Rule::new("decoder.layers.{i}.attention.attention_out.weight", "transformer.h.{i}.attn.c_proj.weight").transposed(),
    Rule::new("decoder.layers.{i}.attention.attention_out.bias", "transformer.h.{i}.attn.c_proj.bias"),
    Rule::new("decoder.layers.{i}.ffn_norm.weight", "transformer.h.{i}.ln_2.weight"),
    Rule::new("decoder.layers.{i}.ffn_norm.bias", "transformer.h.{i}.ln_2.bias"),
    Rule::new("decoder.layers.{i}.ffn.w_in.weight", "transformer.h.{i}.mlp.c_fc.weight").transposed(),
    Rule::new("decoder.layers.{i}.ffn.w_in.bias", "transformer.h.{i}.mlp.c_fc.bias"),
    Rule::new("decoder.layers.{i}.ffn.w_out.weight", "transformer.h.{i}.mlp.c_proj.weight").transposed(),
    Rule::new("decoder.layers.{i}.ffn.w_out.bias", "transformer.h.{i}.mlp.c_proj.bias"),
    Rule::new("decoder.output_norm.weight", "transformer.ln_f.weight"),
    Rule::new("decoder.output_norm.bias", "transformer.ln_f.bias"),
    Rule::new("lm_head.weight", "lm_head.weight"),
    Rule::new("cls_projection.weight", "score.weight"),
];

/// The causal masks that older versions stored.
const MASKS: &[&str] = &["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "gpt2",
        doc: "GPT-2 with heads for the next token and for classification",
        open: Gpt2::open,
        facts: Gpt2::FACTS,
    },
    class: Gpt2Config::DIALECT.class,
    class_prefix: "GPT2",
    signatures: &[Signature {
        prefix: "transformer.",
        has: &[&["wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.weight"]],
        lacks: &[],
    }],
};
