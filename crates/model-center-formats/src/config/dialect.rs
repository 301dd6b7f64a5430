//! Names of [`TextConfig`]'s fields in the files of each family, and their defaults.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::labels;
use super::model_center::Class;
use super::ranges::refuse_foreign;
use super::rows::{self, Row, Slot};
use super::{HfHeader, TextConfig, activations, model_center};
use crate::{Error, Result};

/// Names of one field in Hugging Face files, the one that is written first; none where they have no such field.
pub type Names = &'static [&'static str];

/// Names of fields, each with the only value that it has.
pub type FixedFields = &'static [(&'static str, Fixed)];

/// ModelCenter's names of the standard deviations of embeddings and heads, and of the blocks between them.
pub(super) const OUTER: [&str; 2] = ["emb_init_std", "proj_init_std"];
pub(super) const INNER: [&str; 2] = ["att_init_std", "ffn_init_std"];

/// Names and rules of a family's files. A file may be Hugging Face's or ModelCenter's.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// The family's name for people.
    pub title: &'static str,
    /// The family's name in `model_type`.
    pub model_type: &'static str,
    /// Its class in ModelCenter; `None` for a family that is not written in ModelCenter's layout.
    pub class: Option<Class>,
    /// D.
    pub dim_model: Names,
    /// Blocks.
    pub num_layers: Names,
    /// N.
    pub num_heads: Names,
    /// F.
    pub dim_ff: Names,
    /// Factor of D that gives F where a file need not state it; F is then written as `null`.
    pub ff_factor: Option<usize>,
    /// H, where it is not always D / N.
    pub dim_head: Names,
    /// Whether a Hugging Face file must state H.
    pub head_required: bool,
    /// The longest sequence.
    pub position_size: Names,
    /// Dropout of what the layers of a block add.
    pub dropout: Names,
    /// Dropout of the embeddings' sum.
    pub embedding_dropout: Names,
    /// Dropout of attention probabilities.
    pub attention_dropout: Names,
    /// Standard deviation of initial values.
    pub init_std: Names,
    /// Epsilon of the norms.
    pub norm_eps: Names,
    /// Function between the feed-forward's maps.
    pub activation: Names,
    /// Name of GELU by its hyperbolic tangent that transformers writes in files of the family.
    pub gelu_tanh: &'static str,
    /// Whether the feed-forward layers have gates; `None` where the name of the function states it.
    pub gated: Option<bool>,
    /// The defaults of transformers where they are not the configuration's, which are ModelCenter's. Sizes have none.
    pub hugging_face: fn(TextConfig) -> TextConfig,
    /// Fields of ModelCenter that have one value in this family, which a file may state. Families share lists.
    pub fixed: &'static [FixedFields],
}

/// The one value that a field may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fixed {
    /// `true` or `false`.
    Flag(bool),
    /// A text.
    Text(&'static str),
}

impl Fixed {
    /// Biases of norms, attention and feed-forward layers.
    pub const BIASES: FixedFields =
        &[("norm_bias", Fixed::Flag(true)), ("att_bias", Fixed::Flag(true)), ("ffn_bias", Fixed::Flag(true))];

    /// No biases at all.
    pub const NO_BIASES: FixedFields = &[
        ("norm_bias", Fixed::Flag(false)),
        ("att_bias", Fixed::Flag(false)),
        ("ffn_bias", Fixed::Flag(false)),
        ("proj_bias", Fixed::Flag(false)),
    ];

    /// Norms before the layers, whose inputs are not scaled.
    pub const PRE_NORM: FixedFields = &[("length_scale", Fixed::Flag(false)), ("post_layer_norm", Fixed::Flag(false))];

    /// Norms after the sums.
    pub const POST_NORM: FixedFields = &[("length_scale", Fixed::Flag(false)), ("post_layer_norm", Fixed::Flag(true))];

    /// The value in files.
    pub fn json(self) -> Value {
        match self {
            Fixed::Flag(flag) => json!(flag),
            Fixed::Text(text) => json!(text),
        }
    }
}

/// Program whose names a file uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    /// Hugging Face's, or both at once.
    HuggingFace,
    /// ModelCenter's.
    ModelCenter,
}

impl Dialect {
    /// No names of Hugging Face, for families that only ModelCenter has.
    pub const MODEL_CENTER: Dialect = Dialect {
        title: "",
        model_type: "",
        class: None,
        dim_model: &[],
        num_layers: &[],
        num_heads: &[],
        dim_ff: &[],
        ff_factor: None,
        dim_head: &[],
        head_required: false,
        position_size: &[],
        dropout: &[],
        embedding_dropout: &[],
        attention_dropout: &[],
        init_std: &[],
        norm_eps: &[],
        activation: &[],
        gelu_tanh: "gelu_new",
        gated: None,
        hugging_face: |defaults| defaults,
        fixed: &[],
    };

    /// The names that most families have in Hugging Face files.
    pub const HUGGING_FACE: Dialect = Dialect {
        dim_model: &["hidden_size"],
        num_layers: &["num_hidden_layers"],
        num_heads: &["num_attention_heads"],
        dim_ff: &["intermediate_size"],
        position_size: &["max_position_embeddings"],
        dropout: &["hidden_dropout_prob"],
        attention_dropout: &["attention_probs_dropout_prob"],
        init_std: &["initializer_range"],
        norm_eps: &["layer_norm_eps"],
        activation: &["hidden_act"],
        gated: Some(false),
        ..Dialect::MODEL_CENTER
    };

    /// The sizes, in the order in which errors list missing ones. A family without such a field in files keeps what is
    /// known of it.
    pub(super) fn sizes(&self) -> [Row<TextConfig>; 6] {
        let known = |names: Names, ours, slot| Row { required: !names.is_empty(), ..Row::new(names, ours, slot) };
        [
            known(self.dim_model, &["dim_model"], |t| Slot::Size(&mut t.dim_model)),
            known(self.num_layers, &["num_layers"], |t| Slot::Size(&mut t.num_layers)),
            known(self.num_heads, &["num_heads"], |t| Slot::Size(&mut t.num_heads)),
            known(self.position_size, &["position_size"], |t| Slot::Size(&mut t.position_size)),
            Row::required(&["vocab_size"], &["vocab_size"], |t| Slot::Size(&mut t.vocab_size)),
            Row {
                required: self.ff_factor.is_none(),
                ..Row::new(self.dim_ff, &["dim_ff"], |t| Slot::Size(&mut t.dim_ff))
            },
        ]
    }

    /// The other fields that are read by their rows.
    pub(super) fn options(&self) -> [Row<TextConfig>; 3] {
        [
            Row::new(self.norm_eps, &["norm_eps"], |t| Slot::Number(&mut t.norm_eps)),
            Row::new(&["tie_word_embeddings"], &["tied"], |t| Slot::Flag(&mut t.tied)),
            Row::same(&["pad_token_id"], |t| Slot::OptionalIndex(&mut t.pad_token_id)),
        ]
    }

    /// The fields whose values in a file depend on each other, and that are only written by their rows.
    pub(super) fn derived(&self) -> [Row<TextConfig>; 7] {
        [
            Row::new(self.dim_head, &["dim_head"], |t| Slot::Size(&mut t.dim_head)),
            Row::new(self.dropout, &["dropout_p"], |t| Slot::Dropout(&mut t.dropout_p)),
            Row::new(self.embedding_dropout, &["embedding_dropout_p"], |t| Slot::Dropout(&mut t.embedding_dropout_p)),
            Row::new(self.attention_dropout, &["attention_dropout_p"], |t| Slot::Dropout(&mut t.attention_dropout_p)),
            Row::new(&[], &OUTER, |t| Slot::Number(t.outer_std.get_or_insert(t.init_std))),
            Row::new(self.init_std, &INNER, |t| Slot::Number(&mut t.init_std)),
            Row::new(&[], &["cls_head"], |t| Slot::OptionalSize(&mut t.cls_head)),
        ]
    }

    fn write(&self, text: &TextConfig, spoken: Spoken, map: &mut Map<String, Value>) {
        for rows in [&self.sizes()[..], &self.derived(), &self.options()] {
            rows::write(rows, text, text, spoken, map);
        }
    }

    /// Program whose names these are.
    ///
    /// # Errors
    /// A file of another family, of quantised weights, with code of its own, or without any size.
    pub fn spoken(&self, fields: &Fields) -> Result<Spoken> {
        refuse_foreign(fields, self.model_type, self.title)?;
        let has = |names: Names| names.iter().any(|name| fields.has(name));
        let sizes = self.sizes();
        let sizes = &sizes[..4];
        // A name that both programs use tells nothing.
        let is_other =
            |row: &Row<_>| row.hugging_face.iter().any(|name| !row.model_center.contains(name) && fields.has(name));
        if sizes.iter().any(is_other) {
            return Ok(Spoken::HuggingFace);
        }
        // Its files may state a size of the head alone, and mean the defaults of its class.
        if sizes.iter().any(|row| has(row.model_center)) || model_center::is_model_center(fields) {
            return Ok(Spoken::ModelCenter);
        }
        let name = self.dim_model.first().copied().unwrap_or("dim_model");
        let neither = match self.dim_model.is_empty() {
            true => "not even dim_model".to_owned(),
            false => format!("neither {name} and its kin nor dim_model and its kin"),
        };
        let reason = format!("the file states no size of the model: {neither}");
        Err(fields.error(name, &reason, &format!("give the config.json of a {} model", self.title)))
    }

    /// The fields under ModelCenter's names.
    pub fn to_dict(&self, text: &TextConfig) -> Map<String, Value> {
        let mut map = text.extra.clone();
        map.insert("model_type".to_owned(), json!(self.model_type));
        self.write(text, Spoken::ModelCenter, &mut map);
        map.insert("ffn_activate_fn".to_owned(), json!(own_activation(text)));
        labels::write(&text.labels, text.problem_type, &mut map);
        map
    }

    fn activation_name(&self, activation: Activation) -> &'static str {
        match activation {
            Activation::GeluTanh => self.gelu_tanh,
            other => activations::name(other),
        }
    }

    /// The fields under the names of transformers, which a family adds its own to.
    ///
    /// # Errors
    /// [`Error::Model`] if the configuration has no such form.
    pub fn to_hf_json(&self, text: &TextConfig, header: &HfHeader) -> Result<Map<String, Value>> {
        if self.dim_head.is_empty() && text.num_heads.checked_mul(text.dim_head) != Some(text.dim_model) {
            let reason = format!("{} heads of {} are not {} together", text.num_heads, text.dim_head, text.dim_model);
            let fix = "this model cannot be written as a Hugging Face directory";
            return Err(Error::model(format!("{} configuration, field dim_head", self.title), reason, fix));
        }
        let dtype = header.torch_dtype()?;
        let implied = self.ff_factor.is_some_and(|factor| factor * text.dim_model == text.dim_ff);
        let mut map = text.extra.clone();
        self.write(text, Spoken::HuggingFace, &mut map);
        let name = |names: Names| names.first().copied();
        for (name, value) in [
            (Some("architectures"), json!([header.architecture])),
            (Some("model_type"), json!(self.model_type)),
            (name(self.dim_ff).filter(|_| implied), Value::Null),
            (name(self.activation), json!(self.activation_name(text.ffn_activate_fn))),
            // Before version 5 transformers read the first name, since then the second.
            (Some("torch_dtype"), json!(dtype)),
            (Some("dtype"), json!(dtype)),
        ] {
            map.extend(name.map(|name| (name.to_owned(), value)));
        }
        labels::write_counted(&text.labels, text.cls_head, text.problem_type, &mut map);
        map.sort_keys();
        Ok(map)
    }
}

/// ModelCenter's name of the feed-forward's function.
fn own_activation(text: &TextConfig) -> String {
    let gate = if text.ffn_gated { "gated_" } else { "" };
    format!("{gate}{}", activations::name(text.ffn_activate_fn))
}
