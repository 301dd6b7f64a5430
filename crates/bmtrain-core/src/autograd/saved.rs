//! An input saved for the backward pass: the tensor, or the way to find it again.

use super::Var;
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::fmt;
use std::rc::Rc;

/// The owner of a value that may be elsewhere, or released, between forward and backward, typically a parameter whose
/// shards are gathered when they are needed.
pub trait Recall: fmt::Debug {
    /// The value where it is now.
    fn recall(&self) -> Result<Tensor>;
}

/// An input of an op, kept for its gradient. A variable with a [`Recall`] is not kept alive by it.
#[derive(Debug, Clone)]
pub struct Saved {
    shape: Shape,
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Kept(Tensor),
    Recalled(Rc<dyn Recall>),
}

impl Saved {
    /// Keep the value of a variable, or its origin if it has one.
    pub fn of(var: &Var) -> Self {
        let place = match var.origin() {
            Some(origin) => Place::Recalled(Rc::clone(origin)),
            None => Place::Kept(var.value().clone()),
        };
        Saved { shape: var.shape(), place }
    }

    /// The value, in the shape in which it was saved.
    pub fn get(&self) -> Result<Tensor> {
        match &self.place {
            Place::Kept(tensor) => Ok(tensor.clone()),
            Place::Recalled(origin) => origin.recall()?.reshape(self.shape),
        }
    }

    /// Bytes kept alive.
    pub fn bytes(&self) -> usize {
        match &self.place {
            Place::Kept(tensor) => tensor.bytes(),
            Place::Recalled(_) => 0,
        }
    }
}
