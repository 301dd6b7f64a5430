//! Memory that ranks share: a file in memory, from which each rank maps the regions it needs.
//!
//! Everything starts as zeros, and zeros are a valid start of every control slot, so the ranks may come in any order.
#![allow(unsafe_code)]

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The file under all regions.
#[derive(Debug)]
pub(super) struct SharedFile(OwnedFd);

impl SharedFile {
    /// A file without a name, which ends with the last process that has it.
    pub(super) fn without_name() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("bmtrain-ranks", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // A file that became shorter would take pages away from under the mappings.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Ok(SharedFile(file))
    }

    /// The file of this name, made by the first process.
    ///
    /// # Errors
    /// A file of another user, which might change under our feet, and anything but a regular file.
    pub(super) fn of_name(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        SharedFile::of(file)
    }

    pub(super) fn of(file: OwnedFd) -> io::Result<Self> {
        require_own_file(&file)?;
        Ok(SharedFile(file))
    }

    /// Take memory for a part of the file, so that touching it later cannot fail. What is there stays.
    pub(super) fn reserve(&self, offset: usize, bytes: usize) -> io::Result<()> {
        if bytes > 0 {
            rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset as u64, bytes as u64)?;
        }
        Ok(())
    }

    pub(super) fn release(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.0, hole, offset as u64, bytes as u64)?)
    }

    /// Take the name away, if it is still the name of this file.
    pub(super) fn remove_name(&self, path: &Path) -> io::Result<()> {
        let (own, named) = (fstat(&self.0)?, rustix::fs::stat(path)?);
        if (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino) {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }
}

pub(super) fn require_own_file(file: &OwnedFd) -> io::Result<()> {
    let facts = fstat(file)?;
    if facts.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    if !rustix::fs::FileType::from_raw_mode(facts.st_mode).is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(())
}

/// A mapped range of a [`SharedFile`].
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value until it is dropped. Its control slots are atomics, and the bytes are
// reached only by `part`, whose callers promise that they are not used elsewhere meanwhile.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Map a range. The offset is a multiple of the page size.
    pub(super) fn map(file: &SharedFile, offset: usize, bytes: usize) -> io::Result<Self> {
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the system's choice touches no memory that is in use.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, kind, &file.0, offset as u64) }?;
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Region { start, bytes }),
            None => Err(io::Error::other("a mapping at address 0")),
        }
    }

    /// A control slot of 64 bits.
    pub(super) fn slot(&self, offset: usize) -> &AtomicU64 {
        let place = self.place(offset, size_of::<AtomicU64>()).cast();
        debug_assert!(place.is_aligned());
        // SAFETY: inside the mapping, which outlives `self`, aligned, of a type for which all bits are values, and
        // reached by every user as an atomic: the layout keeps control slots apart from bytes.
        unsafe { place.as_ref() }
    }

    /// A control slot of 32 bits, the size that a thread can sleep on.
    pub(super) fn short(&self, offset: usize) -> &AtomicU32 {
        let place = self.place(offset, size_of::<AtomicU32>()).cast();
        debug_assert!(place.is_aligned());
        // SAFETY: as in `slot`.
        unsafe { place.as_ref() }
    }

    /// Bytes to read.
    ///
    /// # Safety
    /// They are not written, in this process or another one, while the slice is alive. (A process that breaks the rules
    /// of this module can change the numbers in them, which are numbers whatever their bits.)
    pub(super) unsafe fn part(&self, offset: usize, bytes: usize) -> &[u8] {
        // SAFETY: inside the mapping; untouched by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.place(offset, bytes).as_ptr(), bytes) }
    }

    /// Bytes to write.
    ///
    /// # Safety
    /// They are not read or written, in this process or another one, while the slice is alive.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part_mut(&self, offset: usize, bytes: usize) -> &mut [u8] {
        // SAFETY: inside the mapping; alone by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.place(offset, bytes).as_ptr(), bytes) }
    }

    /// Offsets come from the layout alone, never from what others wrote.
    fn place(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes from {offset} of {}",
            self.bytes
        );
        // SAFETY: inside the mapping by the assertion.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing borrowed from `self` is left.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) } {
            tracing::warn!(%error, bytes = self.bytes, "shared memory could not be returned to the system");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_of_a_file_are_the_same_memory_and_start_as_zeros() {
        let file = SharedFile::without_name().unwrap();
        file.reserve(0, 8192).unwrap();
        let (a, b) = (Region::map(&file, 0, 8192).unwrap(), Region::map(&file, 4096, 4096).unwrap());
        assert_eq!(b.slot(8).load(Ordering::Relaxed), 0);
        a.slot(4104).store(7, Ordering::Relaxed);
        assert_eq!(b.slot(8).load(Ordering::Relaxed), 7);
        // SAFETY: one thread, one slice at a time.
        unsafe { a.part_mut(4096, 8) }.fill(3);
        // SAFETY: as above.
        assert_eq!(unsafe { b.part(0, 8) }, [3; 8]);
        file.release(4096, 4096).unwrap();
        assert_eq!(b.slot(8).load(Ordering::Relaxed), 0, "released memory");
    }

    #[test]
    fn a_file_that_is_no_file_is_refused() {
        assert!(SharedFile::of_name(Path::new("/dev/null")).is_err());
        assert!(SharedFile::of_name(Path::new("/no such directory/ranks")).is_err());
    }
}
