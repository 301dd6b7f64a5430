//! Matrices quantised to NF4, 4 bits a value, with scales that are quantised once more.
//!
//! Defines [`Nf4`], which the loader of a model's frozen weights calls; `decode` reads its blocks.

use super::{BlockFormat, SIGNED};

/// The 16 values: quantiles of the standard normal distribution, scaled to ±1, with an exact zero.
pub(super) const CODE: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Values of a block.
const BLOCK: usize = BlockFormat::NF4.elements();
/// Scales that share a scale of their own.
const GROUP: usize = 256;
/// The largest scale of a block of zeros is divided by this instead.
const SMALLEST: f32 = 1e-38;
/// Numbers of equal steps from -1 to 1 among which the value of a scale is looked up.
const STEPS: f32 = 65_535.0;

/// A matrix in NF4 with double quantisation, in the parts that bitsandbytes has of it.
///
/// Runs of 64 values are divided by the largest magnitude among them and rounded to the nearest of 16 values. These
/// magnitudes, less their mean, are divided by the largest magnitude of 256 of them and rounded to one of the 256
/// values of a dynamic map. [`Nf4::blocks`] has both levels multiplied out.
///
/// Numerics: single precision, in the order of bitsandbytes 0.50 on the CPU, except that the mean is rounded once, from
/// a sum in double precision, while PyTorch's depends on its vectors and threads. `codes` are the same in any case;
/// where that mean has other bits, some of `scales` and of `scale_codes` are the next ones.
///
/// Source: Dettmers et al., 2023; Dettmers et al., 2022 for the map.
#[derive(Debug, Clone, PartialEq)]
pub struct Nf4 {
    /// Two values of a byte, the first in its high half: numbers of the 16 values.
    pub codes: Vec<u8>,
    /// For each block, the number of its scale in the dynamic map.
    pub scale_codes: Vec<u8>,
    /// For each 256 blocks, the scale of the values of the map.
    pub scales: Vec<f32>,
    /// Added to each block's scale.
    pub offset: f32,
}

impl Nf4 {
    /// The values of a whole matrix, row by row; what follows the last run of 64 is left out. Memory: the result, and
    /// four bytes for each 64 values.
    pub fn quantise(values: &[f32]) -> Nf4 {
        let blocks = values.as_chunks::<BLOCK>().0;
        let magnitudes: Vec<f32> = blocks.iter().map(|block| magnitude(block)).collect();
        let bounds: [f32; 15] = std::array::from_fn(|i| (CODE[i] + CODE[i + 1]) / 2.0);
        let number = |value: f32| bounds.iter().map(|bound| u8::from(value > *bound)).sum::<u8>();
        let mut codes = Vec::with_capacity(blocks.len() * BLOCK / 2);
        for (block, magnitude) in blocks.iter().zip(&magnitudes) {
            let factor = 1.0 / magnitude.max(SMALLEST);
            let pairs = block.as_chunks::<2>().0.iter();
            codes.extend(pairs.map(|pair| number(pair[0] * factor) << 4 | number(pair[1] * factor)));
        }
        let sum: f64 = magnitudes.iter().map(|value| f64::from(*value)).sum();
        let offset = (sum / magnitudes.len().max(1) as f64) as f32;
        let centred: Vec<f32> = magnitudes.iter().map(|value| value - offset).collect();
        let scales: Vec<f32> = centred.chunks(GROUP).map(magnitude).collect();
        let of_group =
            |(group, scale): (&[f32], &f32)| group.iter().map(|value| nearest(*value, *scale)).collect::<Vec<u8>>();
        let scale_codes = centred.chunks(GROUP).zip(&scales).flat_map(of_group).collect();
        Nf4 { codes, scale_codes, scales, offset }
    }

    /// The bytes of a matrix of [`BlockFormat::NF4`].
    pub fn blocks(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.scale_codes.len() * BlockFormat::NF4.bytes());
        let groups = self.scale_codes.chunks(GROUP).zip(&self.scales);
        let scales = groups.flat_map(|(codes, scale)| {
            codes.iter().map(|code| SIGNED.values[usize::from(*code)] * scale + self.offset).collect::<Vec<f32>>()
        });
        for (scale, codes) in scales.zip(self.codes.chunks(BLOCK / 2)) {
            bytes.extend(scale.to_le_bytes());
            bytes.extend_from_slice(codes);
        }
        bytes
    }
}

/// The largest magnitude; NaN is left out.
fn magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// The number in [`SIGNED`] of the value nearest to `value / scale`, which is first rounded to one of equal steps.
fn nearest(value: f32, scale: f32) -> u8 {
    if scale == 0.0 {
        return 0;
    }
    let step = ((value / scale + 1.0) * (STEPS / 2.0) + 0.5).floor().clamp(0.0, STEPS);
    let place = 2.0 * f64::from(step) / f64::from(STEPS) - 1.0;
    let is_below = |pair: &[f32]| (f64::from(pair[0]) + f64::from(pair[1])) / 2.0 < place;
    let map = &SIGNED.values;
    // The halves between neighbours ascend.
    let (mut first, mut end) = (0usize, map.len() - 1);
    while first < end {
        let half = usize::midpoint(first, end);
        match is_below(&map[half..half + 2]) {
            true => first = half + 1,
            false => end = half,
        }
    }
    first as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantised::dequantise;

    #[test]
    fn every_value_of_the_map_is_nearest_to_itself() {
        // Steps of the lookup are wider than the values next to zero.
        for (number, value) in SIGNED.values.iter().enumerate().filter(|(_, value)| value.abs() > 1e-4) {
            assert_eq!(usize::from(nearest(*value, 1.0)), number);
        }
    }

    #[test]
    fn the_values_of_the_code_are_kept_and_zeros_are_zeros() {
        let values: Vec<f32> = [CODE; 8].concat().iter().map(|value| value * 0.75).collect();
        let quantised = Nf4::quantise(&values);
        assert_eq!((quantised.offset, quantised.scales.as_slice()), (0.75, &[0.0f32][..]));
        assert_eq!(quantised.codes[..8], [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        let mut out = vec![0.0; values.len()];
        dequantise(BlockFormat::NF4, &quantised.blocks(), &mut out);
        assert_eq!(out, values);
        let zeros = Nf4::quantise(&[0.0; 128]);
        let mut out = [1.0; 128];
        dequantise(BlockFormat::NF4, &zeros.blocks(), &mut out);
        assert_eq!(out, [0.0; 128]);
    }
}
