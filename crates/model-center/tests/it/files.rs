//! Files of untrusted directories: names, links, kinds, sizes and text for messages.

use model_center::Error;
use model_center::file::{open_regular, printable, read_text, resolve_inside};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn names_cannot_leave_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("model");
    fs::create_dir(&directory).unwrap();
    fs::write(dir.path().join("outside"), "x").unwrap();
    fs::write(directory.join("inside"), "x").unwrap();
    symlink("inside", directory.join("good-link")).unwrap();
    symlink("../outside", directory.join("bad-link")).unwrap();
    symlink("..", directory.join("bad-directory")).unwrap();
    assert!(resolve_inside(&directory, "inside").is_ok());
    assert!(resolve_inside(&directory, "good-link").is_ok());
    for name in ["", "../outside", "/etc/passwd", "a\0b", "bad-link", "bad-directory/outside", "./../outside", "gone"] {
        assert!(matches!(resolve_inside(&directory, name), Err(Error::Model { .. })), "{name:?}");
    }
}

#[test]
fn links_of_a_hub_cache_are_followed_into_its_blobs_only() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("models--a--b/snapshots/1234");
    let blobs = dir.path().join("models--a--b/blobs");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join("cafe"), "x").unwrap();
    fs::write(dir.path().join("secret"), "x").unwrap();
    symlink("../../blobs/cafe", snapshot.join("model.safetensors")).unwrap();
    symlink("../../../secret", snapshot.join("config.json")).unwrap();
    assert!(resolve_inside(&snapshot, "model.safetensors").is_ok());
    assert!(resolve_inside(&snapshot, "config.json").is_err());
}

#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(open_regular(&path).unwrap_err().to_string().contains("FIFO"));
    assert!(open_regular(dir.path()).unwrap_err().to_string().contains("directory"));
}

#[test]
fn text_is_bounded_and_must_be_utf8() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "abcd").unwrap();
    assert_eq!(read_text(&path, 4).unwrap(), "abcd");
    assert!(read_text(&path, 3).unwrap_err().to_string().contains("more than 3 bytes"));
    fs::write(&path, b"a\xff").unwrap();
    assert!(read_text(&path, 4).unwrap_err().to_string().contains("byte 1"));
}

#[test]
fn foreign_text_cannot_drive_the_terminal() {
    assert_eq!(printable("a\u{1b}[31m", 10), "a\\u{1b}[31m");
    assert_eq!(printable("a\u{202e}b\u{2028}", 10), "a\\u{202e}b\\u{2028}");
    assert_eq!(printable("abcdef", 3), "abc…");
}
