//! The transformer block, written once: attention and feed-forward, in an encoder-decoder's decoder also
//! cross-attention, with the norms where a family has them.

use super::{
    Attention, BlockCache, BlockConfig, CrossAttention, FeedForward, Memory, OwnCache, Placement, Shared, TokensRead,
    token_dropout,
};
use bmtrain_core::kernel::Dropout;
use bmtrain_core::ops;
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::{Block, Builder, Error, Result};

/// One block of an encoder or a decoder. Where the context shards tokens (`AttentionContext::tokens`), `[B, L, D]`
/// below is `[own, D]`.
#[derive(Debug)]
pub struct TransformerBlock {
    placement: Placement,
    /// None where the input of a pre-norm block is normalized.
    attention_norm: Option<Norm>,
    attention: Attention,
    cross: Option<(Norm, CrossAttention)>,
    /// None where it would be the norm of attention.
    ffn_norm: Option<Norm>,
    ffn: FeedForward,
    /// The norms of what attention and feed-forward yield, where there are norms before them too.
    out_norms: Option<[Norm; 2]>,
    dropout: f32,
    ffn_dropout: f32,
    residual_factor: f32,
}

impl TransformerBlock {
    /// Declare the parameters under the builder's name.
    ///
    /// # Errors
    /// Errors of [`Attention::new`] and [`CrossAttention::new`]; attention to an encoder in a block that is neither
    /// pre-norm nor post-norm; a shared norm in a block without cross-attention; no norm of attention in a block that
    /// is not pre-norm.
    pub fn new(builder: &Builder, config: BlockConfig) -> Result<Self> {
        let norm = |name: &str| Norm::new(&builder.at(name), config.norm);
        let has_one = config.placement == Placement::Parallel;
        if config.cross.is_some() && !matches!(config.placement, Placement::Pre | Placement::Post) {
            let reason = "attention to an encoder has a place in pre-norm and in post-norm blocks alone";
            return Err(Error::setting("block", reason));
        }
        if !config.norms_attention && config.placement != Placement::Pre {
            return Err(Error::setting("block", "pre-norm blocks alone may have no norm of attention"));
        }
        let attention_norm = config.norms_attention.then(|| norm("attention_norm")).transpose()?;
        let attention = Attention::new(&builder.at("attention"), config.attention)?;
        let cross = match config.cross {
            None => None,
            Some(cross) => Some((norm("cross_norm")?, CrossAttention::new(&builder.at("cross_attention"), cross)?)),
        };
        let ffn_norm = match (has_one, config.shares_norm, &cross) {
            (true, false, _) => None,
            (false, false, _) => Some(norm("ffn_norm")?),
            (_, true, Some((norm, _))) => Some(norm.clone()),
            (_, true, None) => return Err(Error::setting("block", "shares_norm requires cross-attention")),
        };
        let ffn = FeedForward::new(&builder.at("ffn"), config.ffn)?;
        let out_norms = match config.placement {
            Placement::Both => Some([norm("attention_out_norm")?, norm("ffn_out_norm")?]),
            _ => None,
        };
        let BlockConfig { placement, dropout, ffn_dropout, residual_factor, .. } = config;
        Ok(TransformerBlock {
            placement,
            attention_norm,
            attention,
            cross,
            ffn_norm,
            ffn,
            out_norms,
            dropout,
            ffn_dropout,
            residual_factor,
        })
    }

    /// `x + attention(norm(x))`, the same with attention to an encoder, the same with feed-forward. After attention, L
    /// is the number of tokens that are computed.
    fn pre(
        &self,
        x: Var,
        (shared, tokens): (&Shared, TokensRead),
        ffn_norm: &Norm,
        (own, kept): Kept<'_>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let length = length_of(&x);
        let dropout = |of: Dropped<'_>, x: &Var, cx: &Ctx| read_dropout(of, x, (shared, tokens, length), cx);
        let normed = self.attention_input(&x, cx)?; // [B, L, D]
        let x = tokens.of(x, cx)?; // [B, L, D]
        let mask = dropout(("attention", self.dropout), &x, cx)?;
        let norm = self.cross.as_ref().map_or(ffn_norm, |(norm, _)| norm);
        let adds = self.attention.adds_residual() && self.adds_whole();
        let (mut x, mut normed) = normed_sum(norm, x, (mask, adds), cx, |residual, cx| {
            self.scaled(self.attention.forward_for(&normed, (&shared.context, tokens), own, residual, cx)?, cx)
        })?; // [B, L, D] each
        if let Some((_, cross)) = &self.cross {
            let (memory, mask) = (memory(shared)?, dropout(("cross_attention", self.dropout), &x, cx)?);
            let adds = cross.adds_residual() && self.adds_whole();
            (x, normed) = normed_sum(ffn_norm, x, (mask, adds), cx, |residual, cx| {
                self.scaled(cross.forward_for(&normed, (shared.tokens(), memory), kept, residual, cx)?, cx)
            })?; // [B, L, D] each
        }
        let mask = dropout(("ffn", self.ffn_dropout), &x, cx)?;
        self.add_widened(&normed, &x, mask, shared, cx) // [B, L, D]
    }

    /// `norm(x + attention(x))`, the same with attention to an encoder, the same with feed-forward. After attention, L
    /// is the number of tokens that are computed.
    fn post(
        &self,
        x: Var,
        (shared, tokens): (&Shared, TokensRead),
        [attention_norm, ffn_norm]: [&Norm; 2],
        (own, kept): Kept<'_>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let length = length_of(&x);
        let dropout = |of: Dropped<'_>, x: &Var, cx: &Ctx| read_dropout(of, x, (shared, tokens, length), cx);
        let attended = self.attention.forward_for(&x, (&shared.context, tokens), own, None, cx)?; // [B, L, D]
        let attended = self.scaled(attended, cx)?; // [B, L, D]
        let x = tokens.of(x, cx)?; // [B, L, D]
        let mask = dropout(("attention", self.dropout), &x, cx)?;
        let (_, mut y) = attention_norm.forward_residual(&attended, &x, mask, cx)?; // [B, L, D]
        drop((attended, x));
        if let Some((norm, cross)) = &self.cross {
            let attended = cross.forward(&y, shared.tokens(), memory(shared)?, kept, cx)?; // [B, L, D]
            let attended = self.scaled(attended, cx)?; // [B, L, D]
            let mask = dropout(("cross_attention", self.dropout), &y, cx)?;
            y = norm.forward_residual(&attended, &y, mask, cx)?.1; // [B, L, D]
        }
        let widened = self.scaled(self.ffn.forward(&y, shared.tokens(), cx)?, cx)?; // [B, L, D]
        let mask = dropout(("ffn", self.ffn_dropout), &y, cx)?;
        Ok(ffn_norm.forward_residual(&widened, &y, mask, cx)?.1) // [B, L, D]
    }

    /// `x + attention(norm(x)) + feed_forward(norm(x))`, the second norm its own where there is one.
    fn parallel(&self, x: Var, shared: &Shared, cache: Kept<'_>, cx: &mut Ctx) -> Result<Var> {
        let normed = self.attention_input(&x, cx)?; // [B, L, D]
        let attended = self.attention.forward(&normed, &shared.context, cache.0, cx)?; // [B, L, D]
        let normed = match &self.ffn_norm {
            Some(norm) => norm.forward(&x, cx)?, // [B, L, D]
            None => normed,
        };
        let attended = self.scaled(attended, cx)?; // [B, L, D]
        let dropout = layer_dropout(("attention", self.dropout), &x, shared, cx)?;
        let y = ops::add(cx, &x, &ops::dropout(cx, &attended, dropout)?)?; // [B, L, D]
        drop((x, attended));
        let dropout = layer_dropout(("ffn", self.ffn_dropout), &y, shared, cx)?;
        self.add_widened(&normed, &y, dropout, shared, cx) // [B, L, D]
    }

    /// `x + norm(attention(x))`, the same with feed-forward.
    fn after(
        &self,
        x: Var,
        shared: &Shared,
        [attention_norm, ffn_norm]: [&Norm; 2],
        cache: Kept<'_>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let attended = self.attention.forward(&x, &shared.context, cache.0, cx)?; // [B, L, D]
        let attended = self.scaled(attention_norm.forward(&attended, cx)?, cx)?; // [B, L, D]
        let dropout = layer_dropout(("attention", self.dropout), &x, shared, cx)?;
        let y = ops::add(cx, &x, &ops::dropout(cx, &attended, dropout)?)?; // [B, L, D]
        drop((x, attended));
        let widened = self.ffn.forward(&y, shared.tokens(), cx)?; // [B, L, D]
        let widened = self.scaled(ffn_norm.forward(&widened, cx)?, cx)?; // [B, L, D]
        let dropout = layer_dropout(("ffn", self.ffn_dropout), &y, shared, cx)?;
        Ok(ops::add(cx, &y, &ops::dropout(cx, &widened, dropout)?)?) // [B, L, D]
    }

    /// `x + out_norm(attention(norm(x)))`, the same with feed-forward.
    fn both(
        &self,
        x: Var,
        shared: &Shared,
        (ffn_norm, [attention_out, ffn_out]): (&Norm, &[Norm; 2]),
        cache: Kept<'_>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let normed = self.attention_input(&x, cx)?; // [B, L, D]
        let attended = self.attention.forward(&normed, &shared.context, cache.0, cx)?; // [B, L, D]
        drop(normed);
        let attended = self.scaled(attention_out.forward(&attended, cx)?, cx)?; // [B, L, D]
        let dropout = layer_dropout(("attention", self.dropout), &x, shared, cx)?;
        let (y, normed) = ffn_norm.forward_residual(&attended, &x, dropout, cx)?; // [B, L, D] each
        drop((x, attended));
        let widened = self.ffn.forward(&normed, shared.tokens(), cx)?; // [B, L, D]
        drop(normed);
        let widened = self.scaled(ffn_out.forward(&widened, cx)?, cx)?; // [B, L, D]
        let dropout = layer_dropout(("ffn", self.ffn_dropout), &y, shared, cx)?;
        Ok(ops::add(cx, &y, &ops::dropout(cx, &widened, dropout)?)?) // [B, L, D]
    }

    /// The input of attention, of a block's input `[B, L, D]`.
    fn attention_input(&self, x: &Var, cx: &Ctx) -> Result<Var> {
        match &self.attention_norm {
            Some(norm) => norm.forward(x, cx), // [B, L, D]
            None => Ok(x.clone()),
        }
    }

    /// Whether what a layer adds has no factor.
    fn adds_whole(&self) -> bool {
        self.residual_factor == 1.0
    }

    /// What a layer adds, times the factor.
    fn scaled(&self, x: Var, cx: &Ctx) -> Result<Var> {
        match self.adds_whole() {
            true => Ok(x),
            false => Ok(ops::scale(cx, &x, self.residual_factor)?),
        }
    }

    /// `residual + dropout(feed_forward(x))`.
    fn add_widened(
        &self,
        x: &Var,
        residual: &Var,
        dropout: Option<Dropout>,
        shared: &Shared,
        cx: &mut Ctx,
    ) -> Result<Var> {
        if self.adds_whole() {
            return self.ffn.forward_residual(x, residual, dropout, shared.tokens(), cx); // [B, L, D]
        }
        let widened = self.scaled(self.ffn.forward(x, shared.tokens(), cx)?, cx)?; // [B, L, D]
        Ok(ops::add(cx, residual, &ops::dropout(cx, &widened, dropout)?)?) // [B, L, D]
    }

    /// The tokens whose hidden states the block computes as the last one of its list: those that are read, where it can
    /// compute them alone. Encoders, the families that classify by the first token, have blocks without parallel layers
    /// and without dropout inside the feed-forward layer; where tokens are sharded, a rank may have no first token.
    fn tokens_after(&self, shared: &Shared) -> TokensRead {
        let is_fit = matches!(self.placement, Placement::Pre | Placement::Post)
            && self.cross.is_none()
            && !self.ffn.has_dropout();
        if is_fit && shared.tokens().is_none() { shared.reads } else { TokensRead::All }
    }

    fn run(
        &self,
        x: Var,
        (shared, tokens): (&Shared, TokensRead),
        cache: Option<&mut BlockCache>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let kept = match cache {
            Some(cache) => (Some(&mut cache.own), Some(&mut cache.memory)),
            None => (None, None),
        };
        let norms = self.attention_norm.as_ref().zip(self.ffn_norm.as_ref()).map(<[&Norm; 2]>::from);
        let hidden = match (&self.ffn_norm, &self.out_norms, norms, self.placement) {
            (Some(norm), Some(outs), ..) => self.both(x, shared, (norm, outs), kept, cx)?, // [B, L, D]
            (Some(norm), None, _, Placement::Pre) => self.pre(x, (shared, tokens), norm, kept, cx)?, // [B, L, D]
            (_, None, Some(norms), Placement::Post) => self.post(x, (shared, tokens), norms, kept, cx)?, // [B, L, D]
            (_, None, Some(norms), Placement::After) => self.after(x, shared, norms, kept, cx)?, // [B, L, D]
            _ => self.parallel(x, shared, kept, cx)?,                                      // [B, L, D]
        };
        cx.observe("hidden", &hidden)?;
        Ok(hidden)
    }
}

/// The name of a dropout and its probability.
type Dropped<'a> = (&'a str, f32);

/// The dropout of what a layer adds to hidden states shaped as `x`.
fn layer_dropout((name, rate): Dropped<'_>, x: &Var, shared: &Shared, cx: &Ctx) -> Result<Option<Dropout>> {
    Ok(token_dropout(name, rate, (shared.tokens(), x.shape().last()), cx)?)
}

/// The same where only the tokens that are read, of sequences of `length`, have hidden states.
fn read_dropout(
    of: Dropped<'_>,
    x: &Var,
    (shared, tokens, length): (&Shared, TokensRead, usize),
    cx: &Ctx,
) -> Result<Option<Dropout>> {
    let dropout = layer_dropout(of, x, shared, cx)?;
    Ok(dropout.map(|dropout| tokens.masked(dropout, length, x.shape().last())))
}

/// `x` plus what a layer adds to it, and the norm of that. The sum is a part of the layer's last product where that
/// `adds` a residual and nothing is dropped, else of the norm.
fn normed_sum(
    norm: &Norm,
    x: Var,
    (dropout, adds): (Option<Dropout>, bool),
    cx: &mut Ctx,
    layer: impl FnOnce(Option<&Var>, &mut Ctx) -> Result<Var>,
) -> Result<(Var, Var)> {
    if adds && dropout.is_none() {
        let sum = layer(Some(&x), cx)?; // [B, L, D]
        drop(x);
        let normed = norm.forward(&sum, cx)?; // [B, L, D]
        return Ok((sum, normed));
    }
    let added = layer(None, cx)?; // [B, L, D]
    norm.forward_residual(&added, &x, dropout, cx) // [B, L, D] each
}

/// L of hidden states `[B, L, D]`.
fn length_of(x: &Var) -> usize {
    x.shape().rows() / x.shape().dims().first().copied().unwrap_or(1).max(1)
}

/// The block's KV cache: of its own tokens, and of an encoder's output.
type Kept<'a> = (Option<&'a mut OwnCache>, Option<&'a mut Option<Var>>);

fn memory(shared: &Shared) -> Result<&Memory> {
    let missing = || Error::setting("block", "it attends to an encoder, and the section gave no hidden states of one");
    shared.memory.as_ref().ok_or_else(missing)
}

impl Block for TransformerBlock {
    type Carry = Var;
    type Shared = Shared;
    type Cache = BlockCache;

    fn forward(&self, x: Var, shared: &Shared, cache: Option<&mut BlockCache>, cx: &mut Ctx) -> Result<Var> {
        self.run(x, (shared, TokensRead::All), cache, cx)
    }

    fn forward_last(&self, x: Var, shared: &Shared, cache: Option<&mut BlockCache>, cx: &mut Ctx) -> Result<Var> {
        self.run(x, (shared, self.tokens_after(shared)), cache, cx)
    }
}
