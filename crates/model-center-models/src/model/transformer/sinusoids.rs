//! Sinusoidal positions (Vaswani et al., 2017) added to the token embeddings, with all sines before all cosines.

use bmtrain_core::{Ctx, Segment, Tensor, Var, ops};
use bmtrain_dist::param::{Init, InitElements, InitFunction};
use model_center_base::error::{Error, Result};
use model_center_formats::{TensorSource, Weights};
use std::cell::RefCell;

/// Tolerance for stored values: bf16 has eight bits of precision.
const ROUNDING: f32 = 1.0 / 128.0;

/// A table of sines and cosines, which grows with the longest sequence seen.
///
/// Source: Marian, and its models in transformers. With an odd dimension there is one sine more than cosines.
#[derive(Debug)]
pub struct Sinusoids {
    dim_model: usize,
    table: RefCell<Option<Tensor>>,
}

impl Sinusoids {
    /// Initial values of a table that is trained: sine and cosine by turns along a row, of angles
    /// `p r^(j / 2)` for element j, rounded down, of position p.
    ///
    /// Numerics: in f64, rounded once. Source: Vaswani et al. 2017.
    pub const BY_TURNS: Init = Init::Function(InitFunction(|InitElements { shape, first, .. }, values| {
        let dim = shape.last();
        for (value, at) in values.iter_mut().zip(first..) {
            let (position, column) = (at / dim, at % dim);
            let angle = position as f64 / 10_000f64.powf((column - column % 2) as f64 / dim as f64);
            *value = if column % 2 == 0 { angle.sin() } else { angle.cos() } as f32;
        }
    }));

    /// For rows of this dimension. Computes nothing yet.
    pub fn new(dim_model: usize) -> Self {
        Sinusoids { dim_model, table: RefCell::default() }
    }

    /// Row `position` of a table whose rows are `dim_model` long: `sin(p r^i)` by `i`, then `cos(p r^i)`, with
    /// `r = 10000^(-2 / dim_model)`.
    ///
    /// Numerics: in f64, rounded once.
    pub fn row(position: usize, dim_model: usize) -> impl Iterator<Item = f32> {
        let sines = dim_model.div_ceil(2);
        (0..dim_model).map(move |column| {
            let pair = if column < sines { column } else { column - sines };
            let angle = position as f64 / 10_000f64.powf(2.0 * pair as f64 / dim_model as f64);
            (if column < sines { angle.sin() } else { angle.cos() }) as f32
        })
    }

    /// Adds the rows of these positions, i64 `[B, L]`, all below `reach`, to `x [B, L, D]`.
    ///
    /// # Errors
    /// Another shape.
    pub fn add_to(&self, x: Var, positions: &Tensor, reach: usize, cx: &Ctx) -> bmtrain_dist::Result<Var> {
        let table = self.of(reach, cx)?; // [P, D]
        let table = ops::cast(cx, &Var::constant(table), x.dtype())?;
        Ok(ops::add_embedding(cx, x, positions, &table, None)?) // [B, L, D]
    }

    /// The rows of `reach` positions or more.
    fn of(&self, length: usize, cx: &Ctx) -> bmtrain_dist::Result<Tensor> {
        let mut kept = self.table.borrow_mut();
        if let Some(table) = kept.as_ref().filter(|table| table.shape().rows() >= length) {
            return Ok(table.clone());
        }
        // Powers of two: sequences of slowly growing lengths rebuild few tables.
        let rows = length.next_power_of_two().max(64);
        let values: Vec<f32> = (0..rows).flat_map(|position| Self::row(position, self.dim_model)).collect();
        let table = Tensor::from_slice_in(cx.device(), [rows, self.dim_model], &values, Segment::Data)?;
        *kept = Some(table.clone());
        Ok(table)
    }

    /// Compares the position tables of this shape in a file with the computed ones: a model trained with other tables
    /// is not the same model.
    ///
    /// # Errors
    /// Tables of another shape or with other values; files that cannot be read.
    pub fn check(weights: &Weights, shape: [usize; 2]) -> Result<()> {
        for entry in weights.entries().into_iter().filter(|entry| entry.name.ends_with("embed_positions.weight")) {
            let other = |reason: String, fix: &str| {
                Error::model(format!("{}, tensor {}", weights.place(), entry.name), reason, fix)
            };
            if entry.shape != shape {
                let reason = format!("it is {:?}, and should be {shape:?}", entry.shape);
                return Err(other(reason, "correct max_position_embeddings or d_model in config.json"));
            }
            let fix = "use a model whose positions are not trained";
            if !entry.is_float() {
                return Err(other(format!("it is of {:?}, and not of a float type", entry.dtype), fix));
            }
            let mut values = vec![0.0; shape[0] * shape[1]];
            weights.read_f32(&entry.name, &mut values)?;
            for (position, stored) in values.chunks(shape[1]).enumerate() {
                let mut pairs = Self::row(position, shape[1]).zip(stored);
                // A NaN fails the comparison.
                if !pairs.all(|(ours, theirs)| (ours - theirs).abs() <= ROUNDING) {
                    return Err(other(format!("its row {position} has no sines and cosines of the position"), fix));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Sinusoids;
    use bmtrain_core::{Ctx, Device};

    #[test]
    fn a_row_has_its_sines_before_its_cosines_and_if_odd_one_more_of_them() {
        let row = |position, length| Sinusoids::row(position, length).collect::<Vec<_>>();
        assert_eq!(row(0, 5), [0.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!(row(3, 4), [3f64.sin() as f32, 0.03f64.sin() as f32, 3f64.cos() as f32, 0.03f64.cos() as f32]);
    }

    #[test]
    fn a_table_is_kept_for_shorter_rows() {
        let device = Device::cpu(1).unwrap();
        let (table, cx) = (Sinusoids::new(6), Ctx::inference(&device));
        let rows = |length| table.of(length, &cx).unwrap().shape().dims().to_vec();
        assert_eq!([rows(5), rows(65), rows(3)], [[64, 6], [128, 6], [128, 6]]);
    }
}
