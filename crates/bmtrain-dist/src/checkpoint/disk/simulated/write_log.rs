//! Outcomes of a power cut: the disk rebuilt from a log of changes, some of them lost.
//!
//! What is sure: the contents of a file up to its last flush, and the names in a directory up to the directory's last
//! flush. Anything after that may be there, or not, in any combination; a write may be there in part, or as zeros.

use super::MemoryDisk;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One change of a disk. Directories and files are numbers, which renaming does not change.
#[derive(Debug, Clone)]
pub(super) enum Change {
    CreateDirectory { name: String, directory: usize },
    CreateFile { directory: usize, name: String, file: usize },
    Write { file: usize, bytes: Arc<[u8]> },
    SyncFile { file: usize },
    Rename { from: String, to: String, directory: usize },
    SyncDirectory { directory: Option<usize> },
    RemoveFile { directory: usize, name: String },
    RemoveDirectory { name: String },
}

impl Change {
    /// The directory whose names it changes: the root is `Some(None)`.
    fn names_of(&self) -> Option<Option<usize>> {
        match self {
            Change::CreateDirectory { .. } | Change::Rename { .. } | Change::RemoveDirectory { .. } => Some(None),
            Change::CreateFile { directory, .. } | Change::RemoveFile { directory, .. } => Some(Some(*directory)),
            Change::Write { .. } | Change::SyncFile { .. } | Change::SyncDirectory { .. } => None,
        }
    }
}

/// Loss of changes that were not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing.
    Nothing,
    /// All of it.
    Everything,
    /// Contents; the names are there, of empty or short files.
    Contents,
    /// Contents, which are zeros of the right length.
    Zeroed,
    /// The second half of the last write to each file.
    Torn,
    /// Names; contents are there where their names are.
    Names,
    /// Names but those that renaming gave: the rename overtook what was done before it.
    AllNamesButRenames,
    /// Each change for itself, by chance: names kept or lost, writes kept, lost, zeroed or torn.
    Random(u64),
}

impl Loss {
    /// Every one, with `seeds` random ones.
    pub fn all(seeds: u64) -> Vec<Loss> {
        let mut all = vec![
            Loss::Nothing,
            Loss::Everything,
            Loss::Contents,
            Loss::Zeroed,
            Loss::Torn,
            Loss::Names,
            Loss::AllNamesButRenames,
        ];
        all.extend((0..seeds).map(Loss::Random));
        all
    }

    fn keeps_name(self, number: usize, change: &Change) -> bool {
        match self {
            Loss::Nothing | Loss::Contents | Loss::Zeroed | Loss::Torn => true,
            Loss::Everything | Loss::Names => false,
            Loss::AllNamesButRenames => matches!(change, Change::Rename { .. }),
            Loss::Random(seed) => chance(seed, number) & 1 == 0,
        }
    }

    fn fate(self, number: usize, last: bool) -> Fate {
        match self {
            Loss::Nothing | Loss::Names | Loss::AllNamesButRenames => Fate::Kept,
            Loss::Everything | Loss::Contents => Fate::Lost,
            Loss::Zeroed => Fate::Zeroed,
            Loss::Torn => {
                if last {
                    Fate::Torn(1, 2)
                } else {
                    Fate::Kept
                }
            }
            Loss::Random(seed) => match chance(seed, number) >> 1 & 3 {
                0 => Fate::Kept,
                1 => Fate::Lost,
                2 => Fate::Zeroed,
                _ => Fate::Torn((chance(seed, number) >> 3 & 15) as usize, 16),
            },
        }
    }
}

enum Fate {
    Kept,
    Lost,
    Zeroed,
    /// The first of two numbers of parts out of the second.
    Torn(usize, usize),
}

fn chance(seed: u64, number: usize) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Changes of a disk in the order in which they were asked for, over what was there before.
#[derive(Debug, Clone, Default)]
pub struct WriteLog {
    base_directories: Vec<(usize, String)>,
    base_files: Vec<(usize, usize, String, Arc<[u8]>)>,
    changes: Vec<Change>,
}

impl WriteLog {
    pub(super) fn base_directory(&mut self, directory: usize, name: &str) {
        self.base_directories.push((directory, name.into()));
    }

    pub(super) fn base_file(&mut self, file: usize, directory: usize, name: &str, bytes: Vec<u8>) {
        self.base_files.push((file, directory, name.into(), bytes.into()));
    }

    pub(super) fn add(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The disk after a power cut when the first `count` changes had been asked for and answered.
    pub fn after(&self, count: usize, loss: Loss) -> MemoryDisk {
        let changes = &self.changes[..count.min(self.changes.len())];
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        let mut inside: BTreeMap<usize, BTreeMap<String, usize>> = BTreeMap::new();
        let mut contents: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for (directory, name) in &self.base_directories {
            names.insert(name.clone(), *directory);
        }
        for (file, directory, name, bytes) in &self.base_files {
            inside.entry(*directory).or_default().insert(name.clone(), *file);
            contents.insert(*file, bytes.to_vec());
        }
        for (number, change) in changes.iter().enumerate() {
            let later = &changes[number + 1..];
            if let Some(directory) = change.names_of() {
                let flushed =
                    later.iter().any(|c| matches!(c, Change::SyncDirectory { directory: f } if *f == directory));
                if !flushed && !loss.keeps_name(number, change) {
                    continue;
                }
            }
            match change {
                Change::CreateDirectory { name, directory } => drop(names.insert(name.clone(), *directory)),
                Change::CreateFile { directory, name, file } => {
                    inside.entry(*directory).or_default().insert(name.clone(), *file);
                }
                Change::Rename { from, to, directory } => {
                    names.remove(from);
                    names.insert(to.clone(), *directory);
                }
                Change::RemoveFile { directory, name } => {
                    inside.entry(*directory).or_default().remove(name);
                }
                Change::RemoveDirectory { name } => drop(names.remove(name)),
                Change::Write { file, bytes } => {
                    let flushed = later.iter().any(|c| matches!(c, Change::SyncFile { file: f } if f == file));
                    let last = !later.iter().any(|c| matches!(c, Change::Write { file: f, .. } if f == file));
                    let fate = if flushed { Fate::Kept } else { loss.fate(number, last) };
                    let start = self.length_before(number, *file);
                    write(contents.entry(*file).or_default(), start, bytes, &fate);
                }
                Change::SyncFile { .. } | Change::SyncDirectory { .. } => {}
            }
        }
        let disk = MemoryDisk::default();
        for (name, directory) in &names {
            disk.put_directory(name);
            for (file, number) in inside.get(directory).into_iter().flatten() {
                disk.put(name, file, contents.get(number).cloned().unwrap_or_default());
            }
        }
        disk
    }

    /// Offset at which change `number` begins to write: files are only appended to.
    fn length_before(&self, number: usize, file: usize) -> usize {
        let before = self.changes[..number].iter();
        before
            .map(|c| {
                if let Change::Write { file: f, bytes } = c
                    && *f == file
                {
                    bytes.len()
                } else {
                    0
                }
            })
            .sum()
    }
}

fn write(contents: &mut Vec<u8>, start: usize, bytes: &[u8], fate: &Fate) {
    let there = match fate {
        Fate::Kept => bytes.len(),
        Fate::Lost => return,
        Fate::Zeroed => 0,
        Fate::Torn(parts, of) => bytes.len() * parts / of,
    };
    let end = if matches!(fate, Fate::Torn(..)) { start + there } else { start + bytes.len() };
    // A lost write before one that is kept leaves a hole, which reads as zeros.
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[start..start + there].copy_from_slice(&bytes[..there]);
}
