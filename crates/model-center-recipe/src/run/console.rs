//! Output of a run: results on standard output, notes on standard error.

use crate::{Error, Result};
use std::io::{ErrorKind, Write};

/// Print whole lines on standard output. A closed pipe, as after `head`, is not an error. Where the disk is full, for
/// example, this is an error and `println!` would panic.
pub fn print(text: &str) -> Result<()> {
    print_bytes(format!("{text}\n").as_bytes()).map(drop)
}

/// Print bytes as they are and flush; returns whether standard output is still read.
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

/// Write a line to standard error. Where that fails, there is nothing left to report it on.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
