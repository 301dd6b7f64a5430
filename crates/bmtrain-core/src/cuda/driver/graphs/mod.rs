//! Launches that a stream repeats from step to step, replayed as CUDA graphs.
//!
//! Nothing above the driver knows of this: code gives one kernel after the other, as always. `recorder` compares what
//! it is given with what it was given before, `command` is what it compares, `captured` the driver's graphs. What a
//! stream was given twice in the same order is captured; from the third time on it is held back, command by command,
//! until it is whole, and given to the device by one call. Whatever else happens to the stream, such as an event, a
//! transfer or a wait of the host, comes after what was held back.
#![allow(unsafe_code)]

mod captured;
mod command;
mod recorder;

pub(super) use captured::CapturedGraph;
pub(in crate::cuda) use command::LibraryCall;
pub(super) use command::{Command, Given};
pub use recorder::GraphCounts;
pub(super) use recorder::{Queue, Recorder};
