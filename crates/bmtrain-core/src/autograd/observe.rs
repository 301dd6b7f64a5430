//! Looking at values inside a forward pass, and at their gradients afterwards.
//!
//! A model names a value with [`Ctx::observe`]; an [`Observer`] that was given to the context sees it, and, when the
//! backward pass has passed, its gradient. Without an observer a name costs nothing. `bmtrain-dist` makes tables of
//! what is seen.

use super::{Ctx, Var};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use std::fmt;
use std::rc::Rc;

/// Sees the values that a forward pass names.
pub trait Observer: fmt::Debug {
    /// A value was named. The context holds its path, the micro-batch, and whether a block runs again. Returns the
    /// number under which the gradient will come.
    fn value(&self, cx: &Ctx, name: &str, value: &Tensor) -> Result<usize>;

    /// The gradient of the value that got this number, complete. It does not come where nothing flowed back.
    fn gradient(&self, number: usize, gradient: &Tensor) -> Result<()>;
}

impl Ctx {
    /// Show a value to the observer of this forward pass, if there is one, and its gradient when that is known: the sum
    /// over all uses of the variable. What is computed does not change.
    ///
    /// # Errors
    /// A parameter, whose gradient is not on the tape; a variable of another tape; the observer's own errors.
    pub fn observe(&self, name: &str, var: &Var) -> Result<()> {
        let Some(observer) = self.observer() else { return Ok(()) };
        if var.is_leaf() {
            let reason = format!("{name} is a parameter: look at the parameters themselves");
            return Err(Error::argument("observe", reason));
        }
        let number = observer.value(self, name, var.value())?;
        match (self.tape(), var.id()) {
            (Some(tape), Some(id)) => tape.watch(id, Rc::clone(observer), number),
            _ => Ok(()),
        }
    }
}
