//! What every program does at its edges: logging, errors on standard error, exit codes.

use crate::Result;
pub use crate::run::console::{note, print, print_bytes};
use crate::run::{ExitStatus, render_error};
use bmtrain_core::panics::silence_caught;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Send log messages to standard error: warnings, or what `RUST_LOG` asks for. Panics of other libraries that end as
/// errors are shown as errors alone.
pub fn start_logging() {
    silence_caught();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    // A second subscriber, as in tests that call a program twice, is refused; the first one stays.
    // Where standard error cannot be written to, reporting that on standard error would panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = log.log_internal_errors(false).try_init();
}

/// The exit code of a program's result; an error is shown in full.
pub fn finish(result: Result<ExitStatus>) -> ExitCode {
    match result {
        Ok(status) => ExitCode::from(status.code()),
        Err(error) => {
            note(&render_error(&error));
            ExitCode::from(ExitStatus::from(&error).code())
        }
    }
}
