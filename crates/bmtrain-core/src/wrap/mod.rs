//! Backends that wrap or replace another: counting for plans, timing for profiles and, with the feature `testing`, late
//! execution and a record of the host's waits.
//!
//! A kernel is a value and there is one method to wrap, so that each is one small file; the other methods are forwarded
//! by [`forward_to_inner`](crate::forward_to_inner).

pub mod counting;
#[cfg(any(test, feature = "testing"))]
pub mod deferred;
mod forward;
pub mod profiled;
#[cfg(any(test, feature = "testing"))]
pub mod waits;

pub use counting::{Counting, KernelCount};
#[cfg(any(test, feature = "testing"))]
pub use deferred::Deferred;
pub use profiled::{KernelTime, Profiled};
#[cfg(any(test, feature = "testing"))]
pub use waits::Waits;
