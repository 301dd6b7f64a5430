//! Arguments of Adam with moments in 8 bits.

use super::AdamSettings;
use super::optimizer::check_step;
use crate::view::{View, ViewMut};

/// Elements of a moment that share a scale.
pub const STATE_BLOCK: usize = 256;

/// One step of [`Adam`](super::Adam) with its moments in codes of 8 bits, over a run of elements that begins at a block
/// and shares its weight decay.
///
/// A moment is the value of its code, from -1 or 0 to 1, times the scale of its block of [`STATE_BLOCK`] elements, the
/// largest magnitude in it. The values of the codes are bitsandbytes' dynamic map (dynamic tree quantisation; Dettmers
/// et al., 2022), spaced within each of seven powers of ten: of `m` both signs, of `v` only positive.
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
    /// Scales of the second moment.
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
    check_step(Self::NAME, a.parameter.dtype(), a.master.is_some(), a.settings.step)
}
