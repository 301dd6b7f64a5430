//! Differentiable operations on [`Var`]s: check shapes, allocate, launch, and leave a
//! [`Backward`] on the tape.
//!
//! Each file is one stem, as in `kernel` and in the backends; layers and models call these functions. An op computes on
//! the device and under the mode of its [`Ctx`]; the result has the dtype of its first operand,
//! while weights may be of another one. Only a [`Var`] that is handed over, not lent, may be written in
//! place, and only when it owns its memory alone and no message is sent from there.
//!
//! What an op saves for its backward pass are fields of its `Backward` structure; `saved_bytes` counts them without the
//! weights, which live anyway. A tensor that two ops save counts in both.

mod attention;
mod collective;
mod conjugate;
mod cross_entropy;
mod distillation;
mod elementwise;
mod embedding;
mod feed_forward;
mod gemm;
mod linear_cross_entropy;
mod loss;
mod low_rank;
mod matmul;
mod message;
mod norm;
mod operators;
mod product_input;
mod product_weight;
mod random;
mod reduce;
mod rotary;
mod rows;
mod scaling;
mod tokens;
mod vocabulary;

pub use attention::{AttentionMask, AttentionOptions, HeadShard, attention, attention_cross, attention_fused};
pub use attention::{Documents, KeyValues, attention_cached, attention_fused_cached};
pub use attention::{PackedKeyValues, PackedTokens, attention_fused_packed, attention_packed};
pub use collective::{all_gather, all_reduce, all_to_all, broadcast, reduce_scatter};
pub use conjugate::{copy_to_ranks, gather_last, split_last, sum_over_ranks};
pub use cross_entropy::{CrossEntropy, Reduction, VocabularyShard, cross_entropy, vocabulary_cross_entropy};
pub use distillation::{Distillation, Divergence, logits_divergence};
pub use elementwise::{activation, add, cast, gated, mul, scale, soft_cap};
pub use embedding::{add_embedding, embedding};
pub use feed_forward::{feed_forward, gated_feed_forward};
pub use gemm::{ProductPrecision, linear};
pub use linear_cross_entropy::{Distilled, LinearDistillation, StudentHead, TeacherHead, linear_distillation};
pub use linear_cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
pub use loss::{
    absolute_error, binary_cross_entropy, cosine_similarity, huber_loss, kl_divergence, log_odds, squared_error,
};
pub use low_rank::add_low_rank;
pub use matmul::matmul;
pub use message::{recv, send};
pub use norm::{NormRule, norm, residual_norm};
pub use product_input::ProductInput;
pub use product_weight::ProductWeight;
pub use random::dropout;
pub use reduce::{log_softmax, mean, softmax, sum};
pub use rotary::{Rotary, rotary};
pub use rows::{concat_last, permute, select_row, slice_last};
pub use scaling::{RowUpdate, divide_by_norms, row_norms, scale_columns, updated_row_norms};
pub use tokens::{TokenShard, gather_tokens, scatter_tokens};
pub use vocabulary::{gather_logits, vocabulary_embedding};

// What every op is made of: the files here import it from this one.
use crate::autograd::{Backward, BackwardCtx, Ctx, Grads, Saved, Var};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{Cast, Dest};
use crate::pool::Segment;
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::view::View;

/// The gradient of an op's only result. The tape calls an op only when there is one.
fn only(op: &'static str, dy: Grads) -> Result<Tensor> {
    dy.into_iter().flatten().next().ok_or_else(|| Error::argument(op, "no gradient of the result"))
}

fn empty(cx: &Ctx, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    Tensor::empty_in(cx.device(), shape, dtype, Segment::Activations)
}

fn expect_shape(op: &'static str, what: &str, expected: Shape, got: Shape) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::shape(op, what, expected, got)) }
}

fn expect_elements(op: &'static str, what: &str, expected: usize, got: Shape) -> Result<()> {
    if expected == got.elements() { Ok(()) } else { Err(Error::shape(op, what, format!("{expected} elements"), got)) }
}

/// The tensor in another dtype; itself when it has that type.
fn in_dtype(tensor: Tensor, dtype: DType) -> Result<Tensor> {
    if tensor.dtype() == dtype { Ok(tensor) } else { tensor.copied(dtype) }
}

/// The value of an operand that may be absent.
fn view_of(operand: Option<&Var>) -> Result<Option<View<'_>>> {
    operand.map(|operand| operand.value().view()).transpose()
}

fn bytes_of<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> usize {
    tensors.into_iter().map(Tensor::bytes).sum()
}
