//! Tests of the operating system's disk.

use super::*;
use std::os::unix::fs::symlink;

fn disk() -> (tempfile::TempDir, RealDisk) {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::create(&dir.path().join("a/b")).unwrap();
    disk.create_directory("directory").unwrap();
    (dir, disk)
}

#[test]
fn what_is_written_is_read_listed_renamed_and_removed() {
    let (_dir, disk) = disk();
    let mut file = disk.create("directory", "file").unwrap();
    file.write_all(b"hello ").unwrap();
    file.write_all(b"there").unwrap();
    file.sync().unwrap();
    assert!(disk.create("directory", "file").is_err());
    disk.rename("directory", "other").unwrap();
    disk.sync_directory(Some("other")).unwrap();
    disk.sync_directory(None).unwrap();
    let file = disk.open("other", "file").unwrap();
    let mut bytes = [0; 5];
    file.read_exact_at(&mut bytes, 6).unwrap();
    assert_eq!((&bytes, file.size()), (b"there", 11));
    assert!(file.read_exact_at(&mut bytes, 7).is_err());
    assert_eq!(disk.list(None).unwrap(), [("other".to_string(), EntryKind::Directory)]);
    assert_eq!(disk.list(Some("other")).unwrap(), [("file".to_string(), EntryKind::File)]);
    assert!(disk.remove_directory("other").is_err());
    disk.remove_file("other", "file").unwrap();
    disk.remove_directory("other").unwrap();
    assert!(disk.list(None).unwrap().is_empty());
    assert!(disk.free_bytes().unwrap() > 0);
}

#[test]
fn no_name_leaves_the_root_and_no_link_is_followed() {
    let (dir, disk) = disk();
    std::fs::write(dir.path().join("secret"), "x").unwrap();
    let root = dir.path().join("a/b");
    symlink(dir.path(), root.join("out")).unwrap();
    symlink("directory", root.join("in")).unwrap();
    symlink(dir.path().join("secret"), root.join("directory/link")).unwrap();
    symlink("link-to-itself", root.join("directory/link-to-itself")).unwrap();
    std::fs::write(root.join("directory/good"), "x").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("directory/pipe"), Mode::from_raw_mode(0o600)).unwrap();
    assert!(disk.open("directory", "good").is_ok());
    let absolute = dir.path().join("secret");
    for (directory, file) in [
        ("out", "secret"),
        ("in", "good"),
        ("..", "secret"),
        (".", "directory"),
        ("directory", "../directory/good"),
        ("directory", absolute.to_str().unwrap()),
        ("directory", "link"),
        ("directory", "link-to-itself"),
        ("directory", "pipe"),
        ("directory", "."),
        ("directory", "good\0"),
        ("directory", ""),
        ("", "directory"),
    ] {
        assert!(disk.open(directory, file).is_err(), "{directory} {file:?}");
        assert!(disk.create(directory, file).is_err(), "{directory} {file:?}");
    }
    // Where the kernel has no `openat2`.
    let unfollowed = |name| open_unfollowed(disk.root.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    assert!(unfollowed("directory").is_ok() && unfollowed("out").is_err() && unfollowed("in").is_err());
    assert!(disk.list(Some("out")).is_err() && disk.list(Some("..")).is_err());
    assert!(disk.rename("directory", "../directory").is_err());
    let kinds = disk.list(None).unwrap();
    assert!(kinds.contains(&("out".into(), EntryKind::Other)));
}
