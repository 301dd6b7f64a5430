//! The tensors that a parameter has in one: queries, keys and values of attention, or a gate and what it multiplies.
//!
//! A model's files, and the programs it came from, have such tensors one by one. Optimizers that see whole tensors, or
//! blocks that are counted from a tensor's first element, update each of them by itself: [`ParamSpec::tensors`].
//! [`BuilderOptions::fusion`](super::BuilderOptions::fusion) tells which they are.

use super::{OwnedPart, ParamSpec};
use crate::error::{Error, Result};
use bmtrain_core::Shape;
use bmtrain_core::kernel::STATE_BLOCK;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Layout of the original model's tensors in a parameter. The default is one tensor that is the parameter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fusion {
    /// Rows of each tensor on the first axis, in order; empty for one tensor of all rows.
    pub rows: Vec<usize>,
    /// Whether the original has the transpose of each.
    pub transposed: bool,
}

/// One of the tensors of a parameter: some of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedTensor {
    /// Its number in the parameter.
    pub number: usize,
    /// Its rows, on the first axis of the parameter.
    pub rows: Range<usize>,
    /// Its elements of the parameter.
    pub elements: Range<usize>,
    /// The shape of these rows.
    pub shape: Shape,
    /// Whether the original has the transpose.
    pub transposed: bool,
}

/// The [`Fusion`] of each parameter by its full name and its full shape.
#[derive(Clone, Default)]
pub struct FusionTable(Option<Arc<FusionOf>>);

type FusionOf = dyn Fn(&str, &Shape) -> Fusion + Send + Sync;

impl FusionTable {
    /// A table that is a function of a parameter's full name and full shape.
    pub fn new(of: impl Fn(&str, &Shape) -> Fusion + Send + Sync + 'static) -> Self {
        FusionTable(Some(Arc::new(of)))
    }

    /// Whether no parameter has several tensors.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The fusion of a parameter.
    ///
    /// # Errors
    /// Rows that do not add up to the rows of the shape; a transpose of what is not a matrix.
    pub(super) fn of(&self, name: &str, shape: &Shape) -> Result<Fusion> {
        let fusion = self.0.as_ref().map(|of| of(name, shape)).unwrap_or_default();
        let (dims, Fusion { rows, transposed }) = (shape.dims(), &fusion);
        let sum = rows.iter().try_fold(0usize, |sum, rows| sum.checked_add(*rows));
        if !rows.is_empty() && (!(1..=2).contains(&dims.len()) || sum != dims.first().copied() || rows.contains(&0)) {
            let reason = format!("tensors of {rows:?} rows are not the rows of shape {shape}");
            return Err(Error::parameter(name, reason));
        }
        if *transposed && dims.len() != 2 {
            return Err(Error::parameter(name, format!("shape {shape} is not a matrix and has no transpose")));
        }
        Ok(fusion)
    }
}

impl fmt::Debug for FusionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "FusionTable(none)" } else { "FusionTable" })
    }
}

impl Fusion {
    /// The tensors of a parameter of this shape, in order.
    pub fn tensors(&self, shape: &Shape) -> Vec<FusedTensor> {
        let (dims, transposed) = (shape.dims(), self.transposed);
        let all = dims.first().copied().unwrap_or(1);
        let width = shape.elements().checked_div(all).unwrap_or(0);
        if self.rows.len() < 2 {
            let (rows, elements) = (0..all, 0..shape.elements());
            return Vec::from([FusedTensor { number: 0, rows, elements, shape: *shape, transposed }]);
        }
        let tensor = |(number, end): (usize, usize), rows: usize| FusedTensor {
            number,
            rows: end - rows..end,
            elements: (end - rows) * width..end * width,
            shape: if dims.len() == 1 { Shape::from([rows]) } else { Shape::from([rows, width]) },
            transposed,
        };
        let ends = self.rows.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        ends.enumerate().zip(&self.rows).map(|(end, rows)| tensor(end, *rows)).collect()
    }
}

impl ParamSpec {
    /// The tensors of the original model that the parameter has in one, in the order of its rows.
    pub fn tensors(&self) -> Vec<FusedTensor> {
        self.fusion.tensors(&self.shape)
    }
}

impl FusedTensor {
    /// Whether it begins inside one of the parameter's blocks of [`STATE_BLOCK`] elements.
    pub fn begins_in_block(&self) -> bool {
        !self.elements.start.is_multiple_of(STATE_BLOCK)
    }
}

/// Elements of one tensor of a parameter that begin at a block of [`STATE_BLOCK`] elements of the parameter, or are the
/// tensor's first up to the next block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorRun {
    /// The number of the tensor.
    pub(crate) tensor: usize,
    /// The elements of the parameter.
    pub(crate) elements: Range<usize>,
}

impl TensorRun {
    /// Whether these are the first elements of a tensor that begins inside a block.
    pub(crate) fn is_head(&self) -> bool {
        !self.elements.start.is_multiple_of(STATE_BLOCK)
    }
}

/// The elements that a rank owns of a parameter as runs of its tensors, in order. Shards begin at blocks, so they cut
/// runs at blocks alone.
pub(crate) fn runs_of_tensors(tensors: &[FusedTensor], owned: &OwnedPart) -> Vec<TensorRun> {
    let mut runs = Vec::new();
    for FusedTensor { number, elements, .. } in tensors {
        let (start, end) = (elements.start.max(owned.of_param.start), elements.end.min(owned.of_param.end));
        let head = start.next_multiple_of(STATE_BLOCK).min(end);
        let both = [start..head, head.max(start)..end].into_iter().filter(|run| run.start < run.end);
        runs.extend(both.map(|elements| TensorRun { tensor: *number, elements }));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(tensors: &[FusedTensor], of_param: Range<usize>) -> Vec<(usize, Range<usize>)> {
        let owned = OwnedPart { in_values: of_param.clone(), in_state: of_param.clone(), of_param };
        runs_of_tensors(tensors, &owned).into_iter().map(|run| (run.tensor, run.elements)).collect()
    }

    #[test]
    fn tensors_are_consecutive_rows() {
        let fusion = Fusion { rows: vec![4, 2, 2], transposed: false };
        let tensors = fusion.tensors(&Shape::from([8, 100]));
        assert_eq!(
            tensors.iter().map(|tensor| tensor.elements.clone()).collect::<Vec<_>>(),
            [0..400, 400..600, 600..800]
        );
        assert_eq!(tensors[1].shape, Shape::from([2, 100]));
        assert_eq!(fusion.tensors(&Shape::from([8]))[2].shape, Shape::from([2]));
        let whole = Fusion::default().tensors(&Shape::from([8, 100]));
        assert_eq!((whole.len(), whole[0].shape, whole[0].elements.clone()), (1, Shape::from([8, 100]), 0..800));
    }

    #[test]
    fn runs_end_at_tensors_and_at_the_first_block_of_each() {
        let tensors = Fusion { rows: vec![4, 2, 2], transposed: false }.tensors(&Shape::from([8, 100]));
        let all = [(0, 0..400), (1, 400..512), (1, 512..600), (2, 600..768), (2, 768..800)];
        assert_eq!(runs(&tensors, 0..800), all);
        assert_eq!(runs(&tensors, 256..512), [(0, 256..400), (1, 400..512)]);
        assert_eq!(runs(&tensors, 512..800), all[2..]);
        assert_eq!(runs(&tensors, 800..800), []);
        // Three tensors in one block.
        let small = Fusion { rows: vec![3, 3, 3], transposed: false }.tensors(&Shape::from([9]));
        assert_eq!(runs(&small, 0..9), [(0, 0..3), (1, 3..6), (2, 6..9)]);
    }

    #[test]
    fn what_does_not_fit_a_shape_is_refused() {
        let table = |rows: &[usize], transposed| {
            let fusion = Fusion { rows: rows.to_vec(), transposed };
            FusionTable::new(move |_, _| fusion.clone())
        };
        assert!(table(&[4, 4], true).of("w", &Shape::from([8, 3])).is_ok());
        for (table, shape) in [
            (table(&[4, 5], false), Shape::from([8, 3])),
            (table(&[8, 0], false), Shape::from([8, 3])),
            (table(&[usize::MAX, 9], false), Shape::from([8, 3])),
            (table(&[8], true), Shape::from([8])),
            (table(&[1, 1], false), Shape::from([2, 3, 4])),
        ] {
            assert!(table.of("w", &shape).unwrap_err().to_string().contains('w'), "{table:?} {shape}");
        }
    }
}
