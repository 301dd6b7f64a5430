//! `[data]` of a configuration of axolotl: its data sets, their lengths and templates.

use super::axolotl_forms::{Column, Form, form};
use super::pairs::{Samples, pass_over_single};
use super::sets::{self, Fields};
use super::settings::Settings;
use crate::Result;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_base::file::printable;
use model_center_recipe::{key, quote};
use serde_json::{Map, Value};

/// Keys of a data set that are translated.
const OF_SET: [&str; 22] = [
    "path",
    "type",
    "ds_type",
    "data_files",
    "split",
    "name",
    "revision",
    "conversation",
    "chat_template",
    "field_messages",
    "field_chosen",
    "field_rejected",
    "message_property_mappings",
    "message_field_role",
    "message_field_content",
    "message_field_training",
    "message_field_training_detail",
    "field",
    "roles",
    "train_on_eos",
    "roles_to_train",
    "train_on_eot",
];

/// Writes the data sets; whether there are evaluation data.
pub(super) fn translate(s: &Settings<'_>, samples: Samples, sheet: &mut Sheet) -> Result<bool> {
    let key = if s.has("datasets") { "datasets" } else { "pretraining_dataset" };
    let given = match s.get(key) {
        Some(Value::Array(sets)) if !sets.is_empty() => sets.clone(),
        Some(one @ (Value::Object(_) | Value::String(_))) => vec![one.clone()],
        _ => return s.refuse("datasets", "there is no data set", "write datasets: with path and type"),
    };
    if samples.are_pairs() && key != "datasets" {
        return s.refuse(key, "pairs of completions are in datasets", "write datasets: with path and type");
    }
    let eval = match s.get("test_datasets") {
        Some(Value::Array(sets)) => sets.clone(),
        _ => Vec::new(),
    };
    let mut found = Columns::default();
    let mut written: Vec<Fields> = Vec::new();
    for (at, set) in given.iter().enumerate() {
        let set = table(s, key, set)?;
        let form = form(s, (key, &set), (samples, key == "pretraining_dataset"), sheet)?;
        let mut fields = vec![("path", quote(&path(s, key, &set, sheet)?))];
        if let Some(eval) = eval.get(at) {
            let eval = table(s, "test_datasets", eval)?;
            // A set without a type has the type of the training data.
            if eval.contains_key("type") {
                let of_eval = self::form(s, ("test_datasets", &eval), (samples, false), sheet)?;
                if of_eval != form {
                    let reason = "evaluation data have another form than the data set beside them";
                    return s.refuse("test_datasets", reason, "write them in the form of the training data");
                }
            }
            fields.push(("eval", quote(&path(s, "test_datasets", &eval, sheet)?)));
        }
        fields.extend(form.records.map(|records| ("records", quote(records))));
        found.add(s, key, form)?;
        written.push(fields);
    }
    if eval.len() > given.len() {
        let why = "each data set has evaluation data of its own; further ones are left out";
        sheet.note(NoteKind::Differs, s.shown("test_datasets"), why);
    }
    sets::write(&written, &s.shown(key), sheet);
    found.write(key, sheet);
    lengths(s, samples, sheet)?;
    template(s, sheet)?;
    Ok(!eval.is_empty())
}

/// A data set with its keys.
fn table(s: &Settings<'_>, key: &str, set: &Value) -> Result<Map<String, Value>> {
    let set = match set {
        Value::String(path) => Map::from_iter([("path".to_owned(), Value::from(path.clone()))]),
        Value::Object(set) => set.clone(),
        _ => return Err(s.wrong(key, "a list of data sets")),
    };
    let is_known = |name: &&String| OF_SET.contains(&name.as_str());
    match set.iter().find(|(name, value)| !is_known(name) && !value.is_null()) {
        None => Ok(set),
        Some((name, _)) => {
            let reason = format!("{} of a data set has no counterpart", printable(name, 60));
            s.refuse(key, reason, "remove it, and prepare the records so that they do not need it")
        }
    }
}

/// Columns of all data sets: a recipe has one name for each.
#[derive(Default)]
struct Columns {
    columns: Vec<Column>,
    as_chat: Option<bool>,
}

impl Columns {
    /// Adds the columns of a data set.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] where one key would have two values.
    fn add(&mut self, s: &Settings<'_>, key: &str, form: Form) -> Result<()> {
        let fix = "rename the columns of one, or import the data sets one by one";
        for column in form.columns {
            match self.columns.iter_mut().find(|held| held.key == column.key) {
                // Usual names are the forms' own, and no key has them.
                Some(held) if held.name != column.name && !(held.is_usual && column.is_usual) => {
                    let (one, other) = (&held.name, &column.name);
                    let reason = format!("data sets have different columns for {}: {one} and {other}", column.key);
                    return s.refuse(key, reason, fix);
                }
                Some(held) => held.is_usual &= column.is_usual,
                None => self.columns.push(column),
            }
        }
        match (self.as_chat, form.as_chat) {
            (Some(held), Some(as_chat)) if held != as_chat => {
                let reason = "some data sets are formatted by the chat template, and others are not";
                s.refuse(key, reason, "import the data sets one by one")
            }
            (held, as_chat) => {
                self.as_chat = held.or(as_chat);
                Ok(())
            }
        }
    }

    fn write(self, key: &str, sheet: &mut Sheet) {
        for column in self.columns.iter().filter(|column| !column.is_usual) {
            sheet.text(column.key, &column.name, format!("{key}, type"));
        }
        if self.as_chat == Some(true) {
            sheet.flag(key!(data.as_chat), true, "the type formats records by the chat template");
        }
    }
}

fn lengths(s: &Settings<'_>, samples: Samples, sheet: &mut Sheet) -> Result<()> {
    let length = s.whole_or("sequence_len", 512)?;
    sheet.whole(key!(data.max_length), length.value, length.from);
    if samples.are_pairs() {
        pass_over_single(s, &["sample_packing", "train_on_inputs"], sheet);
    }
    if !samples.are_pairs() && s.flag("sample_packing")? {
        sheet.flag(key!(data.packing), true, s.shown("sample_packing"));
        let why = "a micro-batch has micro_batch_size samples, joined; there it is filled up to sequence_len, and has \
                   more of them: raise train.micro_batch_size";
        sheet.note(NoteKind::Differs, s.shown("sample_packing"), why);
    }
    if !samples.are_pairs() && s.flag("train_on_inputs")? {
        sheet.text(key!(data.loss_on), "all", s.shown("train_on_inputs"));
    }
    if let Some(Value::Bool(false)) = s.get("shuffle_merged_datasets") {
        let why = "several data sets are mixed in a random order, one is with data.shuffle";
        sheet.note(NoteKind::Differs, s.shown("shuffle_merged_datasets"), why);
    }
    Ok(())
}

fn template(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    if let Some(name) = s.text("chat_template")? {
        match name.starts_with("tokenizer_default") {
            true => sheet.note(NoteKind::Unused, s.shown("chat_template"), "the model's own template is always used"),
            false => sheet.note(NoteKind::Differs, s.shown("chat_template"), super::TEMPLATE),
        }
    }
    if s.get("chat_template_jinja").is_some() {
        sheet.note(NoteKind::Differs, s.shown("chat_template_jinja"), super::TEMPLATE);
    }
    Ok(())
}

/// The file, or the directory, of a data set.
fn path(s: &Settings<'_>, key: &str, set: &Map<String, Value>, sheet: &mut Sheet) -> Result<String> {
    let text = |name: &str| set.get(name).and_then(Value::as_str);
    let Some(path) = text("path").filter(|path| !path.trim().is_empty()) else {
        return s.refuse(key, "a data set has no path", "write path: data/train.jsonl");
    };
    let files = match set.get("data_files") {
        Some(Value::String(file)) => Some(file.clone()),
        Some(Value::Array(files)) if files.len() == 1 => files[0].as_str().map(str::to_owned),
        Some(Value::Null) | None => None,
        Some(_) => return s.refuse(key, "several data_files", "name one file, or a directory of them as path"),
    };
    // With a generic path such as `json`, the files are elsewhere.
    let found = match files {
        Some(file) if ["json", "csv", "parquet", "text"].contains(&path) || file.contains('/') => file,
        Some(file) => format!("{}/{file}", path.trim_end_matches('/')),
        None => path.to_owned(),
    };
    let is_file = found.rsplit('/').next().is_some_and(|name| name.contains('.')) || found.starts_with(['.', '/']);
    if !is_file {
        let why = format!("data sets of a hub are not fetched: save {found} as JSON lines, and give their path");
        sheet.note(NoteKind::Differs, format!("{key}, path {}", printable(&found, 80)), why);
    }
    for name in ["split", "name", "revision"] {
        if let Some(value) = text(name) {
            let why = "it selects a part of a hub's data set: give the file of that part";
            sheet.note(NoteKind::Differs, format!("{key}, {name} {}", printable(value, 60)), why);
        }
    }
    for name in ["conversation", "chat_template"] {
        if let Some(value) = text(name).filter(|name| !name.starts_with("tokenizer_default")) {
            sheet.note(NoteKind::Differs, format!("{key}, {name} {}", printable(value, 60)), super::TEMPLATE);
        }
    }
    Ok(found)
}
