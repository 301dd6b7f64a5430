//! BERT (Devlin et al., 2019): positions by place, a classifier on the pooler, heads for masked words and next
//! sentence.

use super::encoder::{Classifier, EncoderFamily, EncoderHead, EncoderModel, Layout, names};
use super::position_table::{Count, PositionTable};
use crate::config::{BertConfig, ProblemType};
use crate::error::Result;
use crate::formats::{Alias, NameTable};
use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use std::borrow::Cow;

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

/// What the head for masked words shares with the words' embedding, and its bias under a second name.
static TIED: [Alias; 2] = [
    Alias::new("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    Alias::new("cls.predictions.decoder.bias", "cls.predictions.bias"),
];
