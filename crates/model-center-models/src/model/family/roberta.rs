//! RoBERTa (Liu et al., 2019): BERT's blocks, positions that count tokens from one past the padding token's id, a
//! classification head with a dense layer instead of the pooler, no next-sentence prediction. XLM-RoBERTa (Conneau et
//! al., 2020) and CamemBERT (Martin et al., 2020) are the same computation with the same parameter names.

use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a RoBERTa.
    ///
    /// Defaults are taken from ModelCenter's `RobertaConfig`. Its options that no RoBERTa uses (means of initializers,
    /// `length_scale`, `int8`, …) are accepted with the value that has no effect.
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/roberta_config.py`; Liu et al. 2019 for the architecture.
    pub struct RobertaConfig {
        /// The common fields. `position_size` counts the rows of the position embedding table, including the unused
        /// rows up to the padding token's id. `dropout_p` and `embedding_dropout_p` are equal.
        text: TextConfig {
            vocab_size: 50265,
            dim_model: 1024,
            num_heads: 16,
            dim_head: 64,
            dim_ff: 4096,
            num_layers: 24,
            position_size: 514,
            tied: true,
            pad_token_id: Some(1),
            ..TextConfig::default()
        };
        /// The model type. Hugging Face: `model_type`.
        name: RobertaName = RobertaName::Roberta;
        /// Rows of the token type embedding. Hugging Face: `type_vocab_size`.
        type_size: usize = 1, Size(required "type_vocab_size" => "type_size");
        /// Dropout in the classifier, in `[0, 1)`. Hugging Face: `classifier_dropout`; else `dropout_p`.
        classifier_dropout_p: f32 = 0.0, Dropout("classifier_dropout" => "classifier_dropout_p");
    }
}

/// The families with this computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RobertaName {
    /// Liu et al. 2019.
    Roberta,
    /// Conneau et al. 2020: a hundred languages.
    XlmRoberta,
    /// Martin et al. 2020: French.
    Camembert,
}

impl RobertaName {
    /// Hugging Face's `model_type`.
    pub const fn model_type(self) -> &'static str {
        match self {
            RobertaName::Roberta => "roberta",
            RobertaName::XlmRoberta => "xlm-roberta",
            RobertaName::Camembert => "camembert",
        }
    }

    /// Display name.
    pub const fn title(self) -> &'static str {
        match self {
            RobertaName::Roberta => "RoBERTa",
            RobertaName::XlmRoberta => "XLM-RoBERTa",
            RobertaName::Camembert => "CamemBERT",
        }
    }

    /// Prefix of its classes in `transformers`.
    pub const fn class_prefix(self) -> &'static str {
        match self {
            RobertaName::Roberta => "Roberta",
            RobertaName::XlmRoberta => "XLMRoberta",
            RobertaName::Camembert => "Camembert",
        }
    }

    /// The model type in a file; RoBERTa for a file of another family, which [`Dialect::take`] refuses.
    fn of(fields: &Fields) -> Result<Self> {
        let given = fields.peek_text("model_type")?;
        let others = [RobertaName::XlmRoberta, RobertaName::Camembert];
        let name = others.into_iter().find(|name| given == Some(name.model_type()));
        Ok(name.unwrap_or(RobertaName::Roberta))
    }

    const fn dialect(self) -> &'static Dialect {
        const fn of(name: RobertaName) -> Dialect {
            Dialect { title: name.title(), model_type: name.model_type(), ..<RobertaConfig as RowConfig>::DIALECT }
        }
        match self {
            RobertaName::Roberta => const { &of(RobertaName::Roberta) },
            RobertaName::XlmRoberta => const { &of(RobertaName::XlmRoberta) },
            RobertaName::Camembert => const { &of(RobertaName::Camembert) },
        }
    }
}

impl RobertaConfig {
    /// The row of the position embedding table for the first token: one past the padding token's id.
    ///
    /// Source: fairseq, whose position embedding tables have a row for padding, like its token embedding tables.
    pub fn first_position(&self) -> usize {
        self.text.pad_token_id.map_or(0, |id| id.saturating_add(1))
    }
}

impl RowConfig for RobertaConfig {
    const DIALECT: Dialect = Dialect {
        class: Some(Class {
            family: "roberta",
            order: 1,
            title: "RoBERTa",
            own: &["type_size", "num_layers", "position_size", "pad_token_id"],
            ..Class::POST_NORM
        }),
        title: RobertaName::Roberta.title(),
        model_type: RobertaName::Roberta.model_type(),
        hugging_face: |defaults| TextConfig { dropout_p: 0.1, attention_dropout_p: 0.1, norm_eps: 1e-12, ..defaults },
        fixed: &[
            Fixed::BIASES,
            &[
                ("proj_bias", Fixed::Flag(true)),
                ("length_scale", Fixed::Flag(false)),
                ("attn_scale", Fixed::Flag(true)),
                ("post_layer_norm", Fixed::Flag(true)),
                ("pos_bias_type", Fixed::Text("none")),
            ],
        ],
        ..Dialect::HUGGING_FACE
    };

    fn dialect(&self) -> &'static Dialect {
        self.name.dialect()
    }

    fn dialect_of(fields: &Fields) -> Result<&'static Dialect> {
        Ok(RobertaName::of(fields)?.dialect())
    }

    fn read(fields: &mut Fields) -> Result<Self> {
        let name = RobertaName::of(fields)?;
        Ok(RobertaConfig { name, ..encoder_files::take(fields, |config: &mut Self| &mut config.classifier_dropout_p)? })
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        rows::check(Self::ROWS, self, place)?;
        let ranges = Ranges { place };
        let (title, first) = (self.name.title(), self.first_position());
        if self.text.pad_token_id.is_none() {
            let reason = format!("{title} numbers its positions from after the padding token, and there is none");
            return Err(ranges.refuse("pad_token_id", reason, "give the id of the padding token, commonly 1"));
        }
        if self.text.position_size <= first {
            let reason =
                format!("the first token is in row {first} of a table of {} positions", self.text.position_size);
            return Err(ranges.refuse("position_size", reason, "give more positions, or a smaller pad_token_id"));
        }
        Ok(())
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        encoder_files::adjust_hf(&self.text, self.classifier_dropout_p, map);
        Ok(())
    }
}

/// A RoBERTa with its heads.
pub type Roberta = Transformer<RobertaConfig>;

impl ModelFamily for RobertaConfig {
    const ARCHITECTURE: Architecture = Architecture::Encoder;
    const DROPS_EMBEDDINGS: bool = true;

    fn classes(&self) -> Classes {
        Classes::encoder(self.name.class_prefix())
    }

    fn spec(&self) -> Spec {
        let positions = PositionTable { first: self.first_position(), count: Count::Tokens };
        let stack = StackSpec::encoder(&self.text, positions, self.type_size, Placement::Post);
        let spec = Spec::encoder(self, stack, ClassifierInput::FirstToken);
        // Independent of the activation of the blocks.
        let transform = spec.head.transform.map(|(norm, _)| (norm, Activation::Gelu));
        let dropout = HeadDropout::of_classifiers(self.classifier_dropout_p);
        Spec { head: HeadSpec { transform, dropout, ..spec.head }, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        block(&self.text, Placement::Post)
    }

    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text.set_hidden_dropout(rate, true);
        self.classifier_dropout_p = rate;
    }

    fn names(&self, _head: Head) -> NameTable {
        NameTable {
            base_prefix: "roberta.",
            rules: Cow::Owned(encoder_files::rules("roberta.", &encoder_files::POST_NORMS, &HEADS)),
            aliases: Cow::Borrowed(&TIED),
            ignored: Cow::Borrowed(&["roberta.embeddings.position_ids"]),
            old_names: Cow::Borrowed(encoder_files::OLD_NAMES),
        }
    }

    fn names_of_model_center(&self, head: Head) -> Option<NameTable> {
        Some(model_center_names::encoder(self, head))
    }

    fn other_heads(head: Head) -> &'static [&'static str] {
        encoder_files::other_heads(head)
    }
}

/// The parameters of the heads.
const HEADS: [(&str, &str); 13] = [
    ("token_projection.weight", "classifier.weight"),
    ("token_projection.bias", "classifier.bias"),
    ("span_projection.weight", "qa_outputs.weight"),
    ("span_projection.bias", "qa_outputs.bias"),
    ("cls_dense.weight", "classifier.dense.weight"),
    ("cls_dense.bias", "classifier.dense.bias"),
    ("cls_projection.weight", "classifier.out_proj.weight"),
    ("cls_projection.bias", "classifier.out_proj.bias"),
    ("lm_head.dense.weight", "lm_head.dense.weight"),
    ("lm_head.dense.bias", "lm_head.dense.bias"),
    ("lm_head.layer_norm.weight", "lm_head.layer_norm.weight"),
    ("lm_head.layer_norm.bias", "lm_head.layer_norm.bias"),
    ("lm_head.decoder.bias", "lm_head.bias"),
];

/// The masked-LM head's matrix tied to the token embedding, and its bias under a second name.
static TIED: [Alias; 2] = [
    Alias::new("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    Alias::new("lm_head.decoder.bias", "lm_head.bias"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "roberta",
        doc: "RoBERTa with classification, answer-span and masked-token heads",
        open: Roberta::open,
        facts: Roberta::FACTS,
    },
    class: RobertaConfig::DIALECT.class,
    class_prefix: "Roberta",
    signatures: &[Signature {
        prefix: "roberta.",
        has: &[encoder_files::TENSORS],
        lacks: &["bert.", encoder_files::OUTPUT_NORM],
    }],
};

/// XLM-RoBERTa.
pub(in crate::model) const XLM: Family = Family {
    entry: ModelEntry {
        model_type: "xlm-roberta",
        doc: "XLM-RoBERTa, as RoBERTa",
        open: Roberta::open,
        facts: Roberta::FACTS,
    },
    class_prefix: "XLMRoberta",
    ..FAMILY
};

/// CamemBERT.
pub(in crate::model) const CAMEMBERT: Family = Family {
    entry: ModelEntry {
        model_type: "camembert",
        doc: "CamemBERT, as RoBERTa",
        open: Roberta::open,
        facts: Roberta::FACTS,
    },
    class_prefix: "Camembert",
    ..FAMILY
};
