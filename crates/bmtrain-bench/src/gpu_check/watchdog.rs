//! The limit on the time of a part: a device that never answers ends the program, not the user's patience.

use super::Part;
use bmtrain_programs::cli::terminal;
use model_center_base::error::ExitStatus;
use std::process::exit;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// A thread that ends the process unless this is dropped in time.
#[derive(Debug)]
pub struct Watchdog {
    /// Its end wakes the thread.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Begin to count.
    pub fn start(part: Part, limit: Duration) -> Self {
        let (_alive, ended) = channel();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let seconds = limit.as_secs();
                terminal::note(&format!(
                    "gpu-check: the part {} took longer than {seconds} s (--part-limit)",
                    part.name()
                ));
                // The main thread waits for a device that may never answer.
                exit(ExitStatus::Internal as i32);
            }
        });
        Watchdog { _alive }
    }
}
