//! What leads to the blocks of one stack: words, positions that are added to them, a norm behind the sum, dropout.

use super::{Added, Around, Sinusoids};
use crate::config::TextConfig;
use bmtrain_core::{Ctx, Tensor, Var, ops};
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::param::Init;
use bmtrain_dist::{Builder, Error, Result};

/// Where the words of a batch stand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places<'a> {
    /// Their rows of positions, i64 `[B, L]`; `None` where none are added.
    pub(super) rows: Option<&'a Tensor>,
    /// All of them are below this.
    pub(super) reach: usize,
}

impl<'a> Places<'a> {
    /// Of words `[B, L]` that are whole rows.
    pub(super) fn of(ids: &Tensor, rows: Option<&'a Tensor>) -> Self {
        Places { rows, reach: ids.shape().last() }
    }
}

/// `dropout(norm(factor * words + positions))`, of which a family has what it has.
#[derive(Debug)]
pub(super) struct Entry {
    /// The stack's name.
    name: &'static str,
    factor: f32,
    positions: Positions,
    norm: Option<Norm>,
    dropout: f32,
}

#[derive(Debug)]
enum Positions {
    None,
    Learned(Embedding),
    Computed(Sinusoids),
}

impl Entry {
    /// Declare `position_embedding` and `embedding_norm`, where the stack has them, under the builder's name and its
    /// own.
    ///
    /// # Errors
    /// No memory left.
    pub(super) fn new(
        builder: &Builder,
        name: &'static str,
        text: &TextConfig,
        factor: f32,
        around: Around,
    ) -> Result<Self> {
        let (builder, init) = (builder.at(name), Init::normal(text.init_std));
        let positions = match around.added {
            Added::None => Positions::None,
            Added::Learned(table) => {
                let entries = table.first + text.position_size;
                let options = EmbeddingOptions { entries, size: text.dim_model, init, padding_index: None };
                Positions::Learned(Embedding::new(&builder.at("position_embedding"), options)?)
            }
            Added::Sinusoids => Positions::Computed(Sinusoids::new(text.dim_model)),
        };
        let norm = around.embedding_norm.map(|norm| Norm::new(&builder.at("embedding_norm"), norm)).transpose()?;
        Ok(Entry { name, factor, positions, norm, dropout: text.embedding_dropout_p })
    }

    /// The table of positions that is trained, if there is one.
    pub(super) fn learned(&self) -> Option<&Embedding> {
        match &self.positions {
            Positions::Learned(table) => Some(table),
            Positions::None | Positions::Computed(_) => None,
        }
    }

    /// Ids i64 `[B, L]`, with their places, to what enters the first block, `[B, L, D]`.
    ///
    /// # Errors
    /// An id outside the tables; a failing device.
    pub(super) fn forward(&self, words: &Embedding, ids: &Tensor, places: Places<'_>, cx: &mut Ctx) -> Result<Var> {
        let mut hidden = words.forward(ids, cx)?; // [B, L, D]
        if self.factor != 1.0 {
            hidden = ops::scale(cx, &hidden, self.factor)?; // [B, L, D]
        }
        hidden = match (&self.positions, places.rows) {
            (Positions::Learned(table), Some(rows)) => table.add_to(hidden, rows, cx)?, // [B, L, D]
            (Positions::Computed(table), Some(rows)) => table.add_to(hidden, rows, places.reach, cx)?, // [B, L, D]
            (Positions::None, _) => hidden,
            (_, None) => {
                return Err(Error::setting(self.name, "positions are added to its words, and the batch has none"));
            }
        };
        if let Some(norm) = &self.norm {
            hidden = norm.forward(&hidden, cx)?; // [B, L, D]
        }
        let dropout = cx.at(self.name, |cx| cx.dropout("embedding", self.dropout))?;
        Ok(ops::dropout(cx, &hidden, dropout)?) // [B, L, D]
    }
}
