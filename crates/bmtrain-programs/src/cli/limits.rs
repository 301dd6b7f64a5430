//! Limits of a program's process: where one is reached, the program ends with [`ExitStatus::Resources`] and the limit's
//! name, not by a signal.
//!
//! Defines [`HEAP`], which each binary installs as its allocator, and [`prepare`], with which its `main` begins.

use crate::Error;
use crate::cli::terminal;
use bmtrain_core::Error as CoreError;
use bmtrain_core::heap::{EndingHeap, reserve_stack, share_arena};
use bmtrain_core::limits::{Limit, Resource, limits, sentence};
use model_center_base::error::{ExitStatus, render_error};
use model_center_recipe::run::survive_file_size_limit;

/// The allocator of the programs, which [`program!`](crate::program) installs.
pub const HEAP: EndingHeap = EndingHeap::new(
    ExitStatus::Resources.code(),
    "error[limit]: the system refused this process memory\n  --> before the program began\n  fix: raise its limits on \
     memory\n",
);

/// Beginnings of panics where the system refused a thread or its signal stack to a library, which has no other way to
/// report it.
const REFUSALS: [&str; 4] = [
    "failed to spawn thread",
    "failed to allocate an alternative stack",
    "failed to set up alternative stack guard page",
    "The global thread pool has not been initialized",
];

/// Prepare this process for its limits. Called once, before there are other threads.
pub fn prepare() {
    EndingHeap::set_text(format!("{}\n", render_error(&Error::Core(refused()))));
    if let Err(error) = survive_file_size_limit() {
        terminal::note(&format!("a limit on the size of files will end this process by a signal: {error}"));
    }
    // The hook that looks for refusals comes first, also in calls whose panics are caught and silenced.
    bmtrain_core::panics::silence_caught();
    end_at_refusals();
    // Addresses are what these two save; they change nothing about the resident memory that a control group limits.
    if limits(Some(Resource::Memory)).iter().any(Limit::is_refused) {
        share_arena();
        if reserve_stack().is_err() {
            HEAP.end();
        }
    }
}

/// Error of a refused allocation, or of a thread refused to a library.
fn refused() -> CoreError {
    // How much of a limit is in use by then is not known now. A thread is refused for lack of memory too.
    let limits: Vec<Limit> =
        limits(Some(Resource::Threads)).into_iter().map(|limit| Limit { used: None, ..limit }).collect();
    CoreError::Refused {
        what: "memory or a thread".to_owned(),
        reason: "out of memory or of threads".to_owned(),
        limits: sentence(&limits),
        fix: Resource::Memory.fix(),
    }
}

/// End as a refused allocation does where a panic reports a refusal of the system.
fn end_at_refusals() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_refusal = |text: &str| REFUSALS.iter().any(|begin| text.starts_with(begin));
        if panic.payload_as_str().is_some_and(is_refusal) {
            HEAP.end();
        }
        before(panic);
    }));
}
