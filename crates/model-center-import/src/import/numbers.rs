//! Numbers as other systems write them.

use serde_json::Value;

/// A finite number. PyYAML reads `1e-5` as a text, and many files have such texts where trainers want numbers.
pub(super) fn number(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    number.filter(|number| number.is_finite())
}

/// A whole number of at least 0 that a float holds exactly.
pub(super) fn whole(number: f64) -> Option<u64> {
    (number >= 0.0 && number.fract() == 0.0 && number <= 9e15).then_some(number as u64)
}
