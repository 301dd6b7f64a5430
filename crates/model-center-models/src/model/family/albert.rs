//! ALBERT (Lan et al., 2020): a BERT whose blocks share their parameters, with embeddings of a dimension of their own
//! and a head for the order of sentences.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of an ALBERT. Source: Lan et al. 2020, transformers for fields and defaults.
    pub struct AlbertConfig {
        /// The common fields. `dropout_p` and `embedding_dropout_p` are equal.
        text: TextConfig {
            vocab_size: 30000,
            position_size: 512,
            norm_eps: 1e-12,
            ffn_activate_fn: Activation::GeluTanh,
            tied: true,
            pad_token_id: Some(0),
            ..TextConfig::default()
        };
        /// E, dimension of all embeddings; a linear layer projects their sum to D.
        embedding_size: usize = 128, Size("embedding_size");
        /// Rows of the token type embedding. Hugging Face: `type_vocab_size`.
        type_size: usize = 2, Size(required "type_vocab_size" => "type_size");
        /// Blocks with parameters of their own, each of them at several places in a row; a divisor of the layers.
        groups: usize = 1, Size("num_hidden_groups");
        /// Dropout in the classifiers and before the order of sentences, in `[0, 1)`.
        classifier_dropout_p: f32 = 0.1, Dropout("classifier_dropout_prob" => "classifier_dropout_p");
    }
}

impl RowConfig for AlbertConfig {
    const DIALECT: Dialect = Dialect {
        title: "ALBERT",
        model_type: "albert",
        fixed: &[Fixed::BIASES, Fixed::POST_NORM],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        if fields.peek("inner_group_num").is_some_and(|blocks| *blocks != json!(1)) {
            return Err(Self::DIALECT.unsupported(fields, "inner_group_num", "1"));
        }
        encoder_files::take_body(fields)
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        rows::check(Self::ROWS, self, place)?;
        if !self.text.num_layers.is_multiple_of(self.groups) {
            let reason = format!("{} groups do not divide {} layers", self.groups, self.text.num_layers);
            return Err(Ranges { place }.refuse("num_hidden_groups", reason, "give a divisor of num_hidden_layers"));
        }
        Ok(())
    }
}

/// An ALBERT with its heads.
pub type Albert = Transformer<AlbertConfig>;

impl ModelFamily for AlbertConfig {
    const ARCHITECTURE: Architecture = Architecture::Encoder;
    const DROPS_EMBEDDINGS: bool = true;
    const HAS_SENTENCES: bool = true;

    fn classes(&self) -> Classes {
        Classes::encoder_without_next_sentence(FAMILY.class_prefix)
    }

    fn spec(&self) -> Spec {
        let stack = StackSpec::encoder(&self.text, PositionTable::PLACES, self.type_size, Placement::Post);
        let spec =
            Spec::encoder(self, stack, ClassifierInput::Pooled).with_embeddings(self.embedding_size, Projection::Sum);
        let dropout = HeadDropout::of_classifiers(self.classifier_dropout_p).before_sentences();
        let sharing = Some(LayerSharing { unique: self.groups, style: SharingStyle::Spaced });
        Spec { sharing, files_share: true, head: HeadSpec { dropout, ..spec.head }, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        // What the feed-forward layer adds is never dropped.
        BlockConfig { ffn_dropout: 0.0, ..block(&self.text, Placement::Post) }
    }

    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text.set_hidden_dropout(rate, true);
        self.classifier_dropout_p = rate;
    }

    fn names(&self, _head: Head) -> NameTable {
        encoder_files::table("albert.", [&MODULES, &HEADS], &TIED, &["albert.embeddings.position_ids"])
    }

    fn other_heads(head: Head) -> &'static [&'static str] {
        match head {
            Head::Classifier { .. } => &["predictions.*", "sop_classifier.*", "qa_outputs.*"],
            Head::TokenClassifier { .. } => &["predictions.*", "sop_classifier.*", "qa_outputs.*", "*pooler.*"],
            Head::Span => &["predictions.*", "sop_classifier.*", "classifier.*", "*pooler.*"],
            Head::MaskedLm => &["sop_classifier.*", "classifier.*", "qa_outputs.*", "*pooler.*"],
            Head::Pretraining => &["classifier.*", "qa_outputs.*"],
            _ => &["predictions.*", "sop_classifier.*", "classifier.*", "qa_outputs.*"],
        }
    }
}

/// The layers of a base model.
const MODULES: [(&str, &str); 9] = [
    ("embedding_norm", "embeddings.LayerNorm"),
    ("project_sum", "encoder.embedding_hidden_mapping_in"),
    (
        "encoder.layers.{i}.attention.project_qkv",
        "encoder.albert_layer_groups.{i}.albert_layers.0.attention.{query|key|value}",
    ),
    ("encoder.layers.{i}.attention.attention_out", "encoder.albert_layer_groups.{i}.albert_layers.0.attention.dense"),
    ("encoder.layers.{i}.attention_norm", "encoder.albert_layer_groups.{i}.albert_layers.0.attention.LayerNorm"),
    ("encoder.layers.{i}.ffn.w_in", "encoder.albert_layer_groups.{i}.albert_layers.0.ffn"),
    ("encoder.layers.{i}.ffn.w_out", "encoder.albert_layer_groups.{i}.albert_layers.0.ffn_output"),
    ("encoder.layers.{i}.ffn_norm", "encoder.albert_layer_groups.{i}.albert_layers.0.full_layer_layer_norm"),
    ("pooler.dense", "pooler"),
];

/// The layers of the heads.
const HEADS: [(&str, &str); 7] = [
    ("cls_projection", "classifier"),
    ("token_projection", "classifier"),
    ("span_projection", "qa_outputs"),
    ("lm_head.dense", "predictions.dense"),
    ("lm_head.layer_norm", "predictions.LayerNorm"),
    ("lm_head.decoder", "predictions"),
    ("nsp_projection", "sop_classifier.classifier"),
];

/// The masked-LM head's matrix tied to the token embedding, and its bias under a second name.
static TIED: [Alias; 2] = [
    Alias::new("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"),
    Alias::new("predictions.decoder.bias", "predictions.bias"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "albert",
        doc: "ALBERT with classification, answer-span, masked-token and sentence-order heads",
        open: Albert::open,
        facts: Albert::FACTS,
    },
    class: None,
    class_prefix: "Albert",
    signatures: &[Signature {
        prefix: "albert.",
        has: &[&["encoder.embedding_hidden_mapping_in.weight", "embeddings.word_embeddings.weight"]],
        lacks: &[],
    }],
};
