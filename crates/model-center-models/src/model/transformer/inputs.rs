//! The input of a stack's first block: token embeddings, positions and token types added to them, norm, dropout.

use super::sinusoids::Sinusoids;
use super::stack::StackParts;
use crate::layer::attention::length_scaled;
use crate::layer::token_dropout;
use crate::model::architecture::{Added, Projection, Spec, StackSpec};
use crate::model::batch::Sequences;
use bmtrain_core::{Ctx, DType, Tensor, Var, ops};
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::pipeline::ModelPart;
use bmtrain_dist::{Builder, Error, Result};

/// `project_sum(dropout(norm(project_in(factor * tokens) + positions + token_types)))`; each family has some of these
/// terms. The tokens' table is of dimension E, the others are of dimension T: D, or E where the sum is projected.
///
/// Numerics: with a table in f32 the sum is in f32, and rounded once to the dtype of the hidden states.
#[derive(Debug)]
pub(in crate::model) struct Inputs {
    /// The stack's name, part of the names of parameters and dropout masks in an encoder-decoder model.
    scope: Option<&'static str>,
    factor: f32,
    /// Whether the factor is rounded to the dtype of the embeddings.
    rounds_factor: bool,
    length_scale: bool,
    /// Whether the sum is in f32, and rounded to the dtype of hidden states.
    sums_in_f32: bool,
    dtype: DType,
    positions: AddedPositions,
    token_types: Option<Embedding>,
    /// From the dimension of the embeddings to D, and from D back to it after the last block.
    projections: Option<[Linear; 2]>,
    norm: Option<Norm>,
    dropout: f32,
    /// From T to D.
    project_sum: Option<Linear>,
}

#[derive(Debug)]
enum AddedPositions {
    None,
    Learned(Embedding),
    /// The table of an earlier stack.
    Shared(Embedding),
    Computed(Sinusoids),
}

impl Inputs {
    /// Declares the stack's parameters under the builder's name and, in an encoder-decoder model, the stack's own.
    /// `earlier` are the inputs of the stacks before it, whose position table it may share.
    pub(in crate::model) fn new(
        builder: &Builder,
        spec: &Spec,
        (stack, parts): (&StackSpec, StackParts),
        earlier: &[Inputs],
    ) -> Result<Self> {
        let scope = (spec.stacks.len() > 1).then_some(stack.name);
        let (of_model, own) = (builder, scope.map(|name| builder.at(name)));
        let builder = own.as_ref().unwrap_or(builder);
        let (dtype, f32) = (builder.options().dtype, builder.options().f32_parameters);
        let has_f32_table = f32.embeddings || (f32.token_types && stack.type_size.is_some());
        let table = |builder: &Builder, name: &str, entries: usize, padding_index: Option<i64>| {
            let options =
                EmbeddingOptions { entries, size: spec.table_size(), init: stack.position_init, padding_index };
            Embedding::new(&builder.at(name), options)
        };
        let position_table = |builder: &Builder| {
            let builder = builder.in_f32(f32.embeddings);
            let rows = table(&builder, "position_embedding", stack.position_rows, stack.position_padding)?;
            Ok::<_, Error>(AddedPositions::Learned(rows))
        };
        let positions = match stack.added {
            Added::None => AddedPositions::None,
            Added::Learned(_) => position_table(builder)?,
            Added::Shared(_) => match earlier.iter().find_map(Inputs::position_table) {
                Some(table) => AddedPositions::Shared(table.clone()),
                None => position_table(of_model)?,
            },
            Added::Sinusoids => AddedPositions::Computed(Sinusoids::new(spec.table_size())),
        };
        let types = |rows| table(&builder.in_f32(f32.token_types), "token_type_embedding", rows, None);
        let token_types = stack.type_size.map(types).transpose()?;
        let (size, dim) = (spec.embedding_size, spec.dim_model);
        let linear = |builder: &Builder, name: &str, [inputs, outputs]: [usize; 2], bias| {
            Linear::new(&builder.at(name), LinearOptions::new(inputs, outputs, bias, spec.table_init))
        };
        let after = builder.part(ModelPart::Block(parts.last));
        let (projections, project_sum) = match spec.projection {
            Projection::Tokens if size == dim => (None, None),
            Projection::Tokens => {
                let project_in = linear(builder, "project_in", [size, dim], false)?;
                (Some([project_in, linear(&after, "project_out", [dim, size], false)?]), None)
            }
            Projection::Sum => (None, Some(linear(builder, "project_sum", [size, dim], true)?)),
        };
        let norm = stack.embedding_norm.map(|norm| Norm::new(&builder.at("embedding_norm"), norm)).transpose()?;
        Ok(Inputs {
            scope,
            factor: spec.embedding_factor,
            rounds_factor: spec.rounds_factor,
            length_scale: spec.length_scale,
            sums_in_f32: has_f32_table && dtype != DType::F32,
            dtype,
            positions,
            token_types,
            projections,
            norm,
            dropout: stack.embedding_dropout,
            project_sum,
        })
    }

    /// The position embedding, unless it is an earlier stack's.
    fn position_table(&self) -> Option<&Embedding> {
        match &self.positions {
            AddedPositions::Learned(table) => Some(table),
            AddedPositions::None | AddedPositions::Shared(_) | AddedPositions::Computed(_) => None,
        }
    }

    /// The position and token type embeddings, each of them with the first stack that has it.
    pub(in crate::model) fn tables(&self) -> impl Iterator<Item = &Embedding> {
        self.position_table().into_iter().chain(&self.token_types)
    }

    /// The projection that follows the last block.
    pub(in crate::model) fn project_out(&self) -> Option<&Linear> {
        self.projections.as_ref().map(|[_, project_out]| project_out)
    }

    /// From token ids to the input of the first block, `[B, L, D]`, or `[own, D]` where tokens are sharded.
    pub(in crate::model) fn forward(
        &self,
        (table, prompt): (&Embedding, Option<&Embedding>),
        sequences: &Sequences,
        cx: &mut Ctx,
    ) -> Result<Var> {
        let tokens = sequences.tokens.as_ref();
        // [B, L], or [own]
        let own = |ids: &Tensor| tokens.map_or_else(|| Ok(ids.clone()), |tokens| tokens.slice(ids));
        let prompt = sequences.prompt.as_ref().zip(prompt);
        let ids = prompt.map_or(&sequences.ids, |(ids, _)| ids.own());
        let mut hidden = table.forward_tokens(ids, tokens, cx)?; // [B, L, E]
        if self.factor != 1.0 {
            let factor = if self.rounds_factor { hidden.dtype().rounded(self.factor) } else { self.factor };
            hidden = ops::scale(cx, &hidden, factor)?; // [B, L, E]
        }
        hidden = length_scaled(&hidden, self.length_scale, cx)?; // [B, L, E]
        if let Some((ids, table)) = prompt {
            hidden = ids.join(table, &hidden, cx)?; // [B, L, E]
        }
        if let Some([project_in, _]) = &self.projections {
            hidden = project_in.forward(&self.cast(hidden, self.dtype, cx)?, cx)?; // [B, L, D]
        }
        hidden = self.cast(hidden, DType::F32, cx)?; // [B, L, T]
        hidden = match (&self.positions, &sequences.position_ids) {
            (AddedPositions::Learned(table) | AddedPositions::Shared(table), Some(ids)) => {
                table.add_to(hidden, &own(ids)?, cx)? // [B, L, T]
            }
            // [B, L, T]
            (AddedPositions::Computed(table), Some(ids)) => table.add_to(hidden, &own(ids)?, sequences.reach, cx)?,
            (AddedPositions::None, _) => hidden,
            (_, None) => return Err(Error::setting("embedding", "the batch has no position ids")),
        };
        if let (Some(table), Some(ids)) = (&self.token_types, &sequences.token_type_ids) {
            hidden = table.add_to(hidden, &own(ids)?, cx)?; // [B, L, T]
        }
        hidden = self.cast(hidden, self.dtype, cx)?; // [B, L, T]
        if let Some(norm) = &self.norm {
            hidden = norm.forward(&hidden, cx)?; // [B, L, T]
        }
        let rows = (tokens, hidden.shape().last());
        let dropout = match self.scope {
            Some(name) => cx.at(name, |cx| token_dropout("embedding", self.dropout, rows, cx))?,
            None => token_dropout("embedding", self.dropout, rows, cx)?,
        };
        let hidden = ops::dropout(cx, &hidden, dropout)?; // [B, L, T]
        match &self.project_sum {
            Some(project_sum) => project_sum.forward(&hidden, cx), // [B, L, D]
            None => Ok(hidden),
        }
    }

    /// In this dtype, where the sum has another than hidden states.
    fn cast(&self, x: Var, dtype: DType, cx: &Ctx) -> Result<Var> {
        if self.sums_in_f32 { Ok(ops::cast(cx, &x, dtype)?) } else { Ok(x) }
    }
}
