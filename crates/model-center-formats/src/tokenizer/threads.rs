//! The threads that the `tokenizers` crate shares its work among.
//!
//! Defines [`start_threads`], called before work that the crate may share. It uses rayon's global pool, which panics at
//! its first use where the system refuses a thread.

use std::error::Error;
use std::sync::Once;

/// Start the threads, if that was not done before. Where the system refuses one, the crate works on the calling thread
/// from now on: the results are the same.
pub fn start_threads() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without a source the error states that the program has started the pool, which is as good.
        let started = rayon::ThreadPoolBuilder::new().build_global();
        if started.is_err_and(|error| error.source().is_some()) {
            tokenizers::parallelism::set_parallelism(false);
        }
    });
}
