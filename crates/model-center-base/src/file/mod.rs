//! File operations for untrusted directories and for files that are written atomically.
//!
//! Defines [`open_regular`], [`read_text`], [`check_name`], [`resolve_inside`], [`printable`] and [`shell_word`];
//! `name` has the rules of names, `atomic` has [`AtomicFile`] and [`write_atomic`], `staged` directories that appear
//! whole, `preparation` the names of both until then. Used by all readers and writers of files in the crates of
//! model-center.

mod atomic;
pub mod crc32c;
mod name;
mod preparation;
mod staged;
mod tfrecord;

pub use atomic::{AtomicFile, commit_together, write_atomic};
pub use atomic::{OpenDirectory, sync_directory};
pub use name::{MAX_NAME_BYTES, is_output_name, is_plain_name};
pub use preparation::{prepared_name, temporary_name};
pub use staged::StagedDirectory;
pub use staged::remove;
pub use tfrecord::{put_bytes, put_varint, write_framed};

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use crate::{Error, Result};

/// Open `path` for reading if it is a regular file, and return it with its length in bytes.
///
/// Never blocks: a FIFO without a writer would hang a plain `open`, so the kind is looked at first and the file is
/// opened non-blocking (without effect on regular files), then looked at again in case it was swapped in between.
///
/// # Errors
/// [`Error::Model`] if there is no such file or it is a directory, FIFO, socket or device; [`Error::File`] otherwise.
pub fn open_regular(path: &Path) -> Result<(File, u64)> {
    require_regular(path, &fs::metadata(path).map_err(|e| unreadable(path, e))?)?;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = file.map_err(|e| unreadable(path, e))?;
    let metadata = file.metadata().map_err(|e| unreadable(path, e))?;
    require_regular(path, &metadata)?;
    Ok((file, metadata.len()))
}

fn require_regular(path: &Path, metadata: &fs::Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let kind = if metadata.is_dir() { "a directory" } else { "a FIFO, socket or device" };
    Err(wrong(path, format!("this is {kind}, not a regular file"), "give the path of an ordinary file"))
}

fn wrong(path: &Path, reason: impl Into<String>, fix: &str) -> Error {
    Error::model(path.display().to_string(), reason, fix)
}

/// The error for a file that cannot be opened or read.
pub fn unreadable(path: &Path, source: std::io::Error) -> Error {
    if source.kind() == ErrorKind::NotFound {
        return wrong(path, "there is no such file", "check the path, and that the download is complete");
    }
    Error::file("read", path, source, "check that the file exists and that you may read it")
}

/// Read a whole UTF-8 file of at most `limit` bytes. [`Error::Model`] if it is longer or not UTF-8, and as
/// [`open_regular`].
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    let (file, length) = open_regular(path)?;
    let too_long = || {
        let reason = format!("the file has more than {limit} bytes, the most that is read here");
        wrong(path, reason, "check that this is the file you meant")
    };
    if length > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read: the bound holds for the bytes read, not for the reported length.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| unreadable(path, e))?;
    if bytes.len() as u64 > limit {
        return Err(too_long());
    }
    String::from_utf8(bytes).map_err(|e| {
        let reason = format!("byte {} is not UTF-8 text", e.utf8_error().valid_up_to());
        wrong(path, reason, "save the file as UTF-8, or download it again")
    })
}

/// The path of `name`, a file name found in a file, provided that it is in `directory`.
///
/// Refused: absolute paths, `..`, control characters (NUL among them), and symbolic links that lead out of the
/// directory. One layout with such links is known and allowed: a hub cache, where `snapshots/<revision>/x` points into
/// `blobs/` beside `snapshots`.
pub fn resolve_inside(directory: &Path, name: &str) -> Result<PathBuf> {
    let refuse = |reason: String| refused_name(directory, name, reason);
    check_name(directory, name)?;
    let root = fs::canonicalize(directory).map_err(|e| unreadable(directory, e))?;
    let joined = root.join(name);
    let target = fs::canonicalize(&joined).map_err(|e| match e.kind() {
        ErrorKind::NotFound => refuse("there is no such file in the directory".into()),
        _ => unreadable(&joined, e),
    })?;
    if target.starts_with(&root) || hub_cache_blobs(&root).is_some_and(|blobs| target.starts_with(blobs)) {
        return Ok(target);
    }
    Err(refuse(format!("the file is a symbolic link to {}, outside the directory", target.display())))
}

/// Whether a directory has the file `name`, inside the directory: see [`resolve_inside`]. A dangling link is not a
/// file.
pub fn is_inside(directory: &Path, name: &str) -> Result<bool> {
    check_name(directory, name)?;
    if fs::metadata(directory.join(name)).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
        return Ok(false);
    }
    resolve_inside(directory, name).map(|_| true)
}

/// Refuse a name that is a link to nothing, which is most likely what is left of a file: another one in its place would
/// be a guess.
pub fn refuse_dangling(directory: &Path, name: &str) -> Result<()> {
    let path = directory.join(name);
    if fs::symlink_metadata(&path).is_ok() && !path.exists() {
        let reason = "this is a link to a file that is not there";
        return Err(wrong(&path, reason, "fetch the model again, or remove the link"));
    }
    Ok(())
}

/// Whether `name`, a file name from outside, can only mean a file in `directory` or below, as long as no link is
/// followed. [`Error::Model`] for absolute paths, `..`, control characters, and names that are empty or longer than
/// 1024 bytes.
pub fn check_name(directory: &Path, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > 1024 || name.chars().any(char::is_control) {
        let reason = "the file name is empty, too long or has control characters in it".into();
        return Err(refused_name(directory, name, reason));
    }
    if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(refused_name(directory, name, "the file name leads out of the directory".into()));
    }
    Ok(())
}

fn refused_name(directory: &Path, name: &str, reason: String) -> Error {
    Error::model(
        format!("{}, name \"{}\"", directory.display(), printable(name, 120)),
        reason,
        "keep all files of a model in its own directory and refer to them by plain names",
    )
}

fn hub_cache_blobs(root: &Path) -> Option<PathBuf> {
    let snapshots = root.parent()?;
    (snapshots.file_name()? == "snapshots").then(|| snapshots.parent().map(|model| model.join("blobs")))?
}

/// `text` with control characters, and those that reorder their neighbours, escaped; cut after `limit` characters.
///
/// Text from foreign files goes into error messages only through this: it could carry terminal escape codes, look like
/// another text or be megabytes long.
pub fn printable(text: &str, limit: usize) -> String {
    let mut out = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == limit {
            out.push('…');
            break;
        }
        if c.is_control() || reorders(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// An argument as a shell reads it: in single quotes if a character of it has a meaning for the shell.
pub fn shell_word(text: &str) -> String {
    let is_plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\"'\"'")) }
}

/// Whether a character changes the order in which its neighbours are shown, or their line.
fn reorders(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn words_of_a_shell_are_quoted_where_they_have_to_be() {
        for (text, word) in [
            ("data/a-b_1.jsonl", "data/a-b_1.jsonl"),
            ("train.lr=1e-3", "train.lr=1e-3"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$HOME", "'$HOME'"),
            ("it's", "'it'\"'\"'s'"),
            ("data/*.jsonl", "'data/*.jsonl'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }
}
