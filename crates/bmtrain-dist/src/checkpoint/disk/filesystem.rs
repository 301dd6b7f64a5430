//! The few file operations that checkpoints need, as one trait, so that tests can replace the disk.
//!
//! A disk here is one directory (the *root*) with directories of files in it and nothing deeper: every name is a single
//! component, so there is no path to walk and nothing to escape through. [`RealDisk`] is the operating system's; with
//! the feature `testing` there are simulated ones.

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Type of an entry of a directory. Symbolic links are never followed, so they are `Other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link, device, pipe or socket.
    Other,
}

/// File operations on one root. `directory: None` is the root itself. A call returns when the operating system has the
/// data; what has to survive a power cut is synced, files and the directories that name them.
pub trait Disk: Debug + Send + Sync {
    /// Path of the root, for messages.
    fn place(&self) -> String;

    /// The entries of a directory in any order. Names that are not UTF-8 are left out: none of them is ours.
    fn list(&self, directory: Option<&str>) -> io::Result<Vec<(String, EntryKind)>>;

    /// Make a directory in the root.
    fn create_directory(&self, directory: &str) -> io::Result<()>;

    /// Make a file that does not exist and open it for writing.
    fn create(&self, directory: &str, file: &str) -> io::Result<Box<dyn WriteFile>>;

    /// Open a regular file for reading; anything else is refused without waiting for it.
    fn open(&self, directory: &str, file: &str) -> io::Result<Box<dyn ReadFile>>;

    /// Give a directory in the root another name. Fails if a directory with something in it has that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Make the names in a directory survive a power cut.
    fn sync_directory(&self, directory: Option<&str>) -> io::Result<()>;

    /// Remove a file, or a link as such.
    fn remove_file(&self, directory: &str, file: &str) -> io::Result<()>;

    /// Remove an empty directory.
    fn remove_directory(&self, directory: &str) -> io::Result<()>;

    /// Bytes that may still be written.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// A file being written, closed when dropped.
pub trait WriteFile: Debug + Send {
    /// Append all of these bytes.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Make the contents survive a power cut.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file being read.
pub trait ReadFile: Debug + Send {
    /// Its length in bytes when it was opened.
    fn size(&self) -> u64;
    /// Fill `bytes` from byte `offset` on.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

/// A directory of the operating system, held open: renaming it or a link above it leads nowhere else.
#[derive(Debug)]
pub struct RealDisk {
    path: PathBuf,
    root: OwnedFd,
}

impl RealDisk {
    /// An existing directory.
    pub fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(RealDisk { path: root.to_path_buf(), root: rustix::fs::open(root, flags, Mode::empty())? })
    }

    /// A directory that is made, with those above it, where it does not exist. New names are synced.
    pub fn create(root: &Path) -> io::Result<Self> {
        let absent: Vec<&Path> =
            root.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
        std::fs::create_dir_all(root)?;
        for made in absent {
            let parent = made.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent)?.sync_all()?;
        }
        RealDisk::open(root)
    }

    fn directory(&self, directory: &str) -> io::Result<OwnedFd> {
        Ok(open_beneath(self.root.as_fd(), plain(directory)?, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?)
    }
}

/// Open one component beneath an open directory. `openat2` lets the kernel promise that nothing leads outside; where
/// there is none (other systems, old kernels, sandboxes) the same holds because a single component cannot and links are
/// not followed.
fn open_beneath(directory: BorrowedFd<'_>, name: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::ResolveFlags;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(directory, name, flags | ALWAYS, mode, beneath) {
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => {}
            answer => return answer,
        }
    }
    open_unfollowed(directory, name, flags, mode)
}

/// No link is followed, no pipe or terminal is waited for, no child process gets it.
const ALWAYS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

fn open_unfollowed(directory: BorrowedFd<'_>, name: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(directory, name, flags | ALWAYS, mode)
}

/// `name` if it is a single component.
fn plain(name: &str) -> io::Result<&str> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name is not one plain file name"));
    }
    Ok(name)
}

fn kind_of(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::Directory => EntryKind::Directory,
        FileType::RegularFile => EntryKind::File,
        _ => EntryKind::Other,
    }
}

impl Disk for RealDisk {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn list(&self, directory: Option<&str>) -> io::Result<Vec<(String, EntryKind)>> {
        let handle = match directory {
            Some(directory) => self.directory(directory)?,
            None => rustix::fs::openat(&self.root, c".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?,
        };
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&handle)? {
            let entry = entry?;
            let name: &CStr = entry.file_name();
            let Some(text) = name.to_str().ok().filter(|text| *text != "." && *text != "..") else { continue };
            let mut file_type = entry.file_type();
            if file_type == FileType::Unknown {
                let stat = rustix::fs::statat(&handle, name, AtFlags::SYMLINK_NOFOLLOW)?;
                file_type = FileType::from_raw_mode(stat.st_mode);
            }
            entries.push((text.to_string(), kind_of(file_type)));
        }
        Ok(entries)
    }

    fn create_directory(&self, directory: &str) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.root, plain(directory)?, Mode::from_raw_mode(0o777))?)
    }

    fn create(&self, directory: &str, file: &str) -> io::Result<Box<dyn WriteFile>> {
        let directory = self.directory(directory)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let handle = open_beneath(directory.as_fd(), plain(file)?, flags, Mode::from_raw_mode(0o666))?;
        Ok(Box::new(File::from(handle)))
    }

    fn open(&self, directory: &str, file: &str) -> io::Result<Box<dyn ReadFile>> {
        let directory = self.directory(directory)?;
        // Looked at before it is opened, since opening a device may do something; and again, in case it was swapped.
        let stat = rustix::fs::statat(&directory, plain(file)?, AtFlags::SYMLINK_NOFOLLOW)?;
        require_file(FileType::from_raw_mode(stat.st_mode))?;
        let handle = open_beneath(directory.as_fd(), file, OFlags::RDONLY, Mode::empty())?;
        let stat = rustix::fs::fstat(&handle)?;
        require_file(FileType::from_raw_mode(stat.st_mode))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(Box::new(RealFile { file: File::from(handle), size }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.root, plain(from)?, &self.root, plain(to)?)?)
    }

    fn sync_directory(&self, directory: Option<&str>) -> io::Result<()> {
        let handle = match directory {
            Some(directory) => self.directory(directory)?,
            None => self.root.try_clone()?,
        };
        File::from(handle).sync_all()
    }

    fn remove_file(&self, directory: &str, file: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.directory(directory)?, plain(file)?, AtFlags::empty())?)
    }

    fn remove_directory(&self, directory: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, plain(directory)?, AtFlags::REMOVEDIR)?)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let answer = rustix::fs::fstatvfs(&self.root)?;
        Ok(answer.f_bavail.saturating_mul(answer.f_frsize))
    }
}

fn require_file(file_type: FileType) -> io::Result<()> {
    let what = match file_type {
        FileType::RegularFile => return Ok(()),
        FileType::Symlink => return Err(Errno::LOOP.into()),
        FileType::Directory => "it is a directory, not a file",
        _ => "it is a pipe, socket or device, not a file",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

impl WriteFile for File {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Write::write_all(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    size: u64,
}

impl ReadFile for RealFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }
}

#[cfg(test)]
mod tests;
