//! Retrieval: the rank of each anchor's positive among the texts of an evaluation.
//!
//! Defines [`Retrieval`], which evaluations of embeddings fill.

use super::Metric;

/// Embeddings of samples: of an anchor, a text that belongs to it, and perhaps others that do not.
#[derive(Debug, Clone, PartialEq)]
pub struct Retrieval {
    texts: usize,
    /// By sample its embeddings one after the other, each of length one; empty where they are not known yet.
    samples: Vec<Vec<f32>>,
}

/// Means over all anchors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetrievalScores {
    /// The mean cross-entropy of finding the positive.
    pub loss: f64,
    /// The mean reciprocal rank of the positives.
    pub reciprocal_rank: f64,
    /// The share of anchors whose positive is the nearest text.
    pub recall_at_1: f64,
    /// The share of anchors whose positive is among the nearest ten.
    pub recall_at_10: f64,
}

impl RetrievalScores {
    /// The value of a metric; `None` of one of other samples.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::MeanReciprocalRank => Some(self.reciprocal_rank),
            Metric::RecallAt1 => Some(self.recall_at_1),
            Metric::RecallAt10 => Some(self.recall_at_10),
            _ => None,
        }
    }
}

impl Retrieval {
    /// Ranks of this number of samples of `texts` texts each.
    pub fn new(samples: usize, texts: usize) -> Self {
        Retrieval { texts, samples: vec![Vec::new(); samples] }
    }

    /// Adds the embeddings of a sample, one after the other. A sample beyond the number is left out.
    pub fn add(&mut self, sample: u32, embeddings: &[f32]) {
        let Some(known) = self.samples.get_mut(sample as usize) else { return };
        known.clear();
        for embedding in embeddings.chunks((embeddings.len() / self.texts.max(1)).max(1)) {
            let length = embedding.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
            known.extend(embedding.iter().map(|x| (f64::from(*x) / length) as f32));
        }
    }

    /// The scores over all samples; cosines are divided by the temperature. A text that is as near as the positive
    /// counts as nearer, so that embeddings that are all alike find nothing. NaN without samples.
    ///
    /// Numerics: cosines in f32, sums in f64 in the order of the samples.
    pub fn scores(&self, temperature: f32) -> RetrievalScores {
        let dim = self.samples.first().map_or(0, Vec::len) / self.texts.max(1);
        let text = |sample: usize, text: usize| {
            self.samples.get(sample).and_then(|known| known.get(text * dim..(text + 1) * dim)).unwrap_or_default()
        };
        let count = self.samples.len();
        let candidates: Vec<&[f32]> =
            (1..self.texts).flat_map(|other| (0..count).map(move |sample| text(sample, other))).collect();
        let mut sums = [0.0f64; 4];
        for sample in 0..count {
            let anchor = text(sample, 0);
            let logit = |other: &&[f32]| f64::from(product(anchor, other)) / f64::from(temperature);
            let logits: Vec<f64> = candidates.iter().map(logit).collect();
            let own = logits.get(sample).copied().unwrap_or(f64::NAN);
            let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
            let others = logits.iter().enumerate().filter(|(at, _)| *at != sample);
            // A logit that is not a number is never below another.
            let rank = 1 + others.filter(|(_, logit)| **logit >= own || logit.is_nan() || own.is_nan()).count();
            let of_sample = [most + sum.ln() - own, 1.0 / rank as f64, within(rank, 1), within(rank, 10)];
            sums.iter_mut().zip(of_sample).for_each(|(sum, value)| *sum += value);
        }
        let [loss, reciprocal_rank, recall_at_1, recall_at_10] = sums.map(|sum| sum / count as f64);
        RetrievalScores { loss, reciprocal_rank, recall_at_1, recall_at_10 }
    }
}

fn within(rank: usize, most: usize) -> f64 {
    f64::from(u8::from(rank <= most))
}

/// The inner product of two vectors, in eight sums, which become vector instructions.
fn product(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0f32; 8];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positives_are_ranked_among_the_texts_of_all_samples() {
        let mut retrieval = Retrieval::new(3, 2);
        // Lengths do not matter; the third anchor is nearer to the first positive.
        retrieval.add(2, &[0.9, 0.1, 0.0, 2.0]);
        retrieval.add(0, &[2.0, 0.0, 3.0, 0.0]);
        retrieval.add(1, &[-1.0, 0.0, -5.0, 0.1]);
        let scores = retrieval.scores(0.05);
        assert_eq!((scores.recall_at_1, scores.reciprocal_rank), (2.0 / 3.0, (1.0 + 1.0 + 0.5) / 3.0));
        assert_eq!(scores.recall_at_10, 1.0);
        // By hand: the cosines of the third anchor with the positives, in their order, over the temperature.
        let length = 0.82f64.sqrt();
        let third = [0.9, -0.9 * 5.0 / 25.01f64.sqrt() + 0.1 * 0.1 / 25.01f64.sqrt(), 0.1].map(|x| x / length / 0.05);
        let expected = third.iter().map(|x| x.exp()).sum::<f64>().ln() - third[2];
        assert!((scores.loss - expected / 3.0).abs() < 1e-5, "{} {}", scores.loss, expected / 3.0);
    }

    #[test]
    fn embeddings_that_are_all_alike_find_nothing() {
        let mut alike = Retrieval::new(6, 3);
        (0..6).for_each(|sample| alike.add(sample, &[1.0; 6]));
        let scores = alike.scores(1.0);
        assert_eq!((scores.recall_at_1, scores.recall_at_10, scores.reciprocal_rank), (0.0, 0.0, 1.0 / 12.0));
        assert!((scores.loss - 12f64.ln()).abs() < 1e-6);
        // A negative of another sample is a candidate as well, and what is not a number is never found.
        let mut broken = Retrieval::new(2, 2);
        broken.add(0, &[f32::NAN, 1.0, 1.0, 0.0]);
        broken.add(1, &[0.0, 1.0, 0.0, 1.0]);
        assert_eq!(broken.scores(1.0).recall_at_1, 0.5);
    }
}
