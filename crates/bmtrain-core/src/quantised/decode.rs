//! Blocks as single precision.
//!
//! Defines [`dequantise`]. Each formula is evaluated in single precision with exactly one rounding for each product and
//! each sum, in the order written here, so that the bits equal the reference package's on every instruction set.

use super::nf4::CODE;
use crate::dtype::BlockFormat;
use crate::simd::{f16_to_f32, vectorised};

vectorised! {
    /// Blocks of `format` as f32. `raw` and `out` hold the same number of blocks; what is beyond the shorter is left
    /// alone.
    pub fn dequantise<I>(format: BlockFormat, raw: &[u8], out: &mut [f32]) {
        match format {
            BlockFormat::Q4_0 => blocks(raw, out, q4_0),
            BlockFormat::Q4_1 => blocks(raw, out, q4_1),
            BlockFormat::Q5_0 => blocks(raw, out, q5_0),
            BlockFormat::Q5_1 => blocks(raw, out, q5_1),
            BlockFormat::Q8_0 => blocks(raw, out, q8_0),
            BlockFormat::Q4K => blocks(raw, out, q4_k),
            BlockFormat::Q5K => blocks(raw, out, q5_k),
            BlockFormat::Q6K => blocks(raw, out, q6_k),
            BlockFormat::NF4 => blocks(raw, out, nf4),
        }
    }
}

#[inline(always)]
fn blocks<const BYTES: usize, const ELEMENTS: usize>(
    raw: &[u8],
    out: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    for (raw, out) in raw.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<ELEMENTS>().0) {
        one(raw, out);
    }
}

/// A half-precision number, exactly.
#[inline(always)]
fn half_at(raw: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([raw[at], raw[at + 1]]))
}

#[inline(always)]
fn q8_0(raw: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half_at(raw, 0);
    for (value, byte) in out.iter_mut().zip(&raw[2..]) {
        *value = scale * f32::from(byte.cast_signed());
    }
}

/// The elements of 16 bytes, 32 of 4 bits: the low halves come first, then the high ones.
#[inline(always)]
fn nibbles(raw: &[u8], out: &mut [f32; 32], one: impl Fn(u8, usize) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (i, ((low, high), byte)) in low.iter_mut().zip(high).zip(&raw[..16]).enumerate() {
        *low = one(byte & 15, i);
        *high = one(byte >> 4, i + 16);
    }
}

/// The bit above the nibble of element `i` of 32, from a 32-bit word with one bit per element.
#[inline(always)]
fn fifth_bit(word: u32, i: usize) -> u8 {
    (((word >> i) & 1) << 4) as u8
}

#[inline(always)]
fn word_at(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

#[inline(always)]
fn q4_0(raw: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(raw, 0);
    nibbles(&raw[2..], out, |bits, _| scale * (f32::from(bits) - 8.0));
}

#[inline(always)]
fn q4_1(raw: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, smallest) = (half_at(raw, 0), half_at(raw, 2));
    nibbles(&raw[4..], out, |bits, _| scale * f32::from(bits) + smallest);
}

#[inline(always)]
fn q5_0(raw: &[u8; 22], out: &mut [f32; 32]) {
    let (scale, fifths) = (half_at(raw, 0), word_at(raw, 2));
    nibbles(&raw[6..], out, |bits, i| scale * (f32::from(bits | fifth_bit(fifths, i)) - 16.0));
}

#[inline(always)]
fn q5_1(raw: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, smallest, fifths) = (half_at(raw, 0), half_at(raw, 2), word_at(raw, 4));
    nibbles(&raw[8..], out, |bits, i| scale * f32::from(bits | fifth_bit(fifths, i)) + smallest);
}

/// Step between two values and offset taken off them, for part 0 to 7 of a block of Q4_K or Q5_K, 32 elements each. The
/// first bytes of both are a half-precision scale of the scales, one of the smallest values, and 12 bytes of 8 scales
/// and 8 smallest values of 6 bits each.
#[inline(always)]
fn step_and_offset(raw: &[u8], part: usize) -> (f32, f32) {
    let (scale, smallest, packed) = (half_at(raw, 0), half_at(raw, 2), &raw[4..16]);
    // The first four pairs are in the low six bits of bytes 0–7; the last four are in the halves of bytes 8–11, with
    // their upper two bits in bytes 0–7.
    let (of_scale, of_smallest) = match part.checked_sub(4) {
        None => (packed[part] & 63, packed[part + 4] & 63),
        Some(late) => {
            (packed[late + 8] & 15 | packed[late] >> 2 & 48, packed[late + 8] >> 4 | packed[late + 4] >> 2 & 48)
        }
    };
    (scale * f32::from(of_scale), smallest * f32::from(of_smallest))
}

/// After the scales, four groups of 32 bytes, whose low halves are 32 elements and whose high halves are the next 32.
#[inline(always)]
fn q4_k(raw: &[u8; 144], out: &mut [f32; 256]) {
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, offset) = step_and_offset(raw, part);
        let bytes = &raw[16 + part / 2 * 32..][..32];
        for (value, byte) in out.iter_mut().zip(bytes) {
            *value = step * f32::from(byte >> (4 * (part % 2)) & 15) - offset;
        }
    }
}

/// After the scales, 32 bytes with the fifth bits, one bit of each byte for each part, then the groups of Q4_K.
#[inline(always)]
fn q5_k(raw: &[u8; 176], out: &mut [f32; 256]) {
    let (fifths, groups) = (&raw[16..48], &raw[48..]);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, offset) = step_and_offset(raw, part);
        let bytes = &groups[part / 2 * 32..][..32];
        for ((value, byte), fifth) in out.iter_mut().zip(bytes).zip(fifths) {
            let bits = byte >> (4 * (part % 2)) & 15 | (fifth >> part & 1) << 4;
            *value = step * f32::from(bits) - offset;
        }
    }
}

/// Bytes: 128 of the lower four bits, 64 of the upper two, 16 scales with a sign, and a half-precision scale of those.
/// Elements 32 r to 32 r + 31 of half h (four such parts each) share 32 bytes of upper bits and, by twos, 32 of lower
/// ones.
#[inline(always)]
fn q6_k(raw: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&raw[..128], &raw[128..192], &raw[192..208]);
    let scale = half_at(raw, 208);
    for (number, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (part, first) = (number / 2, number % 2 * 16);
        let (side, place) = (part / 4, part % 4);
        let step = scale * f32::from(scales[number].cast_signed());
        let low = &low[side * 64 + place % 2 * 32 + first..][..16];
        let high = &high[side * 32 + first..][..16];
        for ((value, low), high) in out.iter_mut().zip(low).zip(high) {
            let bits = low >> (4 * (place / 2)) & 15 | (high >> (2 * place) & 3) << 4;
            *value = step * (f32::from(bits) - 32.0);
        }
    }
}

/// A single-precision scale, then 32 bytes of two elements each, the first in the high half.
#[inline(always)]
fn nf4(raw: &[u8; 36], out: &mut [f32; 64]) {
    let scale = f32::from_bits(word_at(raw, 0));
    for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(&raw[4..]) {
        *pair = [byte >> 4, byte & 15].map(|number| CODE[usize::from(number)] * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::InstructionSet;

    #[test]
    fn a_block_has_the_same_bits_on_every_instruction_set() {
        for format in BlockFormat::ALL {
            let raw: Vec<u8> = (0..3 * format.bytes()).map(|i| (i * 37 % 251) as u8).collect();
            let decoded = |set: InstructionSet| {
                let mut out = vec![0.0f32; 3 * format.elements()];
                set.within(|| dequantise(format, &raw, &mut out));
                out.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            let portable = decoded(InstructionSet::Portable);
            assert!(InstructionSet::available().all(|set| decoded(set) == portable), "{format}");
        }
    }
}
