//! The weight of a row-parallel product over tensor-parallel ranks: [`ProductWeight`], which [`linear`](super::linear)
//! and [`feed_forward`](super::feed_forward) take. Its collective belongs to the op so that rows are summed over the
//! ranks on the tensor lane beside the products of the next rows.

use super::gemm::{ProductPrecision, add_to_rows, bias_gradient, project, project_rows};
use super::*;
use crate::comm::tensors::{self, Pending};
use crate::comm::{Communicator, Reduction};
use crate::kernel::{AddScaled, Epilogue, Fill, Gemm, Matrix};
use crate::lane::Lane;
use std::ops::Range;
use std::sync::Arc;

/// Rows of a product that are worth a collective of their own, and a product of their own: fewer of them are a small
/// part of the time that either takes.
pub(super) const CHUNK_ROWS: usize = 512;

/// Most chunks of a product: the last one is all that no product overlaps.
const MAX_CHUNKS: usize = 4;

/// The weight of a product, and where the product goes. `&Var` is one whose product is the result.
#[derive(Debug, Clone)]
pub struct ProductWeight<'a> {
    weight: &'a Var,
    ranks: OutputRanks,
    residual: Option<&'a Var>,
    precision: ProductPrecision,
}

/// Destination of a product.
#[derive(Debug, Clone)]
pub(super) enum OutputRanks {
    /// Nowhere.
    One,
    /// Every rank gets the sum.
    Summed(Arc<dyn Communicator>),
    /// Every rank gets its tokens of the sum.
    Scattered(TokenShard),
}

impl<'a> From<&'a Var> for ProductWeight<'a> {
    fn from(weight: &'a Var) -> Self {
        ProductWeight { weight, ranks: OutputRanks::One, residual: None, precision: ProductPrecision::Full }
    }
}

impl<'a> ProductWeight<'a> {
    /// This rank's columns of a weight: the result is the sum of the products of all ranks, plus the bias once.
    /// [`sum_over_ranks`](super::sum_over_ranks) as a part of the product, with the same bits.
    pub fn summed(weight: &'a Var, ranks: &Arc<dyn Communicator>) -> Self {
        ProductWeight { ranks: OutputRanks::Summed(Arc::clone(ranks)), ..ProductWeight::from(weight) }
    }

    /// As [`ProductWeight::summed`] of tokens `[B, L, K]`, but the result is this rank's tokens, `[own, N]`:
    /// [`scatter_tokens`](super::scatter_tokens) as a part of the product, with the same bits.
    pub fn scattered(weight: &'a Var, tokens: &TokenShard) -> Self {
        ProductWeight { ranks: OutputRanks::Scattered(tokens.clone()), ..ProductWeight::from(weight) }
    }

    /// Add a residual to the result: the hidden states to which a layer adds, shaped as the result and of its dtype.
    /// Where the product is of one rank it does so as it is written.
    #[must_use]
    pub fn plus(self, residual: &'a Var) -> Self {
        ProductWeight { residual: Some(residual), ..self }
    }

    /// Sets the precision of the factors of its product; in a feed-forward layer, where it is the second weight, also
    /// of the factors of the gradients.
    #[must_use]
    pub fn with_precision(self, precision: ProductPrecision) -> Self {
        ProductWeight { precision, ..self }
    }

    pub(super) fn precision(&self) -> ProductPrecision {
        self.precision
    }

    pub(super) fn residual(&self) -> Option<&'a Var> {
        self.residual
    }

    pub(super) fn var(&self) -> &'a Var {
        self.weight
    }

    pub(super) fn ranks(&self) -> OutputRanks {
        self.ranks.clone()
    }

    /// Refuse what the sum of the ranks, or a residual, does not go with; the product has rows of `n`.
    pub(super) fn check(
        &self,
        op: &'static str,
        x: &Tensor,
        shape: Shape,
        (n, is_activated): (usize, bool),
    ) -> Result<()> {
        if let Some(residual) = self.residual {
            let value = residual.value();
            if is_activated {
                return Err(Error::argument(op, "a residual is added to a product without an activation"));
            }
            if value.dtype() != x.dtype() {
                let (what, expected) = ("residual".into(), x.dtype().name().into());
                return Err(Error::DType { op, what, expected, got: value.dtype() });
            }
            let rows = match &self.ranks {
                OutputRanks::Scattered(tokens) => tokens.own().len(),
                _ => shape.rows(),
            };
            expect_elements(op, "residual", rows * n, value.shape())?;
        }
        match &self.ranks {
            OutputRanks::One => Ok(()),
            _ if is_activated => Err(Error::argument(op, "an activation of a sum over ranks is an op of its own")),
            OutputRanks::Summed(_) => Ok(()),
            OutputRanks::Scattered(tokens) => expect_shape(op, "x", tokens.full_shape(shape.last()), shape),
        }
    }

    /// `x weight^T`, summed over the ranks, plus the bias and the residual.
    pub(super) fn product(&self, x: &Tensor, bias: Option<&Var>, n: usize) -> Result<Tensor> {
        let (device, weight) = (x.device(), self.weight.value());
        let mut y = match &self.ranks {
            OutputRanks::One => {
                let mut y = Tensor::empty_in(device, x.shape().with_last(n)?, x.dtype(), Segment::Activations)?;
                // A product with quantised blocks has no residual.
                let is_whole = !matches!(weight.dtype(), DType::Blocks(_));
                let residual = if is_whole { view_of(self.residual)? } else { None };
                let epilogue = Epilogue { bias: view_of(bias)?, residual, ..Epilogue::default() };
                project(device, x, weight, epilogue, self.precision, &mut y)?;
                if is_whole {
                    return Ok(y);
                } // [.., N]
                return self.with_residual(y); // [.., N]
            }
            OutputRanks::Summed(ranks) => summed(&**ranks, x, (weight, self.precision), n)?, // [.., N]
            OutputRanks::Scattered(tokens) => scattered(tokens, x, (weight, self.precision), n)?, // [own, N]
        };
        if let Some(bias) = bias {
            add_to_rows(bias.value(), &mut y)?;
        }
        self.with_residual(y)
    }

    /// The residual added to a product that was written without it.
    fn with_residual(&self, mut y: Tensor) -> Result<Tensor> {
        if let Some(residual) = self.residual {
            let a = residual.value().view()?;
            y.device().clone().launch(AddScaled { alpha: 1.0, a, beta: 1.0, b: None, out: y.view_mut()? })?;
        }
        Ok(y)
    }
}

impl OutputRanks {
    /// The gradient of the product of all rows from the gradient of the result, and the number of the op's bias while
    /// it has no gradient yet: where the result is of some of the rows it gets it here.
    pub(super) fn gradient(
        &self,
        cx: &mut BackwardCtx<'_>,
        dy: Tensor,
        (bias, n): (usize, usize),
        [dtype, bias_dtype]: [DType; 2],
    ) -> Result<(Tensor, Option<usize>)> {
        let OutputRanks::Scattered(tokens) = self else { return Ok((dy, Some(bias))) };
        let dy = in_dtype(dy, dtype)?.reshape(tokens.own_shape(n))?;
        let arriving = tokens.begin_gather(&dy)?;
        bias_gradient(cx, bias, &dy, n, bias_dtype)?;
        Ok((tokens.whole(&arriving.wait()?)?, None)) // [B, L, N]
    }
}

/// Ranges of `rows` rows of each of `ranks` ranks, the same on all of them.
fn chunks(rows: usize, ranks: usize) -> impl Iterator<Item = Range<usize>> {
    let count = (rows * ranks / CHUNK_ROWS).clamp(1, MAX_CHUNKS);
    let each = rows.div_ceil(count).max(1);
    (0..rows).step_by(each).map(move |first| first..rows.min(first + each))
}

/// The product `[.., N]`, summed over the ranks chunk by chunk.
fn summed(
    ranks: &dyn Communicator,
    x: &Tensor,
    (weight, precision): (&Tensor, ProductPrecision),
    n: usize,
) -> Result<Tensor> {
    let (device, rows, k) = (x.device(), x.shape().rows(), x.shape().last());
    let x_rows = x.reshape([rows, k])?;
    let mut y = Tensor::empty_in(device, x.shape().with_last(n)?, x.dtype(), Segment::Activations)?; // [.., N]
    let mut end = None;
    for range in chunks(rows, 1) {
        let (at, len) = (range.start * n, range.len() * n);
        let x = x_rows.slice(range.clone())?;
        let part = y.view_mut()?.part(at, len)?;
        project_rows(device, x.view()?, weight, [range.len(), n, k], Epilogue::default(), precision, part)?;
        end = Some(tensors::begin_all_reduce_part(ranks, &mut y, at, len, Reduction::Sum, Lane::Tensor)?);
    }
    Pending::of(y, end).wait()
}

/// This rank's tokens `[own, N]` of the product, summed over the ranks chunk by chunk: each chunk has rows of every
/// rank's tokens, which are as far apart as a rank has tokens.
fn scattered(
    tokens: &TokenShard,
    x: &Tensor,
    (weight, precision): (&Tensor, ProductPrecision),
    n: usize,
) -> Result<Tensor> {
    let (device, total, each) = (x.device(), tokens.total(), tokens.each());
    let (size, k) = (tokens.ranks().size(), x.shape().last());
    let x = x.reshape([total, k])?;
    let new = |rows: usize| Tensor::empty_in(device, [rows, n], x.dtype(), Segment::Activations);
    // A batch of products has neither quantised blocks nor factors in 8 bits.
    let is_batch = precision == ProductPrecision::Full && !matches!(weight.dtype(), DType::Blocks(_));
    let is_even = total == each * size && is_batch;
    if !is_even {
        // One chunk, in which the rows of all ranks follow each other.
        let mut all = new(each * size)?; // [T each, N]
        let (held, room) = (total * n, all.elements());
        let own = all.view_mut()?.part(0, held)?;
        project_rows(device, x.view()?, weight, [total, n, k], Epilogue::default(), precision, own)?;
        device.launch(Fill { value: 0.0, out: all.view_mut()?.part(held, room - held)? })?;
        return tensors::reduce_scatter(&**tokens.ranks(), &all, Reduction::Sum)?.slice(0..tokens.own().len());
    }
    let mut y = new(each)?; // [own, N]
    let (mut end, mut under_way) = (None, Vec::new());
    for range in chunks(each, size) {
        let rows = range.len();
        let mut all = new(size * rows)?; // [T rows, N]
        if rows > 0 {
            let span = ((size - 1) * each + rows) * k;
            let a = Matrix { batch: [0, each * k], ..Matrix::plain(x.view()?.part(range.start * k, span)?, k) };
            let b = Matrix::transposed(weight.view()?, k);
            let mut gemm = Gemm::single([rows, n, k], a, b, all.dest(false)?);
            (gemm.batch.inner, gemm.c.batch) = (size, [0, rows * n]);
            device.launch(gemm)?;
        }
        end = Some(tensors::begin_reduce_scatter_part(
            &**tokens.ranks(),
            &all,
            &mut y,
            range.start * n,
            rows * n,
            Reduction::Sum,
            Lane::Tensor,
        )?);
        // Freed memory would be given to the next chunk, which would wait for the collective.
        under_way.push(all);
    }
    Pending::of(y, end).wait()
}
