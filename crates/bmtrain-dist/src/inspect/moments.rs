//! Count, mean, deviation, smallest and largest of values that come in parts: [`Moments`].

use bmtrain_core::comm::{Communicator, tensors};
use bmtrain_core::{DType, Device, Element, Float, Result, Segment, Tensor};
use half::{bf16, f16};

/// Values that are on the host at once.
const CHUNK: usize = 1 << 20;

/// Statistics of a set of values, from which the statistics of the union of several sets follow.
///
/// Numerics: all in f64, of values that are exact. A value that is not a number makes everything so, but the count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// Number of values.
    pub count: u64,
    /// Smallest; infinite without values.
    pub min: f64,
    /// Largest; minus infinite without values.
    pub max: f64,
    /// Mean; 0 without values.
    pub mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Moments::NONE
    }
}

impl Moments {
    /// Moments of no values.
    pub const NONE: Moments = Moments { count: 0, min: f64::INFINITY, max: f64::NEG_INFINITY, mean: 0.0, squares: 0.0 };

    /// Its representation as integers.
    pub(super) const WORDS: usize = 5;

    /// Moments of some values.
    pub fn of(values: &[f32]) -> Self {
        if values.is_empty() {
            return Moments::NONE;
        }
        let wide = || values.iter().map(|value| f64::from(*value));
        let mean = wide().sum::<f64>() / values.len() as f64;
        let squares = wide().map(|value| (value - mean).powi(2)).sum();
        let min = wide().fold(f64::INFINITY, |a, b| pick(a, b, a < b));
        let max = wide().fold(f64::NEG_INFINITY, |a, b| pick(a, b, a > b));
        Moments { count: values.len() as u64, min, max, mean, squares }
    }

    /// Moments of the values of a floating-point tensor. Waits for the compute lane.
    pub fn of_tensor(tensor: &Tensor) -> Result<Self> {
        match tensor.dtype() {
            DType::F16 => Moments::of_typed::<f16>(tensor),
            DType::BF16 => Moments::of_typed::<bf16>(tensor),
            _ => Moments::of_typed::<f32>(tensor),
        }
    }

    fn of_typed<T: Element + Float>(tensor: &Tensor) -> Result<Self> {
        let (elements, mut all) = (tensor.elements(), Moments::NONE);
        let flat = tensor.reshape([elements])?;
        for start in (0..elements).step_by(CHUNK) {
            let values = flat.slice(start..(start + CHUNK).min(elements))?.to_vec::<T>()?;
            let values: Vec<f32> = values.into_iter().map(T::to_f32).collect();
            all = all.merge(Moments::of(&values));
        }
        Ok(all)
    }

    /// Moments of both sets together. Source: Chan, Golub and LeVeque (1979).
    pub fn merge(self, other: Moments) -> Moments {
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { other } else { self };
        }
        let count = self.count + other.count;
        let (apart, share) = (other.mean - self.mean, other.count as f64 / count as f64);
        Moments {
            count,
            min: pick(self.min, other.min, self.min < other.min),
            max: pick(self.max, other.max, self.max > other.max),
            mean: self.mean + apart * share,
            squares: self.squares + other.squares + apart * apart * self.count as f64 * share,
        }
    }

    /// Moments of the values divided by a number above 0.
    pub fn divided_by(self, divisor: f64) -> Moments {
        if self.count == 0 {
            return self;
        }
        let Moments { count, min, max, mean, squares } = self;
        let squares = squares / (divisor * divisor);
        Moments { count, min: min / divisor, max: max / divisor, mean: mean / divisor, squares }
    }

    /// Standard deviation of the values as they are: the sum of squared distances over their number, not over one less.
    pub fn deviation(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.squares / self.count as f64).sqrt() }
    }

    pub(super) fn words(&self) -> [i64; Self::WORDS] {
        let bits = |value: f64| value.to_bits() as i64;
        [self.count as i64, bits(self.min), bits(self.max), bits(self.mean), bits(self.squares)]
    }

    pub(super) fn of_words(words: &[i64]) -> Moments {
        let [count, min, max, mean, squares] = words else { return Moments::NONE };
        let value = |bits: &i64| f64::from_bits(*bits as u64);
        Moments { count: *count as u64, min: value(min), max: value(max), mean: value(mean), squares: value(squares) }
    }

    /// Each of several, over the values of all ranks: merged in the order of the ranks, and so the same on all of them.
    /// All ranks give equally many.
    pub(super) fn over_ranks(ranks: &dyn Communicator, device: &Device, own: &[Moments]) -> Result<Vec<Moments>> {
        let words: Vec<i64> = own.iter().flat_map(Moments::words).collect();
        let mut all = vec![Moments::NONE; own.len()];
        for of_rank in gather_words(ranks, device, &words)? {
            for (all, words) in all.iter_mut().zip(of_rank.chunks_exact(Self::WORDS)) {
                *all = all.merge(Moments::of_words(words));
            }
        }
        Ok(all)
    }
}

/// The one that is chosen, or the one that is not a number.
fn pick(a: f64, b: f64, first: bool) -> f64 {
    if a.is_nan() || (first && !b.is_nan()) { a } else { b }
}

/// Some integers of every rank, in the order of the ranks; all give equally many.
pub(super) fn gather_words(ranks: &dyn Communicator, device: &Device, own: &[i64]) -> Result<Vec<Vec<i64>>> {
    if ranks.size() == 1 || own.is_empty() {
        return Ok(vec![own.to_vec(); ranks.size()]);
    }
    let send = Tensor::from_slice_in(device, [own.len()], own, Segment::Workspace)?;
    let all = tensors::all_gather(ranks, &send)?.to_vec::<i64>()?;
    Ok(all.chunks_exact(own.len()).map(<[i64]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_parts_are_those_of_the_whole() {
        let values: Vec<f32> = (0..1000).map(|i| 1e4 + (i as f32 * 0.7).sin()).collect();
        let whole = Moments::of(&values);
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / 1000.0;
        let deviation = (values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / 1000.0).sqrt();
        assert!((whole.mean - mean).abs() < 1e-9 && (whole.deviation() - deviation).abs() < 1e-9);
        for cuts in [[0, 0], [1, 999], [333, 334], [500, 1000]] {
            let parts = [&values[..cuts[0]], &values[cuts[0]..cuts[1]], &values[cuts[1]..]];
            let merged = parts.into_iter().map(Moments::of).fold(Moments::NONE, Moments::merge);
            assert_eq!((merged.count, merged.min, merged.max), (whole.count, whole.min, whole.max));
            assert!((merged.mean - whole.mean).abs() < 1e-9, "{cuts:?}");
            assert!((merged.deviation() - whole.deviation()).abs() < 1e-9, "{cuts:?}");
            assert_eq!(Moments::of_words(&merged.words()), merged);
        }
        let half = whole.divided_by(2.0);
        assert!((half.mean - mean / 2.0).abs() < 1e-9 && (half.deviation() - deviation / 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_value_that_is_no_number_is_not_lost() {
        for values in [[f32::NAN, 1.0, 2.0], [1.0, f32::NAN, 2.0], [1.0, 2.0, f32::NAN]] {
            let moments = Moments::of(&values);
            let of_parts = Moments::of(&values[..1]).merge(Moments::of(&values[1..]));
            for moments in [moments, of_parts] {
                let all = [moments.min, moments.max, moments.mean, moments.deviation()];
                assert!(all.into_iter().all(f64::is_nan), "{moments:?}");
            }
        }
    }
}
