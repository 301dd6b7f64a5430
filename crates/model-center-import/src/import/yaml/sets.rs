//! Data sets of a configuration as keys of `[data]`.

use crate::import::sheet::{Sheet, inline_tables};
use model_center_recipe::key;

/// Fields of a data set of a recipe, with their values as TOML.
pub(super) type Fields = Vec<(&'static str, String)>;

/// Writes one data set as `data.train`, `data.eval` and `data.records`, several or one with a share as `data.sets`.
pub(super) fn write(sets: &[Fields], from: &str, sheet: &mut Sheet) {
    let key_of = |field: &str| match field {
        "path" => Some(key!(data.train)),
        "eval" => Some(key!(data.eval)),
        "records" => Some(key!(data.records)),
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
    sheet.raw(key!(data.sets), inline_tables(sets), from);
}
