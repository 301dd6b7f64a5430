//! The stack on which chat templates are parsed and rendered.
//!
//! Defines [`on_own_stack`], called where the template library is. That library parses, compiles, runs and releases what
//! nests by recursion. [`super::nesting`] and the environment bound how deep, and the stack here has room for it whatever
//! thread calls: the stacks of threads differ, and those of spawned ones are small.

use std::panic::resume_unwind;
use std::thread;

use crate::{Error, Result};

/// Of address space; memory is taken for the pages that are used. What the bounds allow needs a quarter of it at most, in
/// builds without optimization.
const STACK_BYTES: usize = 16 << 20;

/// Does `work` on a thread with a stack of known size, and waits for it.
///
/// Errors: those of `work`; [`Error::File`] if the system refuses the thread.
pub(super) fn on_own_stack<T: Send>(place: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let builder = thread::Builder::new().name("chat template".into()).stack_size(STACK_BYTES);
    thread::scope(|scope| {
        let started = builder.spawn_scoped(scope, work).map_err(|error| {
            let fix = format!(
                "allow this process one more thread and {} MiB of address space (ulimit -u, ulimit -v)",
                STACK_BYTES >> 20
            );
            Error::file("start the thread that renders", place, error, fix)
        })?;
        // Panics of the library are errors by now; others go on.
        started.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
