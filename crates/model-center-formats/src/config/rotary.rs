//! Rotary positions in configuration files: `rope_theta` with `rope_scaling`, or `rope_parameters` as transformers has
//! since its version 5.

use serde_json::{Map, Value, json};

use super::variants::not_available;
use super::{Fields, TextConfig};
use crate::rotary::RotaryScaling;
use crate::{Error, Result};
use model_center_base::file::printable;

/// The longest text of a first training that is believed.
const MAX_POSITIONS: u64 = 1 << 28;
const PARTS_OF_HEADS: &str = "rotary embeddings of parts of heads are not supported";

/// Turns above which an angle is fast for YaRN, where a file is silent.
const YARN_FAST: f64 = 32.0;
/// Turns below which it is slow.
const YARN_SLOW: f64 = 1.0;

/// Rotary embeddings of a configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryFields {
    /// Base of the angles.
    pub base: f64,
    /// Change of the angles.
    pub scaling: RotaryScaling,
}

/// One object of parameters with its name in the file.
struct Parameters<'a> {
    fields: &'a Fields,
    name: &'static str,
    map: Map<String, Value>,
}

impl RotaryFields {
    /// Take the fields out; where the file is silent `base` counts, and the trained length is `positions`.
    ///
    /// # Errors
    /// A kind that is not known, parameters that are missing, of a wrong type or unknown, two that disagree.
    pub fn take(fields: &mut Fields, base: f64, positions: usize) -> Result<Self> {
        let theta = fields.take("rope_theta");
        let (old, new) = (fields.take("rope_scaling"), fields.take("rope_parameters"));
        let name = if new.is_some() { "rope_parameters" } else { "rope_scaling" };
        let map = |name: &str, value: Value| match value {
            Value::Object(map) => Ok(map),
            _ => Err(fields.error(name, "this is not an object", "give the parameters in braces, or null")),
        };
        // Transformers 5 writes one form, earlier versions the other; both may be there.
        let old = old.map(|value| map("rope_scaling", value)).transpose()?;
        let new = new.map(|value| map("rope_parameters", value)).transpose()?;
        let mut read = Parameters { fields, name, map: new.clone().or(old.clone()).unwrap_or_default() };
        let inside = read.number("rope_theta")?;
        let outside = theta.map(|value| positive(fields, "rope_theta", &value)).transpose()?;
        if let (Some(a), Some(b)) = (inside, outside)
            && a != b
        {
            let reason = format!("the file states {b}, and {a} inside {name}");
            return Err(fields.error("rope_theta", &reason, "correct one of the two"));
        }
        let base = inside.or(outside).unwrap_or(base);
        if base <= 1.0 {
            let reason = format!("{base} is not a base of angles: they would not become smaller from pair to pair");
            return Err(fields.error("rope_theta", &reason, "give a number above 1, commonly 10000"));
        }
        let scaling = read.scaling(positions)?;
        if let (Some(old), Some(_)) = (old, new) {
            let other = Parameters { fields, name: "rope_scaling", map: old }.scaling(positions)?;
            if other != scaling {
                let reason = "rope_scaling and rope_parameters contradict each other";
                return Err(fields.error("rope_scaling", reason, "remove one of the two fields"));
            }
        }
        Ok(RotaryFields { base, scaling })
    }

    /// Take a rotary embedding of whole heads.
    ///
    /// # Errors
    /// Parameters that [`RotaryFields::take`] refuses; partial rotation, or an odd head size; a trained length
    /// outside the parameters that differs from the one inside.
    pub fn take_whole_heads(fields: &mut Fields, text: &TextConfig) -> Result<Self> {
        let share = fields.peek("partial_rotary_factor");
        if share.is_some_and(|share| share.as_f64() != Some(1.0)) {
            let fix = not_available("partial_rotary_factor = 1");
            return Err(fields.error("partial_rotary_factor", PARTS_OF_HEADS, &fix));
        }
        if !text.dim_head.is_multiple_of(2) {
            let reason = format!("heads of {} elements cannot be rotated by pairs", text.dim_head);
            return Err(fields.error("head_dim", &reason, "give an even number"));
        }
        let rotary = RotaryFields::take(fields, 10_000.0, text.position_size)?;
        let (name, trained) = ("original_max_position_embeddings", rotary.scaling.trained());
        // Transformers uses this one where both are there.
        let outside = fields.peek(name).filter(|outside| {
            let is_used = matches!(rotary.scaling, RotaryScaling::Llama3 { .. } | RotaryScaling::Yarn { .. });
            is_used && outside.as_u64() != trained.map(|trained| trained as u64)
        });
        match outside {
            None => Ok(rotary),
            Some(_) => {
                let reason = "it differs from the value in the rotary positions' parameters";
                Err(fields.error(name, reason, "state it there, and remove it here"))
            }
        }
    }

    /// Write both forms.
    pub fn write(&self, map: &mut Map<String, Value>) {
        let (kind, own) = match self.scaling {
            RotaryScaling::None => ("default", json!({})),
            RotaryScaling::Linear { factor } => ("linear", json!({"factor": factor})),
            // The trained length is max_position_embeddings itself.
            RotaryScaling::Dynamic { factor, .. } => ("dynamic", json!({"factor": factor})),
            RotaryScaling::Llama3 { factor, low, high, trained } => (
                "llama3",
                json!({"factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                    "original_max_position_embeddings": trained}),
            ),
            RotaryScaling::Yarn { factor, trained, .. } => {
                ("yarn", json!({"factor": factor, "original_max_position_embeddings": trained}))
            }
        };
        let mut parameters = own.as_object().cloned().unwrap_or_default();
        if let RotaryScaling::Yarn { factor, fast, slow, magnitude, .. } = self.scaling {
            let optional = [
                ("beta_fast", fast, YARN_FAST),
                ("beta_slow", slow, YARN_SLOW),
                ("attention_factor", magnitude, yarn_magnitude(factor)),
            ];
            for (name, value, _) in optional.into_iter().filter(|(_, value, default)| value != default) {
                parameters.insert(name.to_string(), json!(value));
            }
        }
        parameters.insert("rope_type".to_string(), json!(kind));
        let scaling = match self.scaling {
            RotaryScaling::None => Value::Null,
            _ => Value::Object(parameters.clone()),
        };
        parameters.insert("rope_theta".to_string(), json!(self.base));
        map.insert("rope_theta".to_string(), json!(self.base));
        map.insert("rope_scaling".to_string(), scaling);
        map.insert("rope_parameters".to_string(), Value::Object(parameters));
    }
}

impl Parameters<'_> {
    fn number(&mut self, name: &str) -> Result<Option<f64>> {
        let value = self.map.shift_remove(name).filter(|value| !value.is_null());
        value.map(|value| positive(self.fields, &format!("{}.{name}", self.name), &value)).transpose()
    }

    fn required(&mut self, name: &str) -> Result<f64> {
        let missing = self.error(&format!("it lacks {name}"), &format!("add {name}"));
        self.number(name)?.ok_or(missing)
    }

    fn error(&self, reason: &str, fix: &str) -> Error {
        self.fields.error(self.name, reason, fix)
    }

    /// The kind of scaling, which has an older name.
    fn kind(&mut self) -> Result<String> {
        let mut text = |name: &str| match self.map.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.fields.error(
                self.name,
                &format!("its parameter {name} is not a string"),
                "give the name of a kind",
            )),
        };
        let (new, old) = (text("rope_type")?, text("type")?);
        match (new, old) {
            (Some(new), Some(old)) if new != old => {
                Err(self.error("rope_type and type contradict each other", "remove one of the two"))
            }
            (new, old) => Ok(new.or(old).unwrap_or_else(|| "default".to_owned())),
        }
    }

    /// Reads YaRN's scaling; what is left out is as transformers has it.
    fn yarn(&mut self, trained: usize) -> Result<RotaryScaling> {
        let factor = self.required("factor")?;
        let (fast, slow) = (self.number("beta_fast")?, self.number("beta_slow")?);
        Ok(RotaryScaling::Yarn {
            factor,
            fast: fast.unwrap_or(YARN_FAST),
            slow: slow.unwrap_or(YARN_SLOW),
            magnitude: self.number("attention_factor")?.unwrap_or_else(|| yarn_magnitude(factor)),
            trained,
        })
    }

    fn scaling(mut self, positions: usize) -> Result<RotaryScaling> {
        self.map.shift_remove("rope_theta");
        let kind = self.kind()?;
        if self.number("partial_rotary_factor")?.is_some_and(|share| share != 1.0) {
            return Err(self.error(PARTS_OF_HEADS, &not_available("partial_rotary_factor = 1")));
        }
        let original = self.number("original_max_position_embeddings")?;
        let trained = match original {
            Some(value) if value.fract() == 0.0 && value <= MAX_POSITIONS as f64 => value as usize,
            Some(_) => {
                return Err(self.error("original_max_position_embeddings is not a length", "give a whole number"));
            }
            None => positions,
        };
        let scaling = match kind.as_str() {
            "default" if self.map.values().any(Value::is_object) => {
                let fix = not_available("one set of parameters");
                return Err(self.error("angles by kinds of layers are not supported", &fix));
            }
            "default" => RotaryScaling::None,
            "linear" => RotaryScaling::Linear { factor: self.required("factor")? },
            // Transformers knows no other trained length here than the number of all positions.
            "dynamic" if trained != positions => {
                let reason = "original_max_position_embeddings and max_position_embeddings are one number for dynamic";
                return Err(self.error(reason, "remove the first"));
            }
            "dynamic" => RotaryScaling::Dynamic { factor: self.required("factor")?, trained },
            "llama3" => {
                let (factor, low) = (self.required("factor")?, self.required("low_freq_factor")?);
                let high = self.required("high_freq_factor")?;
                if high <= low {
                    return Err(self.error("high_freq_factor is not above low_freq_factor", "correct one of the two"));
                }
                RotaryScaling::Llama3 { factor, low, high, trained }
            }
            "yarn" => self.yarn(trained)?,
            other => {
                let reason = format!("rotary positions of kind \"{}\" are not supported", printable(other, 40));
                return Err(self.error(&reason, "supported are: default, linear, dynamic, llama3, yarn"));
            }
        };
        match self.map.keys().next() {
            Some(name) if kind != "default" => {
                let reason = format!("its parameter {} is not known for {kind}", printable(name, 40));
                Err(self.error(&reason, "remove it, if it changes nothing"))
            }
            _ => Ok(scaling),
        }
    }
}

/// YaRN's factor of queries and keys where a file is silent: they share the growth.
fn yarn_magnitude(factor: f64) -> f64 {
    if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
}

fn positive(fields: &Fields, name: &str, value: &Value) -> Result<f64> {
    let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| {
        fields.error(name, &format!("{} is not a number above 0", printable(&value.to_string(), 40)), "correct it")
    })
}
