//! A disk that is a table in memory.

use crate::checkpoint::disk::{Disk, EntryKind, ReadFile, WriteFile};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Contents = Arc<Mutex<Vec<u8>>>;
type Tree = BTreeMap<String, BTreeMap<String, Contents>>;

/// A disk in memory; clones are the same disk. Whatever is written is there at once and for good.
#[derive(Debug, Clone, Default)]
pub struct MemoryDisk {
    tree: Arc<Mutex<Tree>>,
}

impl MemoryDisk {
    /// Another disk with the same contents now.
    pub fn copy(&self) -> MemoryDisk {
        let copy = MemoryDisk::default();
        for (directory, files) in self.tree().iter() {
            copy.put_directory(directory);
            for (file, contents) in files {
                copy.put(directory, file, lock(contents).clone());
            }
        }
        copy
    }

    /// Names of all directories, each with its files, sorted.
    pub fn names(&self) -> Vec<(String, Vec<String>)> {
        self.tree().iter().map(|(directory, files)| (directory.clone(), files.keys().cloned().collect())).collect()
    }

    /// Make a directory, if it is not there.
    pub fn put_directory(&self, directory: &str) {
        self.tree().entry(directory.into()).or_default();
    }

    /// Put a file there, whatever was there before.
    pub fn put(&self, directory: &str, file: &str, bytes: Vec<u8>) {
        self.tree().entry(directory.into()).or_default().insert(file.into(), Arc::new(Mutex::new(bytes)));
    }

    /// The bytes of a file, if it is there.
    pub fn get(&self, directory: &str, file: &str) -> Option<Vec<u8>> {
        self.file(directory, file).ok().map(|contents| lock(&contents).clone())
    }

    /// Change the bytes of a file; `false` if it is not there.
    pub fn change(&self, directory: &str, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.file(directory, file).map(|contents| change(&mut lock(&contents))).is_ok()
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, directory: &str, file: &str) -> io::Result<Contents> {
        self.tree().get(directory).and_then(|files| files.get(file)).cloned().ok_or(ErrorKind::NotFound.into())
    }
}

fn lock(contents: &Contents) -> MutexGuard<'_, Vec<u8>> {
    contents.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk for MemoryDisk {
    fn place(&self) -> String {
        "memory".into()
    }

    fn list(&self, directory: Option<&str>) -> io::Result<Vec<(String, EntryKind)>> {
        let tree = self.tree();
        let Some(directory) = directory else {
            return Ok(tree.keys().map(|name| (name.clone(), EntryKind::Directory)).collect());
        };
        let files = tree.get(directory).ok_or(ErrorKind::NotFound)?;
        Ok(files.keys().map(|name| (name.clone(), EntryKind::File)).collect())
    }

    fn create_directory(&self, directory: &str) -> io::Result<()> {
        let mut tree = self.tree();
        if tree.contains_key(directory) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        tree.insert(directory.into(), BTreeMap::new());
        Ok(())
    }

    fn create(&self, directory: &str, file: &str) -> io::Result<Box<dyn WriteFile>> {
        let mut tree = self.tree();
        let files = tree.get_mut(directory).ok_or(ErrorKind::NotFound)?;
        if files.contains_key(file) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let contents = Contents::default();
        files.insert(file.into(), contents.clone());
        Ok(Box::new(MemoryFile { contents, size: 0 }))
    }

    fn open(&self, directory: &str, file: &str) -> io::Result<Box<dyn ReadFile>> {
        let contents = self.file(directory, file)?;
        let size = lock(&contents).len() as u64;
        Ok(Box::new(MemoryFile { contents, size }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut tree = self.tree();
        if tree.get(to).is_some_and(|files| !files.is_empty()) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        let files = tree.remove(from).ok_or(ErrorKind::NotFound)?;
        tree.insert(to.into(), files);
        Ok(())
    }

    fn sync_directory(&self, _directory: Option<&str>) -> io::Result<()> {
        Ok(())
    }

    fn remove_file(&self, directory: &str, file: &str) -> io::Result<()> {
        let mut tree = self.tree();
        let removed = tree.get_mut(directory).and_then(|files| files.remove(file));
        removed.map(drop).ok_or(ErrorKind::NotFound.into())
    }

    fn remove_directory(&self, directory: &str) -> io::Result<()> {
        let mut tree = self.tree();
        match tree.get(directory) {
            None => Err(ErrorKind::NotFound.into()),
            Some(files) if !files.is_empty() => Err(ErrorKind::DirectoryNotEmpty.into()),
            Some(_) => {
                tree.remove(directory);
                Ok(())
            }
        }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

#[derive(Debug)]
struct MemoryFile {
    contents: Contents,
    size: u64,
}

impl WriteFile for MemoryFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        lock(&self.contents).extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ReadFile for MemoryFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let contents = lock(&self.contents);
        let start = usize::try_from(offset).ok();
        let end = start.and_then(|start| start.checked_add(bytes.len()));
        let here = start.zip(end).and_then(|(start, end)| contents.get(start..end));
        bytes.copy_from_slice(here.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
