//! Attention mask and positions, shared by the blocks of a stack.
//!
//! Defines [`AttentionContext`] with its parts and [`Memory`], an encoder's output for cross-attention.
//! Made by [`super::Positions`], read by [`super::Attention`].

use bmtrain_core::ops::{AttentionMask, Documents, TokenShard};
use bmtrain_core::{Tensor, Var};
use bmtrain_dist::block::Bundle;

/// Which keys a query attends to.
#[derive(Debug, Clone, Default)]
pub enum Visible {
    /// All keys, but for the block's own causal mask and sliding window.
    #[default]
    All,
    /// The same with a padding mask: u8 `[B, S]`, 1 for tokens and 0 for padding.
    Padding(Tensor),
    /// u8 `[B, L, S]`, 1 for a key that this query attends to. It replaces causal mask and sliding window.
    Full(Tensor),
}

impl Visible {
    /// A padding mask, u8 `[B, S]`, if there is padding.
    pub fn but(padding: Option<&Tensor>) -> Self {
        padding.cloned().map_or(Visible::All, Visible::Padding)
    }

    /// Whether the block's own causal mask and sliding window apply.
    pub fn goes_by_order(&self) -> bool {
        !matches!(self, Visible::Full(_))
    }

    /// The mask of the attention ops.
    pub fn mask(&self) -> AttentionMask<'_> {
        match self {
            Visible::All => AttentionMask::None,
            Visible::Padding(mask) => AttentionMask::Padding(mask),
            Visible::Full(mask) => AttentionMask::Full(mask),
        }
    }
}

/// Angles of the rotary embedding.
#[derive(Debug, Clone)]
pub struct Angles {
    /// f32 `[P, R]`: of each position the cosines of its R / 2 angles, then the sines.
    pub table: Tensor,
    /// i64 `[B, L]`, rows of the table; `None` where token `l` has row `l`.
    pub positions: Option<Tensor>,
}

/// Inputs of attention besides hidden states: the same for every block of a stack.
#[derive(Debug, Clone, Default)]
pub struct AttentionContext {
    /// The attention mask.
    pub visible: Visible,
    /// Documents packed into the sequences: a query attends to keys of its own document alone.
    pub documents: Option<Documents>,
    /// Added to the attention scores, `[1 or B, N, 1 or L, S]`.
    pub bias: Option<Var>,
    /// For blocks with rotary embedding: a list by the number of the table, and each block has the angles of one.
    pub angles: Vec<Angles>,
    /// i64 `[B, P]`, the numbers of the virtual tokens whose trained keys and values precede the sequences, for blocks
    /// that have some (prefix tuning); `None` without, and where caches have them already. They are keys of mask and
    /// bias.
    pub prefix: Option<Tensor>,
    /// Which tokens this tensor-parallel rank has of the hidden states; `None` where it has all. Mask, documents, bias
    /// and angles are of all tokens.
    pub tokens: Option<TokenShard>,
}

impl AttentionContext {
    /// A padding mask, u8 `[B, S]`, if there is padding; no positions.
    pub fn but(padding: Option<&Tensor>) -> Self {
        AttentionContext { visible: Visible::but(padding), ..AttentionContext::default() }
    }
}

impl Bundle for AttentionContext {
    fn vars(&self) -> Vec<Var> {
        self.bias.vars()
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        AttentionContext { bias: self.bias.rebuild(vars), ..self.clone() }
    }
}

/// The encoder's output that the blocks of a decoder attend to.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Hidden states of the encoder, `[B, S, D]`, or this rank's tokens of them, `[own, D]`.
    pub hidden: Var,
    /// Which tokens this tensor-parallel rank has of them; `None` where it has all.
    pub tokens: Option<TokenShard>,
    /// The attention mask over them.
    pub visible: Visible,
}

impl Bundle for Memory {
    fn vars(&self) -> Vec<Var> {
        vec![self.hidden.clone()]
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        Memory { hidden: self.hidden.rebuild(vars), ..self.clone() }
    }
}
