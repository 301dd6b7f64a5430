//! Random initialization: each element is sampled by its address.
//!
//! Element `e` uses Philox block `e / 4` with counters 2 and 3 zero. A uniform value comes from number `e % 4` of the
//! block. Normal values come in pairs from the numbers (0, 1) and (2, 3) by the method of Box and Muller (1958): the
//! even element takes the cosine, the odd one the sine. A truncated normal value is the first normal value within two
//! standard deviations among the blocks `(e / 4, 0, attempt)`, attempt = 0, 1, ….
//!
//! Everything is computed in doubles by additions, multiplications, divisions and square roots alone, never fused, with
//! the logarithm and the sine made here; the one rounding to f32 comes last. So a value has the same bits on every
//! machine with IEEE arithmetic. These rules are frozen: changing them changes what a seed means.

use crate::kernel::Distribution;
use crate::philox::{self, Key};
use crate::simd::vectorised;

/// Normals beyond this many standard deviations are sampled again.
const CUT: f64 = 2.0;

/// After the last attempt (a probability of 1e-86) the value is the mean.
const ATTEMPTS: u32 = 64;

pub(super) fn sample(distribution: Distribution, key: Key, first: u64, out: &mut [f32]) {
    let mut done = 0;
    while done < out.len() {
        let element = first.wrapping_add(done as u64);
        let (skip, room) = ((element % 4) as usize, out.len() - done);
        if skip == 0 && room >= GROUP {
            if let Some(Ok(group)) = out.get_mut(done..done + GROUP).map(TryInto::try_into) {
                sample_group(distribution, key, element / 4, group);
            }
            done += GROUP;
        } else {
            // Values do not depend on how they are grouped: make a whole group and keep a part of it.
            let mut group = [0.0; GROUP];
            sample_group(distribution, key, element / 4, &mut group);
            let len = room.min(if skip == 0 { GROUP } else { 4 - skip });
            out[done..done + len].copy_from_slice(&group[skip..skip + len]);
            done += len;
        }
    }
}

/// Values made at once.
const GROUP: usize = 64;

vectorised! {
    fn sample_group<I>(distribution: Distribution, key: Key, block: u64, out: &mut [f32; GROUP]) {
        let mut words = [0u32; GROUP];
        for (i, words) in words.chunks_exact_mut(4).enumerate() {
            words.copy_from_slice(&philox::block(key, counter(block.wrapping_add(i as u64), 0)));
        }
        let (mean, deviation) = match distribution {
            Distribution::Uniform(low, high) => {
                for (out, word) in out.iter_mut().zip(words) {
                    *out = uniform(low, high, word);
                }
                return;
            }
            Distribution::Normal(mean, deviation) | Distribution::TruncatedNormal(mean, deviation) => {
                (f64::from(mean), f64::from(deviation))
            }
        };
        let mut normals = [0.0f64; GROUP];
        for i in 0..GROUP / 2 {
            let (cosine, sine) = normal_pair(words[2 * i], words[2 * i + 1]);
            (normals[2 * i], normals[2 * i + 1]) = (cosine, sine);
        }
        if matches!(distribution, Distribution::TruncatedNormal(..)) {
            for (i, normal) in normals.iter_mut().enumerate() {
                if normal.abs() > CUT {
                    *normal = sample_again(key, block.wrapping_add(i as u64 / 4), i % 4);
                }
            }
        }
        for (out, normal) in out.iter_mut().zip(normals) {
            *out = (mean + deviation * normal) as f32;
        }
    }
}

fn counter(block: u64, attempt: u32) -> [u32; 4] {
    [block as u32, (block >> 32) as u32, 0, attempt]
}

/// A value in `[low, high]`, from the middle of one of 2^32 equal steps.
#[inline(always)]
fn uniform(low: f32, high: f32, word: u32) -> f32 {
    let (low, high) = (f64::from(low), f64::from(high));
    (low + (high - low) * open_unit(word)) as f32
}

/// 32 random bits as a number in `(0, 1)`, exact.
#[inline(always)]
fn open_unit(word: u32) -> f64 {
    (f64::from(word) + 0.5) * (1.0 / 4_294_967_296.0)
}

fn sample_again(key: Key, block: u64, word: usize) -> f64 {
    for attempt in 1..ATTEMPTS {
        let words = philox::block(key, counter(block, attempt));
        let (cosine, sine) = normal_pair(words[word & 2], words[word | 1]);
        let normal = if word.is_multiple_of(2) { cosine } else { sine };
        if normal.abs() <= CUT {
            return normal;
        }
    }
    0.0
}

#[inline(always)]
fn normal_pair(first: u32, second: u32) -> (f64, f64) {
    let radius = (-2.0 * ln(open_unit(first))).sqrt();
    let (cosine, sine) = turn(open_unit(second));
    (radius * cosine, radius * sine)
}

/// Natural logarithm of a number in `(0, 1)` that is not subnormal, within 1e-14 relative to 1.
#[inline(always)]
fn ln(x: f64) -> f64 {
    // Mantissa in [sqrt(1/2), sqrt(2)): the offset carries into the exponent when the mantissa is above.
    const HALF_ROOT: u64 = 0x3fe6_a09e_667f_3bcd;
    let bits = x.to_bits().wrapping_sub(HALF_ROOT);
    // The exponent as a double, without a conversion that vector units lack: small integers are in the low mantissa.
    let exponent = f64::from_bits(((bits >> 52).wrapping_add(1024) & 0xfff) | 0x4330_0000_0000_0000)
        - (4_503_599_627_370_496.0 + 1024.0);
    let mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(HALF_ROOT));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let z = s * s;
    let mut p = 1.0 / 19.0;
    for divisor in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = p * z + 1.0 / divisor;
    }
    exponent * std::f64::consts::LN_2 + 2.0 * s * p
}

/// Cosine and sine of `x` turns, `x` in `(0, 1)`, within 1e-14.
#[inline(always)]
fn turn(x: f64) -> (f64, f64) {
    // Quarter turns; adding 2^52 and more rounds to an integer.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    let quarters = 4.0 * x + ROUNDER;
    let angle = (4.0 * x - (quarters - ROUNDER)) * std::f64::consts::FRAC_PI_2;
    let z = angle * angle;
    let (mut cosine, mut sine) = (1.0, 1.0);
    // Taylor series, innermost term first: each term is the next one's factor -z / (n (n + 1)).
    for n in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        cosine = 1.0 - z * cosine * (1.0 / (n * (n + 1.0)));
        sine = 1.0 - z * sine * (1.0 / ((n + 1.0) * (n + 2.0)));
    }
    let (sine, quadrant) = (sine * angle, quarters.to_bits() & 3);
    let (a, b) = if quadrant & 1 == 0 { (cosine, sine) } else { (sine, cosine) };
    let a = if quadrant == 1 || quadrant == 2 { -a } else { a };
    let b = if quadrant >= 2 { -b } else { b };
    (a, b)
}
