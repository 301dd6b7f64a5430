//! Whether the numbers of a configuration can be what they stand for, and refusals of what no family supports.

use serde_json::{Map, Value};

use super::fields::Fields;
use crate::{Error, Result};
use model_center_base::file::printable;

/// The checks, for one file.
pub struct Ranges<'a> {
    /// Source of the configuration.
    pub place: &'a str,
}

impl Ranges<'_> {
    /// The error for a field.
    pub fn refuse(&self, field: &str, reason: String, fix: &str) -> Error {
        Error::model(format!("{}, field {field}", self.place), reason, fix)
    }

    /// Sizes from 1 up to a bound far beyond any model.
    pub(crate) fn sizes(&self, sizes: &[(&str, usize)]) -> Result<()> {
        for &(field, size) in sizes {
            // Layers are counted one by one when a model is built: a lying file must not keep it busy, nor fill memory.
            let most = if field.ends_with("_layers") { 4096 } else { 1 << 28 };
            if size == 0 || size > most {
                let fix = format!("give a number from 1 to {most}");
                return Err(self.refuse(field, format!("{size} is out of range"), &fix));
            }
        }
        Ok(())
    }

    /// Probabilities of dropout, in `[0, 1)`.
    pub(crate) fn dropouts(&self, dropouts: &[(&str, f32)]) -> Result<()> {
        match dropouts.iter().find(|(_, p)| !(0.0..1.0).contains(p)) {
            None => Ok(()),
            Some((field, p)) => {
                let reason = format!("{p} is not a dropout probability");
                Err(self.refuse(field, reason, "give a number from 0 up to, not with, 1"))
            }
        }
    }

    /// Standard deviations of initial values.
    pub(crate) fn deviations(&self, deviations: &[(&str, f32)]) -> Result<()> {
        match deviations.iter().find(|(_, std)| !(std.is_finite() && *std >= 0.0)) {
            None => Ok(()),
            Some((field, std)) => {
                let reason = format!("{std} is not a standard deviation");
                Err(self.refuse(field, reason, "give a number of at least 0"))
            }
        }
    }

    /// The epsilon of the norms.
    pub(crate) fn epsilon(&self, epsilon: f32) -> Result<()> {
        match epsilon.is_finite() && epsilon > 0.0 {
            true => Ok(()),
            false => Err(self.refuse(
                "norm_eps",
                format!("{epsilon} is not an epsilon"),
                "give a number above 0, such as 1e-12",
            )),
        }
    }

    /// The padding token is in the vocabulary.
    pub(crate) fn padding(&self, pad: Option<usize>, vocab_size: usize) -> Result<()> {
        self.token("pad_token_id", pad, vocab_size, "the padding token")
    }

    /// The first input token of a decoder is in the vocabulary.
    pub fn decoder_start_token(&self, first: Option<usize>, vocab_size: usize) -> Result<()> {
        self.token("decoder_start_token_id", first, vocab_size, "a token")
    }

    fn token(&self, field: &str, token: Option<usize>, vocab_size: usize, meaning: &str) -> Result<()> {
        match token.filter(|&id| id >= vocab_size) {
            None => Ok(()),
            Some(id) => {
                let reason = format!("{id} is not a token of a vocabulary of {vocab_size}");
                Err(self.refuse(field, reason, &format!("give the id of {meaning}, below vocab_size")))
            }
        }
    }

    /// Ranges of distances and the distance from which all share the last; `names` names the two fields.
    pub fn distances(&self, [buckets, distance]: [usize; 2], names: [&str; 2]) -> Result<()> {
        // Both directions have a half of them, and of each half one half are single distances.
        if buckets < 4 {
            let reason = format!("{buckets} ranges of distances are too few for two directions");
            return Err(self.refuse(names[0], reason, "give a number of at least 4"));
        }
        if distance <= buckets / 2 {
            let reason = format!("distances up to {distance} leave nothing for half of {buckets} ranges");
            return Err(self.refuse(names[1], reason, &format!("give a number above half of {}", names[0])));
        }
        Ok(())
    }

    /// A classification head with as many outputs as there are names.
    pub(crate) fn classes(&self, outputs: Option<usize>, named: usize) -> Result<()> {
        match outputs.filter(|&outputs| outputs == 0 || (named != 0 && named != outputs)) {
            None => Ok(()),
            Some(outputs) => {
                let reason = format!("a head of {outputs} outputs, but {named} named classes");
                Err(self.refuse("cls_head", reason, "name as many classes as the head has outputs, at least one"))
            }
        }
    }
}

/// Errors for what carries a family's name but is another computation: another `model_type`, flags that make it another
/// architecture, quantised or pruned weights, code of its own. `title` is the family's name for people.
pub(crate) fn refuse_foreign(fields: &Fields, model_type: &str, title: &str) -> Result<()> {
    if let Some(name) = fields.peek_text("model_type")?.filter(|name| *name != model_type) {
        let reason = format!("this is a configuration of \"{}\", not of {model_type}", printable(name, 80));
        return Err(fields.error("model_type", &reason, &format!("give the directory of a {title} model")));
    }
    let empty = |value: &Value| match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    for name in ["quantization_config", "pruned_heads"] {
        if fields.peek(name).is_some_and(|value| !empty(value)) {
            let reason = "quantised and pruned weights are not supported";
            return Err(fields.error(name, reason, "use the model's full weights"));
        }
    }
    let own_code = |map: &Map<String, Value>| map.keys().any(|key| key.starts_with("AutoModel"));
    if fields.peek("auto_map").and_then(Value::as_object).is_some_and(own_code) {
        let reason =
            format!("the directory carries Python code of its own for the model, which is not a plain {title}");
        return Err(fields.error("auto_map", &reason, "use a model without auto_map"));
    }
    Ok(())
}

/// Errors for what carries an encoder's name but is another computation: relative positions, a decoder's mask. `title`
/// is the family's name for people.
pub fn refuse_other_encoders(fields: &Fields, title: &str) -> Result<()> {
    if let Some(kind) = fields.peek_text("position_embedding_type")?.filter(|kind| *kind != "absolute") {
        let reason = format!("position embeddings of type \"{}\" are not supported", printable(kind, 80));
        return Err(fields.error("position_embedding_type", &reason, "use a model with absolute position embeddings"));
    }
    for name in ["is_decoder", "add_cross_attention"] {
        if fields.peek_flag(name)? == Some(true) {
            let reason = format!("{title} as a decoder is not supported");
            return Err(fields.error(name, &reason, "use a model with a causal architecture"));
        }
    }
    Ok(())
}
