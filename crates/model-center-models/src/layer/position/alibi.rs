//! ALiBi (Press et al., 2022): scores fall with the distance of the key, at a slope of each head's own.

use super::Rows;
use bmtrain_core::{Ctx, Segment, Tensor, Var, ops};
use bmtrain_dist::Result;
use std::cell::RefCell;
use std::ops::Range;

/// The slopes of the heads: `2^(-8 i / n)` for a power of two; for other numbers the slopes of the power below, then
/// every other one of the power above.
///
/// Source: Press et al., 2022, and their code for other numbers, as BLOOM has it.
pub fn slopes(heads: usize) -> Vec<f64> {
    let of_power = |n: usize| (1..=n).map(move |i| (-8.0 * i as f64 / n as f64).exp2());
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    of_power(below).chain(of_power(2 * below).step_by(2)).take(heads).collect()
}

/// The biases of a stack's self-attention. What they penalise is the number of the key; the number of the query is the
/// same for all of its keys and makes no difference to a softmax.
#[derive(Debug)]
pub struct Alibi {
    /// One of each head of this rank.
    slopes: Vec<f64>,
    /// f32 `[P, N]`: slopes times positions.
    table: RefCell<Option<Tensor>>,
}

impl Alibi {
    /// ALiBi for this number of heads.
    pub fn new(heads: usize) -> Self {
        Alibi::of_heads(0..heads, heads)
    }

    /// ALiBi for some of a number of heads, as a tensor-parallel rank has them.
    pub fn of_heads(held: Range<usize>, heads: usize) -> Self {
        let slopes = slopes(heads).into_iter().skip(held.start).take(held.len()).collect();
        Alibi { slopes, table: RefCell::default() }
    }

    /// `[1 or B, N, 1, S]`: of every key. Padding does not count where tokens are numbered.
    pub fn bias(&self, rows: Rows<'_>, cx: &Ctx) -> Result<Var> {
        let (device, length) = (cx.device(), rows.keys());
        let table = Var::constant(self.table(length, cx)?); // [P, N]
        let own;
        let numbers = match rows.numbers {
            Some(numbers) => numbers,
            None => {
                let all: Vec<i64> = (0..length as i64).collect();
                own = Tensor::from_slice_in(device, [1, length], &all, Segment::Data)?;
                &own
            }
        };
        let by_key = ops::embedding(cx, numbers, &table, None)?; // [1 or B, S, N]
        let by_head = ops::permute(cx, &by_key, &[0, 2, 1])?; // [1 or B, N, S]
        let batch = by_head.shape().dims()[0];
        Ok(by_head.reshape([batch, self.slopes.len(), 1, length])?) // [1 or B, N, 1, S]
    }

    fn table(&self, length: usize, cx: &Ctx) -> Result<Tensor> {
        let mut kept = self.table.borrow_mut();
        if let Some(table) = kept.as_ref().filter(|table| table.shape().dims()[0] >= length) {
            return Ok(table.clone());
        }
        let (rows, slopes) = (length.next_power_of_two().max(64), &self.slopes);
        let values: Vec<f32> = (0..rows).flat_map(|p| slopes.iter().map(move |s| (s * p as f64) as f32)).collect();
        let table = Tensor::from_slice_in(cx.device(), [rows, slopes.len()], &values, Segment::Data)?;
        *kept = Some(table.clone());
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::slopes;

    #[test]
    fn slopes_are_those_of_the_paper() {
        assert_eq!(slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        // Four of the power below, then the first and third of eight.
        assert_eq!(slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
        assert_eq!(slopes(1), [0.00390625]);
        assert_eq!(slopes(3), [0.0625, 0.00390625, 0.25]);
    }
}
