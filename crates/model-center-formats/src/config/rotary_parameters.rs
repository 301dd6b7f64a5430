//! The parameters of rotary positions in one object of a configuration file.
//!
//! Defines [`Parameters`], which [`RotaryFields`](super::RotaryFields) reads.

use serde_json::{Map, Value};
use std::sync::Arc;

use super::Fields;
use super::variants::not_available;
use crate::rotary::{RotaryScaling, long_magnitude, yarn_magnitude};
use crate::{Error, Result};
use model_center_base::file::printable;

/// The longest text of a first training that is believed.
const MAX_POSITIONS: u64 = 1 << 28;

/// Turns above which an angle is fast for YaRN, where a file is silent.
pub const YARN_FAST: f64 = 32.0;
/// Turns below which it is slow.
pub const YARN_SLOW: f64 = 1.0;

/// One object of parameters with its name in the file.
pub struct Parameters<'a> {
    /// The file.
    pub fields: &'a Fields,
    /// Name of the object.
    pub name: &'static str,
    /// Parameters that are not taken yet.
    pub map: Map<String, Value>,
}

/// Sizes that the meaning of parameters depends on.
pub struct Lengths {
    /// The longest text that the file states.
    pub positions: usize,
    /// The longest text of the first training, where the file states it outside the parameters.
    pub trained: Option<usize>,
    /// Number of angles.
    pub pairs: usize,
}

impl Parameters<'_> {
    /// Take a number above 0.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>> {
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

    /// The longest text of the first training. Transformers takes the number outside where `counts_outside`.
    fn trained(&mut self, lengths: &Lengths, counts_outside: bool) -> Result<usize> {
        const NAME: &str = "original_max_position_embeddings";
        let inside = match self.number(NAME)? {
            Some(value) if value.fract() == 0.0 && value <= MAX_POSITIONS as f64 => Some(value as usize),
            Some(_) => {
                return Err(self.error("original_max_position_embeddings is not a length", "give a whole number"));
            }
            None => None,
        };
        let outside = lengths.trained.filter(|_| counts_outside);
        if inside.is_some() && outside.is_some() && inside != outside {
            let reason = "it differs from the value in the rotary positions' parameters";
            return Err(self.fields.error(NAME, reason, "state it there, and remove it here"));
        }
        Ok(inside.or(outside).unwrap_or(lengths.positions))
    }

    /// Reads LongRoPE's scaling; what is left out is as transformers has it.
    fn long(&mut self, trained: usize, lengths: &Lengths) -> Result<RotaryScaling> {
        let [short, long] = ["short_factor", "long_factor"].map(|name| self.divisors(name, lengths.pairs));
        let factor = self.number("factor")?.unwrap_or(lengths.positions as f64 / trained as f64);
        let magnitude = self.number("attention_factor")?.unwrap_or_else(|| long_magnitude(factor, trained));
        if !magnitude.is_finite() {
            return Err(self.error("original_max_position_embeddings is 1", "correct it"));
        }
        Ok(RotaryScaling::Long { short: short?, long: long?, magnitude, trained })
    }

    /// A divisor for each of this number of angles.
    fn divisors(&mut self, name: &str, pairs: usize) -> Result<Arc<[f64]>> {
        let number = |value: &Value| value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        let listed = self.map.shift_remove(name);
        let divisors: Option<Arc<[f64]>> =
            listed.as_ref().and_then(Value::as_array).and_then(|listed| listed.iter().map(number).collect());
        divisors.filter(|divisors| divisors.len() == pairs).ok_or_else(|| {
            let reason = format!("its {name} is not a list of {pairs} numbers above 0, one for each angle");
            self.error(&reason, "give one for each pair of elements that is rotated")
        })
    }

    /// The change of the angles that these parameters state.
    ///
    /// # Errors
    /// A kind that is not known, parameters that are missing, of a wrong type or unknown; a trained length outside that
    /// differs from the one inside.
    pub fn scaling(mut self, lengths: &Lengths) -> Result<RotaryScaling> {
        let positions = lengths.positions;
        // Read before, from one of the two forms.
        for name in ["rope_theta", "partial_rotary_factor"] {
            self.map.shift_remove(name);
        }
        let kind = self.kind()?;
        let trained = self.trained(lengths, matches!(kind.as_str(), "llama3" | "yarn" | "longrope" | "su"))?;
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
            "longrope" | "su" => self.long(trained, lengths)?,
            other => {
                let reason = format!("rotary positions of kind \"{}\" are not supported", printable(other, 40));
                return Err(self.error(&reason, "supported are: default, linear, dynamic, llama3, yarn, longrope"));
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

/// A number above 0.
pub fn positive(fields: &Fields, name: &str, value: &Value) -> Result<f64> {
    let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| {
        fields.error(name, &format!("{} is not a number above 0", printable(&value.to_string(), 40)), "correct it")
    })
}
