//! The arithmetic of some rows of a head: logits, losses, and the gradients of all three factors.

use super::owned;
use super::plan::Wanted;
use crate::comm::{Reduction, tensors};
use crate::kernel::{ColumnSum, CrossEntropyBackward, Gemm, Matrix};
use crate::ops::cross_entropy::{RowRange, Terms, VocabularyShard};
use crate::ops::*;
use crate::tensor::Storage;
use crate::view::ViewMut;
use std::ops::Range;

#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) rows: usize,
    /// Rows of the weight, filling included.
    pub(super) classes: usize,
    /// Elements from one row of logits to the next.
    pub(super) columns: usize,
    /// Length of a hidden row.
    pub(super) depth: usize,
}

#[derive(Debug)]
pub(super) struct Head {
    /// `[rows, depth]`.
    pub(super) hidden: Tensor,
    /// `[classes, depth]`.
    pub(super) weight: Tensor,
    /// `[classes]`.
    pub(super) bias: Option<Tensor>,
    pub(super) terms: Terms,
    pub(super) shard: Option<VocabularyShard>,
    pub(super) size: Size,
}

impl Head {
    fn device(&self) -> &Device {
        self.hidden.device()
    }

    fn hidden_of(&self, rows: &Range<usize>) -> Result<View<'_>> {
        self.hidden.view()?.part(rows.start * self.size.depth, rows.len() * self.size.depth)
    }

    /// Make the logits of some rows.
    pub(super) fn logits(&self, rows: Range<usize>, logits: &Storage) -> Result<()> {
        let Size { classes, columns, depth, .. } = self.size;
        let count = rows.len();
        let a = Matrix::plain(self.hidden_of(&rows)?, depth);
        let b = Matrix::transposed(self.weight.view()?, depth);
        let c = Dest { view: logits.view_mut(0..count * columns)?, add: false };
        let mut gemm = Gemm::single([count, classes, depth], a, b, c);
        gemm.c.ld = columns;
        gemm.epilogue.bias = self.bias.as_ref().map(Tensor::view).transpose()?;
        self.device().launch(gemm)
    }

    /// Make the logits of some rows, and write their losses and log-sum-exps.
    pub(super) fn losses(
        &self,
        rows: Range<usize>,
        logits: &Storage,
        losses: &Storage,
        lse: ViewMut<'_>,
    ) -> Result<()> {
        let (count, columns) = (rows.len(), self.size.columns);
        self.logits(rows.clone(), logits)?;
        let block = RowRange { first: rows.start, count, columns };
        let logits = logits.view(0..count * columns)?;
        self.terms.losses(self.shard.as_ref(), block, logits, losses.view_mut(rows)?, lse)
    }

    /// Losses of a head that has all classes, and the gradient of their sum in the place of the logits.
    pub(super) fn losses_and_gradient(&self, rows: Range<usize>, logits: &Storage, losses: &Storage) -> Result<()> {
        let (count, columns) = (rows.len(), self.size.columns);
        self.logits(rows.clone(), logits)?;
        let block = RowRange { first: rows.start, count, columns };
        self.terms.in_place(block, losses.view_mut(rows)?, logits.view_mut(0..count * columns)?)
    }

    pub(super) fn gradient(
        &self,
        rows: Range<usize>,
        logits: &Storage,
        lse: View<'_>,
        dloss: &Tensor,
        divisor: Option<&Tensor>,
    ) -> Result<()> {
        gradient(&self.terms, self.size.columns, rows, logits, lse, dloss, divisor)
    }
}

pub(super) fn gradient(
    terms: &Terms,
    columns: usize,
    rows: Range<usize>,
    logits: &Storage,
    lse: View<'_>,
    dloss: &Tensor,
    divisor: Option<&Tensor>,
) -> Result<()> {
    logits.device().launch(CrossEntropyBackward {
        rows: rows.len(),
        columns,
        logits: None,
        criterion: terms.criterion(rows.start, rows.len())?,
        lse,
        dloss: dloss.view()?,
        divisor: divisor.map(Tensor::view).transpose()?,
        fused: false,
        dlogits: logits.view_mut(0..rows.len() * columns)?,
    })
}

/// `dhidden (+)= dlogits weight` of `rows` rows.
pub(super) fn hidden_gradient(
    device: &Device,
    size: Size,
    rows: usize,
    dlogits: View<'_>,
    weight: &Tensor,
    out: Dest<'_>,
) -> Result<()> {
    let Size { classes, columns, depth, .. } = size;
    let (a, b) = (Matrix::plain(dlogits, columns), Matrix::plain(weight.view()?, depth));
    device.launch(Gemm::single([rows, depth, classes], a, b, out))
}

/// `dweight (+)= dlogits^T hidden` of `rows` rows.
pub(super) fn weight_gradient(
    device: &Device,
    size: Size,
    rows: usize,
    dlogits: View<'_>,
    hidden: View<'_>,
    out: Dest<'_>,
) -> Result<()> {
    let Size { classes, columns, depth, .. } = size;
    let (a, b) = (Matrix::transposed(dlogits, columns), Matrix::plain(hidden, depth));
    device.launch(Gemm::single([classes, depth, rows], a, b, out))
}

/// The gradients of the sum of the losses, as far as they are wanted.
#[derive(Debug)]
pub(super) struct Gradients {
    /// `[rows, depth]`, in the type of hidden.
    pub(super) hidden: Option<Tensor>,
    /// f32 `[classes, depth]`.
    pub(super) weight: Option<Tensor>,
    /// f32 `[classes]`.
    pub(super) bias: Option<Tensor>,
}

pub(super) struct Sums {
    hidden: Option<Storage>,
    weight: Option<Storage>,
    /// With a place for each column of filling.
    bias: Option<Storage>,
}

impl Sums {
    /// Room for what is wanted; the first chunk overwrites it.
    pub(super) fn new(head: &Head, wanted: Wanted) -> Result<Sums> {
        let Size { rows, classes, columns, depth } = head.size;
        let room = |wanted: bool, elements: usize, dtype: DType| {
            wanted.then(|| Storage::empty(head.device(), elements, dtype, Segment::Activations)).transpose()
        };
        Ok(Sums {
            hidden: room(wanted.hidden, rows * depth, head.hidden.dtype())?,
            weight: room(wanted.weight, classes * depth, DType::F32)?,
            bias: room(wanted.bias, columns, DType::F32)?,
        })
    }

    /// Multiply in the gradients `[rows, columns]` of the logits of some rows.
    pub(super) fn add(&self, head: &Head, rows: Range<usize>, dlogits: View<'_>) -> Result<()> {
        let (device, size, count, add) = (head.device(), head.size, rows.len(), rows.start > 0);
        if let Some(sum) = &self.hidden {
            let view = sum.view_mut(rows.start * size.depth..rows.end * size.depth)?;
            hidden_gradient(device, size, count, dlogits, &head.weight, Dest { view, add: false })?;
        }
        if let Some(sum) = &self.weight {
            let out = Dest { view: sum.view_mut(0..sum.len())?, add };
            weight_gradient(device, size, count, dlogits, head.hidden_of(&rows)?, out)?;
        }
        if let Some(sum) = &self.bias {
            let out = Dest { view: sum.view_mut(0..sum.len())?, add };
            device.launch(ColumnSum { rows: count, columns: size.columns, x: dlogits, out })?;
        }
        Ok(())
    }

    /// The accumulated gradients. Each rank's classes give hidden a part of its gradient.
    pub(super) fn finish(self, head: &Head) -> Result<Gradients> {
        let Size { rows, classes, depth, .. } = head.size;
        let hidden = match (self.hidden.map(|sum| owned(sum, [rows, depth])).transpose()?, &head.shard) {
            (Some(part), Some(shard)) => Some(tensors::all_reduce(&**shard.ranks(), part, Reduction::Sum)?),
            (whole, _) => whole,
        };
        let weight = self.weight.map(|sum| owned(sum, [classes, depth])).transpose()?;
        let bias = self.bias.map(|sum| owned(sum, [classes])).transpose()?;
        Ok(Gradients { hidden, weight, bias })
    }
}
