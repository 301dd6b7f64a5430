//! Multi-head attention: of a sequence to itself with one fused projection, and of a decoder to its encoder.

use super::cache::OwnCache;
use super::head_norm::HeadNorm;
use super::mask::{AttentionContext, Memory, Visible};
use super::prefix::{self, Prefix};
use super::tokens::TokensRead;
use bmtrain_core::kernel::RotaryLayout;
use bmtrain_core::ops::{self, AttentionOptions, Documents, HeadShard, Rotary, TokenShard};
use bmtrain_core::{Ctx, Var};

use bmtrain_dist::block::checkpoint;
use bmtrain_dist::nn::{
    linear::{Linear, LinearOptions},
    norm::Norm,
};
use bmtrain_dist::param::{Init, SplitPart, TensorSplit};
use bmtrain_dist::{Builder, Error, Result};
use std::ops::Range;

/// Options of an [`Attention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionConfig {
    /// D, length of the input and of the output.
    pub dim_model: usize,
    /// N, query heads.
    pub num_heads: usize,
    /// K, key and value heads; a divisor of `num_heads`.
    pub num_heads_kv: usize,
    /// H, length of a head.
    pub dim_head: usize,
    /// Whether the projections of queries, keys and values have a bias.
    pub bias: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Factor of the scores, commonly `1 / sqrt(H)`.
    pub scale: f32,
    /// Scaled scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// A query sees earlier keys and its own only, unless the [`AttentionContext`] has a full mask (`Visible::Full`).
    pub causal: bool,
    /// Size of the sliding window in keys, the query's own among them: to one side with `causal`, else to each side.
    pub window: Option<usize>,
    /// Rotary embedding of queries and keys, with the angles of the [`AttentionContext`].
    pub rotary: Option<RotaryHeads>,
    /// Norms of queries and of keys, before the rotation.
    pub head_norm: Option<HeadNorm>,
    /// Divide what enters a projection by the root of its length.
    pub length_scale: bool,
    /// Probability with which an attention probability is dropped.
    pub dropout: f32,
    /// Initializer of the query, key and value projections.
    pub init: Init,
    /// Initializer of the output projection, whose outputs are added up along the depth of the model.
    pub out_init: Init,
}

impl AttentionConfig {
    /// As many key heads as query heads, biases everywhere, scores divided by `sqrt(H)`, everything seen, nothing
    /// dropped.
    pub fn new(dim_model: usize, num_heads: usize, dim_head: usize, init: Init) -> Self {
        AttentionConfig {
            dim_model,
            num_heads,
            num_heads_kv: num_heads,
            dim_head,
            bias: true,
            out_bias: true,
            scale: 1.0 / (dim_head as f32).sqrt(),
            soft_cap: None,
            causal: false,
            window: None,
            rotary: None,
            head_norm: None,
            length_scale: false,
            dropout: 0.0,
            init,
            out_init: init,
        }
    }

    /// The heads of this tensor-parallel rank; every rank has the same number. With fewer key heads than ranks,
    /// neighbouring ranks have the same one.
    fn local(&self, builder: &Builder) -> Result<LocalHeads> {
        let (total, total_kv) = (self.num_heads, self.num_heads_kv);
        let Some(ranks) = builder.tensor_ranks() else {
            return Ok(LocalHeads { query: total, kv: total_kv, shard: None });
        };
        let (size, rank) = (ranks.size(), ranks.rank());
        if !total.is_multiple_of(size) {
            let reason = format!("{total} attention heads cannot be divided over {size} tensor-parallel ranks");
            return Err(Error::setting("attention", reason));
        }
        let query = total / size;
        Ok(LocalHeads { query, kv: (total_kv / size).max(1), shard: Some(HeadShard { first: rank * query, total }) })
    }

    fn options<'a>(
        &self,
        heads: &LocalHeads,
        (visible, documents): (&'a Visible, Option<&'a Documents>),
        bias: Option<&'a Var>,
        cx: &mut Ctx,
    ) -> Result<AttentionOptions<'a>> {
        Ok(AttentionOptions {
            heads: heads.query,
            kv_heads: heads.kv,
            head_size: self.dim_head,
            scale: self.scale,
            soft_cap: self.soft_cap,
            causal: self.causal && visible.goes_by_order(),
            window: self.window.filter(|_| visible.goes_by_order()),
            mask: visible.mask(),
            documents,
            bias,
            dropout: cx.dropout("attention_probabilities", self.dropout)?,
            shard: heads.shard,
        })
    }

    /// The context of the heads divided by the root of its length over all heads, where that is asked for.
    fn attended_scaled(&self, attended: &Var, cx: &Ctx) -> Result<Var> {
        scaled_by_length(attended, self.num_heads * self.dim_head, self.length_scale, cx)
    }

    /// The output projection.
    fn out(&self, builder: &Builder) -> Result<Linear> {
        let width = self.num_heads * self.dim_head;
        let out = LinearOptions::new(width, self.dim_model, self.out_bias, self.out_init).split(TensorSplit::Rows);
        Linear::new(&builder.at("attention_out"), out)
    }

    /// An input projection, to these numbers of heads.
    fn project(&self, builder: &Builder, heads: &[usize]) -> Result<Linear> {
        let outputs = heads.iter().map(|heads| SplitPart::units(*heads, self.dim_head)).collect();
        let (inputs, bias, init) = (self.dim_model, self.bias, self.init);
        Linear::new(builder, LinearOptions { inputs, outputs, bias, init, split: TensorSplit::Columns })
    }
}

/// The heads of one tensor-parallel rank.
#[derive(Debug, Clone, Copy)]
struct LocalHeads {
    /// Query heads.
    query: usize,
    /// Key and value heads.
    kv: usize,
    /// Which of all query heads these are, where there are several ranks.
    shard: Option<HeadShard>,
}

/// Rotary embedding of attention heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotaryHeads {
    /// Number of the table with the angles, in the [`AttentionContext`].
    pub table: usize,
    /// Number of elements of each head that are rotated, from its first.
    pub dims: usize,
    /// Which two elements make a pair.
    pub layout: RotaryLayout,
}

impl RotaryHeads {
    /// Whole heads of `dims` elements, rotated by the angles of this table; pairs are an element of each half.
    pub const fn halves(dims: usize, table: usize) -> Self {
        RotaryHeads { table, dims, layout: RotaryLayout::Halves }
    }
}

/// `x` divided by the root of its last axis' length, where that is asked for.
///
/// Source: ModelCenter's `length_scale`, with which CPM keeps variances at one.
pub fn length_scaled(x: &Var, is_scaled: bool, cx: &Ctx) -> Result<Var> {
    scaled_by_length(x, x.shape().last(), is_scaled, cx)
}

/// As [`length_scaled`], where a tensor-parallel rank may have a part of the last axis; `length` is of all of it.
pub(super) fn scaled_by_length(x: &Var, length: usize, is_scaled: bool, cx: &Ctx) -> Result<Var> {
    match is_scaled {
        true => Ok(ops::scale(cx, x, 1.0 / (length as f32).sqrt())?),
        false => Ok(x.clone()),
    }
}

/// The name of the fused projection below an attention's.
pub(crate) const PROJECT_QKV: &str = "project_qkv";

/// Self-attention: `attention_out(attention(project_qkv(x)))`. A tensor-parallel rank computes some of the heads: N and
/// K below are its own.
#[derive(Debug, Clone)]
pub struct Attention {
    config: AttentionConfig,
    heads: LocalHeads,
    project_qkv: Linear,
    /// Keys and values of virtual tokens.
    prefix: Option<Prefix>,
    /// Norms of queries and of keys.
    head_norms: Option<(HeadNorm, [Norm; 2])>,
    attention_out: Linear,
}

impl Attention {
    /// Declare the parameters under the builder's name.
    pub fn new(builder: &Builder, config: AttentionConfig) -> Result<Self> {
        let AttentionConfig { num_heads, num_heads_kv, .. } = config;
        let project_qkv = config.project(&builder.at(PROJECT_QKV), &[num_heads, num_heads_kv, num_heads_kv])?;
        let prefix = if config.causal { Prefix::new(builder, &config)? } else { None };
        Ok(Attention {
            config,
            heads: config.local(builder)?,
            project_qkv,
            prefix,
            head_norms: match config.head_norm {
                Some(norm) => Some((norm, norm.build(builder, &config)?)),
                None => None,
            },
            attention_out: config.out(builder)?,
        })
    }

    /// The fused projection, `[(N + 2 K) H, D]`.
    pub fn project_qkv(&self) -> &Linear {
        &self.project_qkv
    }

    /// `x [B, L, D]` to `[B, L, D]`; where the context shards tokens, `[own, D]` to `[own, D]`. With a cache `x`
    /// follows the cached tokens, and is appended to them.
    ///
    /// # Errors
    /// Shapes that do not fit; angles that are missing; a cache together with a tape; a failing device.
    pub fn forward(
        &self,
        x: &Var,
        context: &AttentionContext,
        cache: Option<&mut OwnCache>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        self.forward_for(x, (context, TokensRead::All), cache, None, cx)
    }

    /// Whether the last product adds a residual as it is written.
    pub(super) fn adds_residual(&self) -> bool {
        self.attention_out.adds_residual()
    }

    /// As [`Attention::forward`], with an output for these tokens alone: `[B, 1, D]` for the first ones; and added to a
    /// residual shaped as the output, if there is one.
    pub(super) fn forward_for(
        &self,
        x: &Var,
        (context, read): (&AttentionContext, TokensRead),
        cache: Option<&mut OwnCache>,
        residual: Option<&Var>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let (length_scale, tokens) = (self.config.length_scale, context.tokens.as_ref());
        let x = length_scaled(x, length_scale, cx)?; // [B, L, D]
        let qkv = self.project_qkv.forward_tokens(&x, None, tokens, cx)?; // [B, L, (N + 2 K) H]
        drop(x);
        let attended = match cx.recomputes_attention() {
            true => self.attend_again(&qkv, context, cx)?,  // [B, L, N H]
            false => self.attend(qkv, context, cache, cx)?, // [B, L, N H]
        };
        let attended = read.of(attended, cx)?; // [B, L, N H]
        let attended = self.config.attended_scaled(&attended, cx)?; // [B, L, N H]
        out_of(&self.attention_out, &attended, residual, tokens, cx) // [B, L, D]
    }

    /// As [`Attention::attend`], keeping `qkv` and the bias alone for the backward pass.
    fn attend_again(&self, qkv: &Var, context: &AttentionContext, cx: &mut Ctx) -> Result<Var> {
        let (this, mut context) = (self.clone(), context.clone());
        let bias = context.bias.take();
        let inputs: Vec<&Var> = std::iter::once(qkv).chain(&bias).collect();
        checkpoint(&inputs, cx, move |inputs, cx| {
            let mut inputs = inputs.iter().cloned();
            let qkv = inputs.next().ok_or_else(|| Error::setting("attention", "no queries, keys and values"))?;
            let context = AttentionContext { bias: inputs.next(), ..context.clone() };
            this.attend(qkv, &context, None, cx)
        })
    }

    /// `[B, L, (N + 2 K) H]` to `[B, L, N H]`.
    fn attend(
        &self,
        qkv: Var,
        context: &AttentionContext,
        mut cache: Option<&mut OwnCache>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let options = &self.config.options(
            &self.heads,
            (&context.visible, context.documents.as_ref()),
            context.bias.as_ref(),
            cx,
        )?;
        let LocalHeads { query: num_heads, kv: num_heads_kv, .. } = self.heads;
        let prefix = self.prefix_of(context, cx)?; // [B, P, 2 K H]
        if let (Some(prefix), Some(cache)) = (&prefix, &mut cache) {
            cache.begin_with(prefix)?;
        }
        let q_end = num_heads * self.config.dim_head;
        let Some(norms) = &self.head_norms else {
            let qkv = self.rotate(qkv, num_heads + num_heads_kv, context, cx)?; // [B, L, (N + 2 K) H]
            return Ok(match (cache, prefix) {
                (None, None) => ops::attention_fused(cx, &qkv, options)?, // [B, L, N H]
                (None, Some(prefix)) => {
                    let q = ops::slice_last(cx, &qkv, 0..q_end)?; // [B, L, N H]
                    let kv = ops::slice_last(cx, &qkv, q_end..qkv.shape().last())?; // [B, L, 2 K H]
                    ops::attention_cross(cx, &q, &prefix::joined(&prefix, &kv, cx)?, options)? // [B, L, N H]
                }
                (Some(cache), _) => cache.attend_fused(&qkv, options, cx)?, // [B, L, N H]
            });
        };
        let [q, k, v] = self.normed(&qkv, norms, cx)?; // [B, L, N H], [B, L, K H] twice
        drop(qkv);
        let q = self.rotate(q, num_heads, context, cx)?; // [B, L, N H]
        let k = self.rotate(k, num_heads_kv, context, cx)?; // [B, L, K H]
        Ok(match (cache, prefix) {
            (None, None) => ops::attention(cx, &q, &k, &v, options)?, // [B, L, N H]
            (None, Some(prefix)) => {
                let kv = ops::concat_last(cx, &[&k, &v])?; // [B, L, 2 K H]
                ops::attention_cross(cx, &q, &prefix::joined(&prefix, &kv, cx)?, options)? // [B, L, N H]
            }
            (Some(cache), _) => cache.attend([&q, &k, &v], options, cx)?, // [B, L, N H]
        })
    }

    /// The keys and values before the sequences, `[B, P, 2 K H]`, where these begin with this pass.
    fn prefix_of(&self, context: &AttentionContext, cx: &Ctx) -> Result<Option<Var>> {
        let prefix = self.prefix.as_ref().zip(context.prefix.as_ref());
        prefix.map(|(prefix, rows)| prefix.of_sequences(rows, cx)).transpose()
    }

    /// Queries, keys and values apart, the heads of the first two normalised.
    fn normed(&self, qkv: &Var, (kind, norms): &(HeadNorm, [Norm; 2]), cx: &Ctx) -> Result<[Var; 3]> {
        let (AttentionConfig { dim_head, .. }, LocalHeads { query: num_heads, kv: num_heads_kv, .. }) =
            (self.config, self.heads);
        let [batch, length, _] = qkv.dims("attention")?;
        let (q_end, k_end) = (num_heads * dim_head, (num_heads + num_heads_kv) * dim_head);
        let heads = |range: Range<usize>, heads: usize, norm: &Norm| -> Result<Var> {
            let part = ops::slice_last(cx, qkv, range)?; // [B, L, heads H]
            let width = kind.width(heads, dim_head);
            let apart = part.reshape([batch, length * heads * dim_head / width, width])?; // [B, L heads, H]
            Ok(norm.forward(&apart, cx)?.reshape([batch, length, heads * dim_head])?) // [B, L, heads H]
        };
        let q = heads(0..q_end, num_heads, &norms[0])?; // [B, L, N H]
        let k = heads(q_end..k_end, num_heads_kv, &norms[1])?; // [B, L, K H]
        Ok([q, k, ops::slice_last(cx, qkv, k_end..qkv.shape().last())?])
    }

    /// Rotates the first `heads` heads of `x`.
    fn rotate(&self, x: Var, heads: usize, context: &AttentionContext, cx: &Ctx) -> Result<Var> {
        let Some(RotaryHeads { table, dims, layout }) = self.config.rotary else { return Ok(x) };
        let angles = context.angles.get(table).ok_or_else(|| {
            Error::setting("attention", "rotary attention needs a position table, but none was given")
        })?;
        let (table, positions) = (&angles.table, angles.positions.as_ref());
        let rotary = Rotary { heads, head_size: self.config.dim_head, dims, layout, table, positions };
        Ok(ops::rotary(cx, x, &rotary)?)
    }
}

/// The output projection, added to a residual if there is one.
fn out_of(out: &Linear, x: &Var, residual: Option<&Var>, tokens: Option<&TokenShard>, cx: &Ctx) -> Result<Var> {
    match residual {
        Some(residual) => out.forward_residual(x, residual, tokens, cx),
        None => out.forward_tokens(x, None, tokens, cx),
    }
}

/// Attention of a decoder to its encoder: `attention_out(attention(project_q(x), project_kv(memory)))`.
#[derive(Debug, Clone)]
pub struct CrossAttention {
    config: AttentionConfig,
    heads: LocalHeads,
    project_q: Linear,
    project_kv: Linear,
    attention_out: Linear,
}

impl CrossAttention {
    /// Declare the parameters under the builder's name. The configuration must set neither a causal mask nor
    /// positions.
    ///
    /// # Errors
    /// A causal mask, rotary positions or norms of heads; heads that cannot be cut over the tensor-parallel ranks; no
    /// memory left.
    pub fn new(builder: &Builder, config: AttentionConfig) -> Result<Self> {
        if config.causal || config.window.is_some() || config.rotary.is_some() || config.head_norm.is_some() {
            return Err(Error::setting("cross-attention", "it has no order of keys, no angles and no norms of heads"));
        }
        let AttentionConfig { num_heads, num_heads_kv, .. } = config;
        let project_q = config.project(&builder.at("project_q"), &[num_heads])?;
        Ok(CrossAttention {
            config,
            heads: config.local(builder)?,
            project_q,
            project_kv: config.project(&builder.at("project_kv"), &[num_heads_kv, num_heads_kv])?,
            attention_out: config.out(builder)?,
        })
    }

    /// `x [B, L, D]` and memory `[B, S, D]` to `[B, L, D]`. With `tokens`, x and the result are `[own, D]`. With
    /// `kept`, the memory's keys and values are made once and kept there.
    pub fn forward(
        &self,
        x: &Var,
        tokens: Option<&TokenShard>,
        memory: &Memory,
        kept: Option<&mut Option<Var>>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        self.forward_for(x, (tokens, memory), kept, None, cx)
    }

    /// Whether the last product adds a residual as it is written.
    pub(super) fn adds_residual(&self) -> bool {
        self.attention_out.adds_residual()
    }

    /// As [`CrossAttention::forward`], added to a residual shaped as the output, if there is one.
    pub(super) fn forward_for(
        &self,
        x: &Var,
        (tokens, memory): (Option<&TokenShard>, &Memory),
        kept: Option<&mut Option<Var>>,
        residual: Option<&Var>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let length_scale = self.config.length_scale;
        let x = length_scaled(x, length_scale, cx)?; // [B, L, D]
        let q = self.project_q.forward_tokens(&x, None, tokens, cx)?; // [B, L, N H]
        let kv = match &kept {
            Some(Some(kv)) => kv.clone(), // [B, S, 2 K H]
            Some(None) | None => {
                let hidden = length_scaled(&memory.hidden, length_scale, cx)?; // [B, S, D]
                self.project_kv.forward_tokens(&hidden, None, memory.tokens.as_ref(), cx)? // [B, S, 2 K H]
            }
        };
        let attended = match cx.recomputes_attention() {
            true => self.attend_again(&q, &kv, memory, cx)?,     // [B, L, N H]
            false => self.attend(&q, &kv, &memory.visible, cx)?, // [B, L, N H]
        };
        if let Some(kept) = kept {
            *kept = Some(kv);
        }
        let attended = self.config.attended_scaled(&attended, cx)?; // [B, L, N H]
        out_of(&self.attention_out, &attended, residual, tokens, cx) // [B, L, D]
    }

    fn attend(&self, q: &Var, kv: &Var, visible: &Visible, cx: &mut Ctx) -> Result<Var> {
        let options = self.config.options(&self.heads, (visible, None), None, cx)?;
        Ok(ops::attention_cross(cx, q, kv, &options)?) // [B, L, N H]
    }

    /// The same, keeping queries, keys and values alone for the backward pass.
    fn attend_again(&self, q: &Var, kv: &Var, memory: &Memory, cx: &mut Ctx) -> Result<Var> {
        let (this, visible) = (self.clone(), memory.visible.clone());
        checkpoint(&[q, kv], cx, move |inputs, cx| match inputs {
            [q, kv] => this.attend(q, kv, &visible, cx),
            _ => Err(Error::setting("cross-attention", "no queries, keys and values")),
        })
    }
}
