//! The names that most programs over this crate use.
//!
//! ```
//! use bmtrain_core::prelude::*;
//! ```

pub use crate::autograd::{Ctx, Randomness, Tape, Var};
pub use crate::device::Device;
pub use crate::dtype::DType;
pub use crate::error::{Error, Result};
pub use crate::ops;
pub use crate::pool::Segment;
pub use crate::shape::Shape;
pub use crate::tensor::Tensor;
