//! Dropout of hidden states, of all tokens or of this rank's.

use bmtrain_core::kernel::Dropout;
use bmtrain_core::ops::TokenShard;
use bmtrain_core::{Ctx, Result};

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
