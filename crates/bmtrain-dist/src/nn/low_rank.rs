//! Low-rank updates of linear layers: LoRA and DoRA, as options of a builder, so that no model has to know of them.
//!
//! [`Adapters`] names the layers by their full names; [`Linear::new`](super::Linear::new) declares the two matrices of
//! each update beside the weight, and [`Linear`](super::Linear) adds their product to its outputs. With a
//! [magnitude](LowRankOptions::magnitude) it scales them, too.

use super::linear::{LinearOptions, Parallel};
use super::magnitude::Magnitude;
use crate::error::{Error, Result};
use crate::param::TensorSplit;
pub use crate::param::{Adapters, LinearLayer, LowRankOptions, PrefixOptions, PromptOptions};
use crate::param::{Builder, Init, Param, Split};
use bmtrain_core::kernel::{Distribution, Dropout};
use bmtrain_core::ops::{self, ProductWeight, RowUpdate, TokenShard};
use bmtrain_core::{Ctx, Var};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

impl LinearLayer {
    /// Full name of its weight.
    pub fn weight(&self) -> String {
        format!("{}.weight", self.name)
    }

    /// Rows of the weight.
    pub fn rows(&self) -> usize {
        self.outputs.iter().map(|part| part.size).sum()
    }

    /// Split over tensor-parallel ranks of a parameter of adapter `name` with a row for each of these outputs, and the
    /// first of the outputs among this rank's. `weight` is the layer's weight.
    pub(super) fn adapted_outputs(&self, name: &str, rows: &Range<usize>, weight: &Param) -> Result<(Split, usize)> {
        let Some(parts) = self.parts(rows) else {
            let sizes: Vec<usize> = self.outputs.iter().map(|part| part.size).collect();
            let reason = format!("the adapter \"{name}\" has rows {rows:?}, which are not whole parts of {sizes:?}");
            return Err(Error::parameter(self.weight(), reason));
        };
        if self.split != TensorSplit::Columns {
            return Ok((Split::Replicated, rows.start));
        }
        let first = weight.local_part().ranges.iter().take(parts.start).map(Range::len).sum();
        let parts = self.outputs.get(parts).unwrap_or_default().to_vec();
        Ok((Split::Axis { axis: 0, parts }, first))
    }

    /// Split over tensor-parallel ranks of a parameter's axis with a place for each input.
    pub(super) fn adapted_inputs(&self, axis: usize) -> Split {
        match self.split {
            TensorSplit::Rows => Split::even(axis, self.inputs),
            TensorSplit::None | TensorSplit::Columns | TensorSplit::Vocabulary => Split::Replicated,
        }
    }

    /// Refuse adapter `name` of an output projection.
    pub(super) fn check_adapter(&self, name: &str) -> Result<()> {
        if self.split != TensorSplit::Vocabulary {
            return Ok(());
        }
        let reason = format!("the adapter \"{name}\" is of an output projection over the vocabulary, which has none");
        Err(Error::parameter(self.weight(), reason))
    }

    /// The parts that these rows are, by their numbers.
    fn parts(&self, rows: &Range<usize>) -> Option<Range<usize>> {
        let ends = self.outputs.iter().scan(0, |end, part| {
            *end += part.size;
            Some(*end)
        });
        let ends: Vec<usize> = std::iter::once(0).chain(ends).collect();
        let at = |row: usize| ends.iter().position(|end| *end == row);
        at(rows.start).zip(at(rows.end)).map(|(first, last)| first..last).filter(|parts| !parts.is_empty())
    }
}

/// Whether two ranges have rows in common.
pub(super) fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A low-rank update with its parameters.
#[derive(Debug, Clone)]
pub struct LowRank {
    /// `[R, K]`.
    a: Param,
    /// `[rows, R]`.
    b: Param,
    /// The first of this rank's outputs that are updated.
    first: usize,
    scale: f32,
    dropout: f32,
    magnitude: Option<Magnitude>,
    /// Elements of an input over all tensor-parallel ranks, and the first of this rank's.
    inputs: (usize, usize),
    /// Flag of the whole model: whether updates are left out
    /// ([`Parameters::without_updates`](crate::param::Parameters::without_updates)).
    left_out: Rc<Cell<bool>>,
}

impl LowRank {
    /// Declare the updates of a layer that the builder's options have; `weight` is its weight.
    pub(super) fn of_layer(builder: &Builder, layer: &LinearLayer, weight: &Param) -> Result<Vec<LowRank>> {
        let Some(adapters) = &builder.options().adapters else { return Ok(Vec::new()) };
        let updates = adapters.low_rank.get(&layer.name).map_or(&[][..], Vec::as_slice);
        for (number, one) in updates.iter().enumerate() {
            let mut others = updates.iter().take(number).filter(|other| overlap(&one.rows, &other.rows));
            if let Some(other) = others.find(|other| one.magnitude || other.magnitude) {
                let reason =
                    format!("\"{}\" and \"{}\" update the same rows, and one has a magnitude", other.name, one.name);
                return Err(Error::parameter(layer.weight(), reason));
            }
        }
        updates.iter().map(|options| LowRank::new(builder, layer, weight, options)).collect()
    }

    fn new(builder: &Builder, layer: &LinearLayer, weight: &Param, options: &LowRankOptions) -> Result<Self> {
        let LowRankOptions { ref name, ref rows, rank, scale, dropout, magnitude } = *options;
        layer.check_adapter(name)?;
        let (split, first) = layer.adapted_outputs(name, rows, weight)?;
        if rank == 0 {
            let reason = format!("the adapter \"{name}\" has rank 0: use at least 1");
            return Err(Error::parameter(layer.weight(), reason));
        }
        // PyTorch's initial values of a linear layer, and zeros: the model begins as it is without the update.
        let bound = 1.0 / (layer.inputs as f32).sqrt();
        let place = builder.adapter().at("lora").at(name);
        let a_init = Init::Random(Distribution::Uniform(-bound, bound));
        let a = place.param("a", [rank, layer.inputs], a_init, layer.adapted_inputs(1), true)?;
        let b = place.param("b", [rows.len(), rank], Init::ZEROS, split.clone(), true)?;
        let magnitude = match magnitude {
            true => {
                let local = first..first + b.local_shape().rows();
                Some(Magnitude::new(&place, (layer, weight), (rows.len(), split), local)?)
            }
            false => None,
        };
        let own = a.local_part().ranges.first().map_or(0, |range| range.start);
        let inputs = (layer.inputs, if layer.split == TensorSplit::Rows { own } else { 0 });
        Ok(LowRank { a, b, first, scale, dropout, magnitude, inputs, left_out: builder.updates_left_out() })
    }

    /// The outputs `y` of the layer for `x` with this update. Where the layer is split over tensor-parallel ranks, one
    /// of the two matrices is split too, and R values of each token are communicated.
    pub(super) fn add_to(
        &self,
        y: Var,
        x: &Var,
        parallel: &Parallel,
        tokens: Option<&TokenShard>,
        cx: &Ctx,
    ) -> Result<Var> {
        if self.left_out.get() {
            return Ok(y);
        }
        let x = ops::dropout(cx, x, self.dropout_of(x, parallel, tokens, cx)?)?; // [.., K]
        let a = self.a.var(cx)?;
        let t = match (parallel, tokens) {
            (Parallel::Rows(_), Some(tokens)) => {
                ops::linear(cx, &x, ProductWeight::scattered(&a, tokens), None, None)? // [own, R]
            }
            (Parallel::Rows(ranks), None) => ops::linear(cx, &x, ProductWeight::summed(&a, ranks), None, None)?,
            _ => ops::linear(cx, &x, &a, None, None)?, // [.., R]
        };
        let t = match (parallel, tokens) {
            // Each rank computes a term of the gradient of all tokens.
            (Parallel::Columns(ranks), Some(tokens)) => {
                ops::copy_to_ranks(cx, ranks, &ops::gather_tokens(cx, tokens, &t)?) // [B, L, R]
            }
            (Parallel::Columns(ranks), None) => ops::copy_to_ranks(cx, ranks, &t),
            _ => t,
        };
        Ok(ops::add_low_rank(cx, y, &t, &self.b.var(cx)?, self.first, self.scale)?)
    }

    /// Whether it multiplies outputs by factors now.
    pub(super) fn scales(&self) -> bool {
        self.magnitude.is_some() && !self.left_out.get()
    }

    /// The factors of the updated outputs with the number of the first one, if it has a magnitude.
    pub(super) fn factors(&self, cx: &Ctx) -> Result<Option<(usize, Var)>> {
        let Some(magnitude) = self.magnitude.as_ref().filter(|_| self.scales()) else { return Ok(None) };
        let (a, b) = (self.a.value()?, self.b.value()?);
        let factors = magnitude.factors(RowUpdate { a: &a, b: &b, factor: self.scale }, cx)?; // [rows]
        Ok(Some((self.first, factors)))
    }

    /// The dropout of this rank's part of the input, addressed in all of it.
    fn dropout_of(
        &self,
        x: &Var,
        parallel: &Parallel,
        tokens: Option<&TokenShard>,
        cx: &Ctx,
    ) -> Result<Option<Dropout>> {
        let Some(dropout) = cx.dropout(self.a.name(), self.dropout)? else { return Ok(None) };
        let (all, first) = self.inputs;
        Ok(Some(match (parallel, tokens) {
            (Parallel::Rows(_), _) => Dropout { offset: first as u64, row_stride: all as u64, ..dropout },
            (_, Some(tokens)) => tokens.dropout(dropout, x.shape().last()),
            (_, None) => dropout,
        }))
    }
}

impl LinearOptions {
    /// The layer that these options declare at a place.
    pub(super) fn layer(&self, name: &str) -> LinearLayer {
        let LinearOptions { inputs, ref outputs, split, .. } = *self;
        LinearLayer { name: name.to_owned(), inputs, outputs: outputs.clone(), split, is_in_block: false }
    }
}
