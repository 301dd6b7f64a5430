//! Pipeline parallelism: the stages of a model on different ranks, and the order in which each runs its micro-batches.
//!
//! A [`Schedule`] is a value without a device: who runs a batch over several stages follows it action by action, and so
//! do the simulator and the diagrams.

pub mod diagram;
pub mod schedule;
pub mod simulation;

pub use schedule::{Action, Message, Schedule, ScheduleKind, Work};
pub use simulation::{Link, PipelineCosts, Simulation, Transfer, WorkTimes, simulate};
