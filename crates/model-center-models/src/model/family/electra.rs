//! ELECTRA (Clark et al., 2020): BERT's blocks, with embeddings of a dimension of their own and without pooler. The
//! generator predicts masked tokens. The discriminator, which tells replaced tokens from others, is opened without that
//! head: it is what classifiers begin from.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of an ELECTRA.
    ///
    /// Source: Clark et al. 2020 for the architecture, transformers for fields and defaults.
    pub struct ElectraConfig {
        /// The common fields. `dropout_p` and `embedding_dropout_p` are equal.
        text: TextConfig {
            vocab_size: 30522,
            dim_model: 256,
            num_heads: 4,
            dim_head: 64,
            dim_ff: 1024,
            position_size: 512,
            norm_eps: 1e-12,
            tied: true,
            ..TextConfig::default()
        };
        /// E, dimension of all embeddings; if it is not D, a linear layer projects their sum to D.
        embedding_size: usize = 128, Size("embedding_size");
        /// Rows of the token type embedding. Hugging Face: `type_vocab_size`.
        type_size: usize = 2, Size(required "type_vocab_size" => "type_size");
        /// Dropout in the classifiers, in `[0, 1)`. Hugging Face: `classifier_dropout`; else `dropout_p`.
        classifier_dropout_p: f32 = 0.0, Dropout("classifier_dropout" => "classifier_dropout_p");
    }
}

impl RowConfig for ElectraConfig {
    const DIALECT: Dialect = Dialect {
        title: "ELECTRA",
        model_type: "electra",
        hugging_face: encoder_files::defaults,
        fixed: &[Fixed::BIASES, Fixed::POST_NORM],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        encoder_files::take(fields, |config: &mut Self| &mut config.classifier_dropout_p)
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        encoder_files::adjust_hf(&self.text, self.classifier_dropout_p, map);
        Ok(())
    }
}

/// An ELECTRA with its heads.
pub type Electra = Transformer<ElectraConfig>;

impl ModelFamily for ElectraConfig {
    const ARCHITECTURE: Architecture = Architecture::Encoder;
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        let suffixes = &[
            (TextHead::None, "Model"),
            (TextHead::MaskedLm, "ForMaskedLM"),
            (TextHead::Classification { outputs: 0 }, "ForSequenceClassification"),
            (TextHead::TokenClassification { outputs: 0 }, "ForTokenClassification"),
            (TextHead::QuestionAnswering, "ForQuestionAnswering"),
            // The discriminator.
            (TextHead::None, "ForPreTraining"),
        ];
        Classes { prefix: FAMILY.class_prefix, suffixes }
    }

    fn spec(&self) -> Spec {
        let stack = StackSpec::encoder(&self.text, PositionTable::PLACES, self.type_size, Placement::Post);
        let is_narrow = self.embedding_size != self.text.dim_model;
        let projection = if is_narrow { Projection::Sum } else { Projection::Tokens };
        let spec = Spec::encoder(self, stack, ClassifierInput::FirstToken);
        let spec = spec.with_embeddings(self.embedding_size, projection);
        let head = HeadSpec {
            // Independent of the activation of the blocks.
            transform: spec.head.transform.map(|(norm, _)| (norm, Activation::Gelu)),
            dense_activation: Activation::Gelu,
            base_pooler: false,
            dropout: HeadDropout::of_classifiers(self.classifier_dropout_p),
            ..spec.head
        };
        Spec { head, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        block(&self.text, Placement::Post)
    }

    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text.set_hidden_dropout(rate, true);
        self.classifier_dropout_p = rate;
    }

    fn names(&self, _head: Head) -> NameTable {
        let modules = [&encoder_files::LINEAR[..], &encoder_files::POST_NORMS, &PROJECTION].concat();
        encoder_files::table("electra.", [&modules, &HEADS], &TIED, &["electra.embeddings.position_ids"])
    }

    fn other_heads(head: Head) -> &'static [&'static str] {
        match head {
            Head::Classifier { .. } => {
                &["generator_*", "discriminator_predictions.*", "qa_outputs.*", "classifier.weight", "classifier.bias"]
            }
            Head::TokenClassifier { .. } => {
                &["generator_*", "discriminator_predictions.*", "qa_outputs.*", "classifier.dense.*", "*.out_proj.*"]
            }
            Head::Span => &["generator_*", "discriminator_predictions.*", "classifier.*"],
            Head::MaskedLm => &["discriminator_predictions.*", "classifier.*", "qa_outputs.*"],
            _ => &["generator_*", "discriminator_predictions.*", "classifier.*", "qa_outputs.*"],
        }
    }
}

/// The layer from the embeddings to the first block.
const PROJECTION: [(&str, &str); 1] = [("project_sum", "embeddings_project")];

/// The layers of the heads.
const HEADS: [(&str, &str); 7] = [
    ("cls_dense", "classifier.dense"),
    ("cls_projection", "classifier.out_proj"),
    ("token_projection", "classifier"),
    ("span_projection", "qa_outputs"),
    ("lm_head.dense", "generator_predictions.dense"),
    ("lm_head.layer_norm", "generator_predictions.LayerNorm"),
    ("lm_head.decoder", "generator_lm_head"),
];

/// The masked-LM head's matrix tied to the token embedding.
static TIED: [Alias; 1] = [Alias::new("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight")];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "electra",
        doc: "ELECTRA with classification, answer-span and masked-token heads",
        open: Electra::open,
        facts: Electra::FACTS,
    },
    class: None,
    class_prefix: "Electra",
    signatures: &[Signature {
        prefix: "electra.",
        has: &[encoder_files::TENSORS],
        lacks: &["bert.", "roberta.", "pooler.dense.weight", encoder_files::OUTPUT_NORM],
    }],
};
