//! Rotary positions by kinds of layers in configuration files: `rope_parameters` with an object for each kind.

use serde_json::{Map, Value, json};

use super::{Fields, RotaryFields, TextConfig};
use crate::Result;
use crate::rotary::RotaryScaling;

/// Names of the kinds of layers, without a window and with one.
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

/// Rotary embeddings of layers with and without a window.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRotary {
    /// Positions in layers without a window.
    pub full: RotaryFields,
    /// Positions in layers with one.
    pub sliding: RotaryFields,
}

impl LayerRotary {
    /// Take the fields out; where the file is silent `silent` counts. `rope_theta` and `rope_scaling` are the fields of
    /// layers without a window.
    ///
    /// # Errors
    /// Errors of [`RotaryFields::take_whole_heads`]; parameters that are not by kinds of layers; a base for all layers
    /// that is not the family's, and none for layers with a window.
    pub fn take(fields: &mut Fields, text: &TextConfig, silent: &Self) -> Result<Self> {
        const NAME: &str = "rope_parameters";
        let mut nested = match fields.take(NAME) {
            Some(Value::Object(map)) => map,
            None => Map::new(),
            Some(_) => {
                return Err(fields.error(NAME, "this is not an object", "give the parameters in braces, or null"));
            }
        };
        let [full, sliding] = KINDS.map(|kind| nested.shift_remove(kind).filter(|value| !value.is_null()));
        if let Some(name) = nested.keys().next() {
            let reason = format!("its parameter {name} is for no kind of layers");
            return Err(fields.error(NAME, &reason, &format!("give an object for each of {}", KINDS.join(" and "))));
        }
        let theta = fields.peek("rope_theta").and_then(Value::as_f64);
        if sliding.is_none() && theta.is_some_and(|theta| theta != silent.sliding.base) {
            // Transformers 4 has it for all layers, transformers 5 for those without a window.
            let reason = format!(
                "layers with a window have it in some versions of transformers, and {} in others",
                silent.sliding.base
            );
            return Err(fields.error("rope_theta", &reason, "state the parameters of both kinds in rope_parameters"));
        }
        let of = |parameters: Option<Value>, others: Map<String, Value>, silent: &RotaryFields| {
            let parameters = parameters.map(|parameters| (NAME.to_owned(), parameters));
            let mut own = Fields::of_map(others.into_iter().chain(parameters).collect(), fields.place());
            RotaryFields::take_whole_heads(&mut own, text, silent)
        };
        let mut outside = Map::new();
        for name in ["rope_theta", "rope_scaling", "partial_rotary_factor", "original_max_position_embeddings"] {
            outside.extend(fields.peek(name).map(|value| (name.to_owned(), value.clone())));
        }
        let rotary =
            LayerRotary { full: of(full, outside, &silent.full)?, sliding: of(sliding, Map::new(), &silent.sliding)? };
        for name in ["rope_theta", "rope_scaling"] {
            fields.take(name);
        }
        Ok(rotary)
    }

    /// Write them for a model of this number of positions, also in the form of transformers 4 where that has these.
    pub fn write(&self, positions: usize, map: &mut Map<String, Value>) {
        let mut nested = Map::new();
        for (kind, rotary) in KINDS.into_iter().zip([&self.full, &self.sliding]) {
            let mut own = Map::new();
            rotary.write(positions, &mut own);
            nested.extend(own.shift_remove("rope_parameters").map(|parameters| (kind.to_owned(), parameters)));
        }
        if self.sliding == (RotaryFields { scaling: RotaryScaling::None, ..self.full.clone() }) {
            self.full.write(positions, map);
        }
        map.insert("rope_parameters".to_owned(), json!(nested));
    }
}
