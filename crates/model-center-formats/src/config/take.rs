//! Reading of the fields that all families have, by the [`Dialect`] of one.

use super::dialect::{Dialect, INNER, Names, OUTER, Spoken};
use super::labels::ClassLabels;
use super::variants::not_available;
use super::{Fields, TextConfig, activations, rows};
use crate::Result;
use serde_json::Value;

impl Dialect {
    /// Take the fields that all families have; `defaults` are the configuration's. What is left is the family's own;
    /// when it has taken that, the rest goes to [`TextConfig::extra`] by [`Dialect::finish`].
    ///
    /// # Errors
    /// A file that [`Dialect::spoken`] refuses; sizes that are missing, two names that disagree, values of a
    /// wrong type or that the family never has.
    pub fn take(&self, fields: &mut Fields, defaults: TextConfig) -> Result<(TextConfig, Spoken)> {
        let spoken = self.spoken(fields)?;
        let mut text = if spoken == Spoken::HuggingFace { (self.hugging_face)(defaults) } else { defaults };
        self.take_sizes(fields, &mut text, spoken)?;
        self.take_numbers(fields, &mut text, spoken)?;
        self.refuse_variants(fields)?;
        // What the weights were stored in; they carry it themselves.
        fields.take_either("torch_dtype", "dtype", Fields::take_text)?;
        fields.take_flag("half")?;
        let names = [self.activation, &["ffn_activate_fn"]].concat();
        if let Some(between) = activations::take(fields, &names)? {
            if self.gated == Some(false) && between.gated {
                let reason = format!("{} has no gates in its feed-forward layers", self.title);
                return Err(fields.error("ffn_activate_fn", &reason, &not_available("a function without a gate")));
            }
            text.ffn_activate_fn = between.activation;
            text.ffn_gated = self.gated.unwrap_or(between.gated);
        }
        let labels = ClassLabels::take(fields)?;
        (text.cls_head, text.labels, text.problem_type) = (labels.outputs, labels.names, labels.problem);
        Ok((text, spoken))
    }

    /// Keep the fields that are left.
    pub fn finish(&self, fields: Fields, text: &mut TextConfig) {
        text.extra = fields.into_rest();
        text.extra.shift_remove("model_type");
    }

    fn take_sizes(&self, fields: &mut Fields, text: &mut TextConfig, spoken: Spoken) -> Result<()> {
        let states_ff = [self.dim_ff, &["dim_ff"]].concat().iter().any(|name| fields.peek(name).is_some());
        rows::take(&self.sizes(), text, fields, &TextConfig::default(), spoken)?;
        let hugging_face = spoken == Spoken::HuggingFace;
        if let Some(factor) = self.ff_factor.filter(|_| hugging_face && !states_ff) {
            text.dim_ff = factor * text.dim_model;
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
        if spoken == Spoken::HuggingFace {
            text.init_std = take(self.init_std, &[OUTER, INNER].concat())?.unwrap_or(text.init_std);
        } else {
            // Its files initialize embeddings and heads from a wider distribution than the blocks between them.
            let silent = text.outer_std();
            text.init_std = take(self.init_std, &INNER)?.unwrap_or(text.init_std);
            let silent = if says_all { text.init_std } else { silent };
            text.outer_std = take(&[], &OUTER)?.or(Some(silent)).filter(|outer| *outer != text.init_std);
        }
        // A missing field means the default; null, or -1 in some old files, that there is none.
        if fields.peek("pad_token_id").and_then(Value::as_i64) == Some(-1) {
            fields.take("pad_token_id");
            text.pad_token_id = None;
        }
        rows::take(&self.options(), text, fields, &TextConfig::default(), spoken)?;
        Ok(())
    }
}

/// H where it is always D / N; `names` are the fields of D and N, `given` is the H that the file states.
///
/// # Errors
/// N that does not divide D; another H than that.
fn derived_head_size(
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
