//! A disk that remembers, in order, everything that was changed on it.

use super::MemoryDisk;
use super::write_log::{Change, WriteLog};
use crate::checkpoint::disk::{Disk, EntryKind, ReadFile, WriteFile};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A disk in memory with a log of its changes. Its contents at the start count as flushed.
#[derive(Debug, Clone)]
pub struct RecordingDisk {
    inner: MemoryDisk,
    book: Arc<Mutex<Book>>,
}

#[derive(Debug)]
struct Book {
    log: WriteLog,
    /// Present names of directories. A thing keeps its number when it is renamed.
    directories: BTreeMap<String, usize>,
    files: BTreeMap<(usize, String), usize>,
    next: usize,
}

impl Book {
    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn directory(&self, name: &str) -> usize {
        self.directories.get(name).copied().unwrap_or(0)
    }
}

impl RecordingDisk {
    /// Record from here on what is done to `disk`.
    pub fn new(disk: MemoryDisk) -> Self {
        let mut book = Book { log: WriteLog::default(), directories: BTreeMap::new(), files: BTreeMap::new(), next: 0 };
        for (directory, files) in disk.names() {
            let number = book.number();
            book.log.base_directory(number, &directory);
            for file in files {
                let bytes = disk.get(&directory, &file).unwrap_or_default();
                let contents = book.number();
                book.log.base_file(contents, number, &file, bytes);
                book.files.insert((number, file), contents);
            }
            book.directories.insert(directory, number);
        }
        RecordingDisk { inner: disk, book: Arc::new(Mutex::new(book)) }
    }

    /// Log of the changes so far.
    pub fn log(&self) -> WriteLog {
        self.book().log.clone()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for RecordingDisk {
    fn place(&self) -> String {
        self.inner.place()
    }

    fn list(&self, directory: Option<&str>) -> io::Result<Vec<(String, EntryKind)>> {
        self.inner.list(directory)
    }

    fn create_directory(&self, directory: &str) -> io::Result<()> {
        let mut book = self.book();
        self.inner.create_directory(directory)?;
        let number = book.number();
        book.directories.insert(directory.into(), number);
        book.log.add(Change::CreateDirectory { name: directory.into(), directory: number });
        Ok(())
    }

    fn create(&self, directory: &str, file: &str) -> io::Result<Box<dyn WriteFile>> {
        let mut book = self.book();
        let inner = self.inner.create(directory, file)?;
        let (directory, number) = (book.directory(directory), book.number());
        book.files.insert((directory, file.into()), number);
        book.log.add(Change::CreateFile { directory, name: file.into(), file: number });
        Ok(Box::new(RecordingFile { inner, number, book: self.book.clone() }))
    }

    fn open(&self, directory: &str, file: &str) -> io::Result<Box<dyn ReadFile>> {
        self.inner.open(directory, file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut book = self.book();
        self.inner.rename(from, to)?;
        let number = book.directories.remove(from).unwrap_or(0);
        book.directories.insert(to.into(), number);
        book.log.add(Change::Rename { from: from.into(), to: to.into(), directory: number });
        Ok(())
    }

    fn sync_directory(&self, directory: Option<&str>) -> io::Result<()> {
        let mut book = self.book();
        self.inner.sync_directory(directory)?;
        let directory = directory.map(|name| book.directory(name));
        book.log.add(Change::SyncDirectory { directory });
        Ok(())
    }

    fn remove_file(&self, directory: &str, file: &str) -> io::Result<()> {
        let mut book = self.book();
        self.inner.remove_file(directory, file)?;
        let directory = book.directory(directory);
        book.files.remove(&(directory, file.to_string()));
        book.log.add(Change::RemoveFile { directory, name: file.into() });
        Ok(())
    }

    fn remove_directory(&self, directory: &str) -> io::Result<()> {
        let mut book = self.book();
        self.inner.remove_directory(directory)?;
        book.directories.remove(directory);
        book.log.add(Change::RemoveDirectory { name: directory.into() });
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
}

#[derive(Debug)]
struct RecordingFile {
    inner: Box<dyn WriteFile>,
    number: usize,
    book: Arc<Mutex<Book>>,
}

impl RecordingFile {
    fn add(&self, change: Change) {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).log.add(change);
    }
}

impl WriteFile for RecordingFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_all(bytes)?;
        self.add(Change::Write { file: self.number, bytes: bytes.into() });
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.inner.sync()?;
        self.add(Change::SyncFile { file: self.number });
        Ok(())
    }
}
