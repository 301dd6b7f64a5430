//! The names that most programs over this crate use, including [`bmtrain_core::prelude`]'s.
//!
//! ```
//! use bmtrain_dist::prelude::*;
//! ```

pub use crate::block::{Block, BlockOptions, BlockPolicy, CheckpointBlock, Recompute, TransformerBlockList};
pub use crate::error::{Error, Result};
pub use crate::launch::{Launch, run_ranks};
pub use crate::model::Module;
pub use crate::nn::{Embedding, EmbeddingOptions, Linear, LinearOptions};
pub use crate::optim::{Adam, AdamOptions, Clip, OptimManager, ParamGroup};
pub use crate::param::TensorSplit;
pub use crate::param::{Builder, BuilderOptions, Init, Param, Parameters};
pub use crate::shard::{GradientSum, Sharding, ZeroLevel};
pub use bmtrain_core::comm::Communicator;
pub use bmtrain_core::kernel::Activation;
pub use bmtrain_core::prelude::{Ctx, DType, Device, Randomness, Segment, Shape, Tape, Tensor, Var, ops};
