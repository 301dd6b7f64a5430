//! Cross-entropy: fused over a whole vocabulary, or as statistics of a shard and losses from all shards; gradients of a
//! shard. A row of logits is read once forward and once backward, an ignored row not at all; in place, forward and
//! backward for one row after another.

use super::loss::PIECE;
use crate::cpu::access::{read, write};
use crate::cpu::floats::{Floats, FloatsMut, RowsMut, Spare, tiles};
use crate::cpu::math::exp;
use crate::cpu::reduce::{Logits, RowStatistics, dot, soft_cap, total};
use crate::error::{Error, Result};
use crate::kernel::{
    Criterion, CrossEntropyBackward, CrossEntropyForward, CrossEntropyInPlace, CrossEntropyLoss,
    CrossEntropyStatistics, ShardClasses,
};
use crate::simd::vectorised;
use crate::threads::Threads;

#[derive(Clone, Copy)]
struct Rows<'a> {
    classes: ShardClasses,
    targets: &'a [i64],
    ignore_index: i64,
    smoothing: f32,
    weights: Option<&'a [f32]>,
    weight_sum: f32,
    soft_cap: Option<f32>,
}

impl<'a> Rows<'a> {
    fn new(op: &'static str, criterion: Criterion<'a>) -> Result<Self> {
        let Criterion { classes, ignore_index, smoothing, weights, soft_cap, .. } = criterion;
        let targets = read::<i64>(op, criterion.targets)?;
        let outside = |target: &i64| *target != ignore_index && (*target < 0 || *target as u64 >= classes.total as u64);
        if let Some(position) = targets.iter().position(outside) {
            return Err(Error::Index { op, position, index: targets[position], bound: classes.total });
        }
        let (weights, weight_sum) = match weights {
            Some(weights) => {
                let each = read::<f32>(op, weights.each)?;
                let sum = weights.sum.map(|sum| read::<f32>(op, sum)).transpose()?;
                (Some(each), sum.map_or_else(|| each.chunks(1024).map(total).sum(), |sum| sum[0]))
            }
            None => (None, classes.total as f32),
        };
        Ok(Rows { classes, targets, ignore_index, smoothing, weights, weight_sum, soft_cap })
    }

    /// The target of a row among all classes and its weight; `None` if the row is ignored.
    fn target(&self, row: usize) -> Option<(usize, f32)> {
        let target = self.targets[row];
        (target != self.ignore_index).then(|| {
            let target = target as usize;
            (target, self.weights.map_or(1.0, |weights| weights[target]))
        })
    }

    fn capped<'l>(&self, floats: Floats<'l>) -> Logits<'l> {
        Logits { floats, soft_cap: self.soft_cap }
    }

    fn column(&self, class: usize) -> Option<usize> {
        class.checked_sub(self.classes.first).filter(|column| *column < self.classes.count)
    }

    fn weights_of(&self, start: usize, len: usize) -> Option<&'a [f32]> {
        self.weights.map(|weights| &weights[self.classes.first + start..][..len])
    }
}

fn rows_at_once(columns: usize) -> usize {
    (PIECE / columns.max(1)).max(1)
}

pub(in crate::cpu) fn forward(threads: &Threads, a: CrossEntropyForward<'_>) -> Result<()> {
    const NAME: &str = "cross_entropy_forward";
    let (columns, rows, logits) = (a.columns, Rows::new(NAME, a.criterion)?, Floats::of(NAME, a.logits)?);
    let (losses, lse) = (write::<f32>(NAME, a.losses)?, write::<f32>(NAME, a.lse)?);
    let totals = write::<f32>(NAME, a.totals)?;
    threads.for_each_part((&mut *losses, lse), a.rows, rows_at_once(columns), |first, count, (losses, lse)| {
        let mut spare = Spare::new();
        for row in 0..count {
            (losses[row], lse[row]) = rows.fused_loss(logits, first + row, columns, &mut spare);
        }
    });
    let (mut loss, mut weight) = (0.0f64, 0.0f64);
    for (row, row_loss) in losses.iter().enumerate() {
        loss += f64::from(*row_loss);
        weight += rows.target(row).map_or(0.0, |(_, weight)| f64::from(weight));
    }
    totals.copy_from_slice(&[loss as f32, weight as f32, (loss / weight) as f32]);
    Ok(())
}

impl Rows<'_> {
    /// Loss and log-sum-exp of one row over a whole vocabulary.
    fn fused_loss(&self, logits: Floats<'_>, row: usize, columns: usize, spare: &mut Spare) -> (f32, f32) {
        let Some((target, weight)) = self.target(row) else {
            return (0.0, 0.0);
        };
        let (begin, count) = (row * columns, self.classes.count);
        let logits = self.capped(logits);
        let lse = RowStatistics::of(logits, begin, count, spare).lse();
        let at_target = logits.tile(begin + target, 1, spare)[0];
        let mut loss = (1.0 - self.smoothing) * weight * (lse - at_target);
        if self.smoothing > 0.0 {
            // Sum over the classes of w * (lse - x).
            let mut spread = f64::from(self.weight_sum) * f64::from(lse);
            for (start, len) in tiles(count) {
                let x = logits.tile(begin + start, len, spare);
                spread -= f64::from(self.weights_of(start, len).map_or_else(|| total(x), |weights| dot(x, weights)));
            }
            loss += self.smoothing / count as f32 * spread as f32;
        }
        (loss, lse)
    }
}

pub(in crate::cpu) fn statistics(threads: &Threads, a: CrossEntropyStatistics<'_>) -> Result<()> {
    const NAME: &str = "cross_entropy_statistics";
    let (columns, rows, logits) = (a.columns, Rows::new(NAME, a.criterion)?, Floats::of(NAME, a.logits)?);
    let statistics = FloatsMut::F32(write::<f32>(NAME, a.statistics)?).rows(4);
    threads.for_each_part(statistics, a.rows, rows_at_once(columns), |first, count, mut statistics| {
        let mut spare = Spare::new();
        for row in 0..count {
            statistics
                .data
                .narrow(4 * row, &rows.statistics_at(logits, (first + row, (first + row) * columns), &mut spare));
        }
    });
    Ok(())
}

impl Rows<'_> {
    /// The statistics of a row whose logits start at `begin`.
    fn statistics_at(&self, logits: Floats<'_>, (row, begin): (usize, usize), spare: &mut Spare) -> [f32; 4] {
        let Some((target, _)) = self.target(row) else {
            return [f32::NEG_INFINITY, 0.0, 0.0, 0.0];
        };
        let (count, logits) = (self.classes.count, self.capped(logits));
        let RowStatistics { largest, sum } = RowStatistics::of(logits, begin, count, spare);
        let at_target = self.column(target).map_or(0.0, |column| logits.tile(begin + column, 1, spare)[0]);
        let mut spread = 0.0f64;
        if self.smoothing > 0.0 {
            for (start, len) in tiles(count) {
                let x = logits.tile(begin + start, len, spare);
                spread += f64::from(self.weights_of(start, len).map_or_else(|| total(x), |weights| dot(x, weights)));
            }
        }
        [largest, sum, at_target, spread as f32]
    }
}

pub(in crate::cpu) fn loss(threads: &Threads, a: CrossEntropyLoss<'_>) -> Result<()> {
    const NAME: &str = "cross_entropy_loss";
    let (rows, statistics) = (Rows::new(NAME, a.criterion)?, read::<f32>(NAME, a.statistics)?);
    let (losses, lse) = (write::<f32>(NAME, a.losses)?, write::<f32>(NAME, a.lse)?);
    threads.for_each_part((losses, lse), a.rows, rows_at_once(64 * a.shards), |first, count, (losses, lse)| {
        for row in 0..count {
            let of_shards = statistics.chunks_exact(4).skip(first + row).step_by(a.rows).take(a.shards);
            (losses[row], lse[row]) = rows.loss(first + row, of_shards);
        }
    });
    Ok(())
}

impl Rows<'_> {
    /// Loss and log-sum-exp of one row from the statistics of its shards, added in order.
    fn loss<'s>(&self, row: usize, shards: impl Iterator<Item = &'s [f32]> + Clone) -> (f32, f32) {
        let Some((_, weight)) = self.target(row) else {
            return (0.0, 0.0);
        };
        let largest = shards.clone().map(|shard| f64::from(shard[0])).fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut at_target, mut spread) = (0.0f64, 0.0f64, 0.0f64);
        for shard in shards {
            let [own, part, hit, logits] = [0, 1, 2, 3].map(|i| f64::from(shard[i]));
            // A shard whose logits are all minus infinity adds nothing, whatever the largest logit is.
            sum += if part == 0.0 { 0.0 } else { part * (own - largest).exp() };
            at_target += hit;
            spread += logits;
        }
        let lse = largest + sum.ln();
        let mut loss = f64::from(1.0 - self.smoothing) * f64::from(weight) * (lse - at_target);
        if self.smoothing > 0.0 {
            let share = f64::from(self.smoothing) / self.classes.total as f64;
            loss += share * (f64::from(self.weight_sum) * lse - spread);
        }
        (loss as f32, lse as f32)
    }
}

pub(in crate::cpu) fn backward(threads: &Threads, a: CrossEntropyBackward<'_>) -> Result<()> {
    const NAME: &str = "cross_entropy_backward";
    let (columns, rows, logits) = (a.columns, Rows::new(NAME, a.criterion)?, Floats::maybe(NAME, a.logits)?);
    let (lse, dloss) = (read::<f32>(NAME, a.lse)?, read::<f32>(NAME, a.dloss)?);
    let divisor = a.divisor.map(|divisor| read::<f32>(NAME, divisor)).transpose()?.map_or(1.0, |divisor| divisor[0]);
    let dlogits = FloatsMut::of(NAME, a.dlogits)?.rows(columns);
    threads.for_each_part(dlogits, a.rows, rows_at_once(columns), |first, count, mut part| {
        let mut spares = [const { Spare::new() }; 3];
        for local in 0..count {
            let row = first + local;
            let dloss = if dloss.len() == 1 { dloss[0] } else { dloss[row] };
            let at = RowIndex { row, local, columns };
            rows.gradient(logits, at, lse[row], dloss / divisor, &mut part, &mut spares);
        }
    });
    Ok(())
}

pub(in crate::cpu) fn in_place(threads: &Threads, a: CrossEntropyInPlace<'_>) -> Result<()> {
    const NAME: &str = "cross_entropy_in_place";
    let (columns, rows, losses) = (a.columns, Rows::new(NAME, a.criterion)?, write::<f32>(NAME, a.losses)?);
    let dlogits = FloatsMut::of(NAME, a.dlogits)?.rows(columns);
    threads.for_each_part((dlogits, losses), a.rows, rows_at_once(columns), |first, count, (mut part, losses)| {
        let mut spares = [const { Spare::new() }; 3];
        for (local, loss) in losses.iter_mut().enumerate().take(count) {
            let (row, begin) = (first + local, local * columns);
            let statistics = rows.statistics_at(part.data.read(), (row, begin), &mut spares[0]);
            let (of_row, lse) = rows.loss(row, std::iter::once(statistics.as_slice()));
            *loss = of_row;
            rows.gradient(None, RowIndex { row, local, columns }, lse, 1.0, &mut part, &mut spares);
        }
    });
    Ok(())
}

/// The index of a row among all rows, and in the part that a thread writes.
#[derive(Clone, Copy)]
struct RowIndex {
    row: usize,
    local: usize,
    columns: usize,
}

impl Rows<'_> {
    /// Gradient of one row, which overwrites the row without `logits`.
    fn gradient(
        &self,
        logits: Option<Floats<'_>>,
        RowIndex { row, local, columns }: RowIndex,
        lse: f32,
        factor: f32,
        part: &mut RowsMut<'_>,
        [x_spare, out_spare, slopes]: &mut [Spare; 3],
    ) {
        let (count, begin) = (self.classes.count, local * columns);
        let Some((target, weight)) = self.target(row) else {
            part.data.part(begin, columns).zero();
            return;
        };
        part.data.part(begin + count, columns - count).zero();
        let spread = factor * self.smoothing / self.classes.total as f32;
        let hit = factor * (1.0 - self.smoothing) * weight;
        let probability = if self.smoothing > 0.0 { hit + spread * self.weight_sum } else { hit };
        let target = self.column(target);
        for (start, len) in tiles(count) {
            let x = logits.map(|logits| logits.tile(row * columns + start, len, x_spare));
            let weights = self.weights_of(start, len);
            part.data.update(begin + start, len, x.is_none(), out_spare, |out| {
                if let Some(x) = x {
                    out.copy_from_slice(x);
                }
                let slopes = &mut slopes.0[..len];
                if let Some(cap) = self.soft_cap {
                    soft_cap(out, cap);
                    slopes_of(out, slopes, cap);
                }
                probabilities(out, lse, probability);
                match weights {
                    _ if spread == 0.0 => {}
                    Some(weights) => subtract_weighted(out, weights, spread),
                    None => subtract(out, spread),
                }
                if let Some(out) = target.and_then(|at| at.checked_sub(start)).and_then(|at| out.get_mut(at)) {
                    *out -= hit;
                }
                if self.soft_cap.is_some() {
                    multiply(out, slopes);
                }
            });
        }
    }
}

vectorised! {
    /// The slopes of the soft cap at the numbers that it has made.
    fn slopes_of<I>(capped: &[f32], slopes: &mut [f32], cap: f32) {
        let reciprocal = 1.0 / cap;
        for (x, slope) in capped.iter().zip(slopes) {
            let ratio = x * reciprocal;
            *slope = 1.0 - ratio * ratio;
        }
    }

    fn multiply<I>(x: &mut [f32], factors: &[f32]) {
        for (x, factor) in x.iter_mut().zip(factors) {
            *x *= factor;
        }
    }

    fn probabilities<I>(x: &mut [f32], lse: f32, factor: f32) {
        for x in x.iter_mut() {
            *x = factor * exp::<I>(*x - lse);
        }
    }

    fn subtract<I>(x: &mut [f32], amount: f32) {
        for x in x.iter_mut() {
            *x -= amount;
        }
    }

    fn subtract_weighted<I>(x: &mut [f32], weights: &[f32], amount: f32) {
        for (x, weight) in x.iter_mut().zip(weights) {
            *x = I::mul_add(-amount, *weight, *x);
        }
    }
}
