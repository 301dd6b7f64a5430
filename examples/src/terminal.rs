//! What every program does at its edges: logging, errors on standard error, exit codes.

use bmtrain_core::panics::silence_caught;
use model_center::run::{ExitStatus, render_error};
use model_center::{Error, Result};
use std::io::{ErrorKind, Write};
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

/// Print results: whole lines on standard output. A reader that has seen enough, such as `head`, is no error.
///
/// # Errors
/// Standard output cannot be written to, for example because the disk is full; `println!` would panic.
pub fn print(text: &str) -> Result<()> {
    print_bytes(format!("{text}\n").as_bytes()).map(drop)
}

/// The same for a part of a line, or for many of them. Whether anybody still reads: what takes long is better ended if
/// not.
///
/// # Errors
/// As [`print()`].
pub fn print_bytes(bytes: &[u8]) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Error::file("write", "standard output", error, "send it to a terminal, or to a disk with room"))
        }
    }
}

/// Say something on standard error. When that cannot be written to there is nobody to tell.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
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
