//! Names of activations in configuration files.

use bmtrain_core::kernel::Activation;

use super::fields::Fields;
use crate::Result;
use crate::file::printable;

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
pub(crate) struct Between {
    /// The function.
    pub(crate) activation: Activation,
    /// Whether the name says that there is a gate, `gated_gelu` or `gated-gelu`. Most files of gated models do not.
    pub(crate) gated: bool,
}

/// Take an activation that goes by any of several names.
///
/// # Errors
/// A function that is not known, with a list of those that are; two names that disagree.
pub(crate) fn take(fields: &mut Fields, names: &[&str]) -> Result<Option<Between>> {
    let mut known: Option<(&str, Between)> = None;
    for &name in names {
        let Some(text) = fields.take_text(name)? else { continue };
        let between = parse(&text).ok_or_else(|| {
            let known: Vec<&str> = ACTIVATIONS.iter().map(|(_, names)| names[0]).collect();
            let reason = format!("\"{}\" is no activation that is known here", printable(&text, 80));
            fields.error(name, &reason, &format!("known are: {}", known.join(", ")))
        })?;
        match known {
            Some((other, first)) if first.activation != between.activation => {
                let (a, b) = (self::name(first.activation), self::name(between.activation));
                let reason = format!("the file says {other} = {a} and {name} = {b}, two names of one thing");
                return Err(fields.error(other, &reason, "remove one of the two fields, or make them equal"));
            }
            Some((other, first)) => known = Some((other, Between { gated: first.gated || between.gated, ..first })),
            None => known = Some((name, between)),
        }
    }
    Ok(known.map(|(_, between)| between))
}

fn parse(text: &str) -> Option<Between> {
    let plain = text.strip_prefix("gated_").or_else(|| text.strip_prefix("gated-"));
    let known = ACTIVATIONS.iter().find(|(_, names)| names.contains(&plain.unwrap_or(text)))?;
    Some(Between { activation: known.0, gated: plain.is_some() })
}

/// The name that is written.
pub(crate) fn name(activation: Activation) -> &'static str {
    ACTIVATIONS.iter().find(|(known, _)| *known == activation).map_or(activation.name(), |(_, names)| names[0])
}
