//! Changes of the base model's own weights by a PEFT directory, made when it is opened.
//!
//! LoRA of linear layers of blocks, learned factors and virtual tokens are computed beside the model. What else a
//! directory has is a change of the weights themselves, made once when they are read: parts that are replaced, updates
//! of embeddings and of the output projection, and what PEFT subtracts before it adds an update.

use super::initial;
use super::settings::InitialUpdate;
use super::values::AdapterTensors;
use crate::Result;
use model_center_formats::TensorPart;
use std::ops::Range;

/// A change of one parameter.
#[derive(Debug, Clone)]
pub(in crate::adapter) struct BaseChange {
    /// Our name of the parameter.
    pub(in crate::adapter) param: String,
    /// Which of the plan's directories makes it.
    pub(in crate::adapter) source: usize,
    pub(in crate::adapter) change: Change,
}

/// Tensors are named as in the directory's file.
#[derive(Debug, Clone)]
pub(in crate::adapter) enum Change {
    /// The tensor replaces a part.
    Part { part: TensorPart, tensor: String },
    /// Rows of the tensor replace these rows of an embedding.
    Rows { part: TensorPart, rows: Vec<usize>, tensor: String },
    /// `scale · b a` is added to a weight; of an embedding its transpose.
    Update { part: TensorPart, a: String, b: String, rank: usize, scale: f32, of_embedding: bool },
    /// The tensor times `scale` is added to a bias.
    Bias { part: TensorPart, tensor: String, scale: f32 },
    /// Subtraction of the initial value of an update of this rank.
    Initial { part: TensorPart, kind: InitialUpdate, rank: usize, scale: f32 },
}

impl Change {
    /// Whether it is kept by training: an update that was begun otherwise is trained on like any other.
    pub(in crate::adapter) fn is_kept_in_training(&self) -> bool {
        matches!(self, Change::Initial { .. })
    }

    /// Kind and name of the change, for messages.
    pub(in crate::adapter) fn describe(&self) -> (&'static str, &str) {
        match self {
            Change::Part { tensor, .. } => ("a part of a parameter", tensor),
            Change::Rows { tensor, .. } => ("rows of an embedding", tensor),
            Change::Update { a, .. } => ("an update of an embedding or of the output projection", a),
            Change::Bias { tensor, .. } => ("the bias of an update", tensor),
            Change::Initial { part, .. } => ("what an update began with", &part.name),
        }
    }

    /// Change the values of the whole parameter, in our order. Numerics: f32, sums in f64.
    pub(super) fn apply(&self, tensors: &AdapterTensors, values: &mut [f32]) -> Result<()> {
        match self {
            Change::Part { part, tensor } => {
                let theirs = tensors.read(tensor)?;
                part.arrange(&theirs, &mut values[part.elements()]);
            }
            Change::Rows { part, rows, tensor } => {
                let (theirs, columns) = (tensors.read(tensor)?, part.columns());
                for (row, theirs) in rows.iter().zip(theirs.chunks_exact(columns.max(1))) {
                    let start = (part.rows.start + row) * columns;
                    values[start..start + columns].copy_from_slice(theirs);
                }
            }
            Change::Update { part, a, b, rank, scale, of_embedding } => {
                let (a, b) = (tensors.read(a)?, tensors.read(b)?);
                let (left, right) =
                    if *of_embedding { (transposed(&a, *rank), transposed_to(&b, *rank)) } else { (b, a) };
                // Rows of the left factor are in the order of theirs.
                let mut rows = vec![0.0; left.len()];
                part.with_columns(*rank).arrange(&left, &mut rows);
                add_product(&mut values[part.elements()], (&rows, &right), *rank, *scale);
            }
            Change::Bias { part, tensor, scale } => {
                let theirs = tensors.read(tensor)?;
                let mut ours = vec![0.0; theirs.len()];
                part.arrange(&theirs, &mut ours);
                let Range { start, end } = part.elements();
                values[start..end].iter_mut().zip(ours).for_each(|(value, bias)| *value += scale * bias);
            }
            Change::Initial { part, kind, rank, scale } => {
                let columns = part.columns();
                let weight = &mut values[part.elements()];
                let place = || format!("weight {}", part.name);
                match kind {
                    InitialUpdate::None => {}
                    InitialUpdate::Pissa => initial::subtract_largest(weight, columns, *rank),
                    InitialUpdate::Olora => initial::subtract_first_columns(weight, columns, (*rank, *scale), place)?,
                }
            }
        }
        Ok(())
    }
}

/// `[R, N]` as `[N, R]`.
fn transposed(a: &[f32], rank: usize) -> Vec<f32> {
    let count = a.len() / rank.max(1);
    (0..count).flat_map(|row| (0..rank).map(move |at| a[at * count + row])).collect()
}

/// `[D, R]` as `[R, D]`.
fn transposed_to(b: &[f32], rank: usize) -> Vec<f32> {
    let count = b.len() / rank.max(1);
    (0..rank).flat_map(|at| (0..count).map(move |row| b[row * rank + at])).collect()
}

/// Add `scale · left right` to a matrix; `left` is `[rows, R]`, `right` `[R, columns]`.
fn add_product(weight: &mut [f32], (left, right): (&[f32], &[f32]), rank: usize, scale: f32) {
    let columns = right.len() / rank.max(1);
    if columns == 0 {
        return;
    }
    let mut sums = vec![0.0f64; columns];
    for (row, left) in weight.chunks_exact_mut(columns).zip(left.chunks_exact(rank)) {
        sums.fill(0.0);
        for (factor, right) in left.iter().zip(right.chunks_exact(columns)) {
            let factor = f64::from(*factor);
            sums.iter_mut().zip(right).for_each(|(sum, value)| *sum += factor * f64::from(*value));
        }
        row.iter_mut().zip(&sums).for_each(|(value, sum)| *value += scale * *sum as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_of_rows_and_columns() {
        // a [2, 3] and b [2, 2] of an embedding of three rows with two columns.
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 10.0, 2.0, 20.0]);
        let mut table = [0.0; 6];
        add_product(&mut table, (&transposed(&a, 2), &transposed_to(&b, 2)), 2, 0.5);
        // Row v is 0.5 · (b a)[:, v].
        assert_eq!(table, [20.5, 41.0, 26.0, 52.0, 31.5, 63.0]);
    }
}
