//! BERT (Devlin et al., 2019): absolute positions, a classifier on the pooler, heads for masked-LM and next-sentence
//! prediction.

use crate::model::prelude::*;
use model_center_base::json::number;

model_config! {
    /// Sizes and options of a BERT.
    ///
    /// Defaults are taken from ModelCenter's `BertConfig`. Its options that no BERT uses (means of initializers,
    /// `length_scale`, `int8`, …) are accepted with the value that has no effect, and written.
    ///
    /// Source: ModelCenter 1.0.3, `model_center/model/config/bert_config.py`; Devlin et al. 2019 for the architecture.
    pub struct BertConfig {
        /// The common fields. `dropout_p` and `embedding_dropout_p` are equal. In ModelCenter's files `init_std` is
        /// `att_init_std` and `outer_std` is `emb_init_std`; Hugging Face's `initializer_range` is all four deviations.
        text: TextConfig {
            vocab_size: 119547,
            position_size: 512,
            norm_eps: 1e-12,
            tied: true,
            ..TextConfig::default()
        };
        /// Rows of the token type embedding. Hugging Face: `type_vocab_size`.
        type_size: usize = 2, Size(required "type_vocab_size" => "type_size");
        /// Standard deviation of the feed-forward's initializer.
        ffn_init_std: f32 = 0.02;
        /// Standard deviation of the heads' initializer.
        proj_init_std: f32 = 0.02;
        /// Whether the attention's projections have a bias.
        att_bias: bool = true, Flag(=> "att_bias");
        /// Whether the feed-forward's linear layers have a bias.
        ffn_bias: bool = true, Flag(=> "ffn_bias");
        /// Divide attention scores by the square root of H.
        attn_scale: bool = true, Flag(=> "attn_scale");
        /// The score of a masked position in ModelCenter. Here masked positions are excluded exactly and the value is
        /// only kept: −10⁴ underflows to the same zero probability.
        att_mask_value: f32 = -1e4;
        /// Whether the weights were stored as f16. The recipe sets the dtype of training.
        half: bool = true;
        /// Dropout before the classifier, in `[0, 1)`. Hugging Face: `classifier_dropout`; else `dropout_p`.
        classifier_dropout_p: f32 = 0.0, Dropout("classifier_dropout" => "classifier_dropout_p");
    }
}

/// Standard deviations, all of them `initializer_range` in Hugging Face files.
const DEVIATIONS: &[Row<BertConfig>] = &[
    Row::new(&["initializer_range"], &["emb_init_std"], |c| {
        Slot::Deviation(c.text.outer_std.get_or_insert(c.text.init_std))
    }),
    Row::new(&[], &["att_init_std"], |c| Slot::Deviation(&mut c.text.init_std)),
    Row::new(&[], &["ffn_init_std"], |c| Slot::Deviation(&mut c.ffn_init_std)),
    Row::new(&[], &["proj_init_std"], |c| Slot::Deviation(&mut c.proj_init_std)),
];

/// Numbers of ModelCenter that have one value, and are written.
const FIXED_NUMBERS: [(&str, f32); 5] = [
    ("emb_init_mean", 0.0),
    ("att_init_mean", 0.0),
    ("ffn_init_mean", 0.0),
    ("proj_init_mean", 0.0),
    ("norm_init_var", 1.0),
];

/// Other fields of ModelCenter that have one value, and are written.
const FIXED: FixedFields = &[
    ("norm_bias", Fixed::Flag(true)),
    ("proj_bias", Fixed::Flag(true)),
    ("length_scale", Fixed::Flag(false)),
    ("int8", Fixed::Flag(false)),
    ("post_layer_norm", Fixed::Flag(true)),
    ("pos_bias_type", Fixed::Text("none")),
];

impl RowConfig for BertConfig {
    const DIALECT: Dialect = Dialect {
        class: Some(Class {
            family: "bert",
            order: 0,
            title: "BERT",
            own: &["type_size", "num_layers", "position_size"],
            ..Class::POST_NORM
        }),
        title: "BERT",
        model_type: "bert",
        hugging_face: encoder_files::defaults,
        fixed: &[FIXED],
        ..Dialect::HUGGING_FACE
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let spoken = Self::DIALECT.spoken(fields)?;
        // These take precedence over what the fields mean in other families.
        let mut own = BertConfig::default();
        rows::take_common(DEVIATIONS, "initializer_range", &mut own, fields)?;
        own.att_mask_value = fields.take_mask_value()?.unwrap_or(own.att_mask_value);
        own.half = fields.take_half()?.unwrap_or(spoken == Spoken::ModelCenter);
        let config: Self = encoder_files::take(fields, |config: &mut Self| &mut config.classifier_dropout_p)?;
        let BertConfig { ffn_init_std, proj_init_std, att_mask_value, half, .. } = own;
        let init_std = own.text.init_std;
        let outer_std = own.text.outer_std.filter(|outer| *outer != init_std);
        let text = TextConfig { init_std, outer_std, ..config.text };
        Ok(BertConfig { text, ffn_init_std, proj_init_std, att_mask_value, half, ..config })
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        rows::check(Self::ROWS, self, place)?;
        rows::check(DEVIATIONS, self, place)
    }

    fn adjust_dict(&self, map: &mut Map<String, Value>) {
        rows::write(DEVIATIONS, self, &self.text, Spoken::ModelCenter, map);
        map.shift_remove("embedding_dropout_p");
        let fixed = FIXED.iter().map(|(name, value)| (*name, value.json()));
        let numbers = FIXED_NUMBERS.iter().map(|(name, value)| (*name, number(*value)));
        let mask = self.att_mask_value;
        let mask = if mask == f32::NEG_INFINITY { json!("-inf") } else { number(mask) };
        let own = [("half", json!(self.half)), ("att_mask_value", mask)];
        map.extend(own.into_iter().chain(fixed).chain(numbers).map(|(name, value)| (name.to_owned(), value)));
    }

    fn adjust_hf(&self, map: &mut Map<String, Value>) -> Result<()> {
        if !(self.att_bias && self.ffn_bias && self.attn_scale) {
            let fix = "this model cannot be written as a Hugging Face directory";
            let place = "BERT configuration, field att_bias, ffn_bias, attn_scale";
            return Err(Error::model(place, "Hugging Face's BERT has all three", fix));
        }
        rows::write(DEVIATIONS, self, &self.text, Spoken::HuggingFace, map);
        encoder_files::adjust_hf(&self.text, self.classifier_dropout_p, map);
        Ok(())
    }
}

/// A BERT with its heads.
pub type Bert = Transformer<BertConfig>;

impl ModelFamily for BertConfig {
    const ARCHITECTURE: Architecture = Architecture::Encoder;
    const DROPS_EMBEDDINGS: bool = true;
    const HAS_SENTENCES: bool = true;

    fn classes(&self) -> Classes {
        Classes::encoder("Bert")
    }

    fn spec(&self) -> Spec {
        let stack = StackSpec::encoder(&self.text, PositionTable::PLACES, self.type_size, Placement::Post);
        let spec = Spec::encoder(self, stack, ClassifierInput::Pooled);
        let init = Init::normal(self.proj_init_std);
        let dropout = HeadDropout::of_classifiers(self.classifier_dropout_p);
        Spec { head: HeadSpec { init, dropout, ..spec.head }, ..spec }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = block(&self.text, Placement::Post);
        let ffn_init = Init::normal(self.ffn_init_std);
        let ffn_out_init = Init::normal(self.ffn_init_std / self.text.residual_divisor(false));
        BlockConfig {
            attention: AttentionConfig {
                bias: self.att_bias,
                out_bias: self.att_bias,
                scale: if self.attn_scale { block.attention.scale } else { 1.0 },
                ..block.attention
            },
            ffn: FeedForwardConfig { bias: self.ffn_bias, init: ffn_init, out_init: ffn_out_init, ..block.ffn },
            ..block
        }
    }

    fn set_hidden_dropout(&mut self, rate: f32) {
        self.text.set_hidden_dropout(rate, true);
        self.classifier_dropout_p = rate;
    }

    fn names(&self, _head: Head) -> NameTable {
        NameTable {
            base_prefix: "bert.",
            rules: Cow::Owned(encoder_files::rules("bert.", &encoder_files::POST_NORMS, &HEADS)),
            aliases: Cow::Borrowed(&TIED),
            ignored: Cow::Borrowed(&["bert.embeddings.position_ids"]),
            old_names: Cow::Borrowed(encoder_files::OLD_NAMES),
        }
    }

    fn names_of_model_center(&self, head: Head) -> Option<NameTable> {
        Some(model_center_names::encoder(self, head))
    }

    fn other_heads(head: Head) -> &'static [&'static str] {
        match head {
            Head::Classifier { .. } => &["cls.*", "qa_outputs.*"],
            Head::TokenClassifier { .. } => &["cls.*", "qa_outputs.*", "*pooler.*"],
            Head::Span => &["cls.*", "classifier.*", "*pooler.*"],
            Head::None | Head::CausalLm { .. } => &["cls.*", "classifier.*", "qa_outputs.*"],
            Head::MaskedLm => &["cls.seq_relationship.*", "classifier.*", "qa_outputs.*", "*pooler.*"],
            Head::NextSentence => &["cls.predictions.*", "classifier.*", "qa_outputs.*"],
            Head::Pretraining => &["classifier.*", "qa_outputs.*"],
        }
    }
}

/// The parameters of the heads.
pub(in crate::model) const HEADS: [(&str, &str); 13] = [
    ("cls_projection.weight", "classifier.weight"),
    ("cls_projection.bias", "classifier.bias"),
    ("token_projection.weight", "classifier.weight"),
    ("token_projection.bias", "classifier.bias"),
    ("span_projection.weight", "qa_outputs.weight"),
    ("span_projection.bias", "qa_outputs.bias"),
    ("lm_head.dense.weight", "cls.predictions.transform.dense.weight"),
    ("lm_head.dense.bias", "cls.predictions.transform.dense.bias"),
    ("lm_head.layer_norm.weight", "cls.predictions.transform.LayerNorm.weight"),
    ("lm_head.layer_norm.bias", "cls.predictions.transform.LayerNorm.bias"),
    ("lm_head.decoder.bias", "cls.predictions.bias"),
    ("nsp_projection.weight", "cls.seq_relationship.weight"),
    ("nsp_projection.bias", "cls.seq_relationship.bias"),
];

/// The masked-LM head's matrix tied to the token embedding, and its bias under a second name.
pub(in crate::model) static TIED: [Alias; 2] = [
    Alias::new("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    Alias::new("cls.predictions.decoder.bias", "cls.predictions.bias"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "bert",
        doc: "BERT with classification, answer-span, masked-token and next-sentence heads",
        open: Bert::open,
        facts: Bert::FACTS,
    },
    class: BertConfig::DIALECT.class,
    class_prefix: "Bert",
    signatures: &[Signature {
        prefix: "bert.",
        has: &[encoder_files::TENSORS],
        lacks: &["roberta.", encoder_files::OUTPUT_NORM],
    }],
};
