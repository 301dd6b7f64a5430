//! Rotary positions by the kind of a layer: `rope_parameters` with one object for layers that attend to all keys and
//! one for layers with a window, or a base for each outside of it, as transformers wrote before its version 5.

use serde_json::{Map, Value, json};

use super::{Fields, RotaryFields, TextConfig};
use crate::Result;
use crate::rotary::RotaryConfig;

/// The object of layers that attend to all keys.
const FULL: &str = "full_attention";
/// The object of layers with a window.
const SLIDING: &str = "sliding_attention";
const PARAMETERS: &str = "rope_parameters";

/// Rotary positions of layers that attend to all keys, and of layers with a window.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRotary {
    /// Of layers that attend to all keys.
    pub full: RotaryFields,
    /// Of layers with a window.
    pub sliding: RotaryFields,
}

impl LayerRotary {
    /// Whole heads with these bases.
    pub const fn of_bases(full: f64, sliding: f64) -> Self {
        LayerRotary {
            full: RotaryFields { base: full, ..RotaryFields::PLAIN },
            sliding: RotaryFields { base: sliding, ..RotaryFields::PLAIN },
        }
    }

    /// The tables of angles of heads of this size: number 0 of layers that attend to all keys, number 1 of the others.
    pub fn of_heads(&self, dim_head: usize) -> Vec<RotaryConfig> {
        vec![self.full.of_heads(dim_head), self.sliding.of_heads(dim_head)]
    }

    /// Take them out; `names` are the two bases outside of the parameters. `rope_scaling`, of older files, is of the
    /// layers that attend to all keys. Where the file is silent `silent` counts.
    ///
    /// # Errors
    /// As [`RotaryFields::take_whole_heads`]; parameters that are not divided by the kind of a layer.
    pub fn take(fields: &mut Fields, text: &TextConfig, silent: &Self, names: &[&str]) -> Result<Self> {
        let kinds = match fields.take(PARAMETERS) {
            None => None,
            Some(Value::Object(kinds)) if kinds.keys().all(|kind| [FULL, SLIDING].contains(&kind.as_str())) => {
                Some(kinds)
            }
            Some(_) => {
                let reason = format!("this is not an object with parameters of {FULL} and of {SLIDING}");
                return Err(fields.error(PARAMETERS, &reason, "give the parameters of each kind of layer"));
            }
        };
        let scaling = fields.take("rope_scaling");
        let mut of = |kind: &str, base: Option<&&str>, silent: &RotaryFields, scaling: Option<Value>| {
            let parameters = kinds.as_ref().and_then(|kinds| kinds.get(kind)).cloned();
            let base = base.and_then(|name| fields.take(name));
            let own = [("rope_theta", base), ("rope_scaling", scaling), (PARAMETERS, parameters)];
            let own: Map<String, Value> =
                own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
            let mut own = Fields::of_map(own, &format!("{}, {kind}", fields.place()));
            RotaryFields::take_whole_heads(&mut own, text, silent)
        };
        Ok(LayerRotary {
            full: of(FULL, names.first(), &silent.full, scaling)?,
            sliding: of(SLIDING, names.get(1), &silent.sliding, None)?,
        })
    }

    /// Write both forms.
    pub fn write(&self, names: &[&str], map: &mut Map<String, Value>) {
        let mut kinds = Map::new();
        for ((kind, rotary), name) in [(FULL, &self.full), (SLIDING, &self.sliding)].into_iter().zip(names) {
            let mut own = Map::new();
            rotary.write(&mut own);
            kinds.insert(kind.to_owned(), own.remove(PARAMETERS).unwrap_or_default());
            map.insert((*name).to_owned(), json!(rotary.base));
            if kind == FULL {
                map.insert("rope_scaling".to_owned(), own.remove("rope_scaling").unwrap_or_default());
            }
        }
        map.insert(PARAMETERS.to_owned(), Value::Object(kinds));
    }
}
