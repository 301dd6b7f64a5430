//! Directories of `save_to_disk` of the library `datasets`.
//!
//! Defines [`SavedSet`]. A data set is a directory with `state.json`, which names the `.arrow` files; a
//! dictionary of them, one for each split, has `dataset_dict.json` beside their directories.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::formats::saved_data::{SPLITS_FILE, STATE_FILE, SavedKind, saved_kind};
use crate::io::input::of_data;
use crate::{Error, Result};
use model_center_base::file::{printable, read_text, resolve_inside};

/// Notes of the library, which no records are in.
pub const NOTES: [&str; 3] = [STATE_FILE, SPLITS_FILE, "dataset_info.json"];
/// The longest of these files.
const MAX_BYTES: u64 = 1 << 26;
/// Keys of the state that do not change the rows: an identity, a name, and in what objects Python is given values.
const WITHOUT_EFFECT: [&str; 6] =
    ["_fingerprint", "_split", "_format_type", "_format_kwargs", "_inplace_history", "_indexes"];

/// The error for a dictionary where one set is asked for: which there are.
pub fn not_one(directory: &Path) -> Error {
    let named = object(directory, SPLITS_FILE).ok().and_then(|mut map| map.remove("splits"));
    let splits: Vec<String> = named
        .iter()
        .flat_map(Value::as_array)
        .flatten()
        .filter_map(Value::as_str)
        .map(|name| printable(name, 60))
        .collect();
    let reason = format!("this is a dictionary of data sets (save_to_disk of datasets), with {}", splits.join(", "));
    let first = splits.first().map_or("train", String::as_str);
    let fix = format!("name the directory of one of them, such as {}", directory.join(first).display());
    Error::data(directory.display().to_string(), printable(&reason, 400), fix)
}

/// A data set.
#[derive(Debug)]
pub(super) struct SavedSet {
    /// Its files in order.
    pub(super) files: Vec<PathBuf>,
    /// The columns that rows have; `None` for all.
    pub(super) columns: Option<Vec<String>>,
}

impl SavedSet {
    pub(super) fn open(directory: &Path) -> Result<SavedSet> {
        match saved_kind(directory) {
            Some(SavedKind::Set) => {}
            Some(SavedKind::Dictionary) => return Err(not_one(directory)),
            None => {
                let reason = "this is a directory without state.json and dataset_info.json";
                let fix = "name a directory of save_to_disk of datasets, or an .arrow file";
                return Err(Error::data(directory.display().to_string(), reason, fix));
            }
        }
        let place = || directory.join(STATE_FILE).display().to_string();
        let mut state = object(directory, STATE_FILE)?;
        let wrong = |what: &str| Error::data(place(), what, "save the data set again");
        let list = match state.remove("_data_files") {
            Some(Value::Array(list)) if !list.is_empty() => list,
            _ => return Err(wrong("it names no files in _data_files")),
        };
        let name = |file: &Value| file.get("filename").and_then(Value::as_str).map(str::to_owned);
        let names = list.iter().map(name).collect::<Option<Vec<_>>>();
        let names = names.ok_or_else(|| wrong("an entry of _data_files has no filename"))?;
        let files = names.iter().map(|name| resolve_inside(directory, name).map_err(of_data)).collect::<Result<_>>()?;
        let has_all = state.remove("_output_all_columns") == Some(Value::Bool(true));
        let columns = match state.remove("_format_columns") {
            None | Some(Value::Null) => None,
            // The format is of these, and rows have the others as they are.
            Some(Value::Array(_)) if has_all => None,
            Some(Value::Array(names)) => {
                let texts = names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>();
                Some(texts.ok_or_else(|| wrong("_format_columns is not a list of names"))?)
            }
            Some(_) => return Err(wrong("_format_columns is not a list of names")),
        };
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let unknown = state.iter().find(|(key, value)| !WITHOUT_EFFECT.contains(&key.as_str()) && !is_empty(value));
        if let Some((key, _)) = unknown {
            let reason = format!("its {}, such as a selection of rows, is not read", printable(key, 60));
            let fix = "save the rows themselves: dataset.flatten_indices().save_to_disk(DIR)";
            return Err(Error::data(place(), reason, fix));
        }
        Ok(SavedSet { files, columns })
    }
}

fn object(directory: &Path, name: &str) -> Result<Map<String, Value>> {
    let path = resolve_inside(directory, name).map_err(of_data)?;
    let text = read_text(&path, MAX_BYTES).map_err(of_data)?;
    serde_json::from_str(&text).map_err(|error| {
        let place = format!("{}:{}:{}", path.display(), error.line(), error.column());
        Error::data(place, format!("broken JSON: {}", printable(&error.to_string(), 200)), "save the data set again")
    })
}
