//! The files a tokenizer is made of, read within bounds.
//!
//! Defines [`read_bounded`], [`read_object`] and [`Settings`], the contents of the small files beside a vocabulary.
//! Called by the readers of every format.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::added::{self, AddedToken};
use crate::{Error, Result};
use model_center_base::file::{open_regular, resolve_inside, unreadable};

/// The largest vocabularies in use (256 thousand tokens) take about 35 MB as `tokenizer.json`.
pub(super) const MAX_FILE_BYTES: u64 = 128 << 20;

/// Settings beside a vocabulary: names of special tokens, added tokens, and the family of the model.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// `tokenizer_config.json`, empty without the file.
    pub(super) config: Map<String, Value>,
    /// `special_tokens_map.json`, empty without the file.
    pub(super) names: Map<String, Value>,
    /// The tokens that the directory adds, in the order of ids.
    pub(super) added: Vec<AddedToken>,
    /// `model_type` of `config.json`, empty without it.
    pub(super) family: String,
}

impl Settings {
    /// Reads what a directory has of the small files.
    pub(super) fn of_directory(directory: &Path) -> Result<Settings> {
        let model = read_object(directory, "config.json")?.unwrap_or_default();
        let config = read_object(directory, "tokenizer_config.json")?.unwrap_or_default();
        Ok(Settings {
            names: read_object(directory, "special_tokens_map.json")?.unwrap_or_default(),
            added: added::read(directory, &config)?,
            family: model.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned(),
            config,
        })
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.config.get(key).and_then(Value::as_bool)
    }

    /// The spelling of a special token: a plain string or an object with `content`; the config file wins over the map.
    pub(super) fn special(&self, key: &str) -> Option<&str> {
        let value = self.config.get(key).filter(|value| !value.is_null()).or_else(|| self.names.get(key))?;
        spelling(value)
    }

    /// Whether the tokenizer's class or the model's family begins with this name, whatever its case.
    pub(super) fn is_family(&self, name: &str) -> bool {
        let class = self.config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        [class, &self.family]
            .iter()
            .any(|known| known.to_ascii_lowercase().replace(['-', '_'], "").starts_with(&name.to_ascii_lowercase()))
    }
}

/// Spelling of a token that is a plain string or an object with `content`.
pub(super) fn spelling(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// A directory's file that holds a JSON object, `None` if there is no such file.
pub(super) fn read_object(directory: &Path, name: &str) -> Result<Option<Map<String, Value>>> {
    let Some(bytes) = read_bounded(directory, name)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| broken_json(&directory.join(name), &error))
}

pub(super) fn broken_json(path: &Path, error: &serde_json::Error) -> Error {
    let place = format!("{}:{}:{}", path.display(), error.line(), error.column());
    Error::model(place, format!("the file is not the expected JSON: {error}"), "fetch the file again")
}

/// The bytes of a directory's file of at most [`MAX_FILE_BYTES`], `None` if there is no such file.
pub(super) fn read_bounded(directory: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = directory.join(name);
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    resolve_inside(directory, name)?;
    read_file(&path).map(Some)
}

/// The bytes of a file of at most [`MAX_FILE_BYTES`].
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let (file, _) = open_regular(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let reason = format!("the file is larger than {} MiB", MAX_FILE_BYTES >> 20);
        let fix = "this is not a tokenizer file; check the directory";
        return Err(Error::model(path.display().to_string(), reason, fix));
    }
    Ok(bytes)
}

/// Text out of bytes, without a byte order mark.
pub(super) fn utf8<'a>(place: &str, bytes: &'a [u8]) -> Result<&'a str> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        Error::model(format!("{place}:{line}"), "the vocabulary is not UTF-8 text", "fetch the file again")
    })
}

pub(super) fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_above_the_bound_are_not_read() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = std::fs::File::create(directory.path().join("tokenizer.json")).unwrap();
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = read_bounded(directory.path(), "tokenizer.json").unwrap_err().to_string();
        assert!(error.contains("larger than 128 MiB"), "{error}");
    }
}
