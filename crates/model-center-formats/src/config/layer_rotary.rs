//! Rotary positions by the kind of a layer: `rope_parameters` with one object for layers that attend to all keys and
//! one for layers with a window, or a base for each outside of it, as transformers wrote before its version 5.

use serde_json::{Map, Value, json};

use super::rotary_parameters::positive;
use super::{Fields, RotaryFields, TextConfig};
use crate::Result;
use crate::rotary::{RotaryConfig, RotaryScaling};

/// The objects of layers that attend to all keys, and of layers with a window.
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];
const PARAMETERS: &str = "rope_parameters";
const SCALING: &str = "rope_scaling";
const BASE: &str = "rope_theta";

/// Rotary positions of layers that attend to all keys, and of layers with a window.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRotary {
    /// Rotary positions where a layer attends to all keys.
    pub full: RotaryFields,
    /// Rotary positions where a layer has a window.
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

    /// Take them out; `names` are the bases of both outside of the parameters, or of one for all layers.
    /// `rope_scaling`, of older files, is of the layers that attend to all keys, where their base is `rope_theta`.
    /// Where both bases have other names, `null` for the second is the first. Where the file is silent `silent` counts.
    ///
    /// # Errors
    /// As [`RotaryFields::take_whole_heads`]; parameters that are not divided by the kind of a layer; one base for all
    /// layers that is not the family's, and none for layers with a window; `rope_scaling` where both bases have other
    /// names.
    pub fn take(fields: &mut Fields, text: &TextConfig, silent: &Self, names: &[&str]) -> Result<Self> {
        let mut kinds = match fields.take(PARAMETERS) {
            None => Map::new(),
            Some(Value::Object(kinds)) if kinds.keys().all(|kind| KINDS.contains(&kind.as_str())) => kinds,
            Some(_) => {
                let reason = format!("this is not an object with parameters of {}", KINDS.join(" and of "));
                return Err(fields.error(PARAMETERS, &reason, "give the parameters of each kind of layer"));
            }
        };
        let [full, sliding] = KINDS.map(|kind| kinds.shift_remove(kind).filter(|value| !value.is_null()));
        if let [name] = names
            && sliding.is_none()
            && fields.peek(name).and_then(Value::as_f64).is_some_and(|base| base != silent.sliding.base)
        {
            // Transformers 4 has it for all layers, transformers 5 for those without a window.
            let base = silent.sliding.base;
            let reason = format!("layers with a window have it in some versions of transformers, and {base} in others");
            return Err(fields.error(name, &reason, "state the parameters of both kinds in rope_parameters"));
        }
        let scaling = fields.take(SCALING);
        if scaling.is_some() && !has_scaling(names) {
            let fix = "state it in rope_parameters, of each kind of layer that it is of";
            return Err(fields.error(SCALING, "versions of transformers differ in the layers that have it", fix));
        }
        if let [full, second] = names
            && !has_scaling(names)
            && sliding.is_none()
            && fields.has(second)
            && fields.peek(second).is_none()
        {
            // Transformers 4 reads it so, and version 5 has no base then.
            fields.set(second, fields.peek(full).cloned().unwrap_or_else(|| json!(silent.full.base)));
        }
        let others = ["partial_rotary_factor", "original_max_position_embeddings"]
            .map(|name| (name, fields.peek(name).cloned()));
        let mut of =
            |kind: usize, parameters: Option<Value>, outside: &[(&str, Option<Value>)], silent: &RotaryFields| {
                let base = match names.get(kind) {
                    // An error has the name that the file has.
                    Some(name) => {
                        fields.peek(name).map(|base| positive(fields, name, base)).transpose()?;
                        fields.take(name)
                    }
                    None => None,
                };
                let own = [(BASE, base), (PARAMETERS, parameters)].into_iter().chain(outside.iter().cloned());
                let own = own.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
                let mut own = Fields::of_map(own, &format!("{}, {}", fields.place(), KINDS[kind]));
                RotaryFields::take_whole_heads(&mut own, text, silent)
            };
        let outside = [&others[..], &[(SCALING, scaling)]].concat();
        Ok(LayerRotary { full: of(0, full, &outside, &silent.full)?, sliding: of(1, sliding, &[], &silent.sliding)? })
    }

    /// Write them for a model of this number of positions, also in the form of transformers 4 where that has these.
    pub fn write(&self, names: &[&str], positions: usize, map: &mut Map<String, Value>) {
        let mut kinds = Map::new();
        let has_old_form =
            names.len() > 1 || self.sliding == RotaryFields { scaling: RotaryScaling::None, ..self.full.clone() };
        for (index, (kind, rotary)) in KINDS.into_iter().zip([&self.full, &self.sliding]).enumerate() {
            let mut own = Map::new();
            rotary.write(positions, &mut own);
            kinds.extend(own.shift_remove(PARAMETERS).map(|parameters| (kind.to_owned(), parameters)));
            if let Some(name) = names.get(index).filter(|_| has_old_form) {
                map.insert((*name).to_owned(), json!(rotary.base));
            }
            if index == 0 && has_old_form && has_scaling(names) {
                map.extend(own.shift_remove(SCALING).map(|scaling| (SCALING.to_owned(), scaling)));
            }
        }
        map.insert(PARAMETERS.to_owned(), Value::Object(kinds));
    }
}

/// Whether files with these names of bases may have `rope_scaling` beside them.
fn has_scaling(names: &[&str]) -> bool {
    names.first() == Some(&BASE)
}
