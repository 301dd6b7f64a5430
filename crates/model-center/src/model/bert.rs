//! BERT (Devlin et al., 2019): absolute positions, a classifier on the pooler, heads for masked-LM and next-sentence
//! prediction.

use super::encoder::{Classifier, Encoder, EncoderFamily, EncoderHead, EncoderModel, Layout, names};
use super::load;
use super::position_table::{Count, PositionTable};
use super::registry::{Family, ModelEntry, Signature};
use crate::config::dialect::{Spoken, derived_head_size};
use crate::config::json::number;
use crate::config::labels::{self, ClassLabels};
use crate::config::model_center::Class;
use crate::config::ranges::{Ranges, refuse_foreign, refuse_other_encoders};
use crate::config::rows::{self, Row, Slot};
use crate::config::{ClassFields, Config, Fields, HfHeader, ProblemType, TextConfig, activations, model_center};
use crate::error::{Error, Result};
use crate::file::printable;
use crate::formats::{Alias, NameTable};
use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement};
use bmtrain_core::kernel::Activation;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// Sizes and options of a BERT.
///
/// Field names and defaults are taken from ModelCenter's `BertConfig`; the last six fields are this crate's, for
/// options of Hugging Face that ModelCenter's class does not have.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/bert_config.py`; Devlin et al. 2019 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// V, rows of the token embedding. Hugging Face: `vocab_size`.
    pub vocab_size: usize,
    /// Rows of the token type embedding. Hugging Face: `type_vocab_size`.
    pub type_size: usize,
    /// D. Hugging Face: `hidden_size`.
    pub dim_model: usize,
    /// N. Hugging Face: `num_attention_heads`.
    pub num_heads: usize,
    /// H. Hugging Face has no such field: there it is D / N.
    pub dim_head: usize,
    /// F. Hugging Face: `intermediate_size`.
    pub dim_ff: usize,
    /// Blocks of the encoder. Hugging Face: `num_hidden_layers`.
    pub num_layers: usize,
    /// Dropout of hidden states, in `[0, 1)`. Hugging Face: `hidden_dropout_prob`.
    pub dropout_p: f32,
    /// Mean of the embeddings' initializer; only 0 is supported.
    pub emb_init_mean: f32,
    /// Standard deviation of the embeddings' initializer. Hugging Face: `initializer_range`.
    pub emb_init_std: f32,
    /// Kind of position bias; BERT has `none`.
    pub pos_bias_type: String,
    /// Rows of the position embedding, the longest sequence. Hugging Face: `max_position_embeddings`.
    pub position_size: usize,
    /// Initial scale of the norms; only 1 is supported.
    pub norm_init_var: f32,
    /// Whether norms have a bias; BERT's do.
    pub norm_bias: bool,
    /// Epsilon of the norms. Hugging Face: `layer_norm_eps`.
    pub norm_eps: f32,
    /// Mean of the attention's initializer; only 0 is supported.
    pub att_init_mean: f32,
    /// Standard deviation of the attention's initializer. Hugging Face: `initializer_range`.
    pub att_init_std: f32,
    /// Whether the attention's projections have a bias.
    pub att_bias: bool,
    /// The score of a masked position in ModelCenter. Here masked positions are excluded exactly and the value is only
    /// kept: −10⁴ underflows to the same zero probability.
    pub att_mask_value: f32,
    /// Mean of the feed-forward's initializer; only 0 is supported.
    pub ffn_init_mean: f32,
    /// Standard deviation of the feed-forward's initializer. Hugging Face: `initializer_range`.
    pub ffn_init_std: f32,
    /// Whether the feed-forward's linear layers have a bias.
    pub ffn_bias: bool,
    /// Activation of the feed-forward. Hugging Face: `hidden_act`.
    pub ffn_activate_fn: Activation,
    /// Mean of the heads' initializer; only 0 is supported.
    pub proj_init_mean: f32,
    /// Standard deviation of the heads' initializer. Hugging Face: `initializer_range`.
    pub proj_init_std: f32,
    /// Whether heads have a bias; BERT's do.
    pub proj_bias: bool,
    /// Scale linear layers by the square root of their input dimension; not for BERT.
    pub length_scale: bool,
    /// Divide attention scores by the square root of H.
    pub attn_scale: bool,
    /// Whether the weights were stored as f16. The recipe sets the dtype of training.
    pub half: bool,
    /// Quantized linear layers; not supported.
    pub int8: bool,
    /// Whether the masked-LM head is tied to the token embedding. Hugging Face: `tie_word_embeddings`.
    pub tied: bool,
    /// Outputs of the classification head, if there is one. Hugging Face: `num_labels` or the length of `id2label`, for
    /// an architecture that has such a head.
    pub cls_head: Option<usize>,
    /// Post-norm blocks, as in BERT.
    pub post_layer_norm: bool,

    /// Dropout of attention probabilities, in `[0, 1)`. Hugging Face: `attention_probs_dropout_prob`; in ModelCenter's
    /// dialect `dropout_p` unless given.
    pub attention_dropout_p: f32,
    /// Dropout before the classifier, in `[0, 1)`. Hugging Face: `classifier_dropout`; else `dropout_p`.
    pub classifier_dropout_p: f32,
    /// The padding token, whose embedding gets no gradient. Hugging Face's default is 0.
    pub pad_token_id: Option<usize>,
    /// Names of the classes in order, empty if unknown. Hugging Face: `id2label`.
    pub labels: Vec<String>,
    /// Problem type of the classifier, if the file specifies one.
    pub problem_type: Option<ProblemType>,
    /// Unknown fields of the file, written back unchanged.
    pub extra: Map<String, Value>,
}

impl Default for BertConfig {
    fn default() -> Self {
        BertConfig {
            vocab_size: 119547,
            type_size: 2,
            dim_model: 768,
            num_heads: 12,
            dim_head: 64,
            dim_ff: 3072,
            num_layers: 12,
            dropout_p: 0.0,
            emb_init_mean: 0.0,
            emb_init_std: 0.02,
            pos_bias_type: "none".to_string(),
            position_size: 512,
            norm_init_var: 1.0,
            norm_bias: true,
            norm_eps: 1e-12,
            att_init_mean: 0.0,
            att_init_std: 0.02,
            att_bias: true,
            att_mask_value: -1e4,
            ffn_init_mean: 0.0,
            ffn_init_std: 0.02,
            ffn_bias: true,
            ffn_activate_fn: Activation::Gelu,
            proj_init_mean: 0.0,
            proj_init_std: 0.02,
            proj_bias: true,
            length_scale: false,
            attn_scale: true,
            half: true,
            int8: false,
            tied: true,
            cls_head: None,
            post_layer_norm: true,
            attention_dropout_p: 0.0,
            classifier_dropout_p: 0.0,
            pad_token_id: None,
            labels: Vec::new(),
            problem_type: None,
            extra: Map::new(),
        }
    }
}

impl BertConfig {
    /// Checks that the fields are consistent and request only what BERT supports; `place` names the source.
    ///
    /// Reading a file ends with this; call it after changing fields by hand.
    pub fn validate(&self, place: &str) -> Result<()> {
        let ranges = Ranges { place };
        ranges.sizes(&rows::sizes(ROWS, self))?;
        ranges.sizes(&[("dim_head", self.dim_head)])?;
        ranges.dropouts(&[
            ("dropout_p", self.dropout_p),
            ("attention_dropout_p", self.attention_dropout_p),
            ("classifier_dropout_p", self.classifier_dropout_p),
        ])?;
        ranges.deviations(&rows::numbers(DEVIATIONS, self))?;
        ranges.epsilon(self.norm_eps)?;
        ranges.padding(self.pad_token_id, self.vocab_size)?;
        ranges.classes(self.cls_head, self.labels.len())?;
        self.refuse_unsupported(place)
    }

    /// Options of the common base that BERT does not support: ignoring them would build another model than configured.
    fn refuse_unsupported(&self, place: &str) -> Result<()> {
        let means = [self.emb_init_mean, self.att_init_mean, self.ffn_init_mean, self.proj_init_mean];
        let wrong = [
            ("pos_bias_type", self.pos_bias_type != "none", "none"),
            ("norm_bias", !self.norm_bias, "true"),
            ("proj_bias", !self.proj_bias, "true"),
            ("length_scale", self.length_scale, "false"),
            ("int8", self.int8, "false"),
            ("post_layer_norm", !self.post_layer_norm, "true"),
            ("norm_init_var", self.norm_init_var != 1.0, "1"),
            ("emb_init_mean, att_init_mean, ffn_init_mean, proj_init_mean", means != [0.0; 4], "0"),
        ];
        Ranges { place }.only("BERT", &wrong)
    }
}

/// Fields with one row each; [`Config::from_fields`] reads fields that have rules of their own.
const ROWS: &[Row<BertConfig>] = &[
    Row::required(&["hidden_size"], &["dim_model"], |c| Slot::Size(&mut c.dim_model)),
    Row::required(&["num_hidden_layers"], &["num_layers"], |c| Slot::Size(&mut c.num_layers)),
    Row::required(&["num_attention_heads"], &["num_heads"], |c| Slot::Size(&mut c.num_heads)),
    Row::required(&["intermediate_size"], &["dim_ff"], |c| Slot::Size(&mut c.dim_ff)),
    Row::required(&["max_position_embeddings"], &["position_size"], |c| Slot::Size(&mut c.position_size)),
    Row::required(&["type_vocab_size"], &["type_size"], |c| Slot::Size(&mut c.type_size)),
    Row::required(&["vocab_size"], &["vocab_size"], |c| Slot::Size(&mut c.vocab_size)),
    Row::new(&["hidden_dropout_prob"], &["dropout_p"], |c| Slot::Number(&mut c.dropout_p)),
    Row::new(&["attention_probs_dropout_prob"], &["attention_dropout_p"], |c| Slot::Number(&mut c.attention_dropout_p)),
    Row::new(&["classifier_dropout"], &["classifier_dropout_p"], |c| Slot::Number(&mut c.classifier_dropout_p)),
    Row::new(&["layer_norm_eps"], &["norm_eps"], |c| Slot::Number(&mut c.norm_eps)),
    Row::new(&[], &["emb_init_mean"], |c| Slot::Number(&mut c.emb_init_mean)),
    Row::new(&[], &["att_init_mean"], |c| Slot::Number(&mut c.att_init_mean)),
    Row::new(&[], &["ffn_init_mean"], |c| Slot::Number(&mut c.ffn_init_mean)),
    Row::new(&[], &["proj_init_mean"], |c| Slot::Number(&mut c.proj_init_mean)),
    Row::new(&[], &["norm_init_var"], |c| Slot::Number(&mut c.norm_init_var)),
    Row::same(&["pad_token_id"], |c| Slot::OptionalIndex(&mut c.pad_token_id)),
    Row::new(&[], &["norm_bias"], |c| Slot::Flag(&mut c.norm_bias)),
    Row::new(&[], &["att_bias"], |c| Slot::Flag(&mut c.att_bias)),
    Row::new(&[], &["ffn_bias"], |c| Slot::Flag(&mut c.ffn_bias)),
    Row::new(&[], &["proj_bias"], |c| Slot::Flag(&mut c.proj_bias)),
    Row::new(&[], &["length_scale"], |c| Slot::Flag(&mut c.length_scale)),
    Row::new(&[], &["attn_scale"], |c| Slot::Flag(&mut c.attn_scale)),
    Row::new(&[], &["int8"], |c| Slot::Flag(&mut c.int8)),
    Row::new(&[], &["post_layer_norm"], |c| Slot::Flag(&mut c.post_layer_norm)),
    Row::new(&["tie_word_embeddings"], &["tied"], |c| Slot::Flag(&mut c.tied)),
];

/// Standard deviations, all of them `initializer_range` in Hugging Face files.
const DEVIATIONS: &[Row<BertConfig>] = &[
    Row::new(&["initializer_range"], &["emb_init_std"], |c| Slot::Number(&mut c.emb_init_std)),
    Row::new(&[], &["att_init_std"], |c| Slot::Number(&mut c.att_init_std)),
    Row::new(&[], &["ffn_init_std"], |c| Slot::Number(&mut c.ffn_init_std)),
    Row::new(&[], &["proj_init_std"], |c| Slot::Number(&mut c.proj_init_std)),
];

impl Config for BertConfig {
    const MODEL_TYPE: &'static str = "bert";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        refuse_foreign(&fields, Self::MODEL_TYPE, "BERT")?;
        refuse_other_encoders(&fields, "BERT")?;
        let spoken = rows::spoken(ROWS, &fields, "BERT")?;
        let stated = |names: &[&str]| names.iter().any(|name| fields.peek(name).is_some());
        let states_attention = stated(&["attention_probs_dropout_prob", "attention_dropout_p"]);
        let states_classifier = stated(&["classifier_dropout", "classifier_dropout_p"]);
        let mut config = BertConfig::default();
        if spoken == Spoken::HuggingFace {
            // The defaults of transformers' class.
            (config.dropout_p, config.attention_dropout_p, config.pad_token_id) = (0.1, 0.1, Some(0));
        }
        rows::take(ROWS, &mut config, &mut fields, &TextConfig::default(), spoken)?;
        if spoken == Spoken::ModelCenter && !states_attention {
            config.attention_dropout_p = config.dropout_p;
        }
        if !states_classifier {
            config.classifier_dropout_p = config.dropout_p;
        }
        let given = fields.take_size("dim_head")?;
        config.dim_head = match spoken {
            Spoken::ModelCenter => given.unwrap_or(config.dim_head),
            Spoken::HuggingFace => {
                let (names, sizes) = (["hidden_size", "num_attention_heads"], [config.dim_model, config.num_heads]);
                derived_head_size(&fields, given, names, sizes)?
            }
        };
        rows::take_common(DEVIATIONS, "initializer_range", &mut config, &mut fields)?;
        config.att_mask_value = fields.take_mask_value()?.unwrap_or(config.att_mask_value);
        config.half = fields.take_half()?.unwrap_or(spoken == Spoken::ModelCenter && config.half);
        if let Some(kind) = fields.take_text("pos_bias_type")? {
            config.pos_bias_type = printable(&kind, 40);
        }
        if let Some(between) = activations::take(&mut fields, &["hidden_act", "ffn_activate_fn"])? {
            if between.gated {
                let reason = "a BERT has no gates in its feed-forward layers";
                return Err(fields.error("ffn_activate_fn", reason, "use a function without the prefix gated_"));
            }
            config.ffn_activate_fn = between.activation;
        }
        let labels = ClassLabels::take(&mut fields)?;
        (config.cls_head, config.labels, config.problem_type) = (labels.outputs, labels.names, labels.problem);
        let place = fields.place().to_string();
        config.extra = fields.into_rest();
        config.extra.shift_remove("model_type");
        config.validate(&place)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = self.extra.clone();
        rows::write(ROWS, self, &TextConfig::default(), Spoken::ModelCenter, &mut map);
        rows::write(DEVIATIONS, self, &TextConfig::default(), Spoken::ModelCenter, &mut map);
        let mask = self.att_mask_value;
        for (name, value) in [
            ("model_type", json!(Self::MODEL_TYPE)),
            ("dim_head", json!(self.dim_head)),
            ("half", json!(self.half)),
            ("att_mask_value", if mask == f32::NEG_INFINITY { json!("-inf") } else { number(mask) }),
            ("pos_bias_type", json!(self.pos_bias_type)),
            ("ffn_activate_fn", json!(activations::name(self.ffn_activate_fn))),
            ("cls_head", json!(self.cls_head)),
        ] {
            map.insert(name.to_string(), value);
        }
        labels::write(&self.labels, self.problem_type, &mut map);
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        model_center::class_fields(self, header)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let no_form = |field: &str, reason: String| {
            let fix = "this model cannot be written as a Hugging Face directory";
            Error::model(format!("BERT configuration, field {field}"), reason, fix)
        };
        if self.num_heads.checked_mul(self.dim_head) != Some(self.dim_model) {
            let reason = format!("{} heads of {} are not {} together", self.num_heads, self.dim_head, self.dim_model);
            return Err(no_form("dim_head", reason));
        }
        if !(self.att_bias && self.ffn_bias && self.attn_scale) {
            return Err(no_form("att_bias, ffn_bias, attn_scale", "Hugging Face's BERT has all three".to_string()));
        }
        let dtype = header.torch_dtype()?;
        let mut map = self.extra.clone();
        rows::write(ROWS, self, &TextConfig::default(), Spoken::HuggingFace, &mut map);
        rows::write(DEVIATIONS, self, &TextConfig::default(), Spoken::HuggingFace, &mut map);
        for (name, value) in [
            ("architectures", json!([header.architecture])),
            ("model_type", json!(Self::MODEL_TYPE)),
            ("hidden_act", json!(activations::name(self.ffn_activate_fn))),
            // Before version 5 transformers read the first name, since then the second.
            ("torch_dtype", json!(dtype)),
            ("dtype", json!(dtype)),
        ] {
            map.insert(name.to_string(), value);
        }
        if self.classifier_dropout_p == self.dropout_p {
            map.insert("classifier_dropout".to_string(), Value::Null);
        }
        labels::write_counted(&self.labels, self.cls_head, self.problem_type, &mut map);
        map.sort_keys();
        Ok(map)
    }
}

/// A BERT with its heads.
pub type Bert = EncoderModel<BertConfig>;

impl EncoderFamily for BertConfig {
    const CLASSIFIER: Classifier = Classifier::Pooled;
    const HAS_SENTENCES: bool = true;

    fn title(&self) -> &'static str {
        "BERT"
    }

    fn class_prefix(&self) -> &'static str {
        "Bert"
    }

    fn layout(&self) -> Layout {
        Layout {
            vocab_size: self.vocab_size,
            dim_model: self.dim_model,
            num_layers: self.num_layers,
            type_size: self.type_size,
            position_size: self.position_size,
            positions: PositionTable { first: 0, count: Count::Places },
            pad_token_id: self.pad_token_id,
            table_init: Init::normal(self.emb_init_std),
            head_init: Init::normal(self.proj_init_std),
            norm: NormOptions::layer(self.dim_model, self.norm_eps),
            word_activation: self.ffn_activate_fn,
            dropout_p: self.dropout_p,
            classifier_dropout_p: self.classifier_dropout_p,
            tied: self.tied,
            cls_head: self.cls_head,
            problem_type: self.problem_type,
        }
    }

    fn block(&self) -> BlockConfig {
        let (att_init, ffn_init) = (Init::normal(self.att_init_std), Init::normal(self.ffn_init_std));
        BlockConfig {
            placement: Placement::Post,
            attention: AttentionConfig {
                bias: self.att_bias,
                out_bias: self.att_bias,
                scale: if self.attn_scale { 1.0 / (self.dim_head as f32).sqrt() } else { 1.0 },
                dropout: self.attention_dropout_p,
                ..AttentionConfig::new(self.dim_model, self.num_heads, self.dim_head, att_init)
            },
            cross: None,
            ffn: FeedForwardConfig {
                bias: self.ffn_bias,
                ..FeedForwardConfig::new(self.dim_model, self.dim_ff, self.ffn_activate_fn, ffn_init)
            },
            norm: NormOptions::layer(self.dim_model, self.norm_eps),
            dropout: self.dropout_p,
        }
    }

    fn names(&self) -> NameTable {
        NameTable {
            base_prefix: "bert.",
            rules: Cow::Owned(names::rules("bert.", &HEADS)),
            aliases: Cow::Borrowed(&TIED),
            ignored: Cow::Borrowed(&["bert.embeddings.position_ids"]),
            old_names: Cow::Borrowed(names::OLD_NAMES),
        }
    }

    fn names_of_model_center(&self, head: EncoderHead) -> Option<NameTable> {
        Some(names::of_model_center(self, head))
    }

    fn unused(head: EncoderHead) -> &'static [&'static str] {
        match head {
            EncoderHead::Classifier { .. } => &["cls.*", "qa_outputs.*"],
            EncoderHead::None | EncoderHead::CausalLm { .. } => &["cls.*", "classifier.*", "qa_outputs.*"],
            EncoderHead::MaskedLm => &["cls.seq_relationship.*", "classifier.*", "qa_outputs.*", "*pooler.*"],
            EncoderHead::NextSentence => &["cls.predictions.*", "classifier.*", "qa_outputs.*"],
            EncoderHead::Pretraining => &["classifier.*", "qa_outputs.*"],
        }
    }

    fn labels(&self) -> &[String] {
        &self.labels
    }

    fn labels_mut(&mut self) -> (&mut Option<usize>, &mut Vec<String>, &mut Option<ProblemType>) {
        (&mut self.cls_head, &mut self.labels, &mut self.problem_type)
    }

    fn set_dropout(&mut self, hidden: Option<f32>, attention: Option<f32>) {
        self.dropout_p = hidden.unwrap_or(self.dropout_p);
        self.classifier_dropout_p = hidden.unwrap_or(self.classifier_dropout_p);
        self.attention_dropout_p = attention.unwrap_or(self.attention_dropout_p);
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.validate(place)
    }
}

/// The parameters of the heads.
const HEADS: [(&str, &str); 9] = [
    ("cls_projection.weight", "classifier.weight"),
    ("cls_projection.bias", "classifier.bias"),
    ("lm_head.dense.weight", "cls.predictions.transform.dense.weight"),
    ("lm_head.dense.bias", "cls.predictions.transform.dense.bias"),
    ("lm_head.layer_norm.weight", "cls.predictions.transform.LayerNorm.weight"),
    ("lm_head.layer_norm.bias", "cls.predictions.transform.LayerNorm.bias"),
    ("lm_head.decoder.bias", "cls.predictions.bias"),
    ("nsp_projection.weight", "cls.seq_relationship.weight"),
    ("nsp_projection.bias", "cls.seq_relationship.bias"),
];

/// The masked-LM head's matrix tied to the token embedding, and its bias under a second name.
static TIED: [Alias; 2] = [
    Alias::new("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    Alias::new("cls.predictions.decoder.bias", "cls.predictions.bias"),
];

/// The registry entry.
pub(super) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "bert",
        doc: "BERT with classification, masked-token and next-sentence heads",
        open: load::open::<Encoder<BertConfig>>,
    },
    class: Some(Class {
        family: "bert",
        order: 0,
        title: "BERT",
        own: &["type_size", "num_layers", "position_size"],
        ..Class::POST_NORM
    }),
    class_prefix: "Bert",
    signatures: &[Signature { prefix: "bert.", has: &[names::TENSORS], lacks: &["roberta."] }],
};
