//! Compiled kernels on disk, so that a program compiles each unit once for each machine and version.
//!
//! A file is named after everything that goes into the compilation and begins with the length and the hash of what
//! follows. It is written under another name and renamed, so that processes may share a directory; what does not verify
//! is removed and made again. A cache that cannot be written costs time and nothing else.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The first bytes of a file; the digit is the version of its layout.
const MAGIC: &[u8; 8] = b"BMTIMG1\n";
const HEADER: usize = MAGIC.len() + 8 + blake3::OUT_LEN;
const EXTENSION: &str = "image";
const UNFINISHED: &str = "part";

/// More than all kernels of many versions need.
const MAX_BYTES: u64 = 512 << 20;
/// Age after which a temporary file is one of a process that died while it wrote.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A directory of compiled kernels. It must be the user's own: the driver trusts its contents.
#[derive(Debug)]
pub(in crate::cuda) struct Cache {
    directory: PathBuf,
    most_bytes: u64,
    warned: AtomicBool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Key {
    name: String,
}

impl Key {
    /// The key of a unit's `text`, compiled with `options` by a compiler of `version`.
    pub(in crate::cuda) fn of(unit: &str, text: &str, options: &[String], version: (u32, u32)) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut add = |part: &[u8]| {
            // Lengths in between, so that no two lists of parts are one sequence of bytes.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        };
        add(text.as_bytes());
        add(format!("{}.{}", version.0, version.1).as_bytes());
        options.iter().for_each(|option| add(option.as_bytes()));
        let hash = hasher.finalize().to_hex();
        Key { name: format!("{unit}-{}.{EXTENSION}", &hash[..32]) }
    }
}

impl Cache {
    /// A cache in a directory, which is made when something is kept.
    pub(in crate::cuda) fn new(directory: PathBuf) -> Self {
        Cache { directory, most_bytes: MAX_BYTES, warned: AtomicBool::new(false) }
    }

    pub(in crate::cuda) fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.directory.join(&key.name);
        let content = match read_whole(&path) {
            Ok(Some(content)) => content,
            Ok(None) => {
                tracing::warn!(file = %path.display(), "a damaged file in the cache of kernels is made again");
                let _ = fs::remove_file(&path);
                return None;
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    self.warn(&path, &error);
                }
                return None;
            }
        };
        // What is used stays: the oldest go first.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(content)
    }

    /// Keep what was compiled. A failure is a warning, the first time.
    pub(in crate::cuda) fn keep(&self, key: &Key, image: &[u8]) {
        match self.write(key, image) {
            Ok(()) => self.prune(&key.name),
            Err(error) => self.warn(&self.directory, &error),
        }
    }

    fn write(&self, key: &Key, image: &[u8]) -> io::Result<()> {
        // Two threads of one process are told apart by the count.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        make_private(&self.directory)?;
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let aside = self.directory.join(format!("{}.{}.{number}.{UNFINISHED}", key.name, std::process::id()));
        let written = write_new(&aside, image).and_then(|()| fs::rename(&aside, self.directory.join(&key.name)));
        if written.is_err() {
            let _ = fs::remove_file(&aside);
        }
        written
    }

    /// Remove the oldest files until the rest is small enough, and what dead processes left. `newest` stays.
    fn prune(&self, newest: &str) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        let mut kept = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(data) = entry.metadata() else { continue };
            let modified = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(EXTENSION) => kept.push((entry.file_name() == newest, modified, data.len(), path)),
                Some(UNFINISHED) if modified.elapsed().is_ok_and(|age| age > ABANDONED) => {
                    let _ = fs::remove_file(&path);
                }
                _ => {}
            }
        }
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(_, _, bytes, _)| bytes).sum();
        for (is_newest, _, size, path) in kept {
            if bytes <= self.most_bytes || is_newest {
                return;
            }
            // Another process may have been faster.
            let _ = fs::remove_file(&path);
            bytes -= size;
        }
    }

    fn warn(&self, path: &Path, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(path = %path.display(), %error, "kernels are compiled at every start: no cache");
        }
    }
}

/// The content of a file; none if it is not what was written.
fn read_whole(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    let mut header = [0; HEADER];
    let length = file.metadata()?.len();
    if length < HEADER as u64 {
        return Ok(None);
    }
    file.read_exact(&mut header)?;
    let (magic, rest) = header.split_at(MAGIC.len());
    let (stated, hash) = rest.split_at(8);
    let stated = u64::from_le_bytes(stated.try_into().unwrap_or_default());
    // Before memory is taken for it.
    if magic != MAGIC || stated.checked_add(HEADER as u64) != Some(length) {
        return Ok(None);
    }
    let mut content = Vec::with_capacity(usize::try_from(stated).unwrap_or(0));
    file.read_to_end(&mut content)?;
    let whole = content.len() as u64 == stated && blake3::hash(&content).as_bytes() == hash;
    Ok(whole.then_some(content))
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(MAGIC)?;
    file.write_all(&(content.len() as u64).to_le_bytes())?;
    file.write_all(blake3::hash(content).as_bytes())?;
    file.write_all(content)
}

/// Make a directory that only its owner reads and writes.
pub(in crate::cuda) fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn cache() -> (tempfile::TempDir, Cache) {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().join("kernels"));
        (root, cache)
    }

    fn key(text: &str) -> Key {
        Key::of("norm", text, &["-std=c++17".into(), "--gpu-architecture=sm_80".into()], (13, 0))
    }

    fn files(cache: &Cache) -> Vec<String> {
        let names =
            fs::read_dir(&cache.directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn everything_that_goes_into_a_compilation_is_in_its_name() {
        let options = ["a".to_owned(), "b".to_owned()];
        let keys = [
            Key::of("norm", "text", &options, (13, 0)),
            Key::of("norm", "other", &options, (13, 0)),
            Key::of("norm", "text", &["ab".to_owned()], (13, 0)),
            Key::of("norm", "text", &options, (13, 1)),
            Key::of("softmax", "text", &options, (13, 0)),
        ];
        for (i, one) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|other| one != other), "{one:?}");
        }
        assert_eq!(keys[0], Key::of("norm", "text", &options, (13, 0)));
    }

    #[test]
    fn what_is_kept_is_read_again_and_nothing_else_is() {
        let (_root, cache) = cache();
        assert_eq!(cache.read(&key("text")), None);
        cache.keep(&key("text"), b"compiled");
        assert_eq!(cache.read(&key("text")).unwrap(), b"compiled");
        assert_eq!(cache.read(&key("other")), None);
        assert_eq!(files(&cache).len(), 1, "nothing unfinished stays");
    }

    #[test]
    fn every_damage_is_noticed_and_the_file_removed() {
        let (_root, cache) = cache();
        let path = cache.directory.join(key("text").name);
        cache.keep(&key("text"), b"compiled kernels");
        let whole = fs::read(&path).unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|length| whole[..length].to_vec()).collect();
        damaged.extend((0..whole.len()).map(|place| {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x10;
            bytes
        }));
        damaged.push([whole.as_slice(), b"!"].concat());
        for bytes in damaged {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(cache.read(&key("text")), None, "{bytes:?}");
            assert!(!path.exists());
        }
        cache.keep(&key("text"), b"compiled kernels");
        assert_eq!(cache.read(&key("text")).unwrap(), b"compiled kernels");
    }

    #[test]
    fn threads_that_write_the_same_file_leave_a_whole_one() {
        let (_root, cache) = cache();
        let image: Vec<u8> = (0..1 << 16).map(|i| i as u8).collect();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        cache.keep(&key("text"), &image);
                        assert_eq!(cache.read(&key("text")).unwrap(), image);
                    }
                });
            }
        });
        assert_eq!(files(&cache).len(), 1);
    }

    #[test]
    fn processes_that_write_the_same_file_leave_a_whole_one() {
        /// Names the directory in a child.
        const DIRECTORY: &str = "BMTRAIN_TEST_KERNEL_CACHE";
        let image: Vec<u8> = (0..1 << 16).map(|i| (i * 7) as u8).collect();
        let work = |cache: &Cache| {
            for _ in 0..50 {
                cache.keep(&key("text"), &image);
                assert_eq!(cache.read(&key("text")).unwrap(), image);
            }
        };
        if let Some(directory) = std::env::var_os(DIRECTORY) {
            return work(&Cache::new(directory.into()));
        }
        let (_root, cache) = cache();
        let test = "cuda::compile::cache::tests::processes_that_write_the_same_file_leave_a_whole_one";
        let child = || {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", test]).env(DIRECTORY, &cache.directory).output().unwrap()
        };
        thread::scope(|scope| {
            let children: Vec<_> = (0..3).map(|_| scope.spawn(child)).collect();
            for output in children.into_iter().map(|child| child.join().unwrap()) {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success() && text.contains("1 passed"), "{text}");
            }
        });
        assert_eq!(files(&cache).len(), 1);
        assert_eq!(cache.read(&key("text")).unwrap(), image);
    }

    #[test]
    fn the_least_recently_used_go_when_there_is_too_much() {
        let (_root, mut cache) = cache();
        cache.most_bytes = 3 * (HEADER as u64 + 100);
        let aged = |text: &str, seconds: u64| {
            let file = File::options().append(true).open(cache.directory.join(key(text).name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for (text, age) in [("a", 400), ("b", 300), ("c", 200)] {
            cache.keep(&key(text), &[7; 100]);
            aged(text, age);
        }
        // Used again: now `b` is the oldest.
        assert!(cache.read(&key("a")).is_some());
        cache.keep(&key("d"), &[7; 100]);
        let there = |text: &str| cache.directory.join(key(text).name).exists();
        assert_eq!(["a", "b", "c", "d"].map(there), [true, false, true, true]);
        // One that is too large by itself is kept until the next.
        cache.keep(&key("huge"), &[7; 1000]);
        assert_eq!(["a", "b", "c", "d", "huge"].map(there), [false, false, false, false, true]);
    }

    #[test]
    fn what_dead_processes_left_is_removed_after_an_hour() {
        let (_root, cache) = cache();
        make_private(&cache.directory).unwrap();
        for (name, age) in [("old.1.0.part", 4000), ("young.1.0.part", 10)] {
            let file = File::create(cache.directory.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        cache.keep(&key("text"), b"compiled");
        let mut names = files(&cache);
        names.sort();
        assert_eq!(names, [key("text").name, "young.1.0.part".into()]);
    }

    #[test]
    fn a_directory_that_cannot_be_made_costs_a_warning_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let cache = Cache::new(root.path().join("file/kernels"));
        cache.keep(&key("text"), b"compiled");
        assert_eq!(cache.read(&key("text")), None);
        assert!(cache.warned.load(Ordering::Relaxed));
    }
}
