//! Rotary positions in configuration files: `rope_theta` with `rope_scaling`, or `rope_parameters` as transformers has
//! since its version 5.

use serde_json::{Map, Value, json};

use super::rotary_parameters::{Lengths, Parameters, YARN_FAST, YARN_SLOW, positive};
use super::variants::not_available;
use super::{Fields, TextConfig};
use crate::Result;
use crate::rotary::{RotaryConfig, RotaryScaling, long_magnitude, yarn_magnitude};

/// The share of heads that is rotated.
const SHARE: &str = "partial_rotary_factor";
/// The longest text of the first training, which files state outside the parameters too.
const TRAINED: &str = "original_max_position_embeddings";

/// Rotary embeddings of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryFields {
    /// Base of the angles.
    pub base: f64,
    /// Share of each head that is rotated, from its first element on.
    pub share: f64,
    /// Change of the angles.
    pub scaling: RotaryScaling,
}

impl RotaryFields {
    /// Whole heads with the base 10000.
    pub const PLAIN: RotaryFields = RotaryFields { base: 10_000.0, share: 1.0, scaling: RotaryScaling::None };

    /// Number of elements of a head that are rotated.
    pub fn dims(&self, dim_head: usize) -> usize {
        (dim_head as f64 * self.share) as usize
    }

    /// The angles of heads of this size.
    pub fn of_heads(&self, dim_head: usize) -> RotaryConfig {
        RotaryConfig { dims: self.dims(dim_head), base: self.base, scaling: self.scaling.clone() }
    }

    /// Take a rotary embedding of whole heads out; where the file is silent `silent` counts.
    ///
    /// # Errors
    /// A kind that is not known, parameters that are missing, of a wrong type or unknown, two that disagree; partial
    /// rotation, or an odd head size.
    pub fn take_whole_heads(fields: &mut Fields, text: &TextConfig, silent: &Self) -> Result<Self> {
        if fields.peek(SHARE).is_some_and(|share| share.as_f64() != Some(1.0)) {
            let reason = "rotary embeddings of parts of heads are not supported";
            return Err(fields.error(SHARE, reason, &not_available("partial_rotary_factor = 1")));
        }
        RotaryFields::take(fields, text, silent, None)
    }

    /// Take a rotary embedding out in a family that may rotate parts of heads.
    ///
    /// # Errors
    /// As [`RotaryFields::take_whole_heads`]; a share that is not an even number of elements of a head.
    pub fn take_parts(fields: &mut Fields, text: &TextConfig, silent: &Self) -> Result<Self> {
        let outside = fields.take(SHARE).map(|value| positive(fields, SHARE, &value)).transpose()?;
        RotaryFields::take(fields, text, silent, Some(outside))
    }

    /// `share` is what the file states outside the parameters, in a family that may rotate parts of heads.
    fn take(fields: &mut Fields, text: &TextConfig, silent: &Self, share: Option<Option<f64>>) -> Result<Self> {
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
        let base = one_of(fields, ("rope_theta", name), outside, inside)?.unwrap_or(silent.base);
        if base <= 1.0 {
            let reason = format!("{base} is not a base of angles: they would not become smaller from pair to pair");
            return Err(fields.error("rope_theta", &reason, "give a number above 1, commonly 10000"));
        }
        let inside = read.number(SHARE)?;
        let share = match share {
            None if inside.is_some_and(|share| share != 1.0) => {
                let reason = "rotary embeddings of parts of heads are not supported";
                return Err(fields.error(name, reason, &not_available("partial_rotary_factor = 1")));
            }
            None => 1.0,
            Some(outside) => one_of(fields, (SHARE, name), outside, inside)?.unwrap_or(silent.share),
        };
        let rotary = RotaryFields { base, share, scaling: RotaryScaling::None };
        let dims = rotary.dims(text.dim_head);
        if share > 1.0 || dims == 0 || !dims.is_multiple_of(2) {
            let reason = format!("heads of {} elements cannot be rotated by pairs", text.dim_head);
            if share == 1.0 {
                return Err(fields.error("head_dim", &reason, "give an even number"));
            }
            let reason = format!("{share} of {} elements of a head are not pairs to rotate", text.dim_head);
            return Err(fields.error(SHARE, &reason, "give a share, of at most 1, that is an even number of them"));
        }
        let lengths = Lengths { positions: text.position_size, trained: fields.peek_size(TRAINED)?, pairs: dims / 2 };
        let scaling = read.scaling(&lengths)?;
        if let (Some(old), Some(_)) = (old, new) {
            let other = Parameters { fields, name: "rope_scaling", map: old }.scaling(&lengths)?;
            if other != scaling {
                let reason = "rope_scaling and rope_parameters contradict each other";
                return Err(fields.error("rope_scaling", reason, "remove one of the two fields"));
            }
        }
        Ok(RotaryFields { scaling, ..rotary })
    }

    /// Write both forms, for a model of this number of positions.
    pub fn write(&self, positions: usize, map: &mut Map<String, Value>) {
        let (kind, own) = match &self.scaling {
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
            RotaryScaling::Long { short, long, trained, .. } => (
                "longrope",
                json!({"short_factor": short.to_vec(), "long_factor": long.to_vec(),
                    "original_max_position_embeddings": trained}),
            ),
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
        if let RotaryScaling::Long { magnitude, trained, .. } = self.scaling
            && magnitude != long_magnitude(positions as f64 / trained as f64, trained)
        {
            parameters.insert("attention_factor".to_string(), json!(magnitude));
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

    /// Write both forms with the share of heads.
    pub fn write_parts(&self, positions: usize, map: &mut Map<String, Value>) {
        self.write(positions, map);
        map.insert(SHARE.to_string(), json!(self.share));
        if let Some(parameters) = map.get_mut("rope_parameters").and_then(Value::as_object_mut) {
            parameters.insert(SHARE.to_string(), json!(self.share));
        }
    }
}

/// A number that a file states outside the parameters, inside them, or in both places.
fn one_of(
    fields: &Fields,
    (name, parameters): (&str, &str),
    outside: Option<f64>,
    inside: Option<f64>,
) -> Result<Option<f64>> {
    if let (Some(a), Some(b)) = (inside, outside)
        && a != b
    {
        let reason = format!("the file states {b}, and {a} inside {parameters}");
        return Err(fields.error(name, &reason, "correct one of the two"));
    }
    Ok(inside.or(outside))
}
