//! Variables that cross an edge between two places of a pipeline: declared by the model, in the order of its flow's
//! variables.
//!
//! [`Model::receive`](crate::Model::receive) asks an [`Edge`] for each variable. The same method serves to list what
//! crosses, which neighbours compare before the first step, and to take what has arrived.

use crate::error::Result;
use bmtrain_core::{DType, Shape, Var};
use std::fmt;

/// One tensor that crosses an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeTensor {
    /// Name of the variable, for errors.
    pub name: String,
    /// Shape.
    pub shape: Shape,
    /// Dtype.
    pub dtype: DType,
    /// The dtype of its gradient, if that comes back on the backward pass; it does where something before the edge is
    /// trained.
    pub gradient: Option<DType>,
    /// Whether all tensor-parallel ranks have the same values and the same gradient: each then sends a part of them.
    pub is_replicated: bool,
}

impl fmt::Display for EdgeTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EdgeTensor { name, shape, dtype, gradient, .. } = self;
        write!(f, "{name} {dtype} {shape}")?;
        gradient.map_or(Ok(()), |gradient| write!(f, " with gradient {gradient}"))
    }
}

/// Gives the variables of an edge in the order in which they are declared.
pub struct Edge<'a> {
    take: &'a mut dyn FnMut(EdgeTensor) -> Result<Var>,
    is_replicated: bool,
}

impl fmt::Debug for Edge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Edge")
    }
}

impl<'a> Edge<'a> {
    pub(super) fn new(take: &'a mut dyn FnMut(EdgeTensor) -> Result<Var>) -> Self {
        Edge { take, is_replicated: false }
    }

    /// This edge for variables that all tensor-parallel ranks have alike, to the last bit, as their gradients are, if
    /// `is_replicated`: hidden states, where these ranks do not shard tokens. Each of them sends a part, and the
    /// receiving ranks gather the parts.
    pub fn replicated(&mut self, is_replicated: bool) -> Edge<'_> {
        Edge { take: &mut *self.take, is_replicated }
    }

    /// A variable whose gradient, of the same dtype, the places after the edge compute.
    pub fn var(&mut self, name: impl Into<String>, shape: impl Into<Shape>, dtype: DType) -> Result<Var> {
        self.var_with_gradient(name, shape, dtype, dtype)
    }

    /// As [`Edge::var`], with the dtype that ops give the gradient: f32 for a bias of attention scores.
    pub fn var_with_gradient(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Shape>,
        dtype: DType,
        gradient: DType,
    ) -> Result<Var> {
        let (name, shape) = (name.into(), shape.into());
        let (gradient, is_replicated) = (dtype.is_float().then_some(gradient), self.is_replicated);
        (self.take)(EdgeTensor { name, shape, dtype, gradient, is_replicated })
    }

    /// A value that no place after the edge computes a gradient of.
    pub fn constant(&mut self, name: impl Into<String>, shape: impl Into<Shape>, dtype: DType) -> Result<Var> {
        let (name, shape, is_replicated) = (name.into(), shape.into(), self.is_replicated);
        (self.take)(EdgeTensor { name, shape, dtype, gradient: None, is_replicated })
    }
}
