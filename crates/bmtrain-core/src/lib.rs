//! Device memory, kernels, tape and ops for training transformers with few resources.
//!
//! A [`Device`] is one rank's handle of a [`Backend`]; [`Tensor`]s live in its pool; [`ops`] compute on
//! [`Var`]s and record themselves on a [`Tape`](autograd::Tape). A rank is one thread: tensors and tapes
//! stay on it, and several ranks of a process are several threads with a device each.

pub mod autograd;
pub mod backend;
pub mod buffer;
pub mod choice;
pub mod comm;
pub mod conformance;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod dtype;
pub mod error;
pub mod exact;
pub mod heap;
pub mod host;
pub mod kernel;
pub mod limits;
pub mod ops;
pub mod panics;
pub mod philox;
pub mod pool;
pub mod shape;
pub mod tensor;
pub mod wrap;

pub use autograd::{Ctx, Var};
pub use backend::{Backend, Kernels, Lane};
pub use choice::{DeviceChoice, DeviceRequest};
pub use device::Device;
pub use dtype::{DType, Element, Float};
pub use error::{Error, Result};
pub use pool::Segment;
pub use shape::Shape;
pub use tensor::{Storage, Tensor, Watch};
