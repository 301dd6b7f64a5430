//! Elementary functions in single precision, written without branches so that loops over them become vector code.
//!
//! Defines [`exp`], [`tanh`], [`sigmoid`], [`normal`] and the activations built from them ([`value`], [`slope`]), for use
//! inside [`vectorised`](super::simd) loops. The polynomials are minimax fits of our own (Remez exchange at 50 digits).
//! The errors stated here hold with fused multiply-add; without it they are about twice as large.

use super::simd::Isa;
use crate::kernel::Activation;

/// Adding it to a small number rounds that number to an integer, which then stands in the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// `e^x` within 1.1 units in the last place; 0 below -104, infinity above 88.72, NaN for NaN. Subnormal results are kept.
#[inline(always)]
pub(super) fn exp<I: Isa>(x: f32) -> f32 {
    // Written as comparisons, not `clamp`, so that NaN passes through and each is one instruction.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = I::mul_add(x, std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    // ln 2 in two parts, the first short enough that its product with n is exact.
    let r = I::mul_add(n, -0.693_359_4, x);
    let r = I::mul_add(n, 2.121_944_4e-4, r);
    let q = I::mul_add(r, 1.381_460_2e-3, 8.368_717e-3);
    let q = I::mul_add(q, r, 4.166_838_8e-2);
    let q = I::mul_add(q, r, 0.166_665_2);
    let q = I::mul_add(q, r, 0.499_999_93);
    let p = I::mul_add(q, r * r, r) + 1.0;
    // Two factors, because 2^n itself may be beyond the range where the result is not.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Hyperbolic tangent within 3 units in the last place.
#[inline(always)]
pub(super) fn tanh<I: Isa>(x: f32) -> f32 {
    let (size, u) = (x.abs(), x * x);
    let p = I::mul_add(u, -5.591_019_7e-3, 2.053_882_4e-2);
    let p = I::mul_add(p, u, -5.370_966e-2);
    let p = I::mul_add(p, u, 0.133_310_92);
    let p = I::mul_add(p, u, -0.333_332_7);
    let near = I::mul_add(p * u, size, size);
    let far = 1.0 - 2.0 / (exp::<I>(size + size) + 1.0);
    (if size < 0.64 { near } else { far }).copysign(x)
}

/// `1 / (1 + e^-x)` within 1e-7.
#[inline(always)]
pub(super) fn sigmoid<I: Isa>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<I>(-x))
}

/// Distribution function and density of the standard normal, each within 1.2e-7.
///
/// The tail beyond |x| is `e^(-x^2 / 2)`, which the density needs too, times a polynomial in `t = 1 / (1 + 0.27 |x|)`
/// without a constant term: it falls like 1/x, as the tail's ratio to the density does.
#[inline(always)]
pub(super) fn normal<I: Isa>(x: f32) -> (f32, f32) {
    let t = 1.0 / I::mul_add(x.abs(), 0.27, 1.0);
    let e = exp::<I>(-0.5 * x * x);
    let p = I::mul_add(t, 2.891_526_7e-2, -0.126_255_23);
    let p = I::mul_add(p, t, 0.169_291_32);
    let p = I::mul_add(p, t, -6.862_087_5e-2);
    let p = I::mul_add(p, t, 0.107_399_36);
    let p = I::mul_add(p, t, 7.224_032_6e-2);
    let p = I::mul_add(p, t, 0.101_759_16);
    let p = I::mul_add(p, t, 0.107_550_51);
    let p = I::mul_add(p, t, 0.107_720_18);
    let tail = p * t * e;
    (if x > 0.0 { 1.0 - tail } else { tail }, e * 0.398_942_3)
}

/// `sqrt(8 / pi)`: twice the factor inside the tangent of [`Activation::GeluTanh`], because
/// `(1 + tanh z) / 2 = sigmoid(2 z)`.
const GELU_SCALE: f32 = 1.595_769_1;
const GELU_CUBE: f32 = 0.044_715;

/// An activation as a type, so that loops are compiled for each.
pub(super) trait Function {
    /// Value and slope at `x`.
    fn both<I: Isa>(x: f32) -> (f32, f32);
}

/// [`Activation::Gelu`].
pub(super) struct Gelu;
/// [`Activation::GeluTanh`].
pub(super) struct GeluTanh;
/// [`Activation::Relu`].
pub(super) struct Relu;
/// [`Activation::Silu`].
pub(super) struct Silu;
/// [`Activation::Tanh`].
pub(super) struct Tanh;

impl Function for Gelu {
    #[inline(always)]
    fn both<I: Isa>(x: f32) -> (f32, f32) {
        let (below, density) = normal::<I>(x);
        (x * below, I::mul_add(x, density, below))
    }
}

impl Function for GeluTanh {
    #[inline(always)]
    fn both<I: Isa>(x: f32) -> (f32, f32) {
        let cube = GELU_CUBE * x * x;
        let s = sigmoid::<I>(GELU_SCALE * I::mul_add(x, cube, x));
        (x * s, I::mul_add(x * s * (1.0 - s), GELU_SCALE * I::mul_add(3.0, cube, 1.0), s))
    }
}

impl Function for Relu {
    #[inline(always)]
    fn both<I: Isa>(x: f32) -> (f32, f32) {
        // `x <= 0` rather than `x > 0`: NaN stays NaN.
        if x <= 0.0 { (0.0, 0.0) } else { (x, 1.0) }
    }
}

impl Function for Silu {
    #[inline(always)]
    fn both<I: Isa>(x: f32) -> (f32, f32) {
        let s = sigmoid::<I>(x);
        (x * s, I::mul_add(x * s, 1.0 - s, s))
    }
}

impl Function for Tanh {
    #[inline(always)]
    fn both<I: Isa>(x: f32) -> (f32, f32) {
        let y = tanh::<I>(x);
        (y, I::mul_add(-y, y, 1.0))
    }
}

/// Runs `$body` with `$function` standing for the type of an activation known at run time.
macro_rules! with_function {
    ($activation:expr, $function:ident => $body:expr) => {
        match $activation {
            $crate::kernel::Activation::Gelu => {
                type $function = $crate::cpu::math::Gelu;
                $body
            }
            $crate::kernel::Activation::GeluTanh => {
                type $function = $crate::cpu::math::GeluTanh;
                $body
            }
            $crate::kernel::Activation::Relu => {
                type $function = $crate::cpu::math::Relu;
                $body
            }
            $crate::kernel::Activation::Silu => {
                type $function = $crate::cpu::math::Silu;
                $body
            }
            $crate::kernel::Activation::Tanh => {
                type $function = $crate::cpu::math::Tanh;
                $body
            }
        }
    };
}
pub(super) use with_function;

super::simd::vectorised! {
    /// `x = activation(x)` for every element.
    pub(super) fn activate<I>(activation: Activation, x: &mut [f32]) {
        with_function!(activation, F => for x in x.iter_mut() {
            *x = F::both::<I>(*x).0;
        });
    }

    /// `y = exp(x)` for every element.
    pub(super) fn exp_all<I>(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = exp::<I>(*x);
        }
    }
}
