//! Backends that wrap or replace another: late execution for tests, counting for plans, timing for profiles, waits of
//! the host.
//!
//! Each is one small file, because a kernel is a value and there is one method to wrap. What a wrapper leaves alone is
//! one line: [`forward_to_inner`](crate::forward_to_inner).

pub mod counting;
pub mod deferred;
mod forward;
pub mod profiled;
pub mod waits;

pub use counting::{Counting, KernelCount};
pub use deferred::Deferred;
pub use profiled::{KernelTime, Profiled};
pub use waits::Waits;
