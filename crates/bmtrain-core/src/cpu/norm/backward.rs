//! The backward pass: one walk over the rows in fixed groups, whose sums for weight and bias are added in group order.

use super::Scales;
use crate::cpu::access::read;
use crate::cpu::floats::{Floats, FloatsMut, RowsMut, Spare, TILE, tiles};
use crate::cpu::random::dropout_multipliers;
use crate::cpu::reduce::{add_partials, group_rows};
use crate::error::Result;
use crate::kernel::{Dest, Dropout, NormBackward, NormKind};
use crate::simd::{LANES, add_lanes, vectorised};
use crate::threads::{Divide, Threads};

const NAME: &str = "norm_backward";

/// Inputs that all rows share.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    kind: NormKind,
    columns: usize,
    x: Floats<'a>,
    mean: Option<&'a [f32]>,
    rstd: &'a [f32],
    weight: Scales<'a>,
    dy: Floats<'a>,
    dropout: Option<Dropout>,
}

struct Gradient<'a> {
    rows: RowsMut<'a>,
    add: bool,
}

impl<'a> Gradient<'a> {
    fn of(dest: Option<Dest<'a>>, width: usize) -> Result<Option<Self>> {
        dest.map(|dest| Ok(Gradient { rows: FloatsMut::of(NAME, dest.view)?.rows(width), add: dest.add })).transpose()
    }
}

impl Divide for Gradient<'_> {
    fn divide(self, rows: usize) -> (Self, Self) {
        let (head, tail) = self.rows.divide(rows);
        (Gradient { rows: head, add: self.add }, Gradient { rows: tail, add: self.add })
    }
}

/// Partial sums of one group per row: for the weight, then for the bias.
struct Groups<'a> {
    data: &'a mut [f32],
    at_once: usize,
    width: usize,
}

impl Divide for Groups<'_> {
    fn divide(self, rows: usize) -> (Self, Self) {
        let (at_once, width) = (self.at_once, self.width);
        let (head, tail) = self.data.split_at_mut((rows.div_ceil(at_once) * width).min(self.data.len()));
        (Groups { data: head, at_once, width }, Groups { data: tail, at_once, width })
    }
}

pub(in crate::cpu) fn backward(threads: &Threads, a: NormBackward<'_>) -> Result<()> {
    let (rows, columns) = (a.rows, a.columns);
    let (dropout, branch) = match a.branch {
        Some((dropout, dest)) => (Some(dropout), Some(dest)),
        None => (None, None),
    };
    let inputs = Inputs {
        kind: a.kind,
        columns,
        x: Floats::of(NAME, a.x)?,
        mean: a.mean.map(|mean| read::<f32>(NAME, mean)).transpose()?,
        rstd: read(NAME, a.rstd)?,
        weight: Scales { weight: Floats::of(NAME, a.weight)?, offset: a.weight_offset },
        dy: Floats::of(NAME, a.dy)?,
        dropout,
    };
    let (dx, branch) = (Gradient::of(a.dx, columns)?, Gradient::of(branch, columns)?);
    let (dweight, dbias) = (Gradient::of(a.dweight, columns)?, Gradient::of(a.dbias, columns)?);
    let at_once = group_rows(rows);
    let (groups, sums) = (rows.div_ceil(at_once), dweight.is_some() || dbias.is_some());
    let width = if sums { 2 * columns } else { 0 };
    threads.with_partials(groups * width, |partials| {
        let data = &mut partials[..];
        let written = (dx, branch, Groups { data, at_once, width });
        threads.for_each_part(written, rows, at_once, |first, rows, (mut dx, mut branch, groups)| {
            let mut room = Room::new();
            groups.data.fill(0.0);
            for row in 0..rows {
                inputs.row(first + row, row, [&mut dx, &mut branch], groups.data, &mut room);
            }
        });
        for (gradient, start) in [(dweight, 0), (dbias, columns)] {
            if let Some(Gradient { rows, add }) = gradient {
                add_partials(threads, partials, 2 * columns, start, add, rows.data);
            }
        }
    });
    Ok(())
}

struct Room {
    x: Spare,
    dy: Spare,
    weight: Spare,
    dx: Spare,
    branch: Spare,
    gradient: [f32; TILE],
    factors: [f32; TILE],
}

impl Room {
    fn new() -> Self {
        let [x, dy, weight, dx, branch] = [const { Spare::new() }; 5];
        Room { x, dy, weight, dx, branch, gradient: [0.0; TILE], factors: [0.0; TILE] }
    }
}

impl Inputs<'_> {
    /// One row, which is row `local` of what is written.
    fn row(
        &self,
        row: usize,
        local: usize,
        [dx, branch]: [&mut Option<Gradient<'_>>; 2],
        partials: &mut [f32],
        room: &mut Room,
    ) {
        let columns = self.columns;
        let (shift, scale) = (self.mean.map_or(0.0, |mean| mean[row]), self.rstd[row]);
        // With g = dy * weight and n the normalised row: sums of g and of g * n.
        let (mut plain, mut weighted) = (0.0, 0.0);
        for (start, len) in tiles(columns) {
            let x = self.x.tile(row * columns + start, len, &mut room.x);
            let dy = self.dy.tile(row * columns + start, len, &mut room.dy);
            let weight = self.weight.tile(start, len, &mut room.weight);
            let (g, gn) = if partials.is_empty() {
                sums(x, shift, scale, dy, weight)
            } else {
                let (dweight, dbias) = partials.split_at_mut(columns);
                let part = start..start + len;
                sums_and_partials(x, shift, scale, dy, weight, &mut dweight[part.clone()], &mut dbias[part])
            };
            (plain, weighted) = (plain + g, weighted + gn);
        }
        if dx.is_none() && branch.is_none() {
            return;
        }
        let plain = if self.kind == NormKind::Layer { plain / columns as f32 } else { 0.0 };
        let weighted = weighted / columns as f32;
        for (start, len) in tiles(columns) {
            let x = self.x.tile(row * columns + start, len, &mut room.x);
            let dy = self.dy.tile(row * columns + start, len, &mut room.dy);
            let weight = self.weight.tile(start, len, &mut room.weight);
            let gradient = &mut room.gradient[..len];
            input_gradient(x, [shift, scale, plain, weighted], dy, weight, gradient);
            if let Some(Gradient { rows, add }) = dx {
                rows.data.update(local * columns + start, len, *add, &mut room.dx, |dx| store(gradient, *add, dx));
            }
            if let (Some(Gradient { rows, add }), Some(dropout)) = (&mut *branch, &self.dropout) {
                let factors = &mut room.factors[..len];
                dropout_multipliers(dropout, dropout.row(row as u64, columns as u64) + start as u64, factors);
                rows.data.update(local * columns + start, len, *add, &mut room.branch, |branch| {
                    store_dropped(gradient, factors, *add, branch);
                });
            }
        }
    }
}

vectorised! {
    /// The sums of `dy * weight` and of its product with the normalised row.
    fn sums<I>(x: &[f32], shift: f32, scale: f32, dy: &[f32], weight: &[f32]) -> (f32, f32) {
        let (mut plain, mut weighted) = ([0.0; LANES], [0.0; LANES]);
        for ((x, dy), weight) in x.chunks(LANES).zip(dy.chunks(LANES)).zip(weight.chunks(LANES)) {
            for (i, ((x, dy), weight)) in x.iter().zip(dy).zip(weight).enumerate() {
                let (g, n) = (dy * weight, (x - shift) * scale);
                plain[i] += g;
                weighted[i] = I::mul_add(g, n, weighted[i]);
            }
        }
        (add_lanes(plain), add_lanes(weighted))
    }

    /// As `sums`, and adds the row's share of the gradients of weight and bias.
    fn sums_and_partials<I>(
        x: &[f32],
        shift: f32,
        scale: f32,
        dy: &[f32],
        weight: &[f32],
        dweight: &mut [f32],
        dbias: &mut [f32],
    ) -> (f32, f32) {
        let (mut plain, mut weighted) = ([0.0; LANES], [0.0; LANES]);
        let inputs = x.chunks_exact(LANES).zip(dy.chunks_exact(LANES)).zip(weight.chunks_exact(LANES));
        let outputs = dweight.chunks_exact_mut(LANES).zip(dbias.chunks_exact_mut(LANES));
        for (((x, dy), weight), (dweight, dbias)) in inputs.zip(outputs) {
            for i in 0..LANES {
                let (g, n) = (dy[i] * weight[i], (x[i] - shift) * scale);
                plain[i] += g;
                weighted[i] = I::mul_add(g, n, weighted[i]);
                dweight[i] = I::mul_add(dy[i], n, dweight[i]);
                dbias[i] += dy[i];
            }
        }
        let whole = x.len() / LANES * LANES;
        for i in whole..x.len() {
            let (g, n) = (dy[i] * weight[i], (x[i] - shift) * scale);
            plain[i - whole] += g;
            weighted[i - whole] = I::mul_add(g, n, weighted[i - whole]);
            dweight[i] = I::mul_add(dy[i], n, dweight[i]);
            dbias[i] += dy[i];
        }
        (add_lanes(plain), add_lanes(weighted))
    }

    fn input_gradient<I>(x: &[f32], row: [f32; 4], dy: &[f32], weight: &[f32], dx: &mut [f32]) {
        let [shift, scale, plain, weighted] = row;
        for (((dx, x), dy), weight) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
            let n = (x - shift) * scale;
            *dx = scale * I::mul_add(-n, weighted, I::mul_add(*dy, *weight, -plain));
        }
    }

    fn store<I>(gradient: &[f32], add: bool, out: &mut [f32]) {
        for (out, gradient) in out.iter_mut().zip(gradient) {
            *out = if add { *out + gradient } else { *gradient };
        }
    }

    fn store_dropped<I>(gradient: &[f32], factors: &[f32], add: bool, out: &mut [f32]) {
        for ((out, gradient), factor) in out.iter_mut().zip(gradient).zip(factors) {
            let old = if add { *out } else { 0.0 };
            *out = I::mul_add(*gradient, *factor, old);
        }
    }
}
