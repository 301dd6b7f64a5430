//! The KV cache of a block, for incremental decoding.
//!
//! Defines [`BlockCache`], one for each block of a stack; made by [`crate::model::Decode`], filled by
//! [`super::TransformerBlock`].

use bmtrain_core::ops::{self, AttentionOptions, KeyValues, PackedKeyValues};
use bmtrain_core::{Ctx, Segment, Tensor, Var};
use bmtrain_dist::Result;

/// Keys and values of a stack's own tokens.
#[derive(Debug)]
pub enum OwnCache {
    /// Cache of a padded batch, whose sequences take every step together.
    Batch(KeyValues),
    /// Cache of sequences of any lengths, packed into one row.
    Packed(PackedKeyValues),
}

impl Default for OwnCache {
    fn default() -> Self {
        OwnCache::Batch(KeyValues::default())
    }
}

impl OwnCache {
    /// Whether sequences are packed.
    pub fn is_packed(&self) -> bool {
        matches!(self, OwnCache::Packed(_))
    }

    /// Cached tokens of each sequence of a batch; 0 for packed sequences, which have numbers of their own.
    pub fn past(&self) -> usize {
        match self {
            OwnCache::Batch(own) => own.len(),
            OwnCache::Packed(_) => 0,
        }
    }

    /// Let sequences without tokens so far begin with keys and values of virtual tokens: `[B, P, 2 K H]` of a batch,
    /// which has none; `[1, P, 2 K H]` of packed sequences.
    pub(super) fn begin_with(&mut self, prefix: &Var) -> Result<()> {
        match self {
            OwnCache::Batch(own) => own.append(prefix.value())?,
            OwnCache::Packed(own) => own.begin_with(prefix.value())?,
        }
        Ok(())
    }

    /// Attention with the projections side by side in one tensor: `[B, L, (N + 2 K) H]` to `[B, L, N H]`.
    pub(super) fn attend_fused(&mut self, qkv: &Var, options: &AttentionOptions<'_>, cx: &Ctx) -> Result<Var> {
        Ok(match self {
            OwnCache::Batch(own) => ops::attention_fused_cached(cx, qkv, own, options)?,
            OwnCache::Packed(own) => ops::attention_fused_packed(cx, qkv, own, options)?,
        })
    }

    /// Attention with three tensors: `[B, L, N H]` and twice `[B, L, K H]` to `[B, L, N H]`.
    pub(super) fn attend(&mut self, qkv: [&Var; 3], options: &AttentionOptions<'_>, cx: &Ctx) -> Result<Var> {
        Ok(match self {
            OwnCache::Batch(own) => ops::attention_cached(cx, qkv, own, options)?,
            OwnCache::Packed(own) => ops::attention_packed(cx, qkv, own, options)?,
        })
    }
}

/// Cache of one block.
#[derive(Debug, Default)]
pub struct BlockCache {
    /// Keys and values of the stack's own tokens.
    pub own: OwnCache,
    /// Keys and values of an encoder's hidden states, `[B, S, 2 K H]`; `None` until they are first asked for.
    pub memory: Option<Var>,
}

impl BlockCache {
    /// A cache for sequences with an expected length of `tokens`.
    pub fn expecting(tokens: usize) -> Self {
        BlockCache { own: OwnCache::Batch(KeyValues::expecting(tokens)), memory: None }
    }

    /// The caches of sequences that are packed into one row.
    pub fn packed() -> Self {
        BlockCache { own: OwnCache::Packed(PackedKeyValues::default()), memory: None }
    }

    /// Let row `i` go on from what row `from[i]` has. What is kept of an encoder moves only where `moves_memory`: rows
    /// that go on from others of the same text have the same.
    pub fn reorder(&mut self, from: &[usize], moves_memory: bool, cx: &Ctx) -> Result<()> {
        if let OwnCache::Batch(own) = &mut self.own {
            own.reorder(from)?;
        }
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
