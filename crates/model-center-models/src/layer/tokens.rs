//! Which tokens have hidden states: all, this rank's, or those that are read.

use bmtrain_core::kernel::Dropout;
use bmtrain_core::ops::{self, TokenShard};
use bmtrain_core::{Ctx, Result, Var};

/// The dropout `name` of hidden states with `columns` elements a token. Where tokens are sharded it is this rank's part
/// of the mask of all tokens.
///
/// # Errors
/// A probability outside `[0, 1)`.
pub fn token_dropout(
    name: &str,
    probability: f32,
    (tokens, columns): (Option<&TokenShard>, usize),
    cx: &Ctx,
) -> Result<Option<Dropout>> {
    let dropout = cx.dropout(name, probability)?;
    Ok(dropout.map(|dropout| tokens.map_or(dropout, |tokens| tokens.dropout(dropout, columns))))
}

/// Tokens whose hidden states are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TokensRead {
    /// Every token.
    #[default]
    All,
    /// The first token of each sequence: nothing else of the last block's output reaches a classifier on it, so what
    /// follows attention there is computed for these tokens alone.
    First,
}

impl TokensRead {
    /// Hidden states `[B, L, D]` of these tokens, `[B, 1, D]` of the first ones.
    pub(super) fn of(self, x: Var, cx: &Ctx) -> Result<Var> {
        let [batch, _, columns] = match self {
            TokensRead::All => return Ok(x),
            TokensRead::First => x.dims("first tokens")?,
        };
        ops::select_row(cx, &x, 0)?.reshape([batch, 1, columns]) // [B, 1, D]
    }

    /// The part of a mask for hidden states `[B, L, D]` that is theirs: an element keeps its address among all tokens.
    pub(super) fn masked(self, dropout: Dropout, length: usize, columns: usize) -> Dropout {
        match self {
            TokensRead::All => dropout,
            TokensRead::First => Dropout { row_stride: (length * columns) as u64, ..dropout },
        }
    }
}
