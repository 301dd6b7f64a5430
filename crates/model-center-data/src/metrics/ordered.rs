//! Accumulators of numbers whose result does not depend on who added them when.
//!
//! Floating-point sums depend on their order, so these keep every term with its index and sum in index order.
//! Defines [`ValuePairs`] for correlations and squared errors of numbers, and [`OrderedSum`] for means such as the
//! evaluation loss. Used through [`super::Evaluator`] and by the evaluation loop.

/// Predicted and true numbers of samples.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ValuePairs {
    /// Sample index, prediction, label.
    pairs: Vec<(u64, f32, f32)>,
}

impl ValuePairs {
    /// Adds the prediction for a sample.
    pub fn add(&mut self, sample: u64, predicted: f32, label: f32) {
        self.pairs.push((sample, predicted, label));
    }

    /// Adds another rank's.
    pub fn merge(&mut self, other: &ValuePairs) {
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

    /// The pairs `(sample, predicted, label)` in the order they were added, to be sent to other ranks.
    pub fn pairs(&self) -> &[(u64, f32, f32)] {
        &self.pairs
    }

    /// Pearson's correlation coefficient: NaN if a number is not finite, else 0 if either side is constant or there is
    /// no pair.
    ///
    /// Numerics: f64, two passes (means first), summed in sample order.
    pub fn pearson(&self) -> f64 {
        self.columns().map_or(f64::NAN, |(predicted, labels)| correlation(&predicted, &labels))
    }

    /// Spearman's rank correlation coefficient, ties sharing the mean of their ranks; 0 and NaN as for
    /// [`ValuePairs::pearson`].
    pub fn spearman(&self) -> f64 {
        self.columns().map_or(f64::NAN, |(predicted, labels)| correlation(&ranks(&predicted), &ranks(&labels)))
    }

    /// Mean of the squared differences: NaN if a number is not finite, 0 without pairs.
    pub fn mean_squared_error(&self) -> f64 {
        let Some((predicted, labels)) = self.columns() else { return f64::NAN };
        let sum: f64 = predicted.iter().zip(&labels).map(|(a, b)| (a - b) * (a - b)).sum();
        if predicted.is_empty() { 0.0 } else { sum / predicted.len() as f64 }
    }

    /// Predictions and labels in sample order; `None` if one of them is not finite. An infinite column is constant too,
    /// so this is asked before anything else.
    fn columns(&self) -> Option<(Vec<f64>, Vec<f64>)> {
        if !self.pairs.iter().all(|(_, predicted, label)| predicted.is_finite() && label.is_finite()) {
            return None;
        }
        let mut pairs = self.pairs.clone();
        // Samples are unique in one evaluation; the bits only break ties of samples added twice.
        pairs.sort_by_key(|(sample, predicted, label)| (*sample, predicted.to_bits(), label.to_bits()));
        Some(pairs.iter().map(|(_, predicted, label)| (f64::from(*predicted), f64::from(*label))).unzip())
    }
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    // Compared as they are: the rounded mean of equal numbers may differ from them, and noise would correlate.
    let constant = |values: &[f64]| values.iter().all(|value| *value == values[0]);
    if constant(a) || constant(b) {
        return 0.0;
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut both, mut square_a, mut square_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        both += a * b;
        square_a += a * a;
        square_b += b * b;
    }
    if square_a == 0.0 || square_b == 0.0 {
        return 0.0;
    }
    // Rounding may leave the quotient a hair outside.
    (both / (square_a.sqrt() * square_b.sqrt())).clamp(-1.0, 1.0)
}

/// Ranks from 1, equal numbers sharing the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    // `==` rather than the total order joins 0.0 and −0.0 into one tie; they are neighbours in both.
    let mut before = 0;
    for tie in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let mean = before as f64 + (tie.len() as f64 + 1.0) / 2.0;
        tie.iter().for_each(|index| ranks[*index] = mean);
        before += tie.len();
    }
    ranks
}

/// A weighted mean of terms from many batches, such as a loss per token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OrderedSum {
    /// Index, sum, weight.
    terms: Vec<(u64, f64, f64)>,
}

impl OrderedSum {
    /// Adds a term: its place in the order (the batch index), a sum and the number of things summed.
    pub fn add(&mut self, index: u64, sum: f64, weight: f64) {
        self.terms.push((index, sum, weight));
    }

    /// Adds the terms of another rank.
    pub fn merge(&mut self, other: &OrderedSum) {
        self.terms.extend_from_slice(&other.terms);
    }

    /// The terms `(index, sum, weight)` in the order they were added, to be sent to other ranks.
    pub fn terms(&self) -> &[(u64, f64, f64)] {
        &self.terms
    }

    /// Sum of sums over sum of weights, added up in index order; 0 without weight.
    pub fn mean(&self) -> f64 {
        let mut terms = self.terms.clone();
        terms.sort_by_key(|(index, sum, weight)| (*index, sum.to_bits(), weight.to_bits()));
        let (sum, weight) = terms.iter().fold((0.0, 0.0), |(a, b), (_, sum, weight)| (a + sum, b + weight));
        if weight == 0.0 { 0.0 } else { sum / weight }
    }
}
