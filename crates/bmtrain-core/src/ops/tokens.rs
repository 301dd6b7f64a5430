//! Sequence sharding: between the layers of a transformer each tensor-parallel rank has some of the tokens of a batch.
//!
//! [`TokenShard`] tells which; [`scatter_tokens`] and [`gather_tokens`] lead to such values and back. Two more are
//! parts of products, [`ProductInput::gathered`] and [`ProductWeight::scattered`]. As for the operators of
//! [`copy_to_ranks`](super::copy_to_ranks), every rank computes the same one loss and seeds it with the same gradient:
//!
//! | | forward | backward |
//! |---|---|---|
//! | [`scatter_tokens`], [`ProductWeight::scattered`] | reduce-scatter | all-gather |
//! | [`ProductInput::gathered`] | all-gather | reduce-scatter |
//! | [`gather_tokens`] | all-gather | this rank's tokens |
//!
//! A parameter that is used on sharded tokens, such as a norm's, gets a term of its gradient on each rank.
//!
//! Source: Korthikanti et al. (2022), section 4.2.2, there called sequence parallelism.

use super::gemm::{add_to_rows, bias_gradient};
use super::*;
use crate::comm::tensors::{self, Pending};
use crate::comm::{Communicator, Reduction};
use crate::kernel::{Dropout, Fill};
use crate::lane::Lane;
use std::ops::Range;
use std::sync::Arc;

/// The tokens of one tensor-parallel rank: a range of the B L tokens of a batch, in their order. Ranks have the same
/// number of tokens each, the last ranks fewer or none if the division leaves a remainder.
#[derive(Debug, Clone)]
pub struct TokenShard {
    ranks: Arc<dyn Communicator>,
    batch: usize,
    length: usize,
}

impl TokenShard {
    /// Shards the tokens of `batch` sequences of `length` tokens over a group.
    pub fn new(ranks: Arc<dyn Communicator>, [batch, length]: [usize; 2]) -> Self {
        TokenShard { ranks, batch, length }
    }

    /// B and L of the whole batch.
    pub fn batch_and_length(&self) -> [usize; 2] {
        [self.batch, self.length]
    }

    /// The group of ranks.
    pub fn ranks(&self) -> &Arc<dyn Communicator> {
        &self.ranks
    }

    /// The tokens of this rank among all B L.
    pub fn own(&self) -> Range<usize> {
        let (total, each) = (self.total(), self.each());
        let first = (self.ranks.rank() * each).min(total);
        first..(first + each).min(total)
    }

    /// The tokens of this rank of a value that all ranks have, such as token ids.
    ///
    /// Shapes: x `[B, L]` → `[own]`.
    ///
    /// # Errors
    /// Another number of elements.
    pub fn slice(&self, x: &Tensor) -> Result<Tensor> {
        x.reshape([self.total()])?.slice(self.own())
    }

    /// The dropout of this rank's tokens, rows of `columns` elements: the mask that one rank has for all tokens.
    pub fn dropout(&self, dropout: Dropout, columns: usize) -> Dropout {
        Dropout { offset: dropout.offset + (self.own().start * columns) as u64, ..dropout }
    }

    /// B L.
    pub(super) fn total(&self) -> usize {
        self.batch * self.length
    }

    /// Tokens of a rank, with padding where B L is not divisible.
    pub(super) fn each(&self) -> usize {
        self.total().div_ceil(self.ranks.size().max(1))
    }

    /// Shape of rows of `columns` elements for this rank's tokens.
    pub(super) fn own_shape(&self, columns: usize) -> Shape {
        Shape::from([self.own().len(), columns])
    }

    /// Shape of rows of `columns` elements for the tokens of all ranks.
    pub(super) fn full_shape(&self, columns: usize) -> Shape {
        Shape::from([self.batch, self.length, columns])
    }

    /// Checks rows of this rank's tokens; returns their length.
    pub(super) fn expect_own(&self, op: &'static str, x: Shape) -> Result<usize> {
        let columns = if x.rank() == 2 { x.last() } else { 0 };
        expect_shape(op, "rows of this rank's tokens", self.own_shape(columns), x)?;
        Ok(columns)
    }

    /// `[own, C]` of every rank to `[B, L, C]`.
    pub(super) fn gathered(&self, x: &Tensor) -> Result<Tensor> {
        self.whole(&tensors::all_gather(&*self.ranks, &self.with_room(x, self.each())?)?) // [B, L, C]
    }

    /// As [`TokenShard::gathered`], beside the compute lane; [`TokenShard::whole`] of the result.
    pub(super) fn begin_gather(&self, x: &Tensor) -> Result<Pending> {
        tensors::begin_all_gather(&*self.ranks, self.with_room(x, self.each())?, Lane::Tensor) // [T each, C]
    }

    /// Rows `[T each, C]` of all ranks without the padding, `[B, L, C]`.
    pub(super) fn whole(&self, all: &Tensor) -> Result<Tensor> {
        let columns = all.shape().last();
        all.slice(0..self.total())?.reshape(self.full_shape(columns))
    }

    /// The sum over the ranks of `[B, L, C]`, this rank's rows `[own, C]`.
    pub(super) fn scattered(&self, x: &Tensor) -> Result<Tensor> {
        let part = tensors::reduce_scatter(&*self.ranks, &self.all_rows(x)?, Reduction::Sum)?; // [each, C]
        part.slice(0..self.own().len())
    }

    /// As [`TokenShard::scattered`], beside the compute lane; the first rows of the result.
    pub(super) fn begin_scatter(&self, x: Tensor) -> Result<Pending> {
        tensors::begin_reduce_scatter(&*self.ranks, self.all_rows(&x)?, Reduction::Sum, Lane::Tensor) // [each, C]
    }

    /// `[B, L, C]` as `[T each, C]`, with padding.
    fn all_rows(&self, x: &Tensor) -> Result<Tensor> {
        let columns = x.shape().last();
        self.with_room(&x.reshape([self.total(), columns])?, self.each() * self.ranks.size())
    }

    /// Rows `[n, C]`, followed by zeros up to `rows` of them: the same tensor where that is their number.
    fn with_room(&self, x: &Tensor, rows: usize) -> Result<Tensor> {
        let [count, columns] = x.dims("token_shard")?;
        if count == rows {
            return Ok(x.clone());
        }
        let (device, held) = (x.device(), count * columns);
        let mut padded = Tensor::empty_in(device, [rows, columns], x.dtype(), Segment::Activations)?; // [rows, C]
        device.backend().copy(x.view()?, padded.view_mut()?.part(0, held)?, Lane::Compute)?;
        device.launch(Fill { value: 0.0, out: padded.view_mut()?.part(held, (rows - count) * columns)? })?;
        Ok(padded)
    }
}

/// This rank's tokens of the sum of the terms of all ranks, plus a bias. Each rank's term has the gradient of the sum,
/// which is gathered from the ranks; the bias has a term of its gradient on each.
///
/// Shapes: x `[B, L, N]`, bias `[N]` → `[own, N]`.
///
/// # Errors
/// A bias of another length; another number of tokens.
pub fn scatter_tokens(cx: &Ctx, tokens: &TokenShard, x: &Var, bias: Option<&Var>) -> Result<Var> {
    const OP: &str = "scatter_tokens";
    let columns = x.shape().last();
    expect_shape(OP, "x", tokens.full_shape(columns), x.shape())?;
    if let Some(bias) = bias {
        expect_shape(OP, "bias", Shape::from([columns]), bias.shape())?;
    }
    let mut y = tokens.scattered(x.value())?; // [own, N]
    if let Some(bias) = bias {
        add_to_rows(bias.value(), &mut y)?;
    }
    let absent = x.detach();
    let (dtype, bias_dtype) = (x.dtype(), bias.map_or(x.dtype(), Var::dtype));
    Ok(cx.record(y, &[x, bias.unwrap_or(&absent)], || {
        Box::new(ScatterBackward { tokens: tokens.clone(), columns, dtype, bias_dtype })
    }))
}

#[derive(Debug)]
struct ScatterBackward {
    tokens: TokenShard,
    columns: usize,
    dtype: DType,
    bias_dtype: DType,
}

impl Backward for ScatterBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let ScatterBackward { tokens, columns, dtype, bias_dtype } = *self;
        let dy = in_dtype(only("scatter_tokens", dy)?, dtype)?.reshape(tokens.own_shape(columns))?;
        if !cx.needs(0) {
            return bias_gradient(cx, 1, &dy, columns, bias_dtype);
        }
        let gathering = tokens.begin_gather(&dy)?;
        bias_gradient(cx, 1, &dy, columns, bias_dtype)?;
        cx.give(0, tokens.whole(&gathering.wait()?)?)
    }
}

/// The tokens of all ranks, for layers that each rank computes in the same way, as a head. Every rank has the same
/// gradient of the result.
///
/// Shapes: x `[own, C]` → `[B, L, C]`.
///
/// # Errors
/// Another number of tokens.
pub fn gather_tokens(cx: &Ctx, tokens: &TokenShard, x: &Var) -> Result<Var> {
    let columns = tokens.expect_own("gather_tokens", x.shape())?;
    let y = tokens.gathered(x.value())?; // [B, L, C]
    let dtype = x.dtype();
    Ok(cx.record(y, &[x], || Box::new(GatherBackward { tokens: tokens.clone(), columns, dtype })))
}

#[derive(Debug)]
struct GatherBackward {
    tokens: TokenShard,
    columns: usize,
    dtype: DType,
}

impl Backward for GatherBackward {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let GatherBackward { tokens, columns, dtype } = *self;
        let dy = in_dtype(only("gather_tokens", dy)?, dtype)?.reshape([tokens.total(), columns])?;
        cx.give(0, dy.slice(tokens.own())?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::TokenShard;
    use crate::comm::CountingRank;
    use std::sync::Arc;

    #[test]
    fn ranks_have_neighbouring_tokens_and_every_token_once() {
        for (batch, length, size) in [(2, 3, 2), (2, 3, 4), (1, 1, 4), (3, 5, 4), (0, 7, 2), (2, 8, 1)] {
            let shard = |rank| TokenShard::new(Arc::new(CountingRank::new(rank, size).unwrap()), [batch, length]).own();
            let all: Vec<usize> = (0..size).flat_map(shard).collect();
            assert_eq!(all, (0..batch * length).collect::<Vec<_>>(), "{batch} x {length} over {size}");
        }
    }
}
