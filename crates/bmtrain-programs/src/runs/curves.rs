//! The scalars of a run in a bounded number of buckets.
//!
//! Defines [`Curves`] and [`Stream`]. Records of one context, such as training steps, share buckets. A bucket has the
//! minimum, the maximum and the last value of each scalar, so that no spike is lost. When [`MAX_BUCKETS`] are full,
//! neighbours are merged: what is kept does not depend on the length of a run, nor on how often it was looked at.

use model_center_recipe::run::tensorboard::Scalar;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most buckets of a stream; a screen has no more columns for a chart.
pub const MAX_BUCKETS: usize = 1024;

/// The streams of a run by their context: `train`, `validation`, `test`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// By context.
    pub streams: BTreeMap<String, Stream>,
}

/// The scalars of records of one context. All lists have a value for each bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Records of a full bucket, a power of two.
    pub stride: u64,
    /// Records of the last bucket.
    pub last_count: u64,
    /// The step of each bucket's last record.
    pub step: Vec<u64>,
    /// Tokens that were trained on by then.
    pub tokens: Vec<u64>,
    /// Seconds of training by then, all processes of the run together, to hundredths.
    pub seconds: Vec<f64>,
    /// By tag.
    pub series: BTreeMap<String, Series>,
}

/// One scalar. Values that are not finite, and absent ones, are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The smallest of each bucket.
    pub min: Vec<Option<f32>>,
    /// The largest.
    pub max: Vec<Option<f32>>,
    /// The last.
    pub last: Vec<Option<f32>>,
}

impl Curves {
    /// Adds a record of a context.
    pub fn push(&mut self, context: &str, (step, tokens, seconds): (u64, u64, f64), scalars: &[Scalar]) {
        if !self.streams.contains_key(context) {
            self.streams.insert(context.to_owned(), Stream { stride: 1, ..Stream::default() });
        }
        if let Some(stream) = self.streams.get_mut(context) {
            stream.push(step, tokens, seconds, scalars);
        }
    }

    /// Curves in at most this number of buckets, at least 2.
    #[must_use]
    pub fn at_most(mut self, buckets: usize) -> Curves {
        for stream in self.streams.values_mut() {
            while stream.step.len() > buckets.max(2) {
                stream.merge();
            }
        }
        self
    }

    /// A series with its stream.
    pub fn series(&self, tag: &str) -> Option<(&Stream, &Series)> {
        self.streams.values().find_map(|stream| Some((stream, stream.series.get(tag)?)))
    }
}

impl Stream {
    fn push(&mut self, step: u64, tokens: u64, seconds: f64, scalars: &[Scalar]) {
        let is_new = self.step.is_empty() || self.last_count >= self.stride;
        if is_new && self.step.len() >= MAX_BUCKETS {
            self.merge();
        }
        let is_new = self.step.is_empty() || self.last_count >= self.stride;
        let seconds = (seconds * 100.0).round() / 100.0;
        if is_new {
            self.step.push(step);
            self.tokens.push(tokens);
            self.seconds.push(seconds);
            self.last_count = 0;
        }
        self.last_count += 1;
        for (list, value) in [(&mut self.step, step), (&mut self.tokens, tokens)] {
            list.last_mut().into_iter().for_each(|last| *last = value);
        }
        self.seconds.last_mut().into_iter().for_each(|last| *last = seconds);
        let buckets = self.step.len();
        for scalar in scalars {
            if !self.series.contains_key(&scalar.tag) {
                self.series.insert(scalar.tag.clone(), Series::default());
            }
            if let Some(series) = self.series.get_mut(&scalar.tag) {
                series.push(buckets, scalar.value as f32);
            }
        }
        self.series.values_mut().for_each(|series| series.resize(buckets));
    }

    /// Two neighbours become one.
    fn merge(&mut self) {
        fn lasts<T: Copy>(list: &mut Vec<T>) {
            *list = list.chunks(2).filter_map(|pair| pair.last().copied()).collect();
        }
        // A bucket without a neighbour stays; where buckets are full, there is none: MAX_BUCKETS is even.
        lasts(&mut self.step);
        lasts(&mut self.tokens);
        lasts(&mut self.seconds);
        for series in self.series.values_mut() {
            let fold = |list: &[Option<f32>], choose: fn(f32, f32) -> f32| -> Vec<Option<f32>> {
                list.chunks(2).map(|pair| pair.iter().flatten().copied().reduce(choose)).collect()
            };
            series.min = fold(&series.min, f32::min);
            series.max = fold(&series.max, f32::max);
            series.last = fold(&series.last, |_, later| later);
        }
        self.stride *= 2;
        self.last_count = self.stride;
    }
}

impl Series {
    /// Adds a value to the last of `buckets`.
    fn push(&mut self, buckets: usize, value: f32) {
        self.resize(buckets);
        if !value.is_finite() {
            self.last.last_mut().into_iter().for_each(|last| *last = None);
            return;
        }
        let merge = |list: &mut Vec<Option<f32>>, choose: fn(f32, f32) -> f32| {
            list.last_mut().into_iter().for_each(|last| *last = Some(last.map_or(value, |last| choose(last, value))));
        };
        merge(&mut self.min, f32::min);
        merge(&mut self.max, f32::max);
        merge(&mut self.last, |_, later| later);
    }

    fn resize(&mut self, buckets: usize) {
        [&mut self.min, &mut self.max, &mut self.last].into_iter().for_each(|list| list.resize(buckets, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(records: u64) -> Stream {
        let mut curves = Curves::default();
        for step in 1..=records {
            let value = if step == 777 { 1e9 } else { step as f64 };
            let scalars = [Scalar { tag: "train/loss".into(), value }];
            curves.push("train", (step, 10 * step, step as f64), &scalars);
        }
        curves.streams.remove("train").unwrap()
    }

    #[test]
    fn buckets_are_bounded_and_lose_no_spike() {
        for records in [1, 1023, 1024, 1025, 3000, 100_000] {
            let stream = filled(records);
            let buckets = stream.step.len();
            assert!(buckets <= MAX_BUCKETS && buckets as u64 >= records.min(MAX_BUCKETS as u64 / 2), "{buckets}");
            assert_eq!(stream.step.last(), Some(&records));
            assert_eq!(stream.stride * (buckets as u64 - 1) + stream.last_count, records);
            let series = &stream.series["train/loss"];
            let largest = series.max.iter().flatten().copied().fold(0.0, f32::max);
            assert_eq!(largest, if records >= 777 { 1e9 } else { records as f32 });
            assert_eq!(series.min[0], Some(1.0));
            assert!([&series.min, &series.max, &series.last].iter().all(|list| list.len() == buckets));
        }
    }

    #[test]
    fn values_that_are_not_finite_are_gaps() {
        let mut curves = Curves::default();
        let scalar = |value| [Scalar { tag: "train/loss".into(), value }];
        curves.push("train", (1, 1, 1.0), &scalar(2.0));
        curves.push("train", (2, 2, 2.0), &scalar(f64::NAN));
        curves.push("train", (3, 3, 3.0), &[]);
        let (_, series) = curves.series("train/loss").unwrap();
        assert_eq!(series.last, [Some(2.0), None, None]);
        assert_eq!(series.max, [Some(2.0), None, None]);
    }
}
