//! Parameters stored in f32 in a model whose others have 16 bits, and their values rounded for products, whose operands
//! have one dtype.

use super::Inner;
use bmtrain_core::autograd::Recall;
use bmtrain_core::{Ctx, DType, Result, Tensor, Var, ops};
use std::rc::Rc;

/// Parameters that are stored in f32, gathered, reduced and updated so, whatever
/// [`BuilderOptions::dtype`](super::BuilderOptions::dtype) is. An f32 parameter has no master copy: it is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct F32Parameters {
    /// Tables of tokens and of learned positions.
    pub embeddings: bool,
    /// Scales and shifts of norms.
    pub norms: bool,
    /// Tables of token types.
    pub token_types: bool,
}

/// A parameter rounded to another dtype, again at each recall.
#[derive(Debug)]
pub(super) struct Rounded {
    pub(super) param: Rc<Inner>,
    pub(super) dtype: DType,
}

impl Recall for Rounded {
    fn recall(&self) -> Result<Tensor> {
        rounded(self.param.recall()?, self.dtype)
    }
}

/// The values in this dtype.
pub(super) fn rounded(value: Tensor, dtype: DType) -> Result<Tensor> {
    let cx = Ctx::inference(value.device());
    Ok(ops::cast(&cx, &Var::constant(value), dtype)?.into_value())
}
