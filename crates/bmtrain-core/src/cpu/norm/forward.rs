//! The forward pass: a row stays in the first-level cache while it is summed, measured and normalised.

use super::{Scales, rows_at_once};
use crate::cpu::access::write;
use crate::cpu::floats::{Floats, FloatsMut, RowsMut, Spare, TILE, tiles};
use crate::cpu::random::dropout_multipliers;
use crate::cpu::reduce::total;
use crate::error::Result;
use crate::kernel::{Dropout, NormForward, NormKind};
use crate::simd::{LANES, add_lanes, vectorised};
use crate::threads::Threads;

const NAME: &str = "norm_forward";

/// Inputs that all rows share.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    kind: NormKind,
    columns: usize,
    epsilon: f32,
    x: Floats<'a>,
    dropout: Option<Dropout>,
    residual: Option<Floats<'a>>,
    weight: Scales<'a>,
    bias: Option<Floats<'a>>,
}

pub(in crate::cpu) fn forward(threads: &Threads, a: NormForward<'_>) -> Result<()> {
    let (rows, columns) = (a.rows, a.columns);
    let inputs = Inputs {
        kind: a.kind,
        columns,
        epsilon: a.epsilon,
        x: Floats::of(NAME, a.x)?,
        dropout: a.dropout,
        residual: Floats::maybe(NAME, a.residual)?,
        weight: Scales { weight: Floats::of(NAME, a.weight)?, offset: a.weight_offset },
        bias: Floats::maybe(NAME, a.bias)?,
    };
    let sum = a.sum.map(|sum| FloatsMut::of(NAME, sum)).transpose()?.map(|sum| sum.rows(columns));
    let y = FloatsMut::of(NAME, a.y)?.rows(columns);
    let mean = a.mean.map(|mean| write::<f32>(NAME, mean)).transpose()?;
    let rstd = write::<f32>(NAME, a.rstd)?;
    threads.for_each_part((sum, y, mean, rstd), rows, rows_at_once(columns), |first, rows, part| {
        let (mut sum, mut y, mut mean, rstd) = part;
        let mut room = Room::new();
        for row in 0..rows {
            let begin = row * columns;
            let (shift, scale) = match &mut sum {
                Some(sum) => {
                    inputs.add(first + row, sum, begin, &mut room);
                    inputs.normalise(sum.data.read(), begin, &mut y, begin, &mut room)
                }
                None => inputs.normalise(inputs.x, (first + row) * columns, &mut y, begin, &mut room),
            };
            if let Some(mean) = &mut mean {
                mean[row] = shift;
            }
            rstd[row] = scale;
        }
    });
    Ok(())
}

struct Room {
    x: Spare,
    other: Spare,
    bias: Spare,
    out: Spare,
    factors: [f32; TILE],
}

impl Room {
    fn new() -> Self {
        let [x, other, bias, out] = [const { Spare::new() }; 4];
        Room { x, other, bias, out, factors: [0.0; TILE] }
    }
}

impl Inputs<'_> {
    /// `sum = dropout(x) + residual` for one row.
    fn add(&self, row: usize, sum: &mut RowsMut<'_>, begin: usize, room: &mut Room) {
        for (start, len) in tiles(self.columns) {
            let from = row * self.columns + start;
            let x = self.x.tile(from, len, &mut room.x);
            let residual = self.residual.map(|residual| residual.tile(from, len, &mut room.other));
            let factors = self.dropout.map(|dropout| {
                let factors = &mut room.factors[..len];
                dropout_multipliers(&dropout, dropout.row(row as u64, self.columns as u64) + start as u64, factors);
                &*factors
            });
            sum.data.update(begin + start, len, false, &mut room.out, |sum| match (factors, residual) {
                (Some(factors), Some(residual)) => dropped_and_added(x, factors, residual, sum),
                (Some(factors), None) => dropped(x, factors, sum),
                (None, Some(residual)) => added(x, residual, sum),
                (None, None) => sum.copy_from_slice(x),
            });
        }
    }

    /// Normalise one row of `x`; returns its mean (0 for RMS norm) and the reciprocal of its deviation.
    ///
    /// What is normalised is read back from `x` as stored, so that the backward pass sees the same numbers.
    fn normalise(&self, x: Floats<'_>, from: usize, y: &mut RowsMut<'_>, begin: usize, room: &mut Room) -> (f32, f32) {
        let count = self.columns as f32;
        let mut shift = 0.0;
        if self.kind == NormKind::Layer {
            for (start, len) in tiles(self.columns) {
                shift += total(x.tile(from + start, len, &mut room.x));
            }
            shift /= count;
        }
        let mut squares = 0.0;
        for (start, len) in tiles(self.columns) {
            squares += centred_squares(x.tile(from + start, len, &mut room.x), shift);
        }
        let scale = 1.0 / (squares / count + self.epsilon).sqrt();
        for (start, len) in tiles(self.columns) {
            let x = x.tile(from + start, len, &mut room.x);
            let weight = self.weight.tile(start, len, &mut room.other);
            let bias = self.bias.map(|bias| bias.tile(start, len, &mut room.bias));
            y.data.update(begin + start, len, false, &mut room.out, |y| match bias {
                Some(bias) => affine(x, shift, scale, weight, bias, y),
                None => scaled(x, shift, scale, weight, y),
            });
        }
        (shift, scale)
    }
}

vectorised! {
    fn dropped_and_added<I>(x: &[f32], factors: &[f32], residual: &[f32], sum: &mut [f32]) {
        for (((sum, x), factor), residual) in sum.iter_mut().zip(x).zip(factors).zip(residual) {
            *sum = I::mul_add(*x, *factor, *residual);
        }
    }

    fn dropped<I>(x: &[f32], factors: &[f32], sum: &mut [f32]) {
        for ((sum, x), factor) in sum.iter_mut().zip(x).zip(factors) {
            *sum = x * factor;
        }
    }

    fn added<I>(x: &[f32], residual: &[f32], sum: &mut [f32]) {
        for ((sum, x), residual) in sum.iter_mut().zip(x).zip(residual) {
            *sum = x + residual;
        }
    }

    fn centred_squares<I>(x: &[f32], shift: f32) -> f32 {
        let mut lanes = [0.0; LANES];
        let chunks = x.chunks_exact(LANES);
        for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane = (x - shift) * (x - shift);
        }
        for chunk in chunks {
            for i in 0..LANES {
                let centred = chunk[i] - shift;
                lanes[i] = I::mul_add(centred, centred, lanes[i]);
            }
        }
        add_lanes(lanes)
    }

    fn affine<I>(x: &[f32], shift: f32, scale: f32, weight: &[f32], bias: &[f32], y: &mut [f32]) {
        for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
            *y = I::mul_add((x - shift) * scale, *weight, *bias);
        }
    }

    fn scaled<I>(x: &[f32], shift: f32, scale: f32, weight: &[f32], y: &mut [f32]) {
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = (x - shift) * scale * weight;
        }
    }
}
