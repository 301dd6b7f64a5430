//! Statistics of completions that are compared: rewards, how often the better one has the larger, log-probabilities.
//!
//! Defines [`PairStatistics`], for training steps and, through [`super::Evaluator`], for evaluations.

use super::Metric;

/// Means over pairs of completions, or over unpaired completions, each good or bad.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PairStatistics {
    /// Index of the sample, and its numbers.
    samples: Vec<(u64, [f32; Self::NUMBERS])>,
    are_unpaired: bool,
}

impl PairStatistics {
    /// Numbers of a sample. Of a pair the rewards of the chosen and the rejected completion, then their
    /// log-probabilities. Of an unpaired completion its reward, its log-probability, the log-ratio to the
    /// reference of its prompt with another completion, and whether it is good, 1 or 0.
    pub const NUMBERS: usize = 4;

    /// Metrics of samples that may be known, in the order of reports.
    pub const METRICS: &[Metric] = &[
        Metric::RewardAccuracy,
        Metric::RewardMargin,
        Metric::RewardChosen,
        Metric::RewardRejected,
        Metric::LogProbChosen,
        Metric::LogProbRejected,
        Metric::Kl,
    ];

    /// Metrics of pairs.
    pub const OF_PAIRS: &[Metric] = Self::METRICS.split_at(6).0;

    /// Statistics of completions that are rated one by one.
    pub fn unpaired() -> Self {
        PairStatistics { are_unpaired: true, ..PairStatistics::default() }
    }

    /// Whether they are of unpaired completions.
    pub fn are_unpaired(&self) -> bool {
        self.are_unpaired
    }

    /// Adds a sample with its index.
    pub fn add(&mut self, index: u64, numbers: [f32; Self::NUMBERS]) {
        self.samples.push((index, numbers));
    }

    /// Adds another rank's.
    pub fn merge(&mut self, other: &PairStatistics) {
        self.samples.extend_from_slice(&other.samples);
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Whether a metric is of such samples, even if these have no value of it.
    pub fn is_of(&self, metric: Metric) -> bool {
        if self.are_unpaired { Self::METRICS.contains(&metric) } else { Self::OF_PAIRS.contains(&metric) }
    }

    /// The value of one of [`PairStatistics::METRICS`]; `None` of any other. Of pairs 0 without samples. Of judged
    /// completions `chosen` are the good ones and `rejected` the bad ones, the accuracy is the share of the pairs of a
    /// good and a bad one whose rewards are in this order, and the divergence `kl` is the mean log-ratio of prompts
    /// with other completions, at least 0; `None` without completions of its kind.
    ///
    /// Numerics: f64, summed in the order of the indices.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let mut samples: Vec<&(u64, [f32; Self::NUMBERS])> = self.samples.iter().collect();
        samples.sort_by_key(|(index, _)| *index);
        let numbers = samples.into_iter().map(|(_, numbers)| numbers.map(f64::from));
        if self.are_unpaired {
            return of_unpaired(&numbers.collect::<Vec<_>>(), metric);
        }
        let of = |[chosen, rejected, log_chosen, log_rejected]: [f64; Self::NUMBERS]| {
            Some(match metric {
                Metric::RewardAccuracy => f64::from(u8::from(chosen > rejected)),
                Metric::RewardMargin => chosen - rejected,
                Metric::RewardChosen => chosen,
                Metric::RewardRejected => rejected,
                Metric::LogProbChosen => log_chosen,
                Metric::LogProbRejected => log_rejected,
                _ => return None,
            })
        };
        let sum = numbers.map(of).sum::<Option<f64>>()?;
        Self::OF_PAIRS.contains(&metric).then(|| sum / self.samples.len().max(1) as f64)
    }

    /// Name and value of every metric that has a value.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        Self::METRICS.iter().filter_map(|metric| Some((metric.name(), self.value(*metric)?))).collect()
    }
}

fn of_unpaired(samples: &[[f64; PairStatistics::NUMBERS]], metric: Metric) -> Option<f64> {
    let mean = |is_wanted: &dyn Fn(bool) -> bool, at: usize| {
        let wanted = samples.iter().filter(|numbers| is_wanted(numbers[3] == 1.0));
        let (sum, count) = wanted.fold((0.0, 0usize), |(sum, count), numbers| (sum + numbers[at], count + 1));
        (count > 0).then(|| sum / count as f64)
    };
    let (good, bad) = (|is_good: bool| is_good, |is_good: bool| !is_good);
    match metric {
        Metric::RewardChosen => mean(&good, 0),
        Metric::RewardRejected => mean(&bad, 0),
        Metric::RewardMargin => Some(mean(&good, 0)? - mean(&bad, 0)?),
        Metric::LogProbChosen => mean(&good, 1),
        Metric::LogProbRejected => mean(&bad, 1),
        Metric::Kl => mean(&|_| true, 2).map(|kl| kl.max(0.0)),
        Metric::RewardAccuracy => ordered_share(samples),
        _ => None,
    }
}

/// Share of the pairs of a good and a bad sample whose good one has the larger reward; equal rewards are not in order.
fn ordered_share(samples: &[[f64; PairStatistics::NUMBERS]]) -> Option<f64> {
    let mut by_reward: Vec<(f64, bool)> = samples.iter().map(|numbers| (numbers[0], numbers[3] == 1.0)).collect();
    // Of equal rewards the good ones first, so that they meet no bad one of their reward.
    by_reward.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let (mut bad, mut good, mut ordered) = (0u64, 0u64, 0u64);
    for (_, is_good) in by_reward {
        match is_good {
            true => (good, ordered) = (good + 1, ordered + bad),
            false => bad += 1,
        }
    }
    let pairs = good * bad;
    (pairs > 0).then(|| ordered as f64 / pairs as f64)
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
        assert_eq!((one.value(Metric::Accuracy), one.value(Metric::Kl), one.len()), (None, None, 3));
        assert_eq!(one.named(), reversed.named());
    }

    #[test]
    fn unpaired_completions_have_means_of_the_good_and_of_the_bad_ones() {
        let mut samples = PairStatistics::unpaired();
        assert_eq!(samples.named(), []);
        samples.add(3, [2.0, -3.0, 0.5, 1.0]);
        samples.add(0, [1.0, -5.0, -2.0, 1.0]);
        // Without a bad completion there is no margin.
        let names: Vec<&str> = samples.named().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["reward_chosen", "log_prob_chosen", "kl"]);
        samples.add(1, [1.0, -8.0, 0.5, 0.0]);
        samples.add(2, [0.0, -6.0, 0.5, 0.0]);
        for (metric, expected) in [
            // Equal rewards are not in order.
            (Metric::RewardAccuracy, 3.0 / 4.0),
            (Metric::RewardMargin, 1.0),
            (Metric::RewardChosen, 1.5),
            (Metric::RewardRejected, 0.5),
            (Metric::LogProbChosen, -4.0),
            (Metric::LogProbRejected, -7.0),
            // The mean is -0.125.
            (Metric::Kl, 0.0),
        ] {
            assert_eq!(samples.value(metric), Some(expected), "{metric:?}");
        }
    }
}
