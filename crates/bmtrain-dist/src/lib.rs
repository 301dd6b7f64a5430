//! Parameters, blocks, layers, optimizers and schedules for training transformers with few resources.
//!
//! A model declares its parameters through a [`Builder`], which draws their values as pure functions of
//! their names and lays each block's parameters out in flat storages. A [`TransformerBlockList`] runs blocks in an
//! explicit loop and is one node on the outer tape. An [`OptimManager`] scales, clips and steps.
#![forbid(unsafe_code)]

pub mod block;
pub mod checkpoint;
pub mod error;
pub mod inspect;
pub mod launch;
pub mod mesh;
pub mod model;
pub mod nn;
pub mod optim;
pub mod param;
pub mod plan;
pub mod shard;
pub mod snapshot;
pub mod team;

/// The crate below, so that a program needs this one only.
pub use bmtrain_core;

pub use block::{Block, Bundle, TransformerBlockList};
pub use error::{Error, Result};
pub use launch::Launch;
pub use mesh::{Mesh, RankGroup};
pub use model::{Model, Section};
pub use optim::OptimManager;
pub use param::{Builder, Param, Parameters};
pub use team::Team;
