//! What every program does at its edges: logging, errors on standard error, exit codes.

use model_center::Error;
use model_center::run::{ExitStatus, render_error};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Send log messages to standard error: warnings, or what `RUST_LOG` asks for.
pub fn start_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    // A second subscriber, as in tests that call a program twice, is refused; the first one stays.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

/// The exit code of a program's result; an error is shown in full.
pub fn finish(result: Result<ExitStatus, Error>) -> ExitCode {
    match result {
        Ok(status) => ExitCode::from(status.code()),
        Err(error) => {
            eprintln!("{}", render_error(&error));
            ExitCode::from(ExitStatus::from(&error).code())
        }
    }
}
