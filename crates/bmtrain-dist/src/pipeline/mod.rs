//! Pipeline parallelism: the stages of a model on different ranks, and the order in which each runs its micro-batches.
//!
//! A [`Schedule`] is a value without a device: a [`Pipeline`], which runs a batch over several stages, follows it
//! action by action, and so do the simulator and the diagrams. A [`Partition`] divides the blocks among the places of
//! the schedule, a [`StageGroup`] has the parameters that a rank holds, and an [`Edge`] what crosses from one place to
//! the next.

mod agree;
pub mod costs;
mod crossing;
pub mod diagram;
pub mod executor;
pub mod outputs;
mod partition_rule;
pub mod simulation;
mod step;

pub use crate::edge::{Edge, EdgeTensor};
pub use crate::schedule::{self, Action, Message, Partition, Schedule, ScheduleKind, Work};
pub use crate::stages::{self, ModelPart, StageGroup};
pub use costs::BlockCosts;
pub use executor::{MicroBatch, Pipeline};
pub use outputs::NamedTensors;
pub use partition_rule::PartitionRule;
pub use simulation::{Link, PipelineCosts, Simulation, Transfer, WorkTimes, simulate};
