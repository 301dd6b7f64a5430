//! Devices, tensors, kernels, automatic differentiation and collectives for training transformers.
//!
//! A [`Device`] is one rank's handle of a [`Backend`]: the CPU, a CUDA device, or a backend of another crate.
//! [`Tensor`]s are allocated from its memory pool; the functions of [`ops`] compute on [`Var`]s and record their
//! gradients on a [`Tape`](autograd::Tape). A rank is one thread: tensors and tapes stay on it, and several ranks of a
//! process are several threads with one device each, connected by a [`Communicator`](comm::Communicator).
//!
//! ```
//! use bmtrain_core::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu(2)?;
//! let cx = Ctx::gradients(&device);
//! let tape = cx.tape().ok_or_else(|| Error::argument("example", "nothing is recorded"))?;
//!
//! let w = tape.input(Tensor::from_slice(&device, [2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?);
//! let x = Var::constant(Tensor::full(&device, [4, 3], DType::F32, 0.5)?);
//! let y = ops::linear(&cx, &x, &w, None, None)?; // [4, 2]
//! let loss = ops::mean(&cx, &(&y * &y)?)?; // [1]
//! println!("y = {}, loss = {}", y.value(), loss.value());
//!
//! let one = Tensor::full(&device, [1], DType::F32, 1.0)?;
//! let grads = tape.backward(&device, vec![(loss, one)], &[&w])?;
//! assert_eq!(grads[0].as_ref().map(Tensor::shape), Some([2, 3].into()));
//! # Ok(())
//! # }
//! ```
//!
//! Several ranks communicate through [`comm`]; sharded parameters, block lists and optimizers are in `bmtrain-dist`,
//! models in `model-center`. Cargo features: `cuda` (default; the driver is opened at run time), `mpi`, and `testing`:
//! the conformance table for backends of other crates, a counting allocator, late and waiting devices for tests.

pub mod autograd;
pub mod backend;
pub mod bench;
pub mod buffer;
pub mod comm;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod device_spec;
pub mod dtype;
pub mod error;
pub mod exact;
pub mod fp8;
pub mod heap;
pub mod kernel;
mod lane;
pub mod limits;
mod memory;
pub mod offload;
pub mod ops;
pub mod panics;
pub mod philox;
pub mod pool;
pub mod prelude;
pub mod quantised;
pub mod shape;
mod simd;
pub mod suggest;
pub mod tensor;
pub mod threads;
mod view;
pub mod wrap;

pub use autograd::{Ctx, Var};
pub use backend::{Backend, Kernels};
pub use device::Device;
pub use device_spec::{DeviceChoice, DeviceRequest};
pub use dtype::{BlockFormat, DType, Element, Float};
pub use error::{Error, Result};
pub use lane::Lane;
pub use pool::Segment;
pub use shape::Shape;
pub use tensor::{Storage, Tensor, Watch};

/// The example of the README is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
