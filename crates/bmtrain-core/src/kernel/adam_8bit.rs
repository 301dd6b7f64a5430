//! Arguments of Adam with moments in 8 bits, and the codes of these.

use super::AdamSettings;
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::Error;
use std::sync::LazyLock;

/// Elements of a moment that share a scale.
pub const STATE_BLOCK: usize = 256;

/// One step of [`Adam`](super::Adam) with its moments in codes of 8 bits, over a run of elements that begins at a block
/// and shares its weight decay.
///
/// A moment is the value of its code, from -1 or 0 to 1, times the scale of its block of [`STATE_BLOCK`] elements, the
/// largest magnitude in it. The values of the codes are spaced within each of seven powers of ten, more of them in the
/// larger ones (dynamic tree quantisation; Dettmers et al., 2022): of `m` both signs, of `v` only positive.
///
/// Numerics: f32 between codes; a code is the nearest one, the lower of two.
#[derive(Debug)]
pub struct Adam8bit<'a> {
    /// Parameter, any floating-point type.
    pub parameter: ViewMut<'a>,
    /// f32 copy of a parameter of another type.
    pub master: Option<ViewMut<'a>>,
    /// Codes of the first moment, u8.
    pub m: ViewMut<'a>,
    /// Codes of the second moment, u8.
    pub v: ViewMut<'a>,
    /// Scales of the first moment, f32, one for each block; 0 of a block of zeros.
    pub m_scale: ViewMut<'a>,
    /// The same of the second moment.
    pub v_scale: ViewMut<'a>,
    /// Gradient, any floating-point type.
    pub grad: View<'a>,
    /// f32 `[1]`: multiplied into the gradient; if it is not finite nothing is changed.
    pub factor: View<'a>,
    /// The numbers of the step.
    pub settings: AdamSettings,
}

arguments! {
    Adam8bit, "adam_8bit", |a| {
        grad: Float[a.parameter.len()], factor: F32[1], parameter: Float, master: F32[a.parameter.len()],
        m: U8[a.parameter.len()], v: U8[a.parameter.len()],
        m_scale: F32[a.parameter.len().div_ceil(STATE_BLOCK)], v_scale: F32[a.parameter.len().div_ceil(STATE_BLOCK)]
    },
    if (a.parameter.dtype() == DType::F32) == a.master.is_some() {
        Err(Error::argument(Self::NAME, "a master copy belongs to parameters that are not f32, and only to them"))
    } else if a.settings.step == 0 {
        Err(Error::argument(Self::NAME, "steps are counted from 1"))
    } else {
        Ok(())
    }
}

/// The values of the codes of a moment, ascending, and the middle of each two neighbours.
#[derive(Debug)]
pub(crate) struct Codes {
    pub(crate) values: [f32; 256],
    bounds: [f32; 255],
}

/// Of the first moment.
pub(crate) static SIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::of(signed));
/// Of the second moment.
pub(crate) static UNSIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::of(unsigned));

const POWERS: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// The middle of part `k` of `1 << bits` equal parts of 0.1 to 1, times a power of ten.
fn spaced(power: u32, bits: u32, k: u32) -> f32 {
    let share = f64::from(2 * k + 1) / f64::from(2u32 << bits);
    (POWERS[power as usize % POWERS.len()] * (0.1 + 0.9 * share)) as f32
}

fn signed(code: u32) -> f32 {
    match code {
        127 => 0.0,
        255 => 1.0,
        0..127 => -signed(254 - code),
        _ => {
            // 1, 2, 4, ... codes for each power.
            let number = code - 127;
            let bits = number.ilog2();
            spaced(bits, bits, number - (1 << bits))
        }
    }
}

fn unsigned(code: u32) -> f32 {
    match code {
        0 => 0.0,
        255.. => 1.0,
        _ => {
            // 2, 4, 8, ... codes for each power.
            let bits = (code + 1).ilog2();
            spaced(bits - 1, bits, code + 1 - (1 << bits))
        }
    }
}

impl Codes {
    fn of(value: fn(u32) -> f32) -> Self {
        let values = std::array::from_fn(|code| value(code as u32));
        let bounds = std::array::from_fn(|code| (values[code] + values[code + 1]) * 0.5);
        Codes { values, bounds }
    }

    /// The code nearest to a value from -1 to 1.
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
    fn codes_ascend_and_are_nearest_to_themselves() {
        for codes in [&SIGNED, &UNSIGNED] {
            assert!(codes.values.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(codes.values.iter().enumerate().all(|(code, value)| codes.nearest(*value) == code as u8));
            assert!((codes.nearest(2.0), codes.nearest(-2.0)) == (255, 0));
        }
        // bitsandbytes' create_dynamic_map, whose least value is -0.9929688 and whose other values are symmetric.
        let is = |values: &[f32; 256], code: usize, expected: f64| {
            assert!((f64::from(values[code]) / expected - 1.0).abs() < 1e-6, "{code}: {}", values[code]);
        };
        assert_eq!((SIGNED.values[127], SIGNED.values[255], UNSIGNED.values[0]), (0.0, 1.0, 0.0));
        for (code, expected) in [(0, -0.992_968_75), (126, -5.5e-7), (128, 5.5e-7)] {
            is(&SIGNED.values, code, expected);
        }
        for (code, expected) in [(1, 3.25e-7), (2, 7.75e-7), (254, 0.996_484_375)] {
            is(&UNSIGNED.values, code, expected);
        }
    }
}
