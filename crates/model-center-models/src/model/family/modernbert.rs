//! ModernBERT (Warner et al., 2024): rotary positions, windows in two of three layers, gated feed-forward layers.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a ModernBERT. `dropout_p` is inside the feed-forward layers, `attention_dropout_p` also of
    /// what attention adds.
    ///
    /// Source: Warner et al. 2024; transformers 5.23.0, `models/modernbert`. Initial values are not truncated.
    pub struct ModernBertConfig {
        /// The common fields.
        text: TextConfig {
            vocab_size: 50_368, pad_token_id: Some(50_283), dim_ff: 1152, num_layers: 22, position_size: 8192,
            ffn_gated: true, tied: true, ..TextConfig::default()
        };
        /// Rotary embeddings of layers without and with a window.
        rotary: LayerRotary = LayerRotary::of_bases(16e4, 1e4), LayerRotary("global_rope_theta", "local_rope_theta");
        /// Windows; half of their keys are on either side of a token.
        windows: LayerWindows = LayerWindows::all_but_first(3, 128),
            LayerWindows("local_attention", "global_attn_every_n_layers");
        /// Whether the norms have biases.
        norm_bias: bool = false, Flag("norm_bias");
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
        /// Whether the feed-forward's linear layers have biases. Hugging Face: `mlp_bias`.
        ffn_bias: bool = false, Flag("mlp_bias" => "ffn_bias");
        /// Whether the dense layer of every head has a bias; last layers of classifiers always have one.
        classifier_bias: bool = false, Flag("classifier_bias");
        /// Whether the logits of masked tokens have a bias.
        decoder_bias: bool = true, Flag("decoder_bias");
        /// The function after the dense layer of every head.
        classifier_activation: Activation = Activation::Gelu, Activation("classifier_activation");
        /// Dropout before the last layer of classifiers, in `[0, 1)`.
        classifier_dropout_p: f32 = 0.0, Dropout("classifier_dropout" => "classifier_dropout_p");
        /// What a classifier of sequences reads.
        classifier_pooling: TokenPooling = TokenPooling::First, Pooling("classifier_pooling");
    }
}

impl RowConfig for ModernBertConfig {
    const DIALECT: Dialect = Dialect {
        title: "ModernBERT",
        model_type: "modernbert",
        dropout: &["mlp_dropout"],
        embedding_dropout: &["embedding_dropout"],
        attention_dropout: &["attention_dropout"],
        norm_eps: &["norm_eps"],
        activation: &["hidden_activation"],
        gated: Some(true),
        fixed: &[Fixed::PRE_NORM],
        ..Dialect::HUGGING_FACE
    };
}

/// A ModernBERT with its heads.
pub type ModernBert = Transformer<ModernBertConfig>;

impl ModelFamily for ModernBertConfig {
    const ARCHITECTURE: Architecture = Architecture::Encoder;
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        Classes::encoder(FAMILY.class_prefix)
    }

    fn spec(&self) -> Spec {
        let text = &self.text;
        let norm = NormOptions { bias: self.norm_bias, ..NormOptions::layer(text.dim_model, text.norm_eps) };
        let positions = PositionsConfig::Rotary(self.rotary.of_heads(text.dim_head));
        let spec = Spec::encoder_of_norms(self, positions, norm, self.classifier_pooling.into());
        let head = spec.head.with_transforms(text, (norm, self.classifier_activation), self.classifier_dropout_p);
        let (dense_bias, tied_bias) = (self.classifier_bias, self.decoder_bias);
        Spec { head: HeadSpec { dense_bias, tied_bias, ..head }, ..spec }
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let (text, window) = (&self.text, self.windows.each_side(place.layer));
        let block = block(text, Placement::Pre);
        let rotary = Some(RotaryHeads::halves(text.dim_head, usize::from(window.is_some())));
        let out_init = Init::normal(text.init_std / text.residual_divisor(true));
        let bias = self.att_bias;
        BlockConfig {
            attention: AttentionConfig { bias, out_bias: bias, window, rotary, out_init, ..block.attention },
            ffn: FeedForwardConfig { bias: self.ffn_bias, gated: true, dropout: text.dropout_p, out_init, ..block.ffn },
            norm: NormOptions { bias: self.norm_bias, ..block.norm },
            norms_attention: place.layer > 0, // The norm of the embeddings precedes the first one.
            dropout: text.attention_dropout_p,
            ffn_dropout: 0.0,
            ..block
        }
    }

    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text.set_hidden_dropout(rate, true);
        self.classifier_dropout_p = rate;
    }

    fn names(&self, _head: Head) -> NameTable {
        encoder_files::table("model.", [&MODULES, &HEADS], &TIED, &[])
    }

    fn other_heads(head: Head) -> &'static [&'static str] {
        match head {
            Head::MaskedLm => &["classifier.*"],
            Head::Classifier { .. } | Head::TokenClassifier { .. } | Head::Span => &["decoder.*"],
            _ => &["head.*", "decoder.*", "classifier.*"],
        }
    }
}

/// The layers of a base model.
const MODULES: [(&str, &str); 9] = [
    ("input_embedding", "embeddings.tok_embeddings"),
    ("embedding_norm", "embeddings.norm"),
    ("encoder.layers.{i}.attention_norm", "layers.{i}.attn_norm"),
    ("encoder.layers.{i}.attention.project_qkv", "layers.{i}.attn.Wqkv"),
    ("encoder.layers.{i}.attention.attention_out", "layers.{i}.attn.Wo"),
    ("encoder.layers.{i}.ffn_norm", "layers.{i}.mlp_norm"),
    ("encoder.layers.{i}.ffn.w_in", "layers.{i}.mlp.Wi"),
    ("encoder.layers.{i}.ffn.w_out", "layers.{i}.mlp.Wo"),
    ("encoder.output_norm", "final_norm"),
];

/// The layers of the heads.
const HEADS: [(&str, &str); 8] = [
    ("head_transform.dense", "head.dense"),
    ("head_transform.layer_norm", "head.norm"),
    ("cls_projection", "classifier"),
    ("token_projection", "classifier"),
    ("span_projection", "classifier"),
    ("lm_head.dense", "head.dense"),
    ("lm_head.layer_norm", "head.norm"),
    ("lm_head.decoder", "decoder"),
];

/// The masked-LM head's matrix tied to the token embedding.
static TIED: [Alias; 1] = [Alias::new("decoder.weight", "model.embeddings.tok_embeddings.weight")];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "modernbert",
        doc: "ModernBERT with an encoder's heads",
        open: ModernBert::open,
        facts: ModernBert::FACTS,
    },
    class: None,
    class_prefix: "ModernBert",
    signatures: &[Signature { prefix: "model.", has: &[&["layers.0.attn.Wqkv.weight"]], lacks: &[] }],
};
