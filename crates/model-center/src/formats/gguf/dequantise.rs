//! Blocks of quantised elements as single precision.
//!
//! Defines [`decode`]; called by [`super::file`]. Each formula is evaluated in single precision with exactly one
//! rounding for each product and each sum, in the order written here, so that the bits equal the reference package's.

use bmtrain_core::dtype::Float;
use half::{bf16, f16};

use super::GgmlType;

/// Decode whole blocks. `raw` and `out` hold the same number of blocks of `kind`; what is beyond the shorter is left
/// alone.
pub(super) fn decode(kind: GgmlType, raw: &[u8], out: &mut [f32]) {
    match kind {
        GgmlType::F32 => blocks::<4, 1>(raw, out, |raw, out| out[0] = f32::from_le_bytes(*raw)),
        GgmlType::F16 => blocks::<2, 1>(raw, out, |raw, out| out[0] = half_at(raw, 0)),
        GgmlType::BF16 => blocks::<2, 1>(raw, out, |raw, out| out[0] = Float::to_f32(bf16::from_le_bytes(*raw))),
        GgmlType::Q8_0 => blocks::<34, 32>(raw, out, |raw, out| {
            let scale = half_at(raw, 0);
            for (value, byte) in out.iter_mut().zip(&raw[2..]) {
                *value = scale * f32::from(byte.cast_signed());
            }
        }),
        GgmlType::Q4_0 => blocks::<18, 32>(raw, out, |raw, out| {
            let scale = half_at(raw, 0);
            for (i, value) in out.iter_mut().enumerate() {
                *value = scale * (f32::from(nibble(&raw[2..], i)) - 8.0);
            }
        }),
        GgmlType::Q4_1 => blocks::<20, 32>(raw, out, |raw, out| {
            let (scale, smallest) = (half_at(raw, 0), half_at(raw, 2));
            for (i, value) in out.iter_mut().enumerate() {
                *value = scale * f32::from(nibble(&raw[4..], i)) + smallest;
            }
        }),
        GgmlType::Q5_0 => blocks::<22, 32>(raw, out, |raw, out| {
            let scale = half_at(raw, 0);
            for (i, value) in out.iter_mut().enumerate() {
                *value = scale * (f32::from(nibble(&raw[6..], i) | fifth_bit(&raw[2..6], i)) - 16.0);
            }
        }),
        GgmlType::Q5_1 => blocks::<24, 32>(raw, out, |raw, out| {
            let (scale, smallest) = (half_at(raw, 0), half_at(raw, 2));
            for (i, value) in out.iter_mut().enumerate() {
                *value = scale * f32::from(nibble(&raw[8..], i) | fifth_bit(&raw[4..8], i)) + smallest;
            }
        }),
        GgmlType::Q4K => blocks::<144, 256>(raw, out, q4_k),
        GgmlType::Q5K => blocks::<176, 256>(raw, out, q5_k),
        GgmlType::Q6K => blocks::<210, 256>(raw, out, q6_k),
    }
}

fn blocks<const BYTES: usize, const ELEMENTS: usize>(
    raw: &[u8],
    out: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    for (raw, out) in raw.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<ELEMENTS>().0) {
        one(raw, out);
    }
}

fn half_at(raw: &[u8], at: usize) -> f32 {
    Float::to_f32(f16::from_le_bytes([raw[at], raw[at + 1]]))
}

/// Element `i` of 32: the low halves of 16 bytes come first, then the high ones.
fn nibble(raw: &[u8], i: usize) -> u8 {
    raw[i % 16] >> (4 * (i / 16)) & 15
}

/// The bit above the nibble of element `i` of 32, from a 32-bit word with one bit per element.
fn fifth_bit(raw: &[u8], i: usize) -> u8 {
    (raw[i / 8] >> (i % 8) & 1) << 4
}

/// Of part 0 to 7 of a block of Q4_K or Q5_K, 32 elements each, the step between two values and what is taken off them.
/// The first bytes of both are a half-precision scale of the scales, one of the smallest values, and 12 bytes of 8
/// scales and 8 smallest values of 6 bits each.
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
fn q6_k(raw: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&raw[..128], &raw[128..192], &raw[192..208]);
    let scale = half_at(raw, 208);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (side, place) = (part / 4, part % 4);
        let low = &low[side * 64 + place % 2 * 32..][..32];
        let high = &high[side * 32..][..32];
        for (i, value) in out.iter_mut().enumerate() {
            let step = scale * f32::from(scales[part * 2 + i / 16].cast_signed());
            let bits = low[i] >> (4 * (place / 2)) & 15 | (high[i] >> (2 * place) & 3) << 4;
            *value = step * (f32::from(bits) - 32.0);
        }
    }
}
