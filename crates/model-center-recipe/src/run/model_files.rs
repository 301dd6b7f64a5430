//! Contents of a model directory when the run wrote it, and whether they are unchanged.
//!
//! Defines [`FileHashes`], which `run.json` records for each model directory, [`Damage`], a file that differs from its
//! record, and [`unrecorded_damage`] for directories of earlier versions, which recorded nothing. Called by
//! [`OutputDirectory`](super::OutputDirectory).

use crate::{Error, Result};
use bmtrain_dist::checkpoint::{ContentHash, Fault};
use model_center_base::file::{check_name, open_regular};
use model_center_formats::Weights;
use model_center_models::adapter::{base_model, is_adapter_directory};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, FileType};
use std::io::ErrorKind;
use std::num::NonZero;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The model card: it is written anew at the end of a run, and may be edited afterwards.
pub const CARD_FILE: &str = "README.md";
/// Chat templates are one level down; this only bounds the walk.
const MAX_DEPTH: usize = 8;
/// More threads than this read no faster.
const MAX_THREADS: usize = 16;
const READABLE: &str = "check the disk and its mount, and that the run may read there";

/// Size and BLAKE3 hash of every file of a directory but its model card, by path relative to the directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileHashes(BTreeMap<String, FileHash>);

/// The content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHash {
    /// The length of the file.
    pub bytes: u64,
    /// The hash of its contents.
    pub blake3: ContentHash,
}

/// A file that is not as the run wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file, or the directory if that is missing.
    pub path: PathBuf,
    /// Reason.
    pub reason: String,
}

impl Damage {
    fn new(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Damage { path: path.into(), reason: reason.into() }
    }

    /// The error for it, of exit code 4.
    pub fn into_error(self, fix: impl Into<String>) -> Error {
        let place = self.path.display().to_string();
        bmtrain_dist::Error::checkpoint(Fault::Damaged, place, self.reason, fix).into()
    }
}

impl FileHashes {
    /// The hashes of the files in `dir`. Reads every byte.
    pub fn of(dir: &Path) -> Result<Self> {
        let mut found = BTreeMap::new();
        collect(dir, "", MAX_DEPTH, &mut found)?;
        found.remove(CARD_FILE);
        Ok(FileHashes(found))
    }

    /// The first recorded file of `dir` that is missing or differs. Further files are not looked at. Sizes are compared
    /// before any hash.
    pub fn damage(&self, dir: &Path) -> Result<Option<Damage>> {
        if !dir.is_dir() {
            return Ok(Some(missing_directory(dir)));
        }
        for (name, recorded) in &self.0 {
            let path = dir.join(name);
            let found = match fs::metadata(&path) {
                Ok(found) => found,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return Ok(Some(Damage::new(path, "the file is missing")));
                }
                Err(e) => return Err(Error::file("read", path, e, READABLE)),
            };
            if !found.is_file() {
                let kind = kind_name(found.file_type());
                return Ok(Some(Damage::new(path, format!("it is {kind}, not a regular file"))));
            }
            if found.len() != recorded.bytes {
                let reason = format!("the file has {} bytes, {} were written", found.len(), recorded.bytes);
                return Ok(Some(Damage::new(path, reason)));
            }
        }
        for (name, recorded) in &self.0 {
            let path = dir.join(name);
            if hash_of(&path)? != *recorded {
                return Ok(Some(Damage::new(path, "the file is not as it was written: its hash differs")));
            }
        }
        Ok(None)
    }

    /// A hash of all of them.
    pub fn digest(&self) -> String {
        let line = |(name, file): (&String, &FileHash)| format!("{name:?} {} {}\n", file.bytes, file.blake3);
        blake3::hash(self.0.iter().map(line).collect::<String>().as_bytes()).to_hex().to_string()
    }

    /// The first name whose file the other lacks or has with another hash; `None` if both are equal.
    pub fn first_difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        let differs = |name: &&String| self.0.get(*name) != other.0.get(*name);
        self.0.keys().chain(other.0.keys()).find(differs).map(String::as_str)
    }

    /// Why these names are not file names, if they are not: `run.json` is untrusted.
    pub(super) fn fault(&self) -> Option<String> {
        let is_wrong = |name: &&String| check_name(Path::new("model"), name).is_err();
        self.0.keys().find(is_wrong).map(|name| format!("{name:?} is not the name of a file of a model"))
    }
}

/// Damage of a model directory whose hashes were not recorded, as far as that can be seen: files that are missing, and
/// weights whose header does not fit their size.
pub fn unrecorded_damage(dir: &Path) -> Result<Option<Damage>> {
    if !dir.is_dir() {
        return Ok(Some(missing_directory(dir)));
    }
    let opened = match is_adapter_directory(dir) {
        true => base_model(dir).map(drop),
        false => open_regular(&dir.join("config.json")).map(drop).and_then(|()| Weights::open(dir).map(drop)),
    };
    match opened {
        Ok(()) => Ok(None),
        Err(Error::Model { place, reason, .. }) => Ok(Some(Damage::new(place, reason))),
        Err(other) => Err(other),
    }
}

/// Name of this kind of file, with its article, for messages.
pub(super) fn kind_name(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_file() => "a file",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_symlink() => "a symbolic link",
        _ => "a device",
    }
}

fn missing_directory(dir: &Path) -> Damage {
    Damage::new(dir, "the directory of the model is missing")
}

/// The hash of a file, computed on all processors.
pub fn hash_of(path: &Path) -> Result<FileHash> {
    let (file, _) = open_regular(path)?;
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    let (bytes, blake3) = ContentHash::of_file(&file, threads).map_err(|e| Error::file("read", path, e, READABLE))?;
    Ok(FileHash { bytes, blake3 })
}

fn collect(dir: &Path, prefix: &str, depth: usize, found: &mut BTreeMap<String, FileHash>) -> Result<()> {
    let failed = |e| Error::file("list", dir, e, READABLE);
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        // The run itself writes only names that are text.
        let Some(name) = entry.file_name().to_str().map(|name| format!("{prefix}{name}")) else { continue };
        if kind.is_dir() && depth > 0 {
            collect(&entry.path(), &format!("{name}/"), depth - 1, found)?;
        } else if kind.is_file() {
            found.insert(name, hash_of(&entry.path())?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(dir: &Path) {
        fs::create_dir_all(dir.join("additional_chat_templates")).unwrap();
        for (name, text) in [
            ("config.json", "{}"),
            ("weights", "abc"),
            (CARD_FILE, "# card"),
            ("additional_chat_templates/tool.jinja", "{{ x }}"),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn every_change_but_that_of_the_card_is_found_and_named() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("model");
        model(&dir);
        let hashes = FileHashes::of(&dir).unwrap();
        let text = serde_json::to_string(&hashes).unwrap();
        assert_eq!(serde_json::from_str::<FileHashes>(&text).unwrap(), hashes);
        let damage = || hashes.damage(&dir).unwrap().map(|damage| (damage.path, damage.reason));
        assert_eq!(damage(), None);
        fs::write(dir.join(CARD_FILE), "# mine").unwrap();
        fs::write(dir.join("notes"), "mine").unwrap();
        assert_eq!(damage(), None);
        for name in ["config.json", "weights", "additional_chat_templates/tool.jinja"] {
            let path = dir.join(name);
            let bytes = fs::read(&path).unwrap();
            let flipped: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
            for (changed, reason) in [(&flipped[..], "hash differs"), (&bytes[1..], "bytes, "), (&[], "has 0 bytes")] {
                fs::write(&path, changed).unwrap();
                let (place, message) = damage().unwrap();
                assert!(place == path && message.contains(reason), "{place:?}: {message}");
            }
            fs::remove_file(&path).unwrap();
            assert_eq!(damage(), Some((path.clone(), "the file is missing".to_owned())));
            fs::create_dir(&path).unwrap();
            assert_eq!(damage(), Some((path.clone(), "it is a directory, not a regular file".to_owned())));
            fs::remove_dir(&path).unwrap();
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(damage(), None);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(damage().unwrap().0, dir);
    }

    #[test]
    fn records_tell_which_file_differs_and_names_stay_inside() {
        let temp = tempfile::tempdir().unwrap();
        let (one, two) = (temp.path().join("one"), temp.path().join("two"));
        model(&one);
        model(&two);
        let of = |dir: &Path| FileHashes::of(dir).unwrap();
        assert_eq!(of(&one).first_difference(&of(&two)), None);
        fs::write(two.join("weights"), "abd").unwrap();
        assert_eq!(of(&one).first_difference(&of(&two)), Some("weights"));
        fs::remove_file(one.join("weights")).unwrap();
        assert_eq!(of(&one).first_difference(&of(&two)), Some("weights"));
        assert_eq!(of(&one).fault(), None);
        let record = FileHash { bytes: 0, blake3: ContentHash::of(b"") };
        for name in ["../x", "/etc/passwd", ""] {
            assert!(FileHashes(BTreeMap::from([(name.to_owned(), record)])).fault().is_some(), "{name:?}");
        }
    }

    #[test]
    fn without_a_record_missing_and_truncated_files_are_found() {
        let temp = tempfile::tempdir().unwrap();
        let reason = || unrecorded_damage(temp.path()).unwrap().map(|damage| damage.reason);
        assert!(reason().unwrap().contains("no such file"));
        fs::write(temp.path().join("config.json"), "{}").unwrap();
        assert!(reason().is_some());
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
        fs::write(temp.path().join("model.safetensors"), &file).unwrap();
        assert_eq!(reason(), None);
        fs::write(temp.path().join("model.safetensors"), &file[..file.len() - 4]).unwrap();
        assert!(reason().is_some());
        assert!(unrecorded_damage(&temp.path().join("none")).unwrap().is_some());
    }
}
