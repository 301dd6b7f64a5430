//! What the attention of every block of a list goes by besides its input: which keys are seen and where tokens stand.
//!
//! Defines [`Scope`] with its parts and [`Memory`], what a decoder's blocks see of an encoder. Made once by the
//! sections of models, read by [`super::Attention`].

use bmtrain_core::ops::AttentionMask;
use bmtrain_core::{Tensor, Var};
use bmtrain_dist::block::Bundle;

/// Which keys a query sees.
#[derive(Debug, Clone, Default)]
pub enum Visible {
    /// All that the block's own configuration shows.
    #[default]
    All,
    /// The same without padding: u8 `[B, S]`, 1 for tokens and 0 for padding.
    Padding(Tensor),
    /// u8 `[B, L, S]`, 1 for a key that this query sees. It alone decides: that the block's keys have an order, or a
    /// window, is no matter then.
    Full(Tensor),
}

impl Visible {
    /// All but padding, u8 `[B, S]`, where there is some.
    pub fn but(padding: Option<&Tensor>) -> Self {
        padding.cloned().map_or(Visible::All, Visible::Padding)
    }

    /// Whether the order of keys, where the block's own configuration has one, restricts them further.
    pub fn goes_by_order(&self) -> bool {
        !matches!(self, Visible::Full(_))
    }

    /// As the ops take it.
    pub fn mask(&self) -> AttentionMask<'_> {
        match self {
            Visible::All => AttentionMask::None,
            Visible::Padding(mask) => AttentionMask::Padding(mask),
            Visible::Full(mask) => AttentionMask::Full(mask),
        }
    }
}

/// Angles by which queries and keys are turned.
#[derive(Debug, Clone)]
pub struct Angles {
    /// f32 `[P, R]`: of each position the cosines of its R / 2 angles, then the sines.
    pub table: Tensor,
    /// i64 `[B, L]`, rows of the table; `None` where token `l` of a row goes by row `l`.
    pub positions: Option<Tensor>,
}

/// What attention goes by: the same for every block of a list.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Which keys are seen.
    pub visible: Visible,
    /// Added to the scores, `[1 or B, N, 1 or L, S]`.
    pub bias: Option<Var>,
    /// For blocks with rotary positions.
    pub angles: Option<Angles>,
}

impl Scope {
    /// All keys but padding, u8 `[B, S]`, where there is some; nothing else.
    pub fn but(padding: Option<&Tensor>) -> Self {
        Scope { visible: Visible::but(padding), ..Scope::default() }
    }
}

impl Bundle for Scope {
    fn vars(&self) -> Vec<Var> {
        self.bias.vars()
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        Scope { bias: self.bias.rebuild(vars), ..self.clone() }
    }
}

/// What the blocks of a decoder see of an encoder.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Hidden states of the encoder, `[B, S, D]`.
    pub hidden: Var,
    /// Which of them are seen.
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
