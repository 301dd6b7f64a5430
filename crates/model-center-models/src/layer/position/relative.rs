//! Learned biases for ranges of distances (Raffel et al., 2020): one number for each range and head, shared by all
//! blocks.

use bmtrain_core::{Ctx, Segment, Tensor, Var, ops};
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::param::Init;
use bmtrain_dist::{Builder, Result};
use std::cell::RefCell;

/// Options of a [`RelativeBias`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RelativeConfig {
    /// N, heads.
    pub heads: usize,
    /// Ranges of distances.
    pub buckets: usize,
    /// Distances from here on share the last range.
    pub max_distance: usize,
    /// Whether keys after the query have ranges of their own, half of all; else they share the range of distance 0.
    pub bidirectional: bool,
    /// Initial values.
    pub init: Init,
}

impl RelativeConfig {
    /// Biases in both directions with these numbers of ranges and of the distances that have one, and this standard
    /// deviation of the initial values.
    pub fn new(heads: usize, [buckets, max_distance]: [usize; 2], init_std: f32) -> Self {
        RelativeConfig { heads, buckets, max_distance, bidirectional: true, init: Init::normal(init_std) }
    }
}

/// The range of a key's distance: `key - query`. Half of the ranges of a direction are single distances, the others
/// grow by equal ratios up to `max_distance`.
///
/// Numerics: the ratio's logarithm in 32-bit floats, as in the implementations the weights come from.
/// Source: Raffel et al., 2020, section 2.1, and the code of T5.
pub fn bucket(distance: i64, config: &RelativeConfig) -> i64 {
    let (mut first, mut buckets, mut back) = (0, config.buckets as i64, (-distance).max(0));
    if config.bidirectional {
        buckets /= 2;
        back = distance.abs();
        first = if distance > 0 { buckets } else { 0 };
    }
    let exact = buckets / 2;
    if back < exact {
        return first + back;
    }
    let ratio = (back as f32 / exact as f32).ln() / (config.max_distance as f64 / exact as f64).ln() as f32;
    first + (exact + (ratio * (buckets - exact) as f32) as i64).min(buckets - 1)
}

/// A table `[buckets, N]` and the buckets of the last lengths. A tensor-parallel rank has the columns of its heads.
#[derive(Debug)]
pub struct RelativeBias {
    config: RelativeConfig,
    table: Embedding,
    /// i64 `[L, S]`.
    numbers: RefCell<Option<Tensor>>,
}

impl RelativeBias {
    /// Declare `relative_attention_bias` under the builder's name.
    pub fn new(builder: &Builder, config: RelativeConfig) -> Result<Self> {
        let options =
            EmbeddingOptions { entries: config.buckets, size: config.heads, init: config.init, padding_index: None };
        let table = Embedding::of_heads(&builder.at("relative_attention_bias"), options)?;
        Ok(RelativeBias { config, table, numbers: RefCell::default() })
    }

    /// N, of this tensor-parallel rank.
    pub fn heads(&self) -> usize {
        self.table.weight().local_shape().last()
    }

    /// `[1, N, L, S]`, for queries at the end of the keys.
    pub fn forward(&self, queries: usize, keys: usize, cx: &Ctx) -> Result<Var> {
        let numbers = self.numbers(queries, keys, cx)?; // [L, S]
        let by_key = self.table.forward(&numbers, cx)?; // [L, S, N]
        let by_head = ops::permute(cx, &by_key, &[2, 0, 1])?; // [N, L, S]
        let heads = by_head.shape().dims()[0];
        Ok(by_head.reshape([1, heads, queries, keys])?) // [1, N, L, S]
    }

    fn numbers(&self, queries: usize, keys: usize, cx: &Ctx) -> Result<Tensor> {
        let mut kept = self.numbers.borrow_mut();
        if let Some(numbers) = kept.as_ref().filter(|numbers| numbers.shape().dims() == [queries, keys]) {
            return Ok(numbers.clone());
        }
        // From the distance of the first key to the last query up to the distance of the last key to the first query.
        let distances = 1 - keys as i64..queries as i64;
        let by_distance: Vec<i64> = distances.map(|distance| bucket(distance, &self.config)).collect();
        // A query sees its keys at distances that rise by one; the next query's begin one lower.
        let values: Vec<i64> =
            (0..queries).rev().flat_map(|first| &by_distance[first..first + keys]).copied().collect();
        let numbers = Tensor::from_slice_in(cx.device(), [queries, keys], &values, Segment::Data)?;
        *kept = Some(numbers.clone());
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T5: RelativeConfig =
        RelativeConfig { heads: 1, buckets: 32, max_distance: 128, bidirectional: true, init: Init::ZEROS };

    #[test]
    fn near_keys_have_a_bucket_each_and_far_ones_share() {
        let both: Vec<i64> = [0, -1, -7, -8, -11, -12, -127, -128, -5000].map(|d| bucket(d, &T5)).into();
        assert_eq!(both, [0, 1, 7, 8, 8, 9, 15, 15, 15]);
        let ahead: Vec<i64> = [1, 7, 8, 16, 32, 64, 128].map(|d| bucket(d, &T5)).into();
        assert_eq!(ahead, [17, 23, 24, 26, 28, 30, 31]);
        let back = RelativeConfig { bidirectional: false, ..T5 };
        let back: Vec<i64> = [5, 0, -1, -15, -16, -19, -500].map(|d| bucket(d, &back)).into();
        assert_eq!(back, [0, 0, 1, 15, 16, 17, 31]);
    }
}
