//! Signals as requests to stop: a scheduler's warning or Ctrl-C ends a run after the step in hand, its state saved. And
//! the signal of a limit on the size of files, which is an error in place of an end.

use crate::{Error, Result};
use model_center_base::error::ExitStatus;
use model_center_base::stop_flag::StopFlag;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2, SIGXFSZ};
use signal_hook::low_level::unregister;
use signal_hook::{SigId, flag};
use std::sync::Arc;

/// Signals set the flag until this is dropped.
#[derive(Debug)]
pub struct Listening(Vec<SigId>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|id| {
            unregister(id);
        });
    }
}

/// Let SIGTERM, SIGINT and SIGUSR2 set `stop`. A SIGINT after any of them ends the process at once, with
/// [`ExitStatus::Interrupted`].
pub fn listen(stop: &StopFlag) -> Result<Listening> {
    listen_to(&[SIGINT, SIGTERM, SIGUSR2], stop)
}

/// Listener for SIGINT alone, where that ends a part of the work and the others are to end all of it, as they do by
/// themselves.
pub fn listen_to_interrupts(stop: &StopFlag) -> Result<Listening> {
    listen_to(&[SIGINT], stop)
}

/// Let a write beyond the limit on the size of files fail with an error; without this the system ends the process. For
/// the whole life of the process, and not for programs that it starts.
pub fn survive_file_size_limit() -> std::io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

fn listen_to(signals: &[i32], stop: &StopFlag) -> Result<Listening> {
    let failed =
        |e| Error::file("listen to signals", std::path::Path::new("this process"), e, "start it in another way");
    // In this order: the first SIGINT must find the flag unset.
    let code = i32::from(ExitStatus::Interrupted.code());
    let mut listening = Listening(Vec::new());
    listening.0.push(flag::register_conditional_shutdown(SIGINT, code, stop.shared()).map_err(failed)?);
    for signal in signals {
        listening.0.push(flag::register(*signal, stop.shared()).map_err(failed)?);
    }
    Ok(listening)
}
