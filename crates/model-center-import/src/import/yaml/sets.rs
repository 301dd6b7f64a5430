//! Data sets of a configuration as keys of `[data]`.

use crate::import::keys;
use crate::import::sheet::{Sheet, inline_tables};

/// Fields of a data set of a recipe, with their values as TOML.
pub(super) type Fields = Vec<(&'static str, String)>;

/// Writes one data set as `data.train`, `data.eval` and `data.records`, several or one with a share as `data.sets`.
pub(super) fn write(sets: &[Fields], from: &str, sheet: &mut Sheet) {
    let key_of = |field: &str| match field {
        "path" => Some(keys::TRAIN),
        "eval" => Some(keys::EVAL),
        "records" => Some(keys::RECORDS),
        _ => None,
    };
    if let [one] = sets
        && one.iter().all(|(field, _)| key_of(field).is_some())
    {
        for (field, value) in one {
            if let Some(key) = key_of(field) {
                sheet.raw(key, value.clone(), from);
            }
        }
        return;
    }
    sheet.raw(keys::SETS, inline_tables(sets), from);
}
