//! What the logits of a language model are computed from, and losses of it that never store the logits of all tokens.
//!
//! Defines [`LmOperands`], which the language-modelling head makes of hidden states.

use bmtrain_core::ops::{self, CrossEntropy, LinearCrossEntropy, ProductInput, TeacherHead, VocabularyShard};
use bmtrain_core::{Ctx, Device, Tensor, Var};
use bmtrain_dist::Result;

/// With fewer rows a matrix product is inefficient.
const FEWEST_ROWS: usize = 64;

/// Operands of the product that makes logits, `hidden weight^T + bias`.
#[derive(Debug, Clone)]
pub struct LmOperands {
    /// `[B, L, D]`, hidden states as the output matrix takes them.
    pub hidden: Var,
    /// `[V, D]`; the rows of this tensor-parallel rank and of padding, where the vocabulary is sharded or padded.
    pub weight: Var,
    /// `[V]`.
    pub bias: Option<Var>,
    /// Which tokens the rows of the weight are of; `None` where they are all tokens.
    pub shard: Option<VocabularyShard>,
    /// Logits become `cap * tanh(x / cap)`.
    pub soft_cap: Option<f32>,
}

impl LmOperands {
    /// The cross-entropy of target tokens, i64 `[B, L]`: as [`ops::cross_entropy`] of the logits, which are computed in
    /// chunks.
    ///
    /// # Errors
    /// Shapes that do not fit, targets out of range.
    pub fn cross_entropy(&self, targets: &Tensor, loss: CrossEntropy, cx: &Ctx) -> Result<Var> {
        let options = LinearCrossEntropy { shard: self.shard.clone(), ..self.in_chunks(loss, cx.device()) };
        Ok(ops::linear_cross_entropy(cx, &self.hidden, &self.weight, self.bias.as_ref(), targets, &options)?)
    }

    /// The logits that this tensor-parallel rank computes, before the soft cap: all of them, or its tokens' logits.
    pub(super) fn own_logits(&self, cx: &Ctx) -> Result<Var> {
        let hidden = match &self.shard {
            Some(shard) => ProductInput::copied(&self.hidden, shard.ranks()),
            None => ProductInput::from(&self.hidden),
        };
        Ok(ops::linear(cx, hidden, &self.weight, self.bias.as_ref(), None)?)
    }

    /// Logits `[B, L, V]`.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn logits(&self, cx: &Ctx) -> Result<Var> {
        self.gathered(self.own_logits(cx)?, cx)
    }

    /// Logits of all tokens, from the logits before the soft cap that each tensor-parallel rank has.
    pub(super) fn gathered(&self, own: Var, cx: &Ctx) -> Result<Var> {
        let own = ops::soft_cap(cx, &own, self.soft_cap)?;
        match &self.shard {
            Some(shard) => Ok(ops::gather_logits(cx, &own, shard)?), // [B, L, V]
            None => Ok(own),
        }
    }

    /// The number of tokens, without padding.
    pub(crate) fn classes(&self) -> usize {
        self.shard.as_ref().map_or(self.weight.shape().rows(), |shard| shard.classes().count)
    }

    /// The same for a student to learn from, without gradients and padding.
    ///
    /// # Errors
    /// A shard of another size than the weight.
    pub fn into_teacher(self) -> Result<TeacherHead> {
        let classes = self.classes();
        let unpadded = |tensor: Var| tensor.value().slice(0..classes);
        let (weight, bias) = (unpadded(self.weight)?, self.bias.map(unpadded).transpose()?);
        Ok(TeacherHead { hidden: self.hidden.into_value(), weight, bias, soft_cap: self.soft_cap })
    }

    /// The loss in chunks of logits that take the memory of the weight's f32 gradient, which is allocated at that time
    /// anyway, and 128 MiB at most: a small model must not pay for the chunks of a large one.
    ///
    /// Beside memory of its own a device has products that are slow unless they are large, and each chunk reads and
    /// writes the whole gradient of the weight: there four times as much, and 1 GiB at most. It follows from sizes and
    /// the kind of device, not from how much memory it has: ranks that share the classes take the same chunks.
    pub(crate) fn in_chunks(&self, loss: CrossEntropy, device: &Device) -> LinearCrossEntropy {
        let loss = CrossEntropy { soft_cap: self.soft_cap, ..loss };
        let options = LinearCrossEntropy { loss, ..LinearCrossEntropy::default() };
        let shape = self.weight.shape();
        let values = match shape.dims() {
            [vocab_size, depth] => vocab_size.saturating_mul(FEWEST_ROWS.max(*depth)),
            _ => shape.elements(),
        };
        let (most, factor) = if device.backend().memory_is_host() { (options.chunk_bytes, 1) } else { (1 << 30, 4) };
        LinearCrossEntropy { chunk_bytes: most.min(values.saturating_mul(4 * factor)), ..options }
    }
}
