//! A running average for logs: [`AverageRecorder`].

use crate::error::{Error, Result};

/// Exponentially weighted average of what was recorded, without the pull of the zero it starts from.
///
/// After n values the plain average `a = alpha a + (1 - alpha) v` is too small by the factor `1 - alpha^n`, by which it
/// is divided: the first value is shown as it is. Source: the predecessor's recorder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AverageRecorder {
    alpha: f64,
    biased: f64,
    count: u64,
}

impl Default for AverageRecorder {
    /// The predecessor's weight, 0.9.
    fn default() -> Self {
        AverageRecorder { alpha: 0.9, biased: 0.0, count: 0 }
    }
}

impl AverageRecorder {
    /// Keep the share `alpha` of what was before at each new value.
    pub fn new(alpha: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&alpha) {
            return Err(Error::setting("average recorder", format!("alpha {alpha} must be in 0..1")));
        }
        Ok(AverageRecorder { alpha, ..AverageRecorder::default() })
    }

    /// Add a value.
    pub fn record(&mut self, value: f64) {
        self.biased = self.alpha * self.biased + (1.0 - self.alpha) * value;
        self.count += 1;
    }

    /// Number of values so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The average; `None` before the first value.
    pub fn value(&self) -> Option<f64> {
        let weight = 1.0 - self.alpha.powf(self.count as f64);
        (self.count > 0).then(|| self.biased / weight)
    }
}
