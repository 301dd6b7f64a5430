//! Edges of every program: logging, errors on standard error, exit codes.

use super::trace::{self, TraceFile, TraceLayer};
use crate::{Error, Result};
use bmtrain_core::panics::silence_caught;
use model_center_base::error::{ExitStatus, render_error};
pub use model_center_recipe::run::console::{note, print, print_bytes};
use std::path::Path;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Send log messages to standard error: warnings, or what `RUST_LOG` asks for. Panics of other libraries that end as
/// errors are shown as errors alone.
pub fn start_logging() {
    start(None);
}

/// [`start_logging`], and write the spans of the run to a file. The trace is complete when the handle is dropped.
pub fn start_tracing(path: Option<&Path>) -> Result<Option<TraceFile>> {
    let (layer, file) = path.map(trace::layer).transpose()?.unzip();
    start(layer);
    Ok(file)
}

fn start(trace: Option<TraceLayer>) {
    silence_caught();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    // Where standard error cannot be written to, reporting that on standard error would panic.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let subscriber = tracing_subscriber::registry().with(log.with_filter(filter));
    // A second subscriber, as in tests that call a program twice, is refused; the first one stays.
    let _ = subscriber.with(trace.map(|layer| layer.with_filter(LevelFilter::DEBUG))).try_init();
}

/// The exit code of a program's result; an error is shown in full.
pub fn finish<E: Into<anyhow::Error>>(result: Result<ExitStatus, E>) -> ExitCode {
    status(result).code().into()
}

/// Status that a program ends with for this result; an error is shown in full. An error of the libraries has its own
/// layout and status, any other one is a defect of the program.
pub(super) fn status<E: Into<anyhow::Error>>(result: Result<ExitStatus, E>) -> ExitStatus {
    let error = match result {
        Ok(status) => return status,
        Err(error) => error.into(),
    };
    let error = error.downcast().or_else(|error| error.downcast::<bmtrain_core::Error>().map(Error::from));
    match error.or_else(|error| error.downcast::<bmtrain_dist::Error>().map(Error::from)) {
        Ok(known) => {
            note(&render_error(&known));
            ExitStatus::from(&known)
        }
        Err(other) => {
            note(&format!("Error: {other:?}"));
            ExitStatus::Internal
        }
    }
}
