//! Fields of `config.json` that one family of GGUF files has and the others do not.
//!
//! Defines [`LayerWindows`], and [`fields`], which [`super::decoder`] calls.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::family::{PATTERN, WINDOW, WINDOW_BASE};
use super::keys::Keys;
use super::{Decoder, Family, GgufArray, GgufValue};
use crate::Result;
use model_center_base::json::number;

/// SmolLM3's layers without positions: the last of each this many.
const PERIOD_WITHOUT_POSITIONS: usize = 4;
/// The number of layers of Gemma 3 27B, which alone divides scores by the root of D / N, not of the head's size.
const GEMMA_27B: usize = 62;

/// Windows of some layers, and the base of rotary frequencies there.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerWindows {
    /// Number of keys in a window; `None` where no layer has one.
    pub size: Option<usize>,
    /// Layers that have a window.
    pub layers: WindowedLayers,
    /// Base of the rotary frequencies in these layers.
    pub base: f32,
}

/// The layers with a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowedLayers {
    /// All but the last of each this many; all of them where it is 0.
    AllButLast(usize),
    /// These, counted from 0.
    Listed(BTreeSet<usize>),
}

impl LayerWindows {
    /// The windows of a family that has them by layers; `base` is the base of the other layers.
    pub(super) fn of(keys: &Keys<'_>, num_layers: usize, base: f32) -> Result<Self> {
        let (size, base) = (keys.size_or_zero(WINDOW)?, window_base(keys, base)?);
        let layers = match size {
            Some(_) => windowed_layers(keys, num_layers)?,
            None => WindowedLayers::Listed(BTreeSet::new()),
        };
        Ok(LayerWindows { size, layers, base })
    }

    /// Whether a layer, counted from 0, has a window.
    fn has(&self, layer: usize) -> bool {
        match &self.layers {
            WindowedLayers::AllButLast(period) => !(layer + 1).is_multiple_of(*period),
            WindowedLayers::Listed(listed) => listed.contains(&layer),
        }
    }
}

fn windowed_layers(keys: &Keys<'_>, num_layers: usize) -> Result<WindowedLayers> {
    match keys.metadata.get(&keys.key(PATTERN)) {
        Some(GgufValue::Array(GgufArray::Bool(flags))) if flags.len() == num_layers => {
            let listed = flags.iter().enumerate().filter(|(_, flag)| **flag).map(|(layer, _)| layer).collect();
            Ok(WindowedLayers::Listed(listed))
        }
        Some(GgufValue::Array(_)) => {
            let reason = format!("the layers with a window are not a list of {num_layers} truth values");
            Err(keys.unfit(PATTERN, reason))
        }
        // A period of 1 leaves no layer with a window, one of 0 no layer without.
        _ => match keys.metadata.whole(&keys.key(PATTERN))? {
            None => Ok(WindowedLayers::AllButLast(if keys.family == Family::Gemma3 { 6 } else { 4 })),
            Some(period @ 0..=0x7fff_ffff) => Ok(WindowedLayers::AllButLast(period as usize)),
            Some(other) => Err(keys.unfit(PATTERN, format!("{other} is not a period of layers"))),
        },
    }
}

/// The base of rotary angles in layers with a window.
fn window_base(keys: &Keys<'_>, base: f32) -> Result<f32> {
    let silent = if keys.family == Family::Gemma3 { 10_000.0 } else { base };
    match keys.real(WINDOW_BASE)?.unwrap_or(silent) {
        base if base > 1.0 => Ok(base),
        base => Err(keys.unfit(WINDOW_BASE, format!("{base} is not a base of frequencies, it must be above 1"))),
    }
}

/// The fields that follow from keys of the family's own.
pub(super) fn fields(keys: &Keys<'_>, dim_head: usize, rotary_dims: usize) -> Result<Map<String, Value>> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| drop(map.insert(key.to_string(), value));
    if keys.family.rotates_parts() {
        put("partial_rotary_factor", json!(share(rotary_dims, dim_head)));
    }
    match keys.family {
        Family::Granite => {
            // 0 stands for what a Llama has.
            let stated = |name: &str| keys.real(name).map(|factor| factor.filter(|factor| *factor != 0.0));
            put("embedding_multiplier", number(stated("embedding_scale")?.unwrap_or(1.0)));
            put("residual_multiplier", number(stated("residual_scale")?.unwrap_or(1.0)));
            let scale = stated("attention.scale")?.unwrap_or_else(|| 1.0 / (dim_head as f32).sqrt());
            put("attention_multiplier", number(scale));
            let divisor = keys.required_real("logit_scale")?;
            if divisor == 0.0 {
                return Err(keys.unfit("logit_scale", "logits cannot be divided by 0"));
            }
            put("logits_scaling", number(divisor));
        }
        Family::Phi3 => {
            put("sliding_window", json!(keys.size_or_zero(WINDOW)?));
            if let Some(trained) = keys.optional("rope.scaling.original_context_length")? {
                put("original_max_position_embeddings", json!(trained));
            }
        }
        Family::GptNeox => {
            const PARALLEL: &str = "use_parallel_residual";
            let key = keys.key(PARALLEL);
            let is_parallel = keys.metadata.truth(&key)?.ok_or_else(|| keys.metadata.lacking(&key))?;
            put(PARALLEL, json!(is_parallel));
        }
        _ => {}
    }
    Ok(map)
}

/// The rotated share of a head with this many rotated elements, in a form whose product is not below that number.
fn share(rotary_dims: usize, dim_head: usize) -> f64 {
    let share = rotary_dims as f64 / dim_head as f64;
    if (share * dim_head as f64) < rotary_dims as f64 { share.next_up() } else { share }
}

impl Decoder {
    /// The fields of the family's own, with those that have a value for each layer.
    pub(super) fn put_own(&self, put: &mut dyn FnMut(&str, Value)) {
        for (name, value) in &self.own {
            put(name, value.clone());
        }
        if let Some(windows) = &self.layer_windows {
            let kind = |layer| if windows.has(layer) { "sliding_attention" } else { "full_attention" };
            put("layer_types", (0..self.num_layers).map(kind).collect());
            put("sliding_window", json!(windows.size));
            let mut full = match &self.rope_scaling {
                Some(Value::Object(scaling)) => scaling.clone(),
                _ => Map::from_iter([("rope_type".to_string(), json!("default"))]),
            };
            full.insert("rope_theta".to_string(), number(self.rope_theta));
            let sliding = json!({"rope_type": "default", "rope_theta": number(windows.base)});
            put("rope_parameters", json!({"full_attention": full, "sliding_attention": sliding}));
        }
        match self.family {
            Family::SmolLm3 => {
                let flag = |layer: usize| u8::from(!(layer + 1).is_multiple_of(PERIOD_WITHOUT_POSITIONS));
                put("no_rope_layers", (0..self.num_layers).map(flag).collect());
                put("no_rope_layer_interval", json!(PERIOD_WITHOUT_POSITIONS));
                put("use_sliding_window", json!(false));
            }
            Family::Gemma3 => {
                let of_27b = self.num_layers == GEMMA_27B;
                let divisor = if of_27b { self.dim_model / self.num_heads } else { self.dim_head };
                put("query_pre_attn_scalar", json!(divisor));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_gives_the_number_of_elements_back() {
        for dim_head in 2..300 {
            for rotary_dims in 1..=dim_head {
                let share = share(rotary_dims, dim_head);
                assert!(
                    share <= 1.0 && (dim_head as f64 * share) as usize == rotary_dims,
                    "{rotary_dims} of {dim_head}"
                );
            }
        }
    }
}
