//! Operations on a tile of scores between the products, row by row, in vectors of the machine.
//!
//! Defines [`soften`] (scores to probabilities, with a running maximum and sum) called by `forward.rs`,
//! [`differentiate`] (scores and gradients of dropped probabilities to dropped probabilities and gradients of scores)
//! and [`row_dots`] called by `backward.rs`.
//!
//! Numerics: exponentials within two units in the last place; what a column past the tile's width holds matters
//! nowhere.

use super::product::STRIP;
use super::score::{Rules, ScoreTile};
use crate::cpu::math;
use crate::cpu::random::dropout_multipliers;
use crate::kernel::Dropout;
use crate::simd::{Isa, vectorised};

/// Numbers that a row of multipliers may need beside its columns.
pub(super) const ROW_SLACK: usize = 3;

/// One tile of the forward pass.
pub(super) struct Soften<'t> {
    pub(super) rules: &'t Rules<'t>,
    pub(super) place: ScoreTile,
    /// Raw scores, then probabilities before normalisation, dropped.
    pub(super) scores: &'t mut [f32],
    /// The scale, where queries do not have it.
    pub(super) factor: f32,
    pub(super) stride: usize,
    /// Largest score of each row so far.
    pub(super) largest: &'t mut [f32],
    /// Sum of exponentials of each row so far, relative to its largest score.
    pub(super) sum: &'t mut [f32],
    /// Rows of the result so far.
    pub(super) out: &'t mut [f32],
    pub(super) out_stride: usize,
    pub(super) row: &'t mut [f32],
}

vectorised! {
    /// One block of keys of the online softmax.
    pub(super) fn soften<I>(tile: Soften<'_>) {
        let Soften { rules, place, scores, factor, stride, largest, sum, out, out_stride, row: space } = tile;
        let padded = place.width.next_multiple_of(STRIP);
        for r in 0..place.rows {
            let row = &mut scores[r * stride..][..padded];
            scale(row, factor);
            if let Some(cap) = rules.soft_cap {
                soft_cap::<I>(row, cap);
            }
            rules.apply(&place, r, row);
            let mut most = [largest[r]; STRIP];
            for chunk in row.as_chunks::<STRIP>().0 {
                for i in 0..STRIP {
                    most[i] = if chunk[i] > most[i] { chunk[i] } else { most[i] };
                }
            }
            let before = largest[r];
            let now = most.into_iter().fold(before, |most, x| if x > most { x } else { most });
            // A row that has seen nothing yet has no largest score; any shift gives it zeros.
            let shift = if now == f32::NEG_INFINITY { 0.0 } else { now };
            let correction = if before == now { 1.0 } else { exp::<I>(before - shift) };
            let mut total = [0.0; STRIP];
            for chunk in row.as_chunks_mut::<STRIP>().0 {
                for i in 0..STRIP {
                    chunk[i] = exp::<I>(chunk[i] - shift);
                    total[i] += chunk[i];
                }
            }
            sum[r] = sum[r] * correction + add_up(total);
            largest[r] = now;
            if let Some(dropout) = &rules.dropout {
                let factors = multipliers(rules, dropout, &place, r, space);
                row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
            }
            if correction != 1.0 {
                out[r * out_stride..][..out_stride].iter_mut().for_each(|x| *x *= correction);
            }
        }
    }
}

/// One tile of the backward pass.
pub(super) struct Differentiate<'t> {
    pub(super) rules: &'t Rules<'t>,
    pub(super) place: ScoreTile,
    /// Raw scores, then dropped probabilities.
    pub(super) scores: &'t mut [f32],
    /// The scale, where queries do not have it.
    pub(super) factor: f32,
    /// Gradients of dropped probabilities, then of scores.
    pub(super) dscores: &'t mut [f32],
    pub(super) stride: usize,
    /// Log of the sum of exponentials of each row.
    pub(super) lse: &'t [f32],
    /// Sum of result times gradient of each row.
    pub(super) delta: &'t [f32],
    pub(super) row: &'t mut [f32],
}

vectorised! {
    /// Probabilities again, and the gradients of the scores.
    pub(super) fn differentiate<I>(tile: Differentiate<'_>) {
        let Differentiate { rules, place, scores, factor, dscores, stride, lse, delta, row: space } = tile;
        let padded = place.width.next_multiple_of(STRIP);
        for r in 0..place.rows {
            let row = &mut scores[r * stride..][..padded];
            scale(row, factor);
            if let Some(cap) = rules.soft_cap {
                soft_cap::<I>(row, cap);
            }
            rules.apply(&place, r, row);
            let drow = &mut dscores[r * stride..][..padded];
            // Rows that see no key: everything minus infinity is nothing.
            let shift = if lse[r] == f32::NEG_INFINITY { f32::INFINITY } else { lse[r] };
            let factors = rules.dropout.as_ref().map(|dropout| multipliers(rules, dropout, &place, r, space));
            match rules.soft_cap {
                None => gradients::<I, false>(row, drow, factors, [shift, delta[r], 0.0]),
                Some(cap) => gradients::<I, true>(row, drow, factors, [shift, delta[r], 1.0 / cap]),
            }
        }
    }
}

/// A row of [`differentiate`]. With `CAPPED` scores are soft-capped ones, and gradients are of the scores before the
/// cap, whose reciprocal is the last number.
#[inline(always)]
fn gradients<I: Isa, const CAPPED: bool>(
    row: &mut [f32],
    drow: &mut [f32],
    factors: Option<&[f32]>,
    [shift, delta, reciprocal]: [f32; 3],
) {
    let slope = |score: f32| match CAPPED {
        // Nothing flows to a score that is hidden.
        true if score == f32::NEG_INFINITY => 0.0,
        true => 1.0 - (score * reciprocal) * (score * reciprocal),
        false => 1.0,
    };
    match factors {
        None => {
            for (score, dscore) in row.iter_mut().zip(drow) {
                let probability = exp::<I>(*score - shift);
                *dscore = probability * (*dscore - delta) * slope(*score);
                *score = probability;
            }
        }
        Some(factors) => {
            for ((score, dscore), factor) in row.iter_mut().zip(drow).zip(factors) {
                let probability = exp::<I>(*score - shift);
                *dscore = probability * (*dscore * factor - delta) * slope(*score);
                *score = probability * factor;
            }
        }
    }
}

/// Rows of two matrices.
pub(super) struct RowDots<'t> {
    /// Rows `stride` apart.
    pub(super) x: &'t [f32],
    /// Rows `stride` apart.
    pub(super) y: &'t [f32],
    pub(super) stride: usize,
    pub(super) length: usize,
    pub(super) out: &'t mut [f32],
}

vectorised! {
    pub(super) fn row_dots<I>(rows: RowDots<'_>) {
        let RowDots { x, y, stride, length, out } = rows;
        for (r, out) in out.iter_mut().enumerate() {
            let (x, x_rest) = x[r * stride..][..length].as_chunks::<STRIP>();
            let (y, y_rest) = y[r * stride..][..length].as_chunks::<STRIP>();
            let mut sums = [0.0; STRIP];
            for (x, y) in x.iter().zip(y) {
                for i in 0..STRIP {
                    sums[i] = I::mul_add(x[i], y[i], sums[i]);
                }
            }
            *out = add_up(sums) + x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum::<f32>();
        }
    }
}

#[inline(always)]
fn scale(row: &mut [f32], factor: f32) {
    if factor != 1.0 {
        row.iter_mut().for_each(|x| *x *= factor);
    }
}

/// `cap * tanh(x / cap)` of each number.
#[inline(always)]
fn soft_cap<I: Isa>(row: &mut [f32], cap: f32) {
    let reciprocal = 1.0 / cap;
    row.iter_mut().for_each(|x| *x = math::soft_cap::<I>(*x, cap, reciprocal));
}

/// Add up partial sums, halving.
#[inline(always)]
fn add_up(mut sums: [f32; STRIP]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}

/// The exponential; 0 below -87, where products with it would be subnormal and, on some machines, slow.
#[inline(always)]
fn exp<I: Isa>(x: f32) -> f32 {
    const LEAST: f32 = -87.0;
    let value = math::exp::<I>(if x < LEAST { LEAST } else { x });
    if x < LEAST { 0.0 } else { value }
}

/// Dropout factors of the probabilities of row `r` of a tile, computed in `space`.
#[inline(always)]
fn multipliers<'s>(
    rules: &Rules<'_>,
    dropout: &Dropout,
    place: &ScoreTile,
    r: usize,
    space: &'s mut [f32],
) -> &'s [f32] {
    let row = rules.row(place.b, place.n, place.l + r) as u64;
    let first = dropout.row(row, rules.shape.keys as u64) + place.s as u64;
    // Starts at a whole Philox block.
    let skip = (first % 4) as usize;
    let space = &mut space[..skip + place.width.next_multiple_of(STRIP)];
    dropout_multipliers(dropout, first - skip as u64, space);
    &space[skip..]
}
