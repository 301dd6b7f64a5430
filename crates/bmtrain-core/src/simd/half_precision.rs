//! Conversions between f32 and f16 without branches, so that loops over them become vector code. Called by the CPU's
//! kernels and where quantised blocks become numbers.

/// The f32 of an f16, exact: the bits shifted to their places in an f32 are too small by 2^112, and multiplying puts
/// right subnormals as well.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let (sign, size) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
    let value = (f32::from_bits(size) * f32::from_bits(0x7780_0000)).to_bits();
    let value = if size >= 0x0f80_0000 { size | 0x7f80_0000 } else { value };
    f32::from_bits(value | sign)
}

/// The f16 of an f32, to nearest, ties to even; NaN becomes quiet.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, size) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    // Below the normal range an addition of 1/2 leaves as many bits as a subnormal has, rounded by the addition itself.
    let small = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal = size.wrapping_sub(0x3800_0000 - 0xfff).wrapping_add(size >> 13 & 1) >> 13;
    let number = if size < 0x3880_0000 { small } else { normal };
    let special = if size > 0x7f80_0000 { 0x7e00 | (size >> 13 & 0x1ff) } else { 0x7c00 };
    (sign | if size >= 0x4780_0000 { special } else { number }) as u16
}
