//! Numbers of 8 bits for the factors of matrix products.
//!
//! Source: the OCP 8-bit floating-point specification, E4M3 and E5M2.

use std::fmt;

/// A format of 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fp8Format {
    /// Four bits of exponent and three of fraction, up to 448, without infinities: weights and activations.
    E4M3,
    /// Five bits of exponent and two of fraction, up to 57,344: gradients.
    E5M2,
}

impl Fp8Format {
    /// The short lower-case name used in reports and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Fp8Format::E4M3 => "e4m3",
            Fp8Format::E5M2 => "e5m2",
        }
    }

    /// The largest number.
    pub const fn max(self) -> f32 {
        match self {
            Fp8Format::E4M3 => 448.0,
            Fp8Format::E5M2 => 57_344.0,
        }
    }

    const fn fraction_bits(self) -> u32 {
        match self {
            Fp8Format::E4M3 => 3,
            Fp8Format::E5M2 => 2,
        }
    }

    /// The exponent of the smallest number with a full fraction.
    const fn least_exponent(self) -> i32 {
        match self {
            Fp8Format::E4M3 => -6,
            Fp8Format::E5M2 => -14,
        }
    }

    /// The nearest number, ties to even; beyond the largest it is the largest. NaN is NaN.
    #[inline]
    pub fn encode(self, value: f32) -> u8 {
        const F32_FRACTION: u32 = 23;
        let (bits, sign) = (value.to_bits() & 0x7fff_ffff, (value.to_bits() >> 24 & 0x80) as u8);
        if value.is_nan() {
            return sign | 0x7f;
        }
        let fraction = self.fraction_bits();
        let magnitude = f32::from_bits(bits);
        if magnitude >= self.max() {
            return sign | self.code_of_max();
        }
        let exponent = (bits >> F32_FRACTION).cast_signed() - 127;
        if exponent < self.least_exponent() {
            // A multiple of the least distance: adding a number whose own distance that is rounds to one.
            let shift = f32::from_bits(
                ((F32_FRACTION as i32 + self.least_exponent() - fraction as i32 + 127) as u32) << F32_FRACTION,
            );
            return sign | ((magnitude + shift).to_bits() - shift.to_bits()) as u8;
        }
        let dropped = F32_FRACTION - fraction;
        let rounded = bits + ((1 << (dropped - 1)) - 1) + (bits >> dropped & 1);
        let bias = (127 + self.least_exponent() - 1).cast_unsigned();
        sign | ((rounded >> dropped) - (bias << fraction)) as u8
    }

    /// The number that a code stands for.
    #[inline]
    pub fn decode(self, code: u8) -> f32 {
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        let (magnitude, fraction) = (code & 0x7f, self.fraction_bits());
        if magnitude > self.code_of_max() {
            return if self == Fp8Format::E5M2 && magnitude == 0x7c { sign * f32::INFINITY } else { f32::NAN };
        }
        let (exponent, part) = (i32::from(magnitude >> fraction), f32::from(magnitude & ((1 << fraction) - 1)));
        let steps = (1u32 << fraction) as f32;
        sign * match exponent {
            0 => part / steps * power_of_two(self.least_exponent()),
            _ => (1.0 + part / steps) * power_of_two(exponent - 1 + self.least_exponent()),
        }
    }

    const fn code_of_max(self) -> u8 {
        match self {
            Fp8Format::E4M3 => 0x7e,
            Fp8Format::E5M2 => 0x7b,
        }
    }

    /// Scale of a tensor whose largest magnitude is `largest`, applied before it is rounded, so that its numbers fill
    /// the range of the format. NaN and infinities make every product of the tensor NaN.
    pub fn scale(self, largest: f32) -> f32 {
        /// Its reciprocal is a number with a full fraction.
        const MAX_SCALE: f32 = power_of_two(126);
        match self.max() / largest {
            _ if largest == 0.0 => 1.0,
            scale if scale > MAX_SCALE => MAX_SCALE,
            scale => scale,
        }
    }
}

/// In the range of f32's exponents.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent + 127).cast_unsigned() << 23)
}

impl fmt::Display for Fp8Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The formats that both factors of a product are rounded to, each multiplied by a scale of its own before
/// ([`Fp8Format::scale`]) and the product divided by both: current scaling by tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fp8Factors {
    /// Format of the left factor.
    pub a: Fp8Format,
    /// Format of the right factor.
    pub b: Fp8Format,
}

impl Fp8Factors {
    /// A layer's input by its weight.
    pub const FORWARD: Fp8Factors = Fp8Factors { a: Fp8Format::E4M3, b: Fp8Format::E4M3 };
    /// A gradient by a weight, or its transpose by an input.
    pub const BACKWARD: Fp8Factors = Fp8Factors { a: Fp8Format::E5M2, b: Fp8Format::E4M3 };
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];

    /// Finite numbers of a format that are not negative, in order, with their codes.
    fn numbers(format: Fp8Format) -> Vec<(u8, f32)> {
        (0..=format.code_of_max()).map(|code| (code, format.decode(code))).collect()
    }

    #[test]
    fn codes_are_the_specifications() {
        let [e4m3, e5m2] = FORMATS;
        for (code, value) in [(0x00, 0.0), (0x01, 2f32.powi(-9)), (0x07, 0.875 * 2f32.powi(-6)), (0x08, 2f32.powi(-6))]
        {
            assert_eq!(e4m3.decode(code), value);
        }
        for (code, value) in [(0x38, 1.0), (0x3c, 1.5), (0x7e, 448.0), (0xb8, -1.0)] {
            assert_eq!(e4m3.decode(code), value);
        }
        for (code, value) in [(0x01, 2f32.powi(-16)), (0x04, 2f32.powi(-14)), (0x3c, 1.0), (0x7b, 57_344.0)] {
            assert_eq!(e5m2.decode(code), value);
        }
        assert!(e4m3.decode(0x7f).is_nan() && e5m2.decode(0x7e).is_nan() && e5m2.decode(0xfc) == f32::NEG_INFINITY);
    }

    #[test]
    fn each_number_is_its_own_nearest_and_ties_go_to_the_even_code() {
        for format in FORMATS {
            let all = numbers(format);
            assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].1));
            for (code, value) in &all {
                assert_eq!((format.encode(*value), format.encode(-*value)), (*code, *code | 0x80), "{format} {value}");
            }
            for pair in all.windows(2) {
                let ((low, below), (high, above)) = (pair[0], pair[1]);
                let middle = (below + above) / 2.0;
                let even = if low % 2 == 0 { low } else { high };
                assert_eq!(format.encode(middle), even, "{format} {middle}");
                assert_eq!(format.encode(middle.next_down()), low, "{format} below {middle}");
                assert_eq!(format.encode(middle.next_up()), high, "{format} above {middle}");
            }
        }
    }

    #[test]
    fn what_is_too_large_is_the_largest_and_what_is_no_number_stays_so() {
        for format in FORMATS {
            for large in [format.max() * 1.5, f32::MAX, f32::INFINITY] {
                assert_eq!(format.decode(format.encode(large)), format.max());
                assert_eq!(format.decode(format.encode(-large)), -format.max());
            }
            assert!(format.decode(format.encode(f32::NAN)).is_nan());
        }
    }

    #[test]
    fn a_scale_fills_the_range() {
        for format in FORMATS {
            for largest in [1e-30f32, 1e-3, 1.0, 3.0, 1e4, 1e38] {
                let scaled = largest * format.scale(largest);
                assert!((scaled - format.max()).abs() <= 1e-6 * format.max(), "{format} {largest}: {scaled}");
            }
            assert_eq!(format.scale(0.0), 1.0);
            assert!(format.scale(1e-45).is_finite() && format.scale(1e-45).recip() >= f32::MIN_POSITIVE);
            assert!((format.scale(f32::INFINITY) * f32::INFINITY).is_nan() && format.scale(f32::NAN).is_nan());
        }
    }
}
