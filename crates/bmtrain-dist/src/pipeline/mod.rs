//! Pipeline parallelism: the stages of a model on different ranks, and the order in which each runs its micro-batches.
//!
//! A [`Schedule`] is a value without a device: who runs a batch over several stages follows it action by action, and so
//! do the simulator and the diagrams.

pub mod schedule;

pub use schedule::{Action, Message, Schedule, ScheduleKind, Work};
