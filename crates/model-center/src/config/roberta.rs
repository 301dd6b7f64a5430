//! The configuration of RoBERTa, and of XLM-RoBERTa and CamemBERT, which differ in their name alone.
//!
//! Defines [`RobertaConfig`] and [`RobertaName`]; called by [`crate::model`]'s RoBERTa and the binaries.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, Spoken};
use super::json::number;
use super::ranges::{Ranges, refuse_other_encoders};
use super::{ClassFields, Config, Fields, HfHeader, TextConfig, model_center};
use crate::Result;

/// Sizes and options of a RoBERTa.
///
/// Defaults are those of ModelCenter's `RobertaConfig`. Its options that no RoBERTa uses (means of initial values,
/// `length_scale`, `int8`, …) may be in a file with the value that changes nothing.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/roberta_config.py`; Liu et al. 2019 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct RobertaConfig {
    /// What all families have. `position_size` counts the rows of the table of positions, of which those up to the
    /// padding word's number belong to no token. `dropout_p` and `embedding_dropout_p` are one rate.
    pub text: TextConfig,
    /// Under which name it goes. Hugging Face: `model_type`.
    pub name: RobertaName,
    /// Rows of the token type embedding. Hugging Face: `type_vocab_size`.
    pub type_size: usize,
    /// Dropout in the classifier, in `[0, 1)`. Hugging Face: `classifier_dropout`; else `dropout_p`.
    pub classifier_dropout_p: f32,
}

/// The families that are one computation.
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

    /// The name for people.
    pub const fn title(self) -> &'static str {
        match self {
            RobertaName::Roberta => "RoBERTa",
            RobertaName::XlmRoberta => "XLM-RoBERTa",
            RobertaName::Camembert => "CamemBERT",
        }
    }

    /// What the classes of `transformers` begin with.
    pub const fn class_prefix(self) -> &'static str {
        match self {
            RobertaName::Roberta => "Roberta",
            RobertaName::XlmRoberta => "XLMRoberta",
            RobertaName::Camembert => "Camembert",
        }
    }

    /// The name in a file; RoBERTa's for one that says another family's, which [`Dialect::take`] refuses.
    fn of(fields: &Fields) -> Result<Self> {
        let given = fields.peek_text("model_type")?;
        let others = [RobertaName::XlmRoberta, RobertaName::Camembert];
        let name = others.into_iter().find(|name| given == Some(name.model_type()));
        Ok(name.unwrap_or(RobertaName::Roberta))
    }

    /// How the files are written.
    fn dialect(self) -> Dialect {
        Dialect {
            title: self.title(),
            model_type: self.model_type(),
            dim_model: &["hidden_size"],
            num_layers: &["num_hidden_layers"],
            num_heads: &["num_attention_heads"],
            dim_ff: &["intermediate_size"],
            ff_factor: None,
            dim_head: &[],
            position_size: &["max_position_embeddings"],
            dropout: &["hidden_dropout_prob"],
            embedding_dropout: &[],
            attention_dropout: &["attention_probs_dropout_prob"],
            init_std: &["initializer_range"],
            norm_eps: &["layer_norm_eps"],
            activation: &["hidden_act"],
            gated: Some(false),
            hugging_face: || TextConfig {
                dropout_p: 0.1,
                attention_dropout_p: 0.1,
                norm_eps: 1e-12,
                ..RobertaConfig::default().text
            },
            model_center: || RobertaConfig::default().text,
            fixed: &[&[
                ("norm_bias", Fixed::Flag(true)),
                ("att_bias", Fixed::Flag(true)),
                ("ffn_bias", Fixed::Flag(true)),
                ("proj_bias", Fixed::Flag(true)),
                ("length_scale", Fixed::Flag(false)),
                ("attn_scale", Fixed::Flag(true)),
                ("post_layer_norm", Fixed::Flag(true)),
                ("pos_bias_type", Fixed::Text("none")),
            ]],
        }
    }
}

impl Default for RobertaConfig {
    fn default() -> Self {
        let text = TextConfig {
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
        RobertaConfig { text, name: RobertaName::Roberta, type_size: 1, classifier_dropout_p: 0.0 }
    }
}

impl RobertaConfig {
    /// The row of the table of positions that belongs to the first token of a text: the one behind the padding word's.
    ///
    /// Source: fairseq, whose tables of positions have a row for padding as those of words do.
    pub fn first_position(&self) -> usize {
        self.text.pad_token_id.map_or(0, |id| id.saturating_add(1))
    }

    /// Check the fields; `place` names the source.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) naming the field.
    pub fn validate(&self, place: &str) -> Result<()> {
        self.text.validate(place)?;
        let ranges = Ranges { place };
        ranges.sizes(&[("type_size", self.type_size)])?;
        ranges.dropouts(&[("classifier_dropout_p", self.classifier_dropout_p)])?;
        let (title, first) = (self.name.title(), self.first_position());
        if self.text.pad_token_id.is_none() {
            let reason = format!("{title} numbers its positions from behind the padding word, and there is none");
            return Err(ranges.refuse("pad_token_id", reason, "give the id of the padding word, commonly 1"));
        }
        if self.text.position_size <= first {
            let reason =
                format!("the first token stands in row {first} of a table of {} positions", self.text.position_size);
            return Err(ranges.refuse("position_size", reason, "give more positions, or a smaller pad_token_id"));
        }
        Ok(())
    }
}

impl Config for RobertaConfig {
    const MODEL_TYPE: &'static str = RobertaName::Roberta.model_type();

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let name = RobertaName::of(&fields)?;
        let dialect = name.dialect();
        let spoken = dialect.spoken(&fields)?;
        refuse_other_encoders(&fields, name.title())?;
        let says_attention =
            ["attention_probs_dropout_prob", "attention_dropout_p"].iter().any(|name| fields.peek(name).is_some());
        // The same rate as `dropout_p`, under a name that ModelCenter's dialect of other families has.
        let embedding = fields.take_number("embedding_dropout_p")?;
        let (mut text, _) = dialect.take(&mut fields)?;
        if embedding.is_some_and(|p| p != text.dropout_p) {
            return Err(dialect.unsupported(&fields, "embedding_dropout_p", "dropout_p"));
        }
        text.embedding_dropout_p = text.dropout_p;
        if spoken == Spoken::ModelCenter && !says_attention {
            text.attention_dropout_p = text.dropout_p;
        }
        let types = fields.take_either("type_vocab_size", "type_size", Fields::take_size)?;
        let type_size = match (types, spoken) {
            (Some(size), _) => size,
            (None, Spoken::ModelCenter) => RobertaConfig::default().type_size,
            (None, Spoken::HuggingFace) => return Err(fields.missing_sizes(&["type_vocab_size"])),
        };
        let classifier = fields.take_either("classifier_dropout", "classifier_dropout_p", Fields::take_number)?;
        let classifier_dropout_p = classifier.unwrap_or(text.dropout_p);
        let place = fields.place().to_string();
        dialect.finish(fields, &mut text)?;
        let config = RobertaConfig { text, name, type_size, classifier_dropout_p };
        config.validate(&place)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = self.name.dialect().to_dict(&self.text);
        map.insert("type_size".to_string(), json!(self.type_size));
        map.insert("classifier_dropout_p".to_string(), number(self.classifier_dropout_p));
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        model_center::class_fields(self, header)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = self.name.dialect().to_hf_json(&self.text, header)?;
        let as_hidden = self.classifier_dropout_p == self.text.dropout_p;
        let classifier = if as_hidden { Value::Null } else { number(self.classifier_dropout_p) };
        map.insert("type_vocab_size".to_string(), json!(self.type_size));
        map.insert("classifier_dropout".to_string(), classifier);
        map.sort_keys();
        Ok(map)
    }
}
