//! Fused softmax and cross-entropy. A row of logits is read once forward and once backward; rows that are ignored are
//! not read at all.

use super::PIECE;
use crate::cpu::access::{read, write};
use crate::cpu::floats::{Floats, FloatsMut, RowsMut, Spare, tiles};
use crate::cpu::math::exp;
use crate::cpu::reduce::{RowStatistics, dot, total};
use crate::cpu::simd::vectorised;
use crate::cpu::threads::Threads;
use crate::error::{Error, Result};
use crate::kernel::{CrossEntropyBackward, CrossEntropyForward};

/// What forward and backward pass share.
#[derive(Clone, Copy)]
struct Classes<'a> {
    count: usize,
    targets: &'a [i64],
    ignore_index: i64,
    smoothing: f32,
    weights: Option<&'a [f32]>,
    /// Sum of the class weights.
    weight_sum: f32,
}

impl<'a> Classes<'a> {
    /// # Errors
    /// A target that is neither a class nor ignored, before anything is written.
    fn new(
        op: &'static str,
        count: usize,
        targets: &'a [i64],
        ignore_index: i64,
        smoothing: f32,
        weights: Option<&'a [f32]>,
    ) -> Result<Self> {
        let outside = |target: &i64| *target != ignore_index && (*target < 0 || *target as u64 >= count as u64);
        if let Some(position) = targets.iter().position(outside) {
            return Err(Error::Index { op, position, index: targets[position], bound: count });
        }
        let weight_sum = weights.map_or(count as f32, |weights| weights.chunks(1024).map(total).sum());
        Ok(Classes { count, targets, ignore_index, smoothing, weights, weight_sum })
    }

    /// The target of a row and the weight of its class; `None` if the row is ignored.
    fn target(&self, row: usize) -> Option<(usize, f32)> {
        let target = self.targets[row];
        (target != self.ignore_index).then(|| {
            let target = target as usize;
            (target, self.weights.map_or(1.0, |weights| weights[target]))
        })
    }

    fn rows_at_once(&self) -> usize {
        (PIECE / self.count.max(1)).max(1)
    }
}

pub(in crate::cpu) fn cross_entropy_forward(threads: &Threads, a: CrossEntropyForward<'_>) -> Result<()> {
    const NAME: &str = "cross_entropy_forward";
    let weights = a.class_weights.map(|weights| read::<f32>(NAME, weights)).transpose()?;
    let targets = read(NAME, a.targets)?;
    let classes = Classes::new(NAME, a.classes, targets, a.ignore_index, a.smoothing, weights)?;
    let logits = Floats::of(NAME, a.logits)?;
    let (losses, lse) = (write::<f32>(NAME, a.losses)?, write::<f32>(NAME, a.lse)?);
    let totals = write::<f32>(NAME, a.totals)?;
    let at_once = classes.rows_at_once();
    threads.for_each_part((&mut *losses, lse), a.rows, at_once, |first, rows, (losses, lse)| {
        let mut spare = Spare::new();
        for row in 0..rows {
            (losses[row], lse[row]) = classes.loss(logits, first + row, &mut spare);
        }
    });
    let (mut loss, mut weight) = (0.0f64, 0.0f64);
    for (row, row_loss) in losses.iter().enumerate() {
        loss += f64::from(*row_loss);
        weight += classes.target(row).map_or(0.0, |(_, weight)| f64::from(weight));
    }
    totals.copy_from_slice(&[loss as f32, weight as f32, (loss / weight) as f32]);
    Ok(())
}

impl Classes<'_> {
    /// Loss and log-sum-exp of one row.
    fn loss(&self, logits: Floats<'_>, row: usize, spare: &mut Spare) -> (f32, f32) {
        let Some((target, weight)) = self.target(row) else {
            return (0.0, 0.0);
        };
        let begin = row * self.count;
        let lse = RowStatistics::of(logits, begin, self.count, spare).lse();
        let at_target = logits.tile(begin + target, 1, spare)[0];
        let mut loss = (1.0 - self.smoothing) * weight * (lse - at_target);
        if self.smoothing > 0.0 {
            // Sum over the classes of w * (lse - x).
            let mut spread = f64::from(self.weight_sum) * f64::from(lse);
            for (start, len) in tiles(self.count) {
                let x = logits.tile(begin + start, len, spare);
                spread -=
                    f64::from(self.weights.map_or_else(|| total(x), |weights| dot(x, &weights[start..start + len])));
            }
            loss += self.smoothing / self.count as f32 * spread as f32;
        }
        (loss, lse)
    }
}

pub(in crate::cpu) fn cross_entropy_backward(threads: &Threads, a: CrossEntropyBackward<'_>) -> Result<()> {
    const NAME: &str = "cross_entropy_backward";
    let weights = a.class_weights.map(|weights| read::<f32>(NAME, weights)).transpose()?;
    let targets = read(NAME, a.targets)?;
    let classes = Classes::new(NAME, a.classes, targets, a.ignore_index, a.smoothing, weights)?;
    let logits = Floats::maybe(NAME, a.logits)?;
    let (lse, dloss) = (read::<f32>(NAME, a.lse)?, read::<f32>(NAME, a.dloss)?);
    let divisor = if a.mean { read::<f32>(NAME, a.totals)?[1] } else { 1.0 };
    let dlogits = FloatsMut::of(NAME, a.dlogits)?;
    threads.for_each_part(dlogits.rows(a.classes), a.rows, classes.rows_at_once(), |first, rows, mut part| {
        let mut spares = [const { Spare::new() }; 2];
        for local in 0..rows {
            let row = first + local;
            let dloss = if dloss.len() == 1 { dloss[0] } else { dloss[row] };
            classes.gradient(logits, row, lse[row], dloss / divisor, (&mut part, local), &mut spares);
        }
    });
    Ok(())
}

impl Classes<'_> {
    /// Gradient of one row, which is row `local` of `part`; without `logits` the row is replaced.
    fn gradient(
        &self,
        logits: Option<Floats<'_>>,
        row: usize,
        lse: f32,
        factor: f32,
        (part, local): (&mut RowsMut<'_>, usize),
        [x_spare, out_spare]: &mut [Spare; 2],
    ) {
        let (count, begin) = (self.count, local * self.count);
        let Some((target, weight)) = self.target(row) else {
            part.data.part(begin, count).zero();
            return;
        };
        let spread = factor * self.smoothing / count as f32;
        let hit = factor * (1.0 - self.smoothing) * weight;
        let probability = if self.smoothing > 0.0 { hit + spread * self.weight_sum } else { hit };
        for (start, len) in tiles(count) {
            let x = logits.map(|logits| logits.tile(row * count + start, len, x_spare));
            let weights = self.weights.map(|weights| &weights[start..start + len]);
            part.data.update(begin + start, len, x.is_none(), out_spare, |out| {
                if let Some(x) = x {
                    out.copy_from_slice(x);
                }
                probabilities(out, lse, probability);
                match weights {
                    _ if spread == 0.0 => {}
                    Some(weights) => subtract_weighted(out, weights, spread),
                    None => subtract(out, spread),
                }
                if let Some(out) = target.checked_sub(start).and_then(|at| out.get_mut(at)) {
                    *out -= hit;
                }
            });
        }
    }
}

vectorised! {
    pub(in crate::cpu) fn probabilities<I>(x: &mut [f32], lse: f32, factor: f32) {
        for x in x.iter_mut() {
            *x = factor * exp::<I>(*x - lse);
        }
    }

    pub(in crate::cpu) fn subtract<I>(x: &mut [f32], amount: f32) {
        for x in x.iter_mut() {
            *x -= amount;
        }
    }

    pub(in crate::cpu) fn subtract_weighted<I>(x: &mut [f32], weights: &[f32], amount: f32) {
        for (x, weight) in x.iter_mut().zip(weights) {
            *x = I::mul_add(-amount, *weight, *x);
        }
    }
}
