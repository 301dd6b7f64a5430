//! Elementary functions in single precision, written without branches so that loops over them become vector code.
//!
//! The polynomials are minimax fits of our own (Remez algorithm at 50 digits). The errors stated here hold with fused
//! multiply-add; without it they are about twice as large.

use crate::kernel::Activation;
use crate::simd::Isa;

/// Adding it to a small number rounds that number to an integer, which is then in the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// `e^x` within 1.1 units in the last place; 0 below -87.68 (the result would be subnormal), infinity above 88.37
/// (within a factor of 1.5 of the largest number), NaN for NaN.
#[inline(always)]
pub(super) fn exp<I: Isa>(x: f32) -> f32 {
    // Written as comparisons, not `clamp`, so that NaN passes through and each is one instruction.
    let x = if x < -88.0 { -88.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = I::mul_add(x, std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    // ln 2 in two parts, the first short enough that its product with n is exact.
    let r = I::mul_add(n, -0.693_359_4, x);
    let r = I::mul_add(n, 2.121_944_4e-4, r);
    let q = I::mul_add(r, 1.381_460_2e-3, 8.368_717e-3);
    let q = I::mul_add(q, r, 4.166_839e-2);
    let q = I::mul_add(q, r, 0.166_665_2);
    let q = I::mul_add(q, r, 0.499_999_93);
    let p = I::mul_add(q, r * r, r) + 1.0;
    // 2^n from the low bits of `shifted`, whose other bits fall off. The limits above keep n in -127..=128, and these
    // two give 0 and infinity, so neither needs a case of its own.
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
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

/// `cap * tanh(x / cap)`.
#[inline(always)]
pub(super) fn soft_cap<I: Isa>(x: f32, cap: f32, reciprocal: f32) -> f32 {
    cap * tanh::<I>(x * reciprocal)
}

/// `1 / (1 + e^-x)` within 1e-7.
#[inline(always)]
pub(super) fn sigmoid<I: Isa>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<I>(-x))
}

/// Distribution function and density of the standard normal, each within 2.5e-7.
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
    let p = I::mul_add(p, t, 7.224_032e-2);
    let p = I::mul_add(p, t, 0.101_759_16);
    let p = I::mul_add(p, t, 0.107_550_51);
    let p = I::mul_add(p, t, 0.107_720_18);
    let tail = p * t * e;
    (if x > 0.0 { 1.0 - tail } else { tail }, e * 0.398_942_3)
}

/// `sqrt(8 / pi)`: twice the factor inside the tangent of [`Activation::GeluTanh`], because
/// `(1 + tanh z) / 2 = sigmoid(2 z)`.
const GELU_SCALE: f32 = 1.595_769;
const GELU_CUBE: f32 = 0.044_715;
const QUICK_GELU_SCALE: f32 = 1.702;

/// An activation as a type, so that loops are compiled for each.
pub(super) trait Function {
    /// Value and slope at `x`.
    fn both<I: Isa>(x: f32) -> (f32, f32);
}

pub(super) struct Gelu;
pub(super) struct GeluTanh;
pub(super) struct Relu;
pub(super) struct Silu;
pub(super) struct Tanh;
pub(super) struct QuickGelu;

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

impl Function for QuickGelu {
    #[inline(always)]
    fn both<I: Isa>(x: f32) -> (f32, f32) {
        let s = sigmoid::<I>(QUICK_GELU_SCALE * x);
        (x * s, I::mul_add(x * s * (1.0 - s), QUICK_GELU_SCALE, s))
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
            $crate::kernel::Activation::QuickGelu => {
                type $function = $crate::cpu::math::QuickGelu;
                $body
            }
        }
    };
}
pub(super) use with_function;

crate::simd::vectorised! {
    pub(super) fn activate<I>(activation: Activation, x: &mut [f32]) {
        with_function!(activation, F => for x in x.iter_mut() {
            *x = F::both::<I>(*x).0;
        });
    }

    pub(super) fn times_slope<I>(activation: Activation, points: &[f32], x: &mut [f32]) {
        with_function!(activation, F => for (x, point) in x.iter_mut().zip(points) {
            *x *= F::both::<I>(*point).1;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::reference::{activation as exact, normal_cdf};
    use crate::simd::for_each_set;
    use crate::simd::vectorised;

    vectorised! {
        fn map_exp<I>(x: &mut [f32]) {
            for x in x.iter_mut() {
                *x = exp::<I>(*x);
            }
        }

        fn map_tanh<I>(x: &mut [f32]) {
            for x in x.iter_mut() {
                *x = tanh::<I>(*x);
            }
        }

        fn map_normal<I>(x: &mut [f32], density: &mut [f32]) {
            for (x, density) in x.iter_mut().zip(density) {
                (*x, *density) = normal::<I>(*x);
            }
        }

        fn map_both<I>(activation: Activation, x: &mut [f32], slope: &mut [f32]) {
            with_function!(activation, F => for (x, slope) in x.iter_mut().zip(slope) {
                (*x, *slope) = F::both::<I>(*x);
            });
        }
    }

    /// About a million points, dense around 0, and the points where formulas change.
    fn grid(limit: f32) -> Vec<f32> {
        let even = (0..=400_000).map(|i| limit * (i as f32 / 200_000.0 - 1.0));
        let small = (0..600_000).map(|i| f32::from_bits(0x3000_0000 + i * 400) * if i % 2 == 0 { 1.0 } else { -1.0 });
        even.chain(small).chain([0.0, -0.0, 0.64, -0.64, f32::MIN_POSITIVE, limit, -limit]).collect()
    }

    fn ulp(x: f64) -> f64 {
        let x = (x.abs() as f32).max(f32::MIN_POSITIVE);
        f64::from(f32::from_bits(x.to_bits() + 1) - x)
    }

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place_and_exact_at_the_ends() {
        for_each_set(|set| {
            let x = grid(87.0);
            let mut y = x.clone();
            map_exp(&mut y);
            for (x, y) in x.iter().zip(&y) {
                let exact = f64::from(*x).exp();
                // 1.1 units with fused multiply-add; the others round once more in each step.
                let units = (f64::from(*y) - exact).abs() / ulp(exact);
                assert!(units < 2.0, "{set:?}: exp({x:e}) = {y:e}, off by {units} units");
            }
            let mut ends = [f32::NEG_INFINITY, -1e30, -87.7, 88.8, 1e30, f32::INFINITY, f32::NAN, 0.0, -87.3, 88.3];
            map_exp(&mut ends);
            assert_eq!(ends[..6], [0.0, 0.0, 0.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]);
            assert!(ends[6].is_nan());
            assert_eq!(ends[7], 1.0);
            assert!((ends[8] / (-87.3f32).exp() - 1.0).abs() < 2e-7 && (ends[9] / 88.3f32.exp() - 1.0).abs() < 2e-7);
        });
    }

    #[test]
    fn hyperbolic_tangents_are_within_four_units_in_the_last_place() {
        for_each_set(|set| {
            let x = grid(20.0);
            let mut y = x.clone();
            map_tanh(&mut y);
            for (x, y) in x.iter().zip(&y) {
                let exact = f64::from(*x).tanh();
                let units = (f64::from(*y) - exact).abs() / ulp(exact);
                // 3 units with fused multiply-add.
                assert!(units < 4.0, "{set:?}: tanh({x:e}) = {y:e}, off by {units} units");
            }
            let mut ends = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1e30, -0.0];
            map_tanh(&mut ends);
            assert_eq!(ends[..2], [-1.0, 1.0]);
            assert!(ends[2].is_nan() && ends[3] == -1.0 && ends[4].is_sign_negative());
        });
    }

    #[test]
    fn the_normal_distribution_and_its_density_are_within_a_few_roundings() {
        for_each_set(|set| {
            let x = grid(14.0);
            let (mut cdf, mut density) = (x.clone(), x.clone());
            map_normal(&mut cdf, &mut density);
            for ((x, cdf), density) in x.iter().zip(&cdf).zip(&density) {
                let wide = f64::from(*x);
                let exact = normal_cdf(wide);
                let error = (f64::from(*cdf) - exact).abs();
                // The error of the fit is 1.2e-8, the rest are roundings near 1/2.
                assert!(error < 2.5e-7, "{set:?}: Phi({x}) = {cdf}, off by {error:e}");
                let exact = (-0.5 * wide * wide).exp() / std::f64::consts::TAU.sqrt();
                assert!((f64::from(*density) - exact).abs() < 2e-7, "{set:?}: density({x}) = {density}");
            }
            let (mut ends, mut rest) = ([f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 1e30, -1e30], [0.0; 5]);
            map_normal(&mut ends, &mut rest);
            assert_eq!((ends[0], ends[1], ends[3], ends[4]), (0.0, 1.0, 1.0, 0.0));
            assert!(ends[2].is_nan());
            assert_eq!((rest[0], rest[1]), (0.0, 0.0));
        });
    }

    #[test]
    fn activations_and_their_slopes_agree_with_doubles() {
        for_each_set(|set| {
            for activation in Activation::ALL {
                let x = grid(12.0);
                let (mut y, mut slope) = (x.clone(), x.clone());
                map_both(activation, &mut y, &mut slope);
                for ((x, y), slope) in x.iter().zip(&y).zip(&slope) {
                    let (value, derivative) = exact(activation, f64::from(*x));
                    // 2.5e-7 of the distribution times |x| up to 12, and the rounding of the result.
                    let tolerance = 2.5e-7 * f64::from(x.abs()).max(1.0) * 2.0;
                    assert!(
                        (f64::from(*y) - value).abs() < tolerance,
                        "{set:?} {activation:?}({x}) = {y}, not {value}"
                    );
                    assert!(
                        (f64::from(*slope) - derivative).abs() < 2.0 * tolerance,
                        "{set:?} {activation:?}'({x}) = {slope}, not {derivative}"
                    );
                }
            }
        });
    }

    #[test]
    fn not_a_number_stays_so_through_every_activation() {
        for activation in Activation::ALL {
            let (mut y, mut slope) = ([f32::NAN; 3], [0.0; 3]);
            map_both(activation, &mut y, &mut slope);
            assert!(y.iter().all(|y| y.is_nan()), "{activation:?}");
        }
    }
}
