//! The stack on which chat templates are parsed and rendered.
//!
//! Defines [`on_own_stack`], called around the template library, which parses, compiles, runs and releases nested
//! templates by recursion. [`super::nesting`] and the environment bound the depth, and the stack here is large enough
//! for it on any thread: stack sizes of threads differ, and a spawned thread has a small one.

use std::panic::resume_unwind;
use std::thread;

use crate::{Error, Result};

/// Bytes of address space of a stack; memory is taken for the pages that are used. The deepest template that is
/// accepted needs less than 1 MiB with the library optimized, as `Cargo.toml` has it in all builds.
const STACK_BYTES: usize = 16 << 20;

/// Does `work` on a thread with a stack of known size, and waits for it.
pub(super) fn on_own_stack<T: Send>(place: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_stack_of(STACK_BYTES, place, work)
}

fn on_stack_of<T: Send>(bytes: usize, place: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let builder = thread::Builder::new().name("chat template".into()).stack_size(bytes);
    thread::scope(|scope| {
        let started = builder.spawn_scoped(scope, work).map_err(|error| {
            let fix = format!(
                "allow this process one more thread and {} MiB of address space (ulimit -u, ulimit -v)",
                bytes >> 20
            );
            Error::file("start the thread of the chat template", place, error, fix)
        })?;
        // Panics of the library are errors by now; others go on.
        started.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_thread_is_an_error_with_the_fix() {
        assert_eq!(on_own_stack("x.jinja", || Ok(7)).unwrap(), 7);
        // More address space than a processor has.
        let error = on_stack_of(1 << 50, "x.jinja", || Ok(7)).unwrap_err();
        assert_eq!(error.exit_code(), 5);
        let error = error.to_string();
        assert!(error.contains("cannot start the thread of the chat template") && error.contains("ulimit"), "{error}");
    }
}
