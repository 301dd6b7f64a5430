//! The 256 values of a dynamic map (dynamic tree quantisation), which stand for numbers from -1 or 0 to 1.
//!
//! Defines [`DynamicMap`], whose codes are the moments of [`Adam8bit`](crate::kernel::Adam8bit) and the scales of
//! [`Nf4`](super::Nf4).

use std::sync::LazyLock;

/// Values spaced within each of seven powers of ten, twice as many in each as in the one below; 0 and 1 beside them.
///
/// Numerics: the bits of bitsandbytes' `create_dynamic_map`.
///
/// Source: Dettmers et al., 2022.
#[derive(Debug)]
pub(crate) struct DynamicMap {
    /// In ascending order.
    pub(crate) values: [f32; 256],
    /// The middle of each two neighbours.
    bounds: [f32; 255],
}

/// Map of numbers from -1 to 1: 1, 2, 4 up to 64 values of either sign in the powers of ten.
pub(crate) static SIGNED: LazyLock<DynamicMap> = LazyLock::new(|| {
    let mut values = [0.0; 256];
    for (i, magnitude) in magnitudes(1).into_iter().enumerate() {
        (values[128 + i], values[126 - i]) = (magnitude, -magnitude);
    }
    DynamicMap::of(values)
});

/// Map of numbers from 0 to 1: 2, 4, 8 up to 128 values in the powers of ten.
pub(crate) static UNSIGNED: LazyLock<DynamicMap> = LazyLock::new(|| {
    let mut values = [0.0; 256];
    for (value, magnitude) in values[1..].iter_mut().zip(magnitudes(2)) {
        *value = magnitude;
    }
    DynamicMap::of(values)
});

/// The values between 0 and 1: of each power of ten the halves between neighbours of equally distant values from 0.1 to
/// 1, `first` of them in the lowest power.
fn magnitudes(first: usize) -> Vec<f32> {
    let (low, high) = (0.1f32, 1.0f32);
    let mut magnitudes = Vec::with_capacity(127 * first);
    for exponent in 0..7 {
        let (count, power) = (first << exponent, 10f64.powi(exponent - 6) as f32);
        let step = f64::from((high - low) / count as f32);
        // Rounded once, from the nearer end.
        let at = |i: usize| match i < count.div_ceil(2) {
            true => (f64::from(low) + step * i as f64) as f32,
            false => (f64::from(high) - step * (count - i) as f64) as f32,
        };
        magnitudes.extend((0..count).map(|i| power * f32::midpoint(at(i), at(i + 1))));
    }
    magnitudes
}

impl DynamicMap {
    /// With 1 as the last value.
    fn of(mut values: [f32; 256]) -> Self {
        values[255] = 1.0;
        DynamicMap { values, bounds: std::array::from_fn(|code| (values[code] + values[code + 1]) * 0.5) }
    }

    /// The code of the value nearest to a number from -1 to 1, of two the lower one.
    #[inline]
    pub(crate) fn nearest(&self, value: f32) -> u8 {
        // As a search without branches: the number of bounds below the value.
        let mut below = 0usize;
        for step in [128usize, 64, 32, 16, 8, 4, 2, 1] {
            let at = below + step - 1;
            below += if at < 255 && self.bounds[at] < value { step } else { 0 };
        }
        below as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_ascend_and_are_nearest_to_themselves() {
        for map in [&SIGNED, &UNSIGNED] {
            assert!(map.values.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(map.values.iter().enumerate().all(|(code, value)| map.nearest(*value) == code as u8));
            assert!((map.nearest(2.0), map.nearest(-2.0)) == (255, 0));
        }
    }

    #[test]
    fn values_have_the_bits_of_bitsandbytes() {
        let hash = |map: &DynamicMap| {
            let bits = map.values.iter().map(|value| u64::from(value.to_bits()));
            bits.fold(0u64, |hash, bits| (hash ^ bits).wrapping_mul(0x0100_0000_01b3))
        };
        // Of create_dynamic_map(True, 7, 8) and create_dynamic_map(False, 7, 8) of bitsandbytes 0.50.
        assert_eq!([&SIGNED, &UNSIGNED].map(|map| hash(map)), [0x5958_9b66_d764_46d0, 0xc193_ad35_d4e4_9f1a]);
    }
}
