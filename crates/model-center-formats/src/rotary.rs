//! The angles of rotary positions (Su et al., 2021) and the ways of stretching them over longer texts than a model was
//! trained on: values without tensors.
//!
//! Defines [`RotaryConfig`] and [`RotaryScaling`], which configurations and GGUF files state. The layer that rotates
//! queries and keys has them as fields.

use std::f64::consts::TAU;
use std::sync::Arc;

/// The angles of rotary positions: pair `i` of `R / 2` is rotated by `position * base^(-2 i / R)`.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryConfig {
    /// R, elements of a head that are turned.
    pub dims: usize,
    /// Commonly 10000.
    pub base: f64,
    /// Change of the angles.
    pub scaling: RotaryScaling,
}

/// Change of the angles for longer texts.
#[derive(Debug, Clone, PartialEq)]
pub enum RotaryScaling {
    /// Nothing.
    None,
    /// All are divided by this (Chen et al., 2023).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows with texts longer than `trained`.
    Dynamic {
        /// Factor by which texts may be longer.
        factor: f64,
        /// The longest text that needs no change.
        trained: usize,
    },
    /// Llama 3: slow angles are divided, fast ones are not, those between gradually.
    Llama3 {
        /// The divisor of slow angles.
        factor: f64,
        /// An angle that turns fewer times than this in `trained` positions is slow.
        low: f64,
        /// One that turns more often than this is fast.
        high: f64,
        /// The longest text of the first training.
        trained: usize,
    },
    /// YaRN (Peng et al., 2023): the same by the number of the pair, and all queries and keys grow by `magnitude`.
    Yarn {
        /// The divisor of slow angles.
        factor: f64,
        /// Turns in `trained` positions above which an angle is fast, 32 by default.
        fast: f64,
        /// Turns below which it is slow, 1 by default.
        slow: f64,
        /// Factor of cosines and sines; `0.1 ln(factor) + 1` by default.
        magnitude: f64,
        /// The longest text of the first training.
        trained: usize,
    },
    /// LongRoPE (Ding et al., 2024): each angle has a divisor of its own, another one in texts longer than `trained`.
    Long {
        /// Divisors of the R / 2 angles in texts up to `trained`.
        short: Arc<[f64]>,
        /// Those in longer ones.
        long: Arc<[f64]>,
        /// Factor of cosines and sines in texts of any length.
        magnitude: f64,
        /// The longest text of the first training.
        trained: usize,
    },
}

impl RotaryScaling {
    /// The original trained length, where the scaling depends on it.
    pub fn trained(&self) -> Option<usize> {
        match *self {
            RotaryScaling::None | RotaryScaling::Linear { .. } => None,
            RotaryScaling::Dynamic { trained, .. }
            | RotaryScaling::Llama3 { trained, .. }
            | RotaryScaling::Yarn { trained, .. }
            | RotaryScaling::Long { trained, .. } => Some(trained),
        }
    }

    /// The longest sequence with the same angles as shorter ones; longer ones have others.
    pub fn steady_length(&self) -> Option<usize> {
        match *self {
            RotaryScaling::Dynamic { trained, .. } | RotaryScaling::Long { trained, .. } => Some(trained),
            _ => None,
        }
    }

    /// Whether texts of these two lengths have the same angles.
    pub fn is_same(&self, one: usize, other: usize) -> bool {
        match *self {
            // They change with every further token.
            RotaryScaling::Dynamic { trained, .. } => one == other || one.max(other) <= trained,
            RotaryScaling::Long { trained, .. } => (one > trained) == (other > trained),
            _ => true,
        }
    }

    /// The longest sequence of a model whose config states `positions`. Files with dynamic or YaRN's scaling commonly
    /// give the trained length for that.
    pub fn reach(&self, positions: usize) -> usize {
        match *self {
            RotaryScaling::Dynamic { factor, trained } | RotaryScaling::Yarn { factor, trained, .. } => {
                // A float beyond the largest integer becomes that.
                positions.max((factor * trained as f64) as usize)
            }
            _ => positions,
        }
    }
}

impl RotaryConfig {
    /// The angle from one position to the next of each pair, for texts of this length.
    pub fn frequencies(&self, length: usize) -> Vec<f64> {
        let pairs = self.dims / 2;
        let power = |base: f64, pair: usize| base.powf(-2.0 * pair as f64 / self.dims as f64);
        let plain = |pair| power(self.base, pair);
        match self.scaling {
            RotaryScaling::Long { ref short, ref long, trained, .. } => {
                let divisors = if length > trained { long } else { short };
                divisors.iter().take(pairs).enumerate().map(|(pair, divisor)| plain(pair) / divisor).collect()
            }
            RotaryScaling::None => (0..pairs).map(plain).collect(),
            RotaryScaling::Linear { factor } => (0..pairs).map(|pair| plain(pair) / factor).collect(),
            RotaryScaling::Dynamic { factor, trained } => {
                let stretch = (factor * length.max(trained) as f64 / trained as f64) - (factor - 1.0);
                let base = self.base * stretch.powf(self.dims as f64 / (self.dims as f64 - 2.0));
                (0..pairs).map(|pair| power(base, pair)).collect()
            }
            RotaryScaling::Llama3 { factor, low, high, trained } => {
                let scaled = |pair| {
                    let turns = trained as f64 * plain(pair) / TAU;
                    let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    plain(pair) * (share + (1.0 - share) / factor)
                };
                (0..pairs).map(scaled).collect()
            }
            RotaryScaling::Yarn { factor, fast, slow, trained, .. } => {
                // The pair that makes `turns` turns in the trained length.
                let pair_of =
                    |turns: f64| self.dims as f64 * (trained as f64 / (turns * TAU)).ln() / (2.0 * self.base.ln());
                let first = pair_of(fast).floor().max(0.0);
                let last = pair_of(slow).ceil().min(self.dims as f64 - 1.0);
                // Never a division by zero where both are one pair.
                let span = if last == first { 1e-3 } else { last - first };
                let scaled = |pair: usize| {
                    let share = 1.0 - ((pair as f64 - first) / span).clamp(0.0, 1.0);
                    plain(pair) * (share + (1.0 - share) / factor)
                };
                (0..pairs).map(scaled).collect()
            }
        }
    }

    /// Factor of cosines and sines.
    fn magnitude(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { magnitude, .. } | RotaryScaling::Long { magnitude, .. } => magnitude,
            _ => 1.0,
        }
    }

    /// The cosines of each position, then its sines.
    ///
    /// Numerics: angles in 64-bit floats, rounded once.
    pub fn table(&self, positions: usize, length: usize) -> Vec<f32> {
        let (frequencies, magnitude) = (self.frequencies(length), self.magnitude());
        let mut table = Vec::with_capacity(positions * self.dims);
        for position in 0..positions {
            let angle = |frequency: &f64| position as f64 * frequency;
            table.extend(frequencies.iter().map(|f| (magnitude * angle(f).cos()) as f32));
            table.extend(frequencies.iter().map(|f| (magnitude * angle(f).sin()) as f32));
        }
        table
    }
}

/// YaRN's factor of queries and keys where a file is silent: they share the growth.
pub(crate) fn yarn_magnitude(factor: f64) -> f64 {
    if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
}

/// LongRoPE's factor of cosines and sines where a file is silent.
pub(crate) fn long_magnitude(factor: f64, trained: usize) -> f64 {
    if factor > 1.0 { (1.0 + factor.ln() / (trained as f64).ln()).sqrt() } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: RotaryConfig = RotaryConfig { dims: 8, base: 10_000.0, scaling: RotaryScaling::None };

    fn close(ours: &[f64], theirs: &[f64]) {
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() <= 1e-12 * b.abs(), "{ours:?} for {theirs:?}");
        }
    }

    #[test]
    fn frequencies_fall_from_one_by_equal_ratios() {
        close(&PLAIN.frequencies(1), &[1.0, 0.1, 0.01, 0.001]);
        let linear = RotaryConfig { scaling: RotaryScaling::Linear { factor: 4.0 }, ..PLAIN };
        close(&linear.frequencies(1), &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn dynamic_angles_change_beyond_the_trained_length_only() {
        let dynamic = RotaryConfig { scaling: RotaryScaling::Dynamic { factor: 2.0, trained: 16 }, ..PLAIN };
        close(&dynamic.frequencies(16), &PLAIN.frequencies(1));
        // Twice the trained length: 2 * 2 - 1 = 3 times, to the power of 8 / 6.
        let stretched = RotaryConfig { base: 10_000.0 * 3f64.powf(8.0 / 6.0), ..PLAIN };
        close(&dynamic.frequencies(32), &stretched.frequencies(1));
    }

    #[test]
    fn rows_may_be_as_long_as_stretched_angles_are_meant_for() {
        let yarn = |factor| RotaryScaling::Yarn { factor, fast: 32.0, slow: 1.0, magnitude: 1.0, trained: 16 };
        assert_eq!((yarn(2.5).reach(16), yarn(2.5).reach(64), yarn(f64::MAX).reach(16)), (40, 64, usize::MAX));
        assert_eq!(RotaryScaling::Dynamic { factor: 2.0, trained: 16 }.reach(16), 32);
        assert_eq!(RotaryScaling::Linear { factor: 2.0 }.reach(16), 16);
    }

    #[test]
    fn llama_3_divides_slow_angles_alone() {
        let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, trained: 128 };
        let scaled = RotaryConfig { scaling, ..PLAIN }.frequencies(1);
        // They turn 20.4, 2.04, 0.204 and 0.0204 times in 128 positions.
        let share = (128.0 * 0.1 / TAU - 1.0) / 3.0;
        close(&scaled, &[1.0, 0.1 * (share + (1.0 - share) / 8.0), 0.01 / 8.0, 0.001 / 8.0]);
    }

    #[test]
    fn long_rope_has_divisors_by_the_length_of_the_text() {
        let scaling = RotaryScaling::Long {
            short: [1.0, 2.0, 4.0, 8.0].into(),
            long: [2.0, 4.0, 8.0, 10.0].into(),
            magnitude: 1.5,
            trained: 16,
        };
        let config = RotaryConfig { scaling: scaling.clone(), ..PLAIN };
        close(&config.frequencies(16), &[1.0, 0.05, 0.0025, 0.000125]);
        close(&config.frequencies(17), &[0.5, 0.025, 0.00125, 0.0001]);
        assert_eq!(config.table(1, 1)[..4], [1.5; 4]);
        assert_eq!([(3, 16), (16, 17), (17, 90)].map(|(one, other)| scaling.is_same(one, other)), [true, false, true]);
        assert_eq!((scaling.steady_length(), scaling.reach(64)), (Some(16), 64));
    }

    #[test]
    fn a_table_holds_cosines_before_sines() {
        let table = PLAIN.table(3, 3);
        assert_eq!((table.len(), &table[..8]), (24, &[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0][..]));
        assert_eq!((table[16], table[20]), (2f64.cos() as f32, 2f64.sin() as f32));
    }
}
