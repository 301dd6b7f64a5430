//! Positions in self-attention: rotary embedding, ALiBi slopes, learned relative position bias.
//!
//! Defines [`PositionsConfig`] and [`Positions`], which makes the [`AttentionContext`] of a stack's self-attention.
//! Learned and sinusoidal tables that are added to the token embeddings belong to the models. Called by
//! the sections of models.

mod alibi;
mod relative;
mod rotary;

pub use alibi::{Alibi, slopes};
pub use model_center_formats::rotary::{RotaryConfig, RotaryScaling};
pub use relative::{RelativeBias, RelativeConfig, bucket};
pub use rotary::RotaryAngles;

use super::mask::{AttentionContext, Visible};
use bmtrain_core::{Ctx, Tensor, Var};
use bmtrain_dist::{Builder, Result};

/// Positions in a stack's self-attention.
#[derive(Debug, Clone, PartialEq)]
pub enum PositionsConfig {
    /// None: position embeddings are added to the token embeddings.
    None,
    /// Rotary embedding of queries and keys: the angles of each table. A block tells by number which one it has
    /// ([`RotaryHeads::table`](crate::layer::RotaryHeads::table)).
    Rotary(Vec<RotaryConfig>),
    /// ALiBi: a penalty that grows with the distance, with one slope per head; the number of heads.
    Alibi(usize),
    /// A learned bias for ranges of distances.
    Relative(RelativeConfig),
}

impl PositionsConfig {
    /// The longest row in which what tokens were told holds while further ones come; `None` where it always does.
    pub fn steady_length(&self) -> Option<usize> {
        match self {
            PositionsConfig::Rotary(tables) => tables.iter().filter_map(|table| table.scaling.steady_length()).min(),
            _ => None,
        }
    }

    /// Whether what tokens were told in a row of `one` token count holds in a row of the `other`.
    pub fn is_same(&self, one: usize, other: usize) -> bool {
        match self {
            PositionsConfig::Rotary(tables) => tables.iter().all(|table| table.scaling.is_same(one, other)),
            _ => true,
        }
    }

    /// The longest sequence of a model whose config states `positions`; ALiBi has no limit.
    pub fn reach(&self, positions: usize) -> usize {
        match self {
            PositionsConfig::Rotary(tables) => {
                let reaches = tables.iter().map(|table| table.scaling.reach(positions));
                reaches.max().unwrap_or(positions)
            }
            PositionsConfig::Alibi(_) => usize::MAX,
            _ => positions,
        }
    }
}

/// Positions of a stack, which make its [`AttentionContext`].
#[derive(Debug)]
pub enum Positions {
    /// Nothing.
    None,
    /// Angles of each table.
    Rotary(Vec<RotaryAngles>),
    /// Slopes.
    Alibi(Alibi),
    /// Learned biases.
    Relative(RelativeBias),
}

/// The rows of a batch, as far as positions go.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Tokens of a row that were read before.
    pub past: usize,
    /// L, tokens of a row that are read now.
    pub length: usize,
    /// i64 `[B, S]`, the position of each token in its sequence or document, past and present; `None` where it is the
    /// token's index in its sequence.
    pub numbers: Option<&'a Tensor>,
    /// All positions are below this.
    pub reach: usize,
}

impl Rows<'_> {
    /// S, all tokens of a row.
    pub fn keys(&self) -> usize {
        self.past + self.length
    }
}

impl Positions {
    /// Declare what is learned under the builder's name.
    pub fn new(builder: &Builder, config: PositionsConfig) -> Result<Self> {
        Ok(match config {
            PositionsConfig::None => Positions::None,
            PositionsConfig::Rotary(tables) => Positions::Rotary(tables.into_iter().map(RotaryAngles::new).collect()),
            PositionsConfig::Alibi(heads) => match builder.tensor_ranks() {
                None => Positions::Alibi(Alibi::new(heads)),
                Some(ranks) => {
                    // Attention refuses numbers of heads that the ranks do not divide.
                    let each = heads / ranks.size();
                    Positions::Alibi(Alibi::of_heads(ranks.rank() * each..(ranks.rank() + 1) * each, heads))
                }
            },
            PositionsConfig::Relative(config) => Positions::Relative(RelativeBias::new(builder, config)?),
        })
    }

    /// The learned bias of these sequences, `[1, N, L, S]`, if there is one.
    pub fn bias(&self, rows: Rows<'_>, cx: &mut Ctx) -> Result<Option<Var>> {
        match self {
            Positions::Relative(bias) => Ok(Some(bias.forward(rows.length, rows.keys(), cx)?)),
            _ => Ok(None),
        }
    }

    /// Number of heads of a learned bias on this tensor-parallel rank.
    pub fn bias_heads(&self) -> Option<usize> {
        match self {
            Positions::Relative(bias) => Some(bias.heads()),
            _ => None,
        }
    }

    /// The bias of one of several packed sequences, `[1, N, 1 or L, S]`, if there is one.
    pub fn packed_bias(&self, rows: Rows<'_>, cx: &mut Ctx) -> Result<Option<Var>> {
        match self {
            Positions::Alibi(alibi) => Ok(Some(alibi.bias(rows, cx)?)),
            _ => self.bias(rows, cx),
        }
    }

    /// The context of self-attention over packed sequences but for their biases.
    pub fn packed_context(&self, rows: Rows<'_>, cx: &mut Ctx) -> Result<AttentionContext> {
        match self {
            Positions::Rotary(_) => self.context(Visible::All, rows, None, cx),
            _ => Ok(AttentionContext::default()),
        }
    }

    /// The context of self-attention over these sequences; `bias` is their learned bias.
    pub fn context(
        &self,
        visible: Visible,
        rows: Rows<'_>,
        bias: Option<Var>,
        cx: &mut Ctx,
    ) -> Result<AttentionContext> {
        let context = AttentionContext { visible, ..AttentionContext::default() };
        Ok(match self {
            Positions::None => context,
            Positions::Rotary(tables) => {
                let angles = tables.iter().map(|angles| angles.of(rows, cx)).collect::<Result<_>>()?;
                AttentionContext { angles, ..context }
            }
            Positions::Alibi(alibi) => AttentionContext { bias: Some(alibi.bias(rows, cx)?), ..context },
            Positions::Relative(_) => AttentionContext { bias, ..context },
        })
    }
}
