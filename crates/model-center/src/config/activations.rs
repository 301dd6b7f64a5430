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

/// Take an activation that the dialects name differently.
///
/// # Errors
/// A name that is not known, with a list of those that are; two names that disagree.
pub(super) fn take(fields: &mut Fields, hugging_face: &str, model_center: &str) -> Result<Option<Activation>> {
    let Some(name) = fields.take_either(hugging_face, model_center, Fields::take_text)? else { return Ok(None) };
    let known = ACTIVATIONS.iter().find(|(_, names)| names.contains(&name.as_str()));
    known.map(|(activation, _)| Some(*activation)).ok_or_else(|| {
        let known: Vec<&str> = ACTIVATIONS.iter().map(|(_, names)| names[0]).collect();
        let reason = format!("\"{}\" is no activation that is known here", printable(&name, 80));
        fields.error(hugging_face, &reason, &format!("known are: {}", known.join(", ")))
    })
}

/// The name that is written.
pub(super) fn name(activation: Activation) -> &'static str {
    ACTIVATIONS.iter().find(|(known, _)| *known == activation).map_or(activation.name(), |(_, names)| names[0])
}
