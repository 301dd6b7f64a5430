//! Errors of checkpoints: their kinds, and messages that name file, reason and fix in one line.

use crate::error::{Error, Fault};
use bmtrain_core::limits::explain;
use rustix::io::Errno;
use std::io::{self, ErrorKind};

pub(super) fn damaged(place: impl Into<String>, reason: impl Into<String>) -> Error {
    let fix = "use another checkpoint, or copy this one again from where it is whole";
    Error::checkpoint(Fault::Damaged, place, reason, fix)
}

pub(super) fn missing(place: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::checkpoint(Fault::Missing, place, reason, "list the checkpoints of this directory and what they hold")
}

pub(super) fn request(place: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Error {
    Error::checkpoint(Fault::Request, place, reason, fix)
}

/// The operating system's refusal to `action` something at `place`.
pub(super) fn refused(place: impl Into<String>, action: &str, source: &io::Error) -> Error {
    let fault = if source.kind() == ErrorKind::NotFound { Fault::Missing } else { Fault::Disk };
    Error::checkpoint(fault, place, format!("cannot {action}: {}", explain(source)), fix_of(source))
}

/// The refusal to read a file of a checkpoint: a file that is missing, too short or not a regular file counts as
/// damaged. A failing device does not: read again, or through another mount, the file may be intact.
pub(super) fn unreadable(place: impl Into<String>, source: &io::Error) -> Error {
    let reason = format!("cannot read: {source}");
    match source.kind() {
        ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::InvalidInput | ErrorKind::NotADirectory => {
            damaged(place, reason)
        }
        _ if matches!(Errno::from_io_error(source), Some(Errno::LOOP)) => damaged(place, reason),
        _ => refused(place, "read", source),
    }
}

fn fix_of(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::NOSPC | Errno::DQUOT) => "make room on this disk, keep fewer checkpoints, or save elsewhere",
        Some(Errno::FBIG) => "raise the limit on the size of files (ulimit -f), or save with more ranks",
        Some(Errno::ROFS) => "mount the disk for writing, or save elsewhere",
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit on open files",
        Some(Errno::LOOP) => "put the file itself there, not a symbolic link",
        _ => match source.kind() {
            ErrorKind::NotFound => "check the path, and that the directory was not removed meanwhile",
            ErrorKind::PermissionDenied => "give the run permission to read and write there",
            ErrorKind::AlreadyExists => "give every save an id of its own",
            _ => "check the disk and its mount",
        },
    }
}

/// `text` with control characters escaped, cut after `limit` characters: text from foreign files goes into messages
/// only through this, for it could carry terminal escape codes or be megabytes long.
pub(super) fn printable(text: &str, limit: usize) -> String {
    let mut out = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == limit {
            out.push('…');
            break;
        }
        if character.is_control() { out.extend(character.escape_default()) } else { out.push(character) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_in_one_line_with_a_fix() {
        let error = refused("run/step-3.tmp-a/rank-0.safetensors", "write", &Errno::NOSPC.into());
        let text = error.to_string();
        assert!(matches!(error, Error::Checkpoint { fault: Fault::Disk, .. }));
        assert!(text.contains("rank-0.safetensors: cannot write") && text.contains("make room"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn foreign_text_is_escaped_and_cut() {
        assert_eq!(printable("a\u{1b}[31m", 10), "a\\u{1b}[31m");
        assert_eq!(printable("abcdef", 3), "abc…");
        assert_eq!(printable("abc", 3), "abc");
    }
}
