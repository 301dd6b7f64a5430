//! Names of activations in configuration files.

use bmtrain_core::kernel::Activation;

use super::{Fields, TextConfig};
use crate::Result;
use model_center_base::file::printable;

/// Names of activations in both dialects; the first of each is the one written.
const ACTIVATIONS: &[(Activation, &[&str])] = &[
    (Activation::Gelu, &["gelu", "gelu_python"]),
    (Activation::GeluTanh, &["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_tanh"]),
    (Activation::Relu, &["relu"]),
    (Activation::Silu, &["silu", "swish"]),
    (Activation::Tanh, &["tanh"]),
    (Activation::QuickGelu, &["quick_gelu"]),
];

/// A function between the maps of a feed-forward layer, and whether what it yields is a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Between {
    /// The function.
    pub activation: Activation,
    /// Whether the name specifies a gate, `gated_gelu` or `gated-gelu`. Most files of gated models do not.
    pub gated: bool,
}

/// Take an activation that has any of several names.
///
/// # Errors
/// A function that is not known, with a list of those that are; two names that disagree.
pub fn take(fields: &mut Fields, names: &[&str]) -> Result<Option<Between>> {
    let mut known: Option<(&str, Between)> = None;
    for &name in names {
        let Some(text) = fields.take_text(name)? else { continue };
        let between = parse(&text).ok_or_else(|| {
            let known: Vec<&str> = ACTIVATIONS.iter().map(|(_, names)| names[0]).collect();
            let reason = format!("unknown activation \"{}\"", printable(&text, 80));
            fields.error(name, &reason, &format!("known are: {}", known.join(", ")))
        })?;
        match known {
            Some((other, first)) if first.activation != between.activation => {
                let (a, b) = (self::name(first.activation), self::name(between.activation));
                let reason = format!("the file states {other} = {a} and {name} = {b}, two names of one thing");
                return Err(fields.error(other, &reason, "remove one of the two fields, or make them equal"));
            }
            Some((other, first)) => known = Some((other, Between { gated: first.gated || between.gated, ..first })),
            None => known = Some((name, between)),
        }
    }
    Ok(known.map(|(_, between)| between))
}

/// The serde form of an activation: its name.
pub mod by_name {
    use super::{Activation, parse};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the name of an activation.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(activation: &Activation, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(super::name(*activation))
    }

    /// Reads the name of an activation.
    ///
    /// # Errors
    /// Errors of the deserializer, and an unknown name.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Activation, D::Error> {
        let name = String::deserialize(deserializer)?;
        let between = parse(&name).filter(|between| !between.gated);
        between.map(|between| between.activation).ok_or_else(|| D::Error::custom("unknown activation"))
    }
}

/// The activation of a name in a configuration; `None` for an unknown one.
pub fn parse(text: &str) -> Option<Between> {
    let plain = text.strip_prefix("gated_").or_else(|| text.strip_prefix("gated-"));
    let known = ACTIVATIONS.iter().find(|(_, names)| names.contains(&plain.unwrap_or(text)))?;
    Some(Between { activation: known.0, gated: plain.is_some() })
}

/// The name that is written.
pub fn name(activation: Activation) -> &'static str {
    ACTIVATIONS.iter().find(|(known, _)| *known == activation).map_or(activation.name(), |(_, names)| names[0])
}

/// Take the feed-forward's function as transformers writes it: `feed_forward_proj`, which `dense_act_fn` and
/// `is_gated_act` repeat, on top of what ModelCenter's field, if there is one, states.
///
/// Source: transformers reads `gated-gelu` as the function by the tangent, unless `dense_act_fn` states another.
pub fn take_projection(fields: &mut Fields, text: &mut TextConfig, is_stated: bool) -> Result<()> {
    let stated = fields.peek_text("feed_forward_proj")?.unwrap_or_default().to_owned();
    if stated.starts_with("gated_") {
        let reason = "transformers separates the gate from the function by a hyphen";
        return Err(fields.error("feed_forward_proj", reason, "write gated-gelu or relu, for example"));
    }
    let projection = take(fields, &["feed_forward_proj"])?;
    let function = take(fields, &["dense_act_fn"])?;
    let gated = fields.take_flag("is_gated_act")?;
    let either_gelu = stated == "gated-gelu";
    let mut between = match projection {
        None => Between { activation: text.ffn_activate_fn, gated: text.ffn_gated },
        Some(between) if either_gelu => Between { activation: Activation::GeluTanh, ..between },
        Some(between) => between,
    };
    if let Some(Between { activation, gated: has_gate }) = function {
        let is_gelu = matches!(activation, Activation::Gelu | Activation::GeluTanh);
        if has_gate || (activation != between.activation && !(either_gelu && is_gelu)) {
            let reason = format!("it is {}, and feed_forward_proj states another function", name(activation));
            return Err(fields.error("dense_act_fn", &reason, "remove dense_act_fn, or correct one of the two"));
        }
        between.activation = activation;
    }
    if gated.is_some_and(|gated| gated != between.gated) {
        let reason = "it contradicts feed_forward_proj";
        return Err(fields.error("is_gated_act", reason, "remove is_gated_act, or correct one of the two"));
    }
    if is_stated && (between.activation, between.gated) != (text.ffn_activate_fn, text.ffn_gated) {
        let reason = "it contradicts feed_forward_proj";
        return Err(fields.error("ffn_activate_fn", reason, "remove one of the two fields, or make them equal"));
    }
    (text.ffn_activate_fn, text.ffn_gated) = (between.activation, between.gated);
    Ok(())
}

/// `feed_forward_proj` and `dense_act_fn`, as transformers writes them.
pub fn projection(text: &TextConfig) -> (String, &'static str) {
    let function = name(text.ffn_activate_fn);
    let is_gelu = matches!(text.ffn_activate_fn, Activation::Gelu | Activation::GeluTanh);
    match text.ffn_gated {
        // Both are called so; the second field tells them apart.
        true if is_gelu => ("gated-gelu".to_string(), function),
        true => (format!("gated-{function}"), function),
        false => (function.to_string(), function),
    }
}
