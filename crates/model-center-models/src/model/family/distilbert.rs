//! DistilBERT (Sanh et al., 2019): a BERT of half the layers, without token types and pooler, whose classifier has a
//! dense layer with ReLU.

use crate::model::prelude::*;

/// The epsilon of DistilBERT's norms, which its files do not state.
const NORM_EPS: f32 = 1e-12;

model_config! {
    /// Sizes and options of a DistilBERT.
    ///
    /// Source: Sanh et al. 2019 for the architecture, transformers for fields and defaults.
    pub struct DistilBertConfig {
        /// The common fields. `dropout_p`, `embedding_dropout_p` and the dropout of a classifier of tokens are equal.
        text: TextConfig {
            vocab_size: 30522,
            num_layers: 6,
            position_size: 512,
            norm_eps: NORM_EPS,
            tied: true,
            ..TextConfig::default()
        };
        /// Dropout before the last layer of a classifier of sequences, in `[0, 1)`.
        classifier_dropout_p: f32 = 0.2, Dropout("seq_classif_dropout" => "classifier_dropout_p");
        /// Dropout before the layer of answer spans, in `[0, 1)`.
        span_dropout_p: f32 = 0.1, Dropout("qa_dropout" => "span_dropout_p");
        /// Whether the position embedding begins as sines and cosines; it is trained either way.
        sinusoidal: bool = false, Flag("sinusoidal_pos_embds");
    }
}

impl RowConfig for DistilBertConfig {
    const DIALECT: Dialect = Dialect {
        title: "DistilBERT",
        model_type: "distilbert",
        dim_model: &["dim", "hidden_size"],
        num_layers: &["n_layers", "num_hidden_layers"],
        num_heads: &["n_heads", "num_attention_heads"],
        dim_ff: &["hidden_dim"],
        dropout: &["dropout"],
        attention_dropout: &["attention_dropout"],
        norm_eps: &[],
        activation: &["activation"],
        hugging_face: encoder_files::defaults,
        fixed: &[Fixed::BIASES, Fixed::POST_NORM],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        encoder_files::take_body(fields)
    }

    fn adjust_hf(&self, _map: &mut Map<String, Value>) -> Result<()> {
        Self::DIALECT.check_norm_eps(&self.text, NORM_EPS)
    }
}

/// A DistilBERT with its heads.
pub type DistilBert = Transformer<DistilBertConfig>;

impl ModelFamily for DistilBertConfig {
    const ARCHITECTURE: Architecture = Architecture::Encoder;
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        Classes::encoder(FAMILY.class_prefix)
    }

    fn spec(&self) -> Spec {
        let stack = StackSpec::encoder(&self.text, PositionTable::PLACES, 1, Placement::Post);
        let position_init = if self.sinusoidal { Sinusoids::BY_TURNS } else { stack.position_init };
        let stack = StackSpec { type_size: None, position_init, ..stack };
        let spec = Spec::encoder(self, stack, ClassifierInput::FirstToken);
        let dropout = HeadDropout {
            classifier: self.classifier_dropout_p,
            tokens: self.text.dropout_p,
            span: self.span_dropout_p,
            ..HeadDropout::default()
        };
        let dense_activation = Activation::Relu;
        Spec { head: HeadSpec { dense_activation, base_pooler: false, dropout, ..spec.head }, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        // What attention adds is never dropped.
        BlockConfig { dropout: 0.0, ..block(&self.text, Placement::Post) }
    }

    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text.set_hidden_dropout(rate, true);
        (self.classifier_dropout_p, self.span_dropout_p) = (rate, rate);
    }

    fn names(&self, _head: Head) -> NameTable {
        encoder_files::table("distilbert.", [&MODULES, &HEADS], &TIED, &["distilbert.embeddings.position_ids"])
    }

    fn other_heads(head: Head) -> &'static [&'static str] {
        match head {
            Head::Classifier { .. } => &["vocab_*", "qa_outputs.*"],
            Head::TokenClassifier { .. } => &["vocab_*", "qa_outputs.*", "pre_classifier.*"],
            Head::Span => &["vocab_*", "classifier.*", "pre_classifier.*"],
            Head::MaskedLm => &["classifier.*", "pre_classifier.*", "qa_outputs.*"],
            _ => &["vocab_*", "classifier.*", "pre_classifier.*", "qa_outputs.*"],
        }
    }
}

/// The linear layers and norms of a base model.
const MODULES: [(&str, &str); 7] = [
    ("embedding_norm", "embeddings.LayerNorm"),
    ("encoder.layers.{i}.attention.project_qkv", "transformer.layer.{i}.attention.{q_lin|k_lin|v_lin}"),
    ("encoder.layers.{i}.attention.attention_out", "transformer.layer.{i}.attention.out_lin"),
    ("encoder.layers.{i}.attention_norm", "transformer.layer.{i}.sa_layer_norm"),
    ("encoder.layers.{i}.ffn.w_in", "transformer.layer.{i}.ffn.lin1"),
    ("encoder.layers.{i}.ffn.w_out", "transformer.layer.{i}.ffn.lin2"),
    ("encoder.layers.{i}.ffn_norm", "transformer.layer.{i}.output_layer_norm"),
];

/// The layers of the heads.
const HEADS: [(&str, &str); 7] = [
    ("cls_dense", "pre_classifier"),
    ("cls_projection", "classifier"),
    ("token_projection", "classifier"),
    ("span_projection", "qa_outputs"),
    ("lm_head.dense", "vocab_transform"),
    ("lm_head.layer_norm", "vocab_layer_norm"),
    ("lm_head.decoder", "vocab_projector"),
];

/// The masked-LM head's matrix tied to the token embedding.
static TIED: [Alias; 1] = [Alias::new("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight")];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "distilbert",
        doc: "DistilBERT with classification, answer-span and masked-token heads",
        open: DistilBert::open,
        facts: DistilBert::FACTS,
    },
    class: None,
    class_prefix: "DistilBert",
    signatures: &[Signature {
        prefix: "distilbert.",
        has: &[&["embeddings.word_embeddings.weight", "transformer.layer.0.attention.q_lin.weight"]],
        lacks: &[],
    }],
};
