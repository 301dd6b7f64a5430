//! Reverse-mode differentiation: values that remember where they come from, the context of a forward pass, the tape.
//!
//! Ops push one structure each onto the tape of the [`Ctx`]; [`Tape::backward`] walks them in reverse. Transformer
//! blocks use a fresh tape inside and are one node outside, see `bmtrain-dist`.

mod context;
mod observe;
mod saved;
mod tape;
mod var;
mod weight_gradients;

pub use context::{Ctx, Randomness, Site};
pub use observe::Observer;
pub use saved::{Recall, Saved};
pub use tape::{Backward, BackwardCtx, Grads, Tape};
pub use var::{GradSink, SinkTarget, Var, VarId, VarKey};
pub use weight_gradients::WeightGradients;
