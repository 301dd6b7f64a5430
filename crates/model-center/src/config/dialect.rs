//! What a family's files call the fields of [`TextConfig`], and what they mean where they are silent.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::json::number;
use super::labels::{self, ClassLabels};
use super::ranges::refuse_foreign;
use super::{HfHeader, TextConfig, activations, model_center};
use crate::{Error, Result};

/// Names of one field in Hugging Face files, the one that is written first; none where they have no such field.
pub type Names = &'static [&'static str];

/// Names of fields, each with the only value that it has.
pub type FixedFields = &'static [(&'static str, Fixed)];

/// How a family's files are read and written. A file may be Hugging Face's or ModelCenter's.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// The family's name for people.
    pub title: &'static str,
    /// The family's name in `model_type`.
    pub model_type: &'static str,
    /// D.
    pub dim_model: Names,
    /// Blocks.
    pub num_layers: Names,
    /// N.
    pub num_heads: Names,
    /// F.
    pub dim_ff: Names,
    /// Where a file need not state F: F / D; F is then written as `null`.
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
    /// Whether the feed-forward layers have gates; `None` where the name of the function states it.
    pub gated: Option<bool>,
    /// What transformers takes where a file is silent. Sizes must be stated.
    pub hugging_face: fn() -> TextConfig,
    /// What ModelCenter takes, sizes too.
    pub model_center: fn() -> TextConfig,
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

/// Which program's names a file uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    /// Hugging Face's, or both at once.
    HuggingFace,
    /// ModelCenter's.
    ModelCenter,
}

impl Dialect {
    fn sizes(&self) -> [(Names, &'static str); 4] {
        [
            (self.dim_model, "dim_model"),
            (self.num_layers, "num_layers"),
            (self.num_heads, "num_heads"),
            (self.position_size, "position_size"),
        ]
    }

    /// Whose names these are.
    ///
    /// # Errors
    /// A file of another family, of quantised weights, with code of its own, or without any size.
    pub fn spoken(&self, fields: &Fields) -> Result<Spoken> {
        refuse_foreign(fields, self.model_type, self.title)?;
        let sizes = self.sizes();
        // A name that both programs use tells nothing.
        if sizes.iter().any(|(names, ours)| names.iter().any(|name| name != ours && fields.has(name))) {
            return Ok(Spoken::HuggingFace);
        }
        // Its files may state a size of the head alone, and mean the defaults of its class.
        if sizes.iter().any(|(_, ours)| fields.has(ours)) || model_center::is_model_center(fields) {
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

    /// Take the fields that all families have. What is left is the family's own; when it has taken that, the rest goes
    /// to [`TextConfig::extra`] by [`Dialect::finish`].
    ///
    /// # Errors
    /// A file that [`Dialect::spoken`] refuses; sizes that are missing, two names that disagree, values of a
    /// wrong type or that the family never has.
    pub fn take(&self, fields: &mut Fields) -> Result<(TextConfig, Spoken)> {
        let spoken = self.spoken(fields)?;
        let defaults = if spoken == Spoken::HuggingFace { self.hugging_face } else { self.model_center };
        let mut text = defaults();
        self.take_sizes(fields, &mut text, spoken)?;
        self.take_numbers(fields, &mut text, spoken)?;
        self.refuse_variants(fields)?;
        text.tied = fields.take_either("tie_word_embeddings", "tied", Fields::take_flag)?.unwrap_or(text.tied);
        // What the weights were stored in; they carry it themselves.
        fields.take_either("torch_dtype", "dtype", Fields::take_text)?;
        fields.take_flag("half")?;
        let names = [self.activation, &["ffn_activate_fn"]].concat();
        if let Some(between) = activations::take(fields, &names)? {
            if self.gated == Some(false) && between.gated {
                return Err(self.unsupported(fields, "ffn_activate_fn", "a plain function, without a gate,"));
            }
            text.ffn_activate_fn = between.activation;
            text.ffn_gated = self.gated.unwrap_or(between.gated);
        }
        let labels = ClassLabels::take(fields)?;
        (text.cls_head, text.labels, text.problem_type) = (labels.outputs, labels.names, labels.problem);
        Ok((text, spoken))
    }

    /// Keep the fields that are left, and check the whole.
    pub fn finish(&self, fields: Fields, text: &mut TextConfig) -> Result<()> {
        let place = fields.place().to_string();
        text.extra = fields.into_rest();
        text.extra.shift_remove("model_type");
        text.validate(&place)
    }

    fn take_sizes(&self, fields: &mut Fields, text: &mut TextConfig, spoken: Spoken) -> Result<()> {
        let hugging_face = spoken == Spoken::HuggingFace;
        let mut missing = Vec::new();
        let targets = [&mut text.dim_model, &mut text.num_layers, &mut text.num_heads, &mut text.position_size];
        for ((names, ours), target) in self.sizes().into_iter().zip(targets) {
            match fields.take_any(&[names, &[ours]].concat(), Fields::take_size)? {
                Some(size) => *target = size,
                // A family without such a field in files keeps what is known of it.
                None if hugging_face && !names.is_empty() => missing.push(names[0]),
                None => {}
            }
        }
        match fields.take_size("vocab_size")? {
            Some(size) => text.vocab_size = size,
            None if hugging_face => missing.push("vocab_size"),
            None => {}
        }
        match (fields.take_any(&[self.dim_ff, &["dim_ff"]].concat(), Fields::take_size)?, self.ff_factor) {
            (Some(size), _) => text.dim_ff = size,
            (None, Some(factor)) if hugging_face => text.dim_ff = factor * text.dim_model,
            (None, None) if hugging_face => missing.push(self.dim_ff.first().copied().unwrap_or("dim_ff")),
            (None, _) => {}
        }
        if !missing.is_empty() {
            return Err(fields.missing_sizes(&missing));
        }
        self.take_head_size(fields, text, hugging_face)
    }

    fn take_head_size(&self, fields: &mut Fields, text: &mut TextConfig, hugging_face: bool) -> Result<()> {
        let given = fields.take_any(&[self.dim_head, &["dim_head"]].concat(), Fields::take_size)?;
        if given.is_none() && hugging_face && self.head_required {
            return Err(fields.missing_sizes(&self.dim_head[..1]));
        }
        if !hugging_face || (given.is_some() && !self.dim_head.is_empty()) {
            text.dim_head = given.unwrap_or(text.dim_head);
            return Ok(());
        }
        let name = |names: Names, ours| names.first().copied().unwrap_or(ours);
        let names = [name(self.dim_model, "dim_model"), name(self.num_heads, "num_heads")];
        text.dim_head = derived_head_size(fields, given, names, [text.dim_model, text.num_heads])?;
        Ok(())
    }

    fn take_numbers(&self, fields: &mut Fields, text: &mut TextConfig, spoken: Spoken) -> Result<()> {
        // One deviation for all values, where a file states it under the family's name.
        let says_all = self.init_std.iter().any(|name| fields.peek(name).is_some());
        let mut take =
            |names: Names, ours: &[&'static str]| fields.take_any(&[names, ours].concat(), Fields::take_number);
        let general = take(self.dropout, &["dropout_p"])?;
        // ModelCenter has one rate for all, and so have the files of some families.
        let one_rate = self.embedding_dropout.is_empty() && self.attention_dropout.is_empty();
        let all = if spoken == Spoken::ModelCenter || one_rate { general } else { None };
        text.dropout_p = general.unwrap_or(text.dropout_p);
        let embedding = take(self.embedding_dropout, &["embedding_dropout_p"])?.or(all);
        text.embedding_dropout_p = embedding.unwrap_or(text.embedding_dropout_p);
        let attention = take(self.attention_dropout, &["attention_dropout_p"])?.or(all);
        text.attention_dropout_p = attention.unwrap_or(text.attention_dropout_p);
        let (inner, outer): ([&str; 2], [&str; 2]) =
            (["att_init_std", "ffn_init_std"], ["emb_init_std", "proj_init_std"]);
        if spoken == Spoken::HuggingFace {
            text.init_std = take(self.init_std, &[outer, inner].concat())?.unwrap_or(text.init_std);
        } else {
            // Its files initialize embeddings and heads from a wider distribution than the blocks between them.
            let silent = text.outer_std();
            text.init_std = take(self.init_std, &inner)?.unwrap_or(text.init_std);
            let silent = if says_all { text.init_std } else { silent };
            text.outer_std = take(&[], &outer)?.or(Some(silent)).filter(|outer| *outer != text.init_std);
        }
        text.norm_eps = take(self.norm_eps, &["norm_eps"])?.unwrap_or(text.norm_eps);
        // A missing field means the default; null, or -1 in some old files, that there is none.
        if fields.has("pad_token_id") {
            if fields.peek("pad_token_id").and_then(Value::as_i64) == Some(-1) {
                fields.take("pad_token_id");
            }
            text.pad_token_id = fields.take_index("pad_token_id")?;
        }
        Ok(())
    }

    /// The fields under ModelCenter's names.
    pub fn to_dict(&self, text: &TextConfig) -> Map<String, Value> {
        let mut map = text.extra.clone();
        for (name, value) in [
            ("model_type", json!(self.model_type)),
            ("vocab_size", json!(text.vocab_size)),
            ("dim_model", json!(text.dim_model)),
            ("num_heads", json!(text.num_heads)),
            ("dim_head", json!(text.dim_head)),
            ("dim_ff", json!(text.dim_ff)),
            ("num_layers", json!(text.num_layers)),
            ("position_size", json!(text.position_size)),
            ("dropout_p", number(text.dropout_p)),
            ("embedding_dropout_p", number(text.embedding_dropout_p)),
            ("attention_dropout_p", number(text.attention_dropout_p)),
            ("emb_init_std", number(text.outer_std())),
            ("att_init_std", number(text.init_std)),
            ("ffn_init_std", number(text.init_std)),
            ("proj_init_std", number(text.outer_std())),
            ("norm_eps", number(text.norm_eps)),
            ("ffn_activate_fn", json!(own_activation(text))),
            ("tied", json!(text.tied)),
            ("pad_token_id", json!(text.pad_token_id)),
            ("cls_head", json!(text.cls_head)),
        ] {
            map.insert(name.to_string(), value);
        }
        labels::write(&text.labels, text.problem_type, &mut map);
        map
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
        let mut insert = |names: Names, value: Value| names.first().map(|name| map.insert(name.to_string(), value));
        for (names, value) in [
            (&["architectures"][..], json!([header.architecture])),
            (&["model_type"], json!(self.model_type)),
            (&["vocab_size"], json!(text.vocab_size)),
            (self.dim_model, json!(text.dim_model)),
            (self.num_layers, json!(text.num_layers)),
            (self.num_heads, json!(text.num_heads)),
            (self.dim_head, json!(text.dim_head)),
            (self.dim_ff, if implied { Value::Null } else { json!(text.dim_ff) }),
            (self.position_size, json!(text.position_size)),
            (self.dropout, number(text.dropout_p)),
            (self.embedding_dropout, number(text.embedding_dropout_p)),
            (self.attention_dropout, number(text.attention_dropout_p)),
            (self.init_std, number(text.init_std)),
            (self.norm_eps, number(text.norm_eps)),
            (self.activation, json!(activations::name(text.ffn_activate_fn))),
            (&["pad_token_id"], json!(text.pad_token_id)),
            (&["tie_word_embeddings"], json!(text.tied)),
            // Before version 5 transformers read the first name, since then the second.
            (&["torch_dtype"], json!(dtype)),
            (&["dtype"], json!(dtype)),
        ] {
            insert(names, value);
        }
        labels::write_counted(&text.labels, text.cls_head, text.problem_type, &mut map);
        map.sort_keys();
        Ok(map)
    }
}

/// H where it is always D / N; `names` are the fields of D and N, `given` is the H that the file states.
///
/// # Errors
/// N that does not divide D; another H than that.
pub(crate) fn derived_head_size(
    fields: &Fields,
    given: Option<usize>,
    [model, number]: [&str; 2],
    [size, heads]: [usize; 2],
) -> Result<usize> {
    if !size.is_multiple_of(heads) {
        let reason = format!("{model} {size} is not divisible by {number} {heads}");
        return Err(fields.error(number, &reason, "correct one of the two"));
    }
    if given.is_some_and(|head| head != size / heads) {
        let reason = format!("the head size is {} by {model} and {number}", size / heads);
        return Err(fields.error("dim_head", &reason, "remove dim_head, or correct it"));
    }
    Ok(size / heads)
}

/// ModelCenter's name of the feed-forward's function.
fn own_activation(text: &TextConfig) -> String {
    let gate = if text.ffn_gated { "gated_" } else { "" };
    format!("{gate}{}", activations::name(text.ffn_activate_fn))
}
