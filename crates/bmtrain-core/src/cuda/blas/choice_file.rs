//! Choices of algorithms on disk: a line for each product, its key and the algorithm's code.
//!
//! Processes share the file. Who looks for a choice holds the file's lock until it is there, so that ranks which start
//! together make each choice once. What cannot be kept is not chosen: then every rank does without. Nothing in the file
//! is trusted: an algorithm counts only if the library suggests it.

use super::super::compile::make_private;
use super::lt::Code;
use crate::error::Result;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Lines of many models. Nothing is added to a larger file.
const MAX_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct ChoiceFile {
    path: PathBuf,
    warned: AtomicBool,
}

impl ChoiceFile {
    pub(super) fn in_directory(directory: &Path) -> Self {
        ChoiceFile { path: directory.join("algorithms.txt"), warned: AtomicBool::new(false) }
    }

    /// The choice for a key if `is_known` accepts it; otherwise one is made, and kept. None, with a warning the first
    /// time, where the file cannot be used.
    pub(super) fn find_or(
        &self,
        key: &str,
        is_known: impl Fn(Code) -> bool,
        make: impl FnOnce() -> Result<Code>,
    ) -> Result<Option<Code>> {
        let (mut file, text) = match self.open() {
            Ok(opened) => opened,
            Err(error) => return Ok(self.none(&error)),
        };
        if let Some(found) = find(&text, key).filter(|code| is_known(*code)) {
            return Ok(Some(found));
        }
        if text.len() >= MAX_BYTES {
            return Ok(self.none(&io::Error::other("the file is full: remove it")));
        }
        let made = make()?;
        // A process that died may have left half a line.
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let code: String = made.iter().map(|part| format!("{part:016x}")).collect();
        Ok(match file.write_all(format!("{end}{key} {code}\n").as_bytes()) {
            Ok(()) => Some(made),
            Err(error) => self.none(&error),
        })
    }

    /// The file with its content, locked as long as it is open.
    fn open(&self) -> io::Result<(File, String)> {
        if let Some(directory) = self.path.parent() {
            make_private(directory)?;
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(&self.path)?;
        while let Err(error) = file.lock() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let mut bytes = Vec::new();
        // A last line may go beyond the limit.
        (&file).take(2 * MAX_BYTES as u64).read_to_end(&mut bytes)?;
        Ok((file, String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn none(&self, error: &io::Error) -> Option<Code> {
        if !self.warned.swap(true, Ordering::Relaxed) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "algorithms of products are not chosen by time: choices cannot be kept");
        }
        None
    }
}

/// The last choice for a key: one that the library no longer suggests is followed by another.
fn find(text: &str, key: &str) -> Option<Code> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    let mut code = Code::default();
    if line.len() != 16 * code.len() || !line.is_ascii() {
        return None;
    }
    for (index, part) in code.iter_mut().enumerate() {
        *part = u64::from_str_radix(&line[16 * index..16 * (index + 1)], 16).ok()?;
    }
    Some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::{fs, thread};

    const ONE: Code = [1, 2, 3, 4, 5, 6, 7, u64::MAX];
    const OTHER: Code = [9; 8];

    fn any(_: Code) -> bool {
        true
    }

    fn not_made() -> Result<Code> {
        panic!("it is there")
    }

    #[test]
    fn a_choice_is_made_once_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("kernels");
        let file = ChoiceFile::in_directory(&directory);
        assert_eq!(file.find_or("a", any, || Ok(ONE)).unwrap(), Some(ONE));
        assert_eq!(file.find_or("b", any, || Ok(OTHER)).unwrap(), Some(OTHER));
        let again = ChoiceFile::in_directory(&directory);
        assert_eq!(again.find_or("a", any, not_made).unwrap(), Some(ONE));
        assert_eq!(again.find_or("b", any, not_made).unwrap(), Some(OTHER));
        // One that the library does not suggest any more is replaced.
        assert_eq!(again.find_or("a", |code| code != ONE, || Ok(OTHER)).unwrap(), Some(OTHER));
        assert_eq!(file.find_or("a", any, not_made).unwrap(), Some(OTHER));
    }

    #[test]
    fn damage_costs_a_choice_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let file = ChoiceFile::in_directory(root.path());
        file.find_or("a", any, || Ok(ONE)).unwrap();
        let whole = fs::read(&file.path).unwrap();
        for length in 0..whole.len() - 1 {
            fs::write(&file.path, &whole[..length]).unwrap();
            assert_eq!(file.find_or("a", any, || Ok(OTHER)).unwrap(), Some(OTHER), "{length} bytes");
            assert_eq!(file.find_or("a", any, not_made).unwrap(), Some(OTHER), "{length} bytes");
        }
        fs::write(&file.path, vec![0xff; 100]).unwrap();
        assert_eq!(file.find_or("a", any, || Ok(ONE)).unwrap(), Some(ONE));
    }

    #[test]
    fn a_full_file_is_read_and_nothing_is_added() {
        let root = tempfile::tempdir().unwrap();
        let file = ChoiceFile::in_directory(root.path());
        fs::write(&file.path, [vec![b'x'; MAX_BYTES - 1], vec![b'\n']].concat()).unwrap();
        assert_eq!(file.find_or("a", any, not_made).unwrap(), None);
        assert!(file.warned.load(Ordering::Relaxed));
        fs::write(&file.path, vec![b'\n'; MAX_BYTES - 1]).unwrap();
        assert_eq!(file.find_or("a", any, || Ok(ONE)).unwrap(), Some(ONE));
        assert_eq!(file.find_or("a", any, not_made).unwrap(), Some(ONE));
        assert_eq!(file.find_or("b", any, not_made).unwrap(), None);
    }

    #[test]
    fn threads_that_look_for_one_choice_make_it_once() {
        let root = tempfile::tempdir().unwrap();
        let made = AtomicU32::new(0);
        let look = || {
            let make = || {
                made.fetch_add(1, Ordering::Relaxed);
                thread::sleep(std::time::Duration::from_millis(20));
                Ok(ONE)
            };
            assert_eq!(ChoiceFile::in_directory(root.path()).find_or("a", any, make).unwrap(), Some(ONE));
        };
        thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(look)));
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn without_a_file_nothing_is_chosen() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let file = ChoiceFile::in_directory(&root.path().join("file/kernels"));
        assert_eq!(file.find_or("a", any, not_made).unwrap(), None);
        assert!(file.warned.load(Ordering::Relaxed));
    }
}
