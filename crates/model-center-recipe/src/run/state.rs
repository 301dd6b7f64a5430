//! State of a run kept with a checkpoint, so that it continues as if nothing had happened.
//!
//! Defines [`BestState`] and [`Exact`]. Made by the tracker of the best weights.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that comes back from JSON to the last bit, also one that JSON cannot represent: it is written as text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact(pub f64);

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:?}", self.0))
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Exact).map_err(|_| D::Error::custom("no number"))
    }
}

/// State of the tracker of the best weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestState {
    /// Name of the metric that picks the best weights.
    pub metric: String,
    /// The best value so far and its step.
    pub best: Option<(Exact, u64)>,
    /// Evaluations since then.
    pub without: u64,
    /// State of the metric that stops the run early, if one does.
    pub early: Option<EarlyState>,
    /// Names and values of all metrics of the best evaluation; checkpoints of earlier versions have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<(String, Exact)>,
}

/// State of the metric that stops the run early.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyState {
    /// Its name.
    pub metric: String,
    /// The best value so far and its step.
    pub best: Option<(Exact, u64)>,
    /// Evaluations since then.
    pub without: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_to_the_last_bit() {
        for value in [0.1 + 0.2, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MIN_POSITIVE, 1e300] {
            let text = serde_json::to_string(&Exact(value)).unwrap();
            let back: Exact = serde_json::from_str(&text).unwrap();
            assert!(back.0.to_bits() == value.to_bits() || (value.is_nan() && back.0.is_nan()), "{text}");
        }
        assert!(serde_json::from_str::<Exact>("\"x\"").is_err());
    }
}
