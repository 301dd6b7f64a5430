//! Stored elements of any type as single precision.
//!
//! Defines [`decode`]; called by [`super::file`]. Blocks of quantised elements are decoded by the core, where products
//! with them are.

use bmtrain_core::dtype::Float;
use bmtrain_core::quantised::dequantise;
use half::{bf16, f16};

use super::GgmlType;

/// Decode whole blocks. `raw` and `out` hold the same number of blocks of `kind`; what is beyond the shorter is left
/// alone.
pub(super) fn decode(kind: GgmlType, raw: &[u8], out: &mut [f32]) {
    match kind {
        GgmlType::Blocks(format) => dequantise(format, raw, out),
        GgmlType::F16 => each(raw, out, |raw| Float::to_f32(f16::from_le_bytes(raw))),
        GgmlType::BF16 => each(raw, out, |raw| Float::to_f32(bf16::from_le_bytes(raw))),
        GgmlType::F32 => each(raw, out, f32::from_le_bytes),
    }
}

fn each<const BYTES: usize>(raw: &[u8], out: &mut [f32], one: impl Fn([u8; BYTES]) -> f32) {
    for (raw, out) in raw.as_chunks::<BYTES>().0.iter().zip(out) {
        *out = one(*raw);
    }
}
