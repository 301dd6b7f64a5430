//! The transformer block, written once: attention and feed-forward, in an encoder-decoder's decoder also
//! cross-attention, with the norms where a family has them.

use super::{
    Attention, AttentionConfig, AttentionContext, BlockCache, CrossAttention, FeedForward, FeedForwardConfig, Memory,
    OwnCache, TokensRead, token_dropout,
};
use bmtrain_core::kernel::Dropout;
use bmtrain_core::ops::{self, TokenShard};
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::block::Bundle;
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::{Block, Builder, Error, Result};

/// Placement of the norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Before each layer: `x + layer(norm(x))`. A norm after the last block belongs to the model.
    Pre,
    /// After each sum: `norm(x + layer(x))`.
    Post,
    /// One norm before attention and feed-forward alike: `x + attention(norm(x)) + feed_forward(norm(x))`.
    Parallel,
}

/// Options of a [`TransformerBlock`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockConfig {
    /// Placement of the norms.
    pub placement: Placement,
    /// Self-attention.
    pub attention: AttentionConfig,
    /// Attention to an encoder.
    pub cross: Option<AttentionConfig>,
    /// Options of the feed-forward layer.
    pub ffn: FeedForwardConfig,
    /// The norm of each.
    pub norm: NormOptions,
    /// Whether cross-attention and the feed-forward layer share one norm.
    pub shares_norm: bool,
    /// Probability with which an element that attention adds is dropped.
    pub dropout: f32,
    /// Probability with which an element that the feed-forward layer adds is dropped.
    pub ffn_dropout: f32,
}

impl BlockConfig {
    /// The decoder block for an encoder with such blocks: self-attention is causal, and cross-attention
    /// has the sizes and options of self-attention.
    #[must_use]
    pub fn attending_to_encoder(self) -> Self {
        let attention = AttentionConfig { causal: true, ..self.attention };
        BlockConfig { attention, cross: Some(self.attention), ..self }
    }
}

/// Inputs that every block of a list shares.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Mask and positions of self-attention.
    pub context: AttentionContext,
    /// Input of attention to an encoder.
    pub memory: Option<Memory>,
    /// Which hidden states are read after the last block.
    pub reads: TokensRead,
}

impl Shared {
    /// Which tokens this rank has of the hidden states; `None` where it has all.
    pub fn tokens(&self) -> Option<&TokenShard> {
        self.context.tokens.as_ref()
    }
}

impl Bundle for Shared {
    fn vars(&self) -> Vec<Var> {
        let mut vars = self.context.vars();
        vars.extend(self.memory.vars());
        vars
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        Shared { context: self.context.rebuild(vars), memory: self.memory.rebuild(vars), reads: self.reads }
    }
}

impl From<AttentionContext> for Shared {
    fn from(context: AttentionContext) -> Self {
        Shared { context, ..Shared::default() }
    }
}

/// One block of an encoder or a decoder. Where the context shards tokens ([`AttentionContext::tokens`]), `[B, L, D]`
/// below is `[own, D]`.
#[derive(Debug)]
pub struct TransformerBlock {
    placement: Placement,
    attention_norm: Norm,
    attention: Attention,
    cross: Option<(Norm, CrossAttention)>,
    /// None where the placement is parallel.
    ffn_norm: Option<Norm>,
    ffn: FeedForward,
    dropout: f32,
    ffn_dropout: f32,
}

/// The name of the feed-forward layer, and of the dropout of what it adds.
const FFN: &str = "ffn";

impl TransformerBlock {
    /// Declare the parameters under the builder's name.
    ///
    /// # Errors
    /// Errors of [`Attention::new`] and [`CrossAttention::new`]; a parallel block with attention to an encoder; a
    /// shared norm in a block without cross-attention.
    pub fn new(builder: &Builder, config: BlockConfig) -> Result<Self> {
        let norm = |name: &str| Norm::new(&builder.at(name), config.norm);
        let is_parallel = config.placement == Placement::Parallel;
        if is_parallel && config.cross.is_some() {
            return Err(Error::setting("block", "attention to an encoder has no place in a parallel block"));
        }
        let attention_norm = norm("attention_norm")?;
        let attention = Attention::new(&builder.at("attention"), config.attention)?;
        let cross = match config.cross {
            None => None,
            Some(cross) => Some((norm("cross_norm")?, CrossAttention::new(&builder.at("cross_attention"), cross)?)),
        };
        let ffn_norm = match (is_parallel, config.shares_norm, &cross) {
            (true, false, _) => None,
            (false, false, _) => Some(norm("ffn_norm")?),
            (_, true, Some((norm, _))) => Some(norm.clone()),
            (_, true, None) => return Err(Error::setting("block", "shares_norm requires cross-attention")),
        };
        let ffn = FeedForward::new(&builder.at(FFN), config.ffn)?;
        let BlockConfig { placement, dropout, ffn_dropout, .. } = config;
        Ok(TransformerBlock { placement, attention_norm, attention, cross, ffn_norm, ffn, dropout, ffn_dropout })
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
        let dropout = |name: &str, x: &Var, cx: &Ctx| self.dropout_of(name, x, (shared, tokens, length), cx);
        let normed = self.attention_norm.forward(&x, cx)?; // [B, L, D]
        let x = tokens.of(x, cx)?; // [B, L, D]
        let mask = dropout("attention", &x, cx)?;
        let norm = self.cross.as_ref().map_or(ffn_norm, |(norm, _)| norm);
        let (mut x, mut normed) = normed_sum(norm, x, (mask, self.attention.adds_residual()), cx, |residual, cx| {
            self.attention.forward_for(&normed, (&shared.context, tokens), own, residual, cx)
        })?; // [B, L, D] each
        if let Some((_, cross)) = &self.cross {
            let (memory, mask) = (memory(shared)?, dropout("cross_attention", &x, cx)?);
            (x, normed) = normed_sum(ffn_norm, x, (mask, cross.adds_residual()), cx, |residual, cx| {
                cross.forward_for(&normed, (shared.tokens(), memory), kept, residual, cx)
            })?; // [B, L, D] each
        }
        let mask = dropout(FFN, &x, cx)?;
        self.ffn.forward_residual(&normed, &x, mask, shared.tokens(), cx) // [B, L, D]
    }

    /// `norm(x + attention(x))`, the same with attention to an encoder, the same with feed-forward. After attention, L
    /// is the number of tokens that are computed.
    fn post(
        &self,
        x: Var,
        (shared, tokens): (&Shared, TokensRead),
        ffn_norm: &Norm,
        (own, kept): Kept<'_>,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let length = length_of(&x);
        let dropout = |name: &str, x: &Var, cx: &Ctx| self.dropout_of(name, x, (shared, tokens, length), cx);
        let attended = self.attention.forward_for(&x, (&shared.context, tokens), own, None, cx)?; // [B, L, D]
        let x = tokens.of(x, cx)?; // [B, L, D]
        let mask = dropout("attention", &x, cx)?;
        let (_, mut y) = self.attention_norm.forward_residual(&attended, &x, mask, cx)?; // [B, L, D]
        drop((attended, x));
        if let Some((norm, cross)) = &self.cross {
            let attended = cross.forward(&y, shared.tokens(), memory(shared)?, kept, cx)?; // [B, L, D]
            let mask = dropout("cross_attention", &y, cx)?;
            y = norm.forward_residual(&attended, &y, mask, cx)?.1; // [B, L, D]
        }
        let widened = self.ffn.forward(&y, shared.tokens(), cx)?; // [B, L, D]
        let mask = dropout(FFN, &y, cx)?;
        Ok(ffn_norm.forward_residual(&widened, &y, mask, cx)?.1) // [B, L, D]
    }

    /// `x + attention(norm(x)) + feed_forward(norm(x))`.
    fn parallel(&self, x: Var, shared: &Shared, cache: Kept<'_>, cx: &mut Ctx) -> Result<Var> {
        let normed = self.attention_norm.forward(&x, cx)?; // [B, L, D]
        let attended = self.attention.forward(&normed, &shared.context, cache.0, cx)?; // [B, L, D]
        let dropout = self.dropout("attention", &x, shared, cx)?;
        let y = ops::add(cx, &x, &ops::dropout(cx, &attended, dropout)?)?; // [B, L, D]
        drop((x, attended));
        let dropout = self.dropout(FFN, &y, shared, cx)?;
        self.ffn.forward_residual(&normed, &y, dropout, shared.tokens(), cx) // [B, L, D]
    }

    /// The tokens whose hidden states the block computes as the last one of its list: those that are read, where it can
    /// compute them alone. Encoders, the families that classify by the first token, have blocks without parallel layers
    /// and without dropout inside the feed-forward layer; where tokens are sharded, a rank may have no first token.
    fn tokens_after(&self, shared: &Shared) -> TokensRead {
        let is_fit = self.placement != Placement::Parallel && self.cross.is_none() && !self.ffn.has_dropout();
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
        let hidden = match (&self.ffn_norm, self.placement) {
            (Some(norm), Placement::Pre) => self.pre(x, (shared, tokens), norm, kept, cx)?, // [B, L, D]
            (Some(norm), Placement::Post) => self.post(x, (shared, tokens), norm, kept, cx)?, // [B, L, D]
            (_, Placement::Parallel) | (None, _) => self.parallel(x, shared, kept, cx)?,    // [B, L, D]
        };
        cx.observe("hidden", &hidden)?;
        Ok(hidden)
    }

    /// The dropout of what a layer adds to hidden states shaped as `x`.
    fn dropout(&self, name: &str, x: &Var, shared: &Shared, cx: &Ctx) -> Result<Option<Dropout>> {
        let rate = if name == FFN { self.ffn_dropout } else { self.dropout };
        Ok(token_dropout(name, rate, (shared.tokens(), x.shape().last()), cx)?)
    }

    /// The same where only the tokens that are read, of sequences of `length`, have hidden states.
    fn dropout_of(
        &self,
        name: &str,
        x: &Var,
        (shared, tokens, length): (&Shared, TokensRead, usize),
        cx: &Ctx,
    ) -> Result<Option<Dropout>> {
        let dropout = self.dropout(name, x, shared, cx)?;
        Ok(dropout.map(|dropout| tokens.masked(dropout, length, x.shape().last())))
    }
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
