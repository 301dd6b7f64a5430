//! Counts of labels where a sample has any number of them, and what follows from the counts.
//!
//! Defines [`LabelSetCounts`] for F1, precision and recall over labels, and the share of samples whose labels are all
//! right. Counts are integers, so merging over ranks is exact. Used through [`super::Evaluator`].

use super::Metric;

/// How often each label was there, was predicted, and both; a label is predicted where its probability is above a
/// threshold.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelSetCounts {
    right: Vec<u64>,
    labelled: Vec<u64>,
    predicted: Vec<u64>,
    /// Samples whose labels are predicted without a mistake.
    exact: u64,
    samples: u64,
    threshold: f32,
}

/// The logit of a probability: a label is predicted where its logit is above the threshold's.
pub fn logit(probability: f32) -> f32 {
    let probability = f64::from(probability);
    (probability / (1.0 - probability)).ln() as f32
}

impl LabelSetCounts {
    /// The threshold where none is given.
    pub const THRESHOLD: f32 = 0.5;

    /// The metrics that they give.
    pub const METRICS: &[Metric] = &[
        Metric::Accuracy,
        Metric::PrecisionMacro,
        Metric::RecallMacro,
        Metric::F1Macro,
        Metric::PrecisionMicro,
        Metric::RecallMicro,
        Metric::F1Micro,
        Metric::PrecisionWeighted,
        Metric::RecallWeighted,
        Metric::F1Weighted,
    ];

    /// Empty counts of this number of labels, with a threshold between 0 and 1.
    pub fn new(labels: usize, threshold: f32) -> Self {
        let zeros = || vec![0; labels];
        LabelSetCounts { right: zeros(), labelled: zeros(), predicted: zeros(), exact: 0, samples: 0, threshold }
    }

    /// Number of labels.
    pub fn labels(&self) -> usize {
        self.right.len()
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.samples
    }

    /// Adds a sample: the logit of each label, and 1 for each label that it has, else 0.
    pub fn add(&mut self, logits: &[f32], labels: &[f32]) {
        let least = logit(self.threshold);
        let mut is_exact = true;
        let counts = self.right.iter_mut().zip(&mut self.labelled).zip(&mut self.predicted);
        for (((right, labelled), predicted), (logit, label)) in counts.zip(logits.iter().zip(labels)) {
            let (has, is_predicted) = (*label > 0.5, *logit > least);
            *right += u64::from(has && is_predicted);
            *labelled += u64::from(has);
            *predicted += u64::from(is_predicted);
            is_exact &= has == is_predicted;
        }
        self.exact += u64::from(is_exact);
        self.samples += 1;
    }

    /// Adds counts of as many labels.
    pub fn merge(&mut self, other: &LabelSetCounts) {
        let add = |counts: &mut [u64], more: &[u64]| counts.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        add(&mut self.right, &other.right);
        add(&mut self.labelled, &other.labelled);
        add(&mut self.predicted, &other.predicted);
        self.exact += other.exact;
        self.samples += other.samples;
    }

    /// The value of a metric; `None` of one of other labels. Means over labels include those that never occur.
    ///
    /// Source: scikit-learn's metrics of indicator matrices, whose accuracy is of whole samples.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let precision = |[right, _, predicted]: [u64; 3]| quotient(right, predicted);
        let recall = |[right, labelled, _]: [u64; 3]| quotient(right, labelled);
        let f1 = |[right, labelled, predicted]: [u64; 3]| quotient(2 * right, labelled + predicted);
        match metric {
            Metric::Accuracy => Some(quotient(self.exact, self.samples)),
            Metric::F1Micro => Some(f1(self.sums())),
            Metric::PrecisionMicro => Some(precision(self.sums())),
            Metric::RecallMicro => Some(recall(self.sums())),
            Metric::F1Macro => Some(self.mean(f1)),
            Metric::PrecisionMacro => Some(self.mean(precision)),
            Metric::RecallMacro => Some(self.mean(recall)),
            Metric::F1Weighted => Some(self.weighted(f1)),
            Metric::PrecisionWeighted => Some(self.weighted(precision)),
            Metric::RecallWeighted => Some(self.weighted(recall)),
            _ => None,
        }
    }

    /// The counts of all labels together.
    fn sums(&self) -> [u64; 3] {
        [&self.right, &self.labelled, &self.predicted].map(|counts| counts.iter().sum())
    }

    /// The mean over labels, each with the weight of the samples that have it.
    fn weighted(&self, figure: impl Fn([u64; 3]) -> f64) -> f64 {
        let counts = self.right.iter().zip(&self.labelled).zip(&self.predicted);
        let weighted =
            counts.map(|((right, labelled), predicted)| *labelled as f64 * figure([*right, *labelled, *predicted]));
        let [_, labelled, _] = self.sums();
        if labelled == 0 { 0.0 } else { weighted.sum::<f64>() / labelled as f64 }
    }

    fn mean(&self, figure: impl Fn([u64; 3]) -> f64) -> f64 {
        let counts = self.right.iter().zip(&self.labelled).zip(&self.predicted);
        let sum: f64 = counts.map(|((right, labelled), predicted)| figure([*right, *labelled, *predicted])).sum();
        sum / self.labels().max(1) as f64
    }
}

/// A quotient of counts, 0 for 0 / 0.
fn quotient(numerator: u64, denominator: u64) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(threshold: f32) -> LabelSetCounts {
        let mut counts = LabelSetCounts::new(3, threshold);
        counts.add(&[2.0, -1.0, -3.0], &[1.0, 0.0, 0.0]);
        counts.add(&[0.5, 3.0, -3.0], &[0.0, 1.0, 0.0]);
        counts.add(&[-0.5, 0.0, -3.0], &[1.0, 0.0, 0.0]);
        counts
    }

    #[test]
    fn figures_are_those_of_the_counts() {
        let all = counts(0.5);
        // The labels have 1, 1 and 0 right of 2, 1 and 0, and 2, 1 and 0 predictions.
        assert_eq!(all.value(Metric::F1Micro), Some(4.0 / 6.0));
        assert_eq!(all.value(Metric::F1Macro), Some((0.5 + 1.0 + 0.0) / 3.0));
        assert_eq!(all.value(Metric::PrecisionMacro), Some((0.5 + 1.0 + 0.0) / 3.0));
        assert_eq!(all.value(Metric::RecallMacro), Some((0.5 + 1.0 + 0.0) / 3.0));
        assert_eq!((all.value(Metric::Accuracy), all.count()), (Some(1.0 / 3.0), 3));
        assert_eq!(all.value(Metric::Matthews), None);
    }

    #[test]
    fn the_threshold_is_a_probability() {
        // A probability of 0.622 is not above 0.7; one of 0.378 is above 0.3, and so is one of 0.5.
        assert_eq!(counts(0.7).value(Metric::Accuracy), Some(2.0 / 3.0));
        assert_eq!(counts(0.3).value(Metric::Accuracy), Some(1.0 / 3.0));
        assert_eq!((logit(0.5), logit(0.75)), (0.0, 3f32.ln()));
    }

    #[test]
    fn merged_counts_are_those_of_all_samples() {
        let mut both = counts(0.5);
        both.merge(&counts(0.5));
        let mut twice = counts(0.5);
        for (logits, labels) in [
            ([2.0, -1.0, -3.0], [1.0, 0.0, 0.0]),
            ([0.5, 3.0, -3.0], [0.0, 1.0, 0.0]),
            ([-0.5, 0.0, -3.0], [1.0, 0.0, 0.0]),
        ] {
            twice.add(&logits, &labels);
        }
        assert_eq!(both, twice);
    }
}
