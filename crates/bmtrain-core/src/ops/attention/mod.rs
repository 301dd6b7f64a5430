//! Streaming attention over separate projections ([`attention`]), one of queries and one of keys and values
//! ([`attention_cross`]), or one fused projection ([`attention_fused`]); for decoding with a KV cache
//! [`attention_cached`] and [`attention_fused_cached`], and for sequences of different lengths that share a pass
//! [`attention_packed`] and [`attention_fused_packed`].
//!
//! Heads are read where the projections wrote them, and gradients are written where the projections will read them:
//! nothing is permuted, and no `[L, S]` matrix of scores is kept. Packed documents ([`Documents`]) attend to
//! themselves, and what they do not see takes no time. What the ops have in common is in `call.rs`.

mod cached;
mod call;
mod documents;
mod packed;

pub use cached::{KeyValues, attention_cached, attention_fused_cached};
pub use documents::Documents;
pub use packed::{PackedKeyValues, PackedTokens, attention_fused_packed, attention_packed};

use super::*;
use crate::kernel::Dropout;
use call::Call;

/// Keys that a query sees, besides the causal rule. A query that sees no key gets zeros.
#[derive(Debug, Clone, Copy, Default)]
pub enum AttentionMask<'a> {
    /// All.
    #[default]
    None,
    /// u8 `[B, S]`, 1 for a key that may be seen.
    Padding(&'a Tensor),
    /// u8 `[B, L, S]`, 1 for a key that this query may see.
    Full(&'a Tensor),
}

/// Options of attention.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOptions<'a> {
    /// Query heads, N.
    pub heads: usize,
    /// Key and value heads, K; a divisor of `heads`.
    pub kv_heads: usize,
    /// Length of a head, H.
    pub head_size: usize,
    /// Factor of the scores, commonly `1 / sqrt(H)`.
    pub scale: f32,
    /// Scaled scores become `cap * tanh(score / cap)`. Above 0; not together with a bias.
    pub soft_cap: Option<f32>,
    /// Query `l` sees key `s` only if `s <= l + S - L`.
    pub causal: bool,
    /// Most keys of a window on either side, the query's own among them: query `l` sees key `s` only if
    /// `l + S - L - window < s < l + S - L + window`. With `causal` there are none after its own. Not 0.
    pub window: Option<usize>,
    /// Further restriction of the keys.
    pub mask: AttentionMask<'a>,
    /// Documents packed into sequences that attend to themselves: a query sees the keys of its own document alone.
    pub documents: Option<&'a Documents>,
    /// Added to the scaled scores, `[1 or B, N, 1 or L, S]`; a single row is for every query, such as the slopes times
    /// positions of keys of Press et al. (2021). Its gradient, if wanted, is made for every query before it is summed
    /// up.
    pub bias: Option<&'a Var>,
    /// Applied to the probabilities.
    pub dropout: Option<Dropout>,
    /// Range of these heads in a larger number, so that dropout samples the same masks as with all heads.
    pub shard: Option<HeadShard>,
}

/// Some of the query heads of an attention, as a tensor-parallel rank has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadShard {
    /// The number of the first of them among all.
    pub first: usize,
    /// Number of all query heads.
    pub total: usize,
}

impl AttentionOptions<'_> {
    /// As many key heads as query heads, scores divided by `sqrt(head_size)`, everything seen, nothing dropped.
    pub fn new(heads: usize, head_size: usize) -> Self {
        AttentionOptions {
            heads,
            kv_heads: heads,
            head_size,
            scale: 1.0 / (head_size as f32).sqrt(),
            soft_cap: None,
            causal: false,
            window: None,
            mask: AttentionMask::None,
            documents: None,
            bias: None,
            dropout: None,
            shard: None,
        }
    }
}

/// `dropout(softmax(soft_cap(scale * q k^T) + bias, masked)) v` for every head.
///
/// Shapes: q `[B, L, N*H]`, k and v `[B, S, K*H]` → `[B, L, N*H]`.
/// Numerics: scores, softmax and sums in f32. Saves q, k, v, the result and one number for each row and head.
///
/// # Errors
/// Shapes that do not fit, a mask that is not u8, a window of 0 keys, a soft cap with a bias, documents where L is not
/// S.
pub fn attention(cx: &Ctx, q: &Var, k: &Var, v: &Var, options: &AttentionOptions<'_>) -> Result<Var> {
    let [batch, queries, _] = q.dims("attention")?;
    let [_, keys, _] = k.dims("attention")?;
    let call = Call::new("attention", options, batch, queries, keys)?;
    expect_shape("attention", "q", Shape::from([batch, queries, call.width()]), q.shape())?;
    expect_shape("attention", "k", Shape::from([batch, keys, call.kv_width()]), k.shape())?;
    expect_shape("attention", "v", Shape::from([batch, keys, call.kv_width()]), v.shape())?;
    call.record(cx, [q, k, v], options.bias) // [B, L, N*H]
}

/// As [`attention`], with keys and values side by side in one tensor, whose gradient is one tensor too: for a decoder
/// that looks at what an encoder made.
///
/// Shapes: q `[B, L, N*H]`, kv `[B, S, 2K * H]`, keys first → `[B, L, N*H]`.
pub fn attention_cross(cx: &Ctx, q: &Var, kv: &Var, options: &AttentionOptions<'_>) -> Result<Var> {
    let [batch, queries, _] = q.dims("attention_cross")?;
    let [_, keys, _] = kv.dims("attention_cross")?;
    let call = Call::new("attention_cross", options, batch, queries, keys)?;
    expect_shape("attention_cross", "q", Shape::from([batch, queries, call.width()]), q.shape())?;
    expect_shape("attention_cross", "kv", Shape::from([batch, keys, 2 * call.kv_width()]), kv.shape())?;
    call.record(cx, [q, kv], options.bias) // [B, L, N*H]
}

/// As [`attention`], with the three projections side by side in one tensor, whose gradient is one tensor too.
///
/// Shapes: qkv `[B, L, (N + 2K) * H]`, queries first, values last → `[B, L, N*H]`.
pub fn attention_fused(cx: &Ctx, qkv: &Var, options: &AttentionOptions<'_>) -> Result<Var> {
    let [batch, length, _] = qkv.dims("attention_fused")?;
    let call = Call::new("attention_fused", options, batch, length, length)?;
    let width = call.width() + 2 * call.kv_width();
    expect_shape("attention_fused", "qkv", Shape::from([batch, length, width]), qkv.shape())?;
    call.record(cx, [qkv], options.bias) // [B, L, N*H]
}
