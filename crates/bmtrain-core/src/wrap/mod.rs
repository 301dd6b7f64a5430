//! Backends that wrap or replace another: late execution for tests, counting for plans, timing for profiles, counting waits.
//!
//! Each is one small file, because a kernel is a value and there is one method to wrap.

pub mod counting;
pub mod deferred;
pub mod profiled;
pub mod waiting;

pub use counting::{Counting, KernelCount};
pub use deferred::Deferred;
pub use profiled::{KernelTime, Profiled};
pub use waiting::Waiting;
