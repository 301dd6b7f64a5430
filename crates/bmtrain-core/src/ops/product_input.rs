//! The input of a column-parallel product over tensor-parallel ranks: [`ProductInput`], which [`linear`](super::linear)
//! and [`feed_forward`](super::feed_forward) take. Its collectives belong to the op so that in the backward pass they
//! run on the tensor lane beside the product of the other gradient, and so that no op keeps tokens of other ranks.

use super::gemm::{ProductParameters, ProductPrecision, input_gradient, parameter_gradients, project_rows};
use super::product_weight::CHUNK_ROWS;
use super::*;
use crate::comm::tensors::{self, Pending};
use crate::comm::{Communicator, Reduction};
use crate::kernel::{Activation, Epilogue};
use crate::lane::Lane;
use std::ops::Range;
use std::sync::Arc;

/// The input of a product with a weight, and where it comes from. `&Var` is one of this rank alone.
#[derive(Debug, Clone)]
pub struct ProductInput<'a> {
    x: &'a Var,
    ranks: InputRanks,
    precision: ProductPrecision,
}

/// Source of a product's input, and destination of its gradient.
#[derive(Debug, Clone)]
pub(super) enum InputRanks {
    /// One rank.
    One,
    /// Alike on all ranks.
    Copied(Arc<dyn Communicator>),
    /// Each rank has some of the tokens.
    Gathered(TokenShard),
}

impl<'a> From<&'a Var> for ProductInput<'a> {
    fn from(x: &'a Var) -> Self {
        ProductInput { x, ranks: InputRanks::One, precision: ProductPrecision::Full }
    }
}

impl<'a> ProductInput<'a> {
    /// A value that all ranks have alike, and that each multiplies by another part of the weight. Its gradient is the
    /// sum of the gradients of all ranks: [`copy_to_ranks`](super::copy_to_ranks) as a part of the product.
    pub fn copied(x: &'a Var, ranks: &Arc<dyn Communicator>) -> Self {
        ProductInput { ranks: InputRanks::Copied(Arc::clone(ranks)), ..ProductInput::from(x) }
    }

    /// This rank's tokens, `[own, K]`: the product is of the tokens of all ranks, `[B, L, K]`. Its gradient is this
    /// rank's tokens of the sum of the gradients of all ranks. The op keeps this rank's tokens and gathers the others
    /// again in the backward pass.
    pub fn gathered(x: &'a Var, tokens: &TokenShard) -> Self {
        ProductInput { ranks: InputRanks::Gathered(tokens.clone()), ..ProductInput::from(x) }
    }

    /// Sets the precision of the factors of its product and of both gradients.
    #[must_use]
    pub fn with_precision(self, precision: ProductPrecision) -> Self {
        ProductInput { precision, ..self }
    }

    pub(super) fn x(&self) -> &'a Var {
        self.x
    }

    /// Shape of the input that is multiplied.
    pub(super) fn shape(&self, op: &'static str) -> Result<Shape> {
        match &self.ranks {
            InputRanks::One | InputRanks::Copied(_) => Ok(self.x.shape()),
            InputRanks::Gathered(tokens) => Ok(tokens.full_shape(tokens.expect_own(op, self.x.shape())?)),
        }
    }

    /// The input that is multiplied.
    pub(super) fn value(&self) -> Result<Tensor> {
        match &self.ranks {
            InputRanks::One | InputRanks::Copied(_) => Ok(self.x.value().clone()),
            InputRanks::Gathered(tokens) => tokens.gathered(self.x.value()), // [B, L, K]
        }
    }

    /// `y = activation(x weight^T + bias)`, with the input of the activation in `pre`. While the tokens of other ranks
    /// arrive, the product of this rank's is computed.
    pub(super) fn project(
        &self,
        weight: &Tensor,
        bias: Option<&Var>,
        activation: Option<Activation>,
        mut pre: Option<&mut Tensor>,
        y: &mut Tensor,
    ) -> Result<()> {
        let (device, x) = (self.x.device(), self.x.value());
        let (n, k) = (y.shape().last(), x.shape().last());
        let mut of_rows = |x: View<'_>, rows: Range<usize>| {
            let pre = pre.as_mut().map(|pre| pre.view_mut()).transpose()?;
            let pre_activation = pre.map(|view| view.part(rows.start * n, rows.len() * n)).transpose()?;
            let epilogue = Epilogue { bias: view_of(bias)?, activation, pre_activation, ..Epilogue::default() };
            let y = y.view_mut()?.part(rows.start * n, rows.len() * n)?;
            project_rows(device, x, weight, [rows.len(), n, k], epilogue, self.precision, y)
        };
        let InputRanks::Gathered(tokens) = &self.ranks else { return of_rows(x.view()?, 0..x.shape().rows()) };
        let (own, total) = (tokens.own(), tokens.total());
        if tokens.each() < CHUNK_ROWS {
            return of_rows(tokens.gathered(x)?.view()?, 0..total);
        }
        let arriving = tokens.begin_gather(x)?;
        of_rows(x.view()?, own.clone())?;
        let all = tokens.whole(&arriving.wait()?)?; // [B, L, K]
        for rows in [0..own.start, own.end..total].into_iter().filter(|rows| !rows.is_empty()) {
            of_rows(all.view()?.part(rows.start * k, rows.len() * k)?, rows)?;
        }
        Ok(())
    }

    /// Values for the backward pass; the input's only where the weight's gradient is wanted.
    pub(super) fn saved(&self, wants_value: bool) -> SavedInput {
        let (x, ranks) = (wants_value.then(|| self.x.value().clone()), self.ranks.clone());
        SavedInput { x, ranks, shape: self.x.shape(), dtype: self.x.dtype(), precision: self.precision }
    }
}

/// A product's input, saved for the backward pass.
#[derive(Debug)]
pub(super) struct SavedInput {
    /// This rank's, `[.., K]`; present when the weight's gradient is wanted.
    x: Option<Tensor>,
    ranks: InputRanks,
    shape: Shape,
    dtype: DType,
    precision: ProductPrecision,
}

/// The product whose gradients are wanted, by the numbers of its operands among the op's inputs.
pub(super) struct ProductOperands {
    pub(super) input: usize,
    pub(super) weight: usize,
    /// The bias, where its gradient has not been computed yet.
    pub(super) bias: Option<usize>,
    /// N and K.
    pub(super) size: [usize; 2],
    /// Dtype of weight and bias.
    pub(super) dtype: DType,
    /// The weight, where the input's gradient is wanted.
    pub(super) factor: Option<Saved>,
}

impl SavedInput {
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.x.iter()
    }

    /// Give the gradients of `y = x weight^T + bias` from `dy` `[.., N]`.
    pub(super) fn gradients(self, cx: &mut BackwardCtx<'_>, dy: &Tensor, product: ProductOperands) -> Result<()> {
        let SavedInput { x, ranks, shape, dtype, precision } = self;
        let ProductOperands { input, weight, bias, size: [n, k], dtype: of_weight, factor } = product;
        let parameters = ProductParameters { weight, bias, size: [n, k], dtype: of_weight, precision };
        if let InputRanks::One = ranks {
            parameter_gradients(cx, parameters, dy, x.as_ref())?;
            drop(x);
            // Last, when what was saved is free again.
            let Some(factor) = factor else { return Ok(()) };
            let factor = factor.get()?;
            return cx.write(input, shape, dtype, |device, dx| {
                input_gradient(device, dy, &factor, [n, k], None, precision, dx)
            });
        }
        // The input of all ranks arrives while its gradient is computed, and the gradient is summed over the ranks
        // while the weight's is computed.
        let arriving = x.map(|x| ranks.begin_value(x)).transpose()?;
        let summing = match factor {
            Some(factor) => {
                let rows = dy.elements().checked_div(n).unwrap_or(0);
                let mut dx = Tensor::empty_in(cx.device(), [rows, k], dtype, Segment::Activations)?; // [rows, K]
                input_gradient(cx.device(), dy, &factor.get()?, [n, k], None, precision, dx.dest(false)?)?;
                Some(ranks.begin_sum(dx)?)
            }
            None => None,
        };
        let x = arriving.map(|x| ranks.arrived(x)).transpose()?;
        parameter_gradients(cx, parameters, dy, x.as_ref())?;
        drop(x);
        match summing {
            Some(dx) => {
                let dx = dx.wait()?;
                let rows = shape.rows();
                cx.give(input, if dx.shape().rows() == rows { dx } else { dx.slice(0..rows)? }.reshape(shape)?)
            }
            None => Ok(()),
        }
    }
}

/// An input on its way from other ranks, or here.
enum Arriving {
    Here(Tensor),
    Pending(Pending),
}

impl InputRanks {
    fn begin_value(&self, x: Tensor) -> Result<Arriving> {
        match self {
            InputRanks::One | InputRanks::Copied(_) => Ok(Arriving::Here(x)),
            InputRanks::Gathered(tokens) => Ok(Arriving::Pending(tokens.begin_gather(&x)?)),
        }
    }

    fn arrived(&self, x: Arriving) -> Result<Tensor> {
        match (self, x) {
            (InputRanks::Gathered(tokens), Arriving::Pending(x)) => tokens.whole(&x.wait()?),
            (_, Arriving::Pending(x)) => x.wait(),
            (_, Arriving::Here(x)) => Ok(x),
        }
    }

    /// The sum over the ranks of gradients `[rows, K]` of all tokens, of this rank's tokens where they are sharded.
    fn begin_sum(&self, dx: Tensor) -> Result<Pending> {
        match self {
            InputRanks::One => Ok(Pending::of(dx, None)),
            InputRanks::Copied(ranks) => tensors::begin_all_reduce(&**ranks, dx, Reduction::Sum, Lane::Tensor),
            InputRanks::Gathered(tokens) => tokens.begin_scatter(dx),
        }
    }
}
