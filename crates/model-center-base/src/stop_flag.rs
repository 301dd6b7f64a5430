//! A request to stop a program's work.
//!
//! Defines [`StopFlag`]. Signal handlers set it; training, generation and corpus building read it between their steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to stop, shared with all that may make it: a signal handler, another thread, a test.
#[derive(Debug, Clone, Default)]
pub struct StopFlag {
    requested: Arc<AtomicBool>,
}

impl StopFlag {
    /// Asks the run to stop after the step in hand. Safe to call from a signal handler.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Release);
    }

    /// Takes the request back, where it was heard and the program goes on: an answer ends, a conversation does not.
    pub fn withdraw(&self) {
        self.requested.store(false, Ordering::Release);
    }

    /// Flag that signal handlers set.
    pub fn shared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.requested)
    }

    /// Whether that was asked.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }
}
