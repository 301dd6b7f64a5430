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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_values_are_not_pulled_to_zero() {
        let mut average = AverageRecorder::default();
        assert_eq!(average.value(), None);
        average.record(5.0);
        assert!((average.value().unwrap() - 5.0).abs() < 1e-12);
        average.record(7.0);
        // (0.9 * 0.1 * 5 + 0.1 * 7) / (1 - 0.81)
        assert!((average.value().unwrap() - 1.15 / 0.19).abs() < 1e-12);
        let mut constant = AverageRecorder::new(0.99).unwrap();
        for _ in 0..1000 {
            constant.record(3.0);
            assert!((constant.value().unwrap() - 3.0).abs() < 1e-9, "a constant is its own average");
        }
        assert_eq!(constant.count(), 1000);
    }

    #[test]
    fn weights_that_forget_nothing_or_everything_twice_are_refused() {
        for alpha in [1.0, -0.1, f64::NAN, 2.0] {
            assert!(AverageRecorder::new(alpha).is_err(), "{alpha}");
        }
        let mut last = AverageRecorder::new(0.0).unwrap();
        last.record(1.0);
        last.record(2.0);
        assert_eq!(last.value(), Some(2.0));
    }
}
