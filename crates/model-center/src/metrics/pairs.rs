//! Statistics of pairs of completions: rewards, how often the better one has the larger, log-probabilities.
//!
//! Defines [`PairStatistics`], for training steps and, through [`super::Evaluator`], for evaluations.

use super::Metric;

/// Means over pairs of completions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PairStatistics {
    /// Index of the pair; rewards of both completions, their log-probabilities.
    pairs: Vec<(u64, [f32; Self::NUMBERS])>,
}

impl PairStatistics {
    /// Numbers of a pair: the rewards of the chosen and the rejected completion, then their log-probabilities.
    pub const NUMBERS: usize = 4;

    /// What is known of pairs, in the order of reports.
    pub const METRICS: &[Metric] = &[
        Metric::RewardAccuracy,
        Metric::RewardMargin,
        Metric::RewardChosen,
        Metric::RewardRejected,
        Metric::LogProbChosen,
        Metric::LogProbRejected,
    ];

    /// Adds a pair with its index.
    pub fn add(&mut self, index: u64, numbers: [f32; Self::NUMBERS]) {
        self.pairs.push((index, numbers));
    }

    /// Adds another rank's.
    pub fn merge(&mut self, other: &PairStatistics) {
        self.pairs.extend_from_slice(&other.pairs);
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The value of one of [`PairStatistics::METRICS`]; `None` of any other, 0 without pairs.
    ///
    /// Numerics: f64, summed in the order of the indices.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let of = |[chosen, rejected, log_chosen, log_rejected]: [f32; Self::NUMBERS]| {
            let [chosen, rejected] = [chosen, rejected].map(f64::from);
            Some(match metric {
                Metric::RewardAccuracy => f64::from(u8::from(chosen > rejected)),
                Metric::RewardMargin => chosen - rejected,
                Metric::RewardChosen => chosen,
                Metric::RewardRejected => rejected,
                Metric::LogProbChosen => f64::from(log_chosen),
                Metric::LogProbRejected => f64::from(log_rejected),
                _ => return None,
            })
        };
        let mut pairs: Vec<&(u64, [f32; Self::NUMBERS])> = self.pairs.iter().collect();
        pairs.sort_by_key(|(index, _)| *index);
        let sum = pairs.iter().map(|(_, numbers)| of(*numbers)).sum::<Option<f64>>()?;
        Self::METRICS.contains(&metric).then(|| sum / self.pairs.len().max(1) as f64)
    }

    /// Name and value of every metric.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        Self::METRICS.iter().filter_map(|metric| Some((metric.name(), self.value(*metric)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_pairs_whatever_their_order() {
        let mut one = PairStatistics::default();
        one.add(0, [1.0, 0.5, -3.0, -4.0]);
        one.add(1, [-1.0, 2.0, -5.0, -8.0]);
        let mut other = PairStatistics::default();
        other.add(2, [1.0, 1.0, -1.0, -3.0]);
        let mut reversed = other.clone();
        reversed.merge(&one);
        one.merge(&other);
        // Equal rewards are no preference.
        assert_eq!(one.value(Metric::RewardAccuracy), Some(1.0 / 3.0));
        assert_eq!(one.value(Metric::RewardMargin), Some((0.5 - 3.0) / 3.0));
        assert_eq!(one.value(Metric::LogProbRejected), Some(-5.0));
        assert_eq!((one.value(Metric::Accuracy), one.len()), (None, 3));
        assert_eq!(one.named(), reversed.named());
    }
}
