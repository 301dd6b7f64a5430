//! ZeRO, transformer block lists, layers, optimizers, schedules and checkpoints for training transformers.
//!
//! A model declares its parameters through a [`Builder`], which initializes them as pure functions of seed and name and
//! shards them over the ranks ([`shard`]). A [`TransformerBlockList`] runs blocks in an explicit loop: it gathers a
//! block's parameters, prefetches the next block, checkpoints activations, and reduces gradients in the backward pass.
//! An [`OptimManager`] scales, clips and steps. Model code is the same on one rank and on many.
//!
//! ```
//! use bmtrain_dist::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu(1)?;
//! let b = Builder::new(&device, BuilderOptions::default());
//! let up = Linear::new(&b.at("up"), LinearOptions::new(8, 32, true, Init::normal(0.1)))?;
//! let down = Linear::new(&b.at("down"), LinearOptions::new(32, 1, true, Init::normal(0.1)))?;
//!
//! let mut optim = OptimManager::new(&device, Clip::default())?;
//! optim.add(Box::new(Adam::new(ParamGroup::by_decay(&b.finish(), 0.01), AdamOptions::default())?), 1e-2);
//!
//! let x = Tensor::randn(&device, [16, 8], 1)?;
//! let target = Tensor::full(&device, [16, 1], DType::F32, 1.0)?;
//! let mut losses = Vec::new();
//! for step in 0..20 {
//!     let mut cx = Ctx::training(&device, Randomness { seed: 2, step, micro_batch: 0 });
//!     let hidden = up.forward_activated(&Var::constant(x.clone()), Activation::Gelu, &cx)?; // [16, 32]
//!     let loss = ops::squared_error(&cx, &down.forward(&hidden, &cx)?, &target)?; // [1]
//!     optim.backward(&loss, 1.0, &mut cx)?;
//!     optim.step()?;
//!     losses.push(loss.value().item()?);
//! }
//! assert!(losses[19] < 0.5 * losses[0]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod block;
pub mod checkpoint;
pub mod control;
pub mod dry_run;
pub mod edge;
pub mod error;
pub mod inspect;
pub mod launch;
pub mod mesh;
pub mod model;
pub mod nn;
pub mod optim;
pub mod order;
pub mod param;
pub mod pipeline;
pub mod prelude;
pub mod rank_groups;
pub mod schedule;
pub mod shard;
pub mod stages;

/// The crate below, so that a program needs this one only.
pub use bmtrain_core;

pub use block::{Block, Bundle, TransformerBlockList};
pub use control::ControlGroup;
pub use error::{Error, Result};
pub use launch::{Launch, init_distributed};
pub use mesh::{Mesh, RankGroup};
pub use model::{Model, Module};
pub use optim::OptimManager;
pub use param::{Builder, Param, Parameters};
pub use rank_groups::{CountedSends, RankGroups};

/// The example of the README is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
