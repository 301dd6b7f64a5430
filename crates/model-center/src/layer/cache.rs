//! The KV cache of a block, for incremental decoding.
//!
//! Defines [`BlockCache`], one for each block of a stack; made by [`crate::model::decoding`], filled by
//! [`super::TransformerBlock`].

use bmtrain_core::ops::{self, KeyValues};
use bmtrain_core::{Ctx, Segment, Tensor, Var};
use bmtrain_dist::Result;

/// What one block keeps.
#[derive(Debug, Default)]
pub struct BlockCache {
    /// Keys and values of the stack's own tokens.
    pub own: KeyValues,
    /// Keys and values of an encoder's hidden states, `[B, S, 2 K H]`; `None` until they are first asked for.
    pub memory: Option<Var>,
}

impl BlockCache {
    /// A cache for sequences with an expected length of `tokens`.
    pub fn expecting(tokens: usize) -> Self {
        BlockCache { own: KeyValues::expecting(tokens), memory: None }
    }

    /// Let row `i` go on from what row `from[i]` has. What is kept of an encoder moves only where `moves_memory`: rows
    /// that go on from others of the same text have the same.
    pub fn reorder(&mut self, from: &[usize], moves_memory: bool, cx: &Ctx) -> Result<()> {
        self.own.reorder(from)?;
        if let Some(memory) = self.memory.as_ref().filter(|_| moves_memory) {
            self.memory = Some(rows(memory, from, cx)?);
        }
        Ok(())
    }
}

/// Rows of `x [B, S, W]` by their numbers.
pub fn rows(x: &Var, from: &[usize], cx: &Ctx) -> Result<Var> {
    let [batch, length, width] = x.dims("rows")?;
    let numbers: Vec<i64> = from.iter().map(|&row| row as i64).collect();
    let numbers = Tensor::from_slice_in(cx.device(), [from.len()], &numbers, Segment::Data)?;
    let whole = x.reshape([batch, length * width])?; // [B, S W]
    Ok(ops::embedding(cx, &numbers, &whole, None)?.reshape([from.len(), length, width])?)
}
