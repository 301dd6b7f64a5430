//! RoBERTa (Liu et al., 2019): BERT's blocks, positions that count tokens from behind the padding word's, a classifier
//! with a map of its own, no next sentence. XLM-RoBERTa (Conneau et al., 2020) and CamemBERT (Martin et al., 2020) are
//! the same computation, with the same names in files.

use super::block::block;
use super::encoder::{Classifier, EncoderFamily, EncoderHead, EncoderModel, Layout, names};
use super::position_table::{Count, PositionTable};
use crate::config::{ProblemType, RobertaConfig};
use crate::error::Result;
use crate::formats::{Alias, NameTable};
use crate::layer::{BlockConfig, Placement};
use bmtrain_core::kernel::Activation;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use std::borrow::Cow;

/// A RoBERTa with its heads.
pub type Roberta = EncoderModel<RobertaConfig>;

impl EncoderFamily for RobertaConfig {
    const CLASSIFIER: Classifier = Classifier::Dense;
    const HAS_SENTENCES: bool = false;

    fn title(&self) -> &'static str {
        self.name.title()
    }

    fn class_prefix(&self) -> &'static str {
        self.name.class_prefix()
    }

    fn layout(&self) -> Layout {
        let text = &self.text;
        Layout {
            vocab_size: text.vocab_size,
            dim_model: text.dim_model,
            num_layers: text.num_layers,
            type_size: self.type_size,
            position_size: text.position_size,
            positions: PositionTable { first: self.first_position(), count: Count::Tokens },
            pad_token_id: text.pad_token_id,
            table_init: Init::normal(text.outer_std()),
            head_init: Init::normal(text.outer_std()),
            norm: NormOptions::layer(text.dim_model, text.norm_eps),
            // Whatever the blocks have between their maps.
            word_activation: Activation::Gelu,
            dropout_p: text.embedding_dropout_p,
            classifier_dropout_p: self.classifier_dropout_p,
            tied: text.tied,
            cls_head: text.cls_head,
            problem_type: text.problem_type,
        }
    }

    fn block(&self) -> BlockConfig {
        block(&self.text, Placement::Post)
    }

    fn names(&self) -> NameTable {
        NameTable {
            base_prefix: "roberta.",
            rules: Cow::Owned(names::rules("roberta.", &HEADS)),
            aliases: Cow::Borrowed(&TIED),
            ignored: Cow::Borrowed(&["roberta.embeddings.position_ids"]),
            old_names: Cow::Borrowed(names::OLD_NAMES),
        }
    }

    fn names_of_model_center(&self, head: EncoderHead) -> Option<NameTable> {
        Some(names::of_model_center(self, head))
    }

    fn unused(head: EncoderHead) -> &'static [&'static str] {
        match head {
            EncoderHead::Classifier { .. } => &["lm_head.*", "qa_outputs.*", "*pooler.*"],
            EncoderHead::MaskedLm => &["classifier.*", "qa_outputs.*", "*pooler.*"],
            EncoderHead::None | EncoderHead::CausalLm { .. } | EncoderHead::NextSentence | EncoderHead::Pretraining => {
                &["lm_head.*", "classifier.*", "qa_outputs.*"]
            }
        }
    }

    fn labels(&self) -> &[String] {
        &self.text.labels
    }

    fn labels_mut(&mut self) -> (&mut Option<usize>, &mut Vec<String>, &mut Option<ProblemType>) {
        (&mut self.text.cls_head, &mut self.text.labels, &mut self.text.problem_type)
    }

    fn set_dropout(&mut self, hidden: Option<f32>, attention: Option<f32>) {
        let text = &mut self.text;
        text.dropout_p = hidden.unwrap_or(text.dropout_p);
        text.embedding_dropout_p = hidden.unwrap_or(text.embedding_dropout_p);
        self.classifier_dropout_p = hidden.unwrap_or(self.classifier_dropout_p);
        text.attention_dropout_p = attention.unwrap_or(text.attention_dropout_p);
    }

    fn validate(&self, place: &str) -> Result<()> {
        self.validate(place)
    }
}

/// The parameters of the heads.
const HEADS: [(&str, &str); 9] = [
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

/// What the head for masked words shares with the words' embedding, and its bias under a second name.
static TIED: [Alias; 2] = [
    Alias::new("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    Alias::new("lm_head.decoder.bias", "lm_head.bias"),
];
