//! A configuration of axolotl as a recipe.
//!
//! Defines [`axolotl`].

use super::axolotl_keys::KEYS;
use super::settings::Settings;
use super::trainer::{self, Defaults, Names};
use crate::Result;
use crate::file::printable;
use crate::import::ImportOptions;
use crate::import::keys;
use crate::import::sheet::{NoteKind, Sheet};
use crate::recipe::quote;
use serde_json::{Map, Value};

const NAMES: Names = Names {
    micro_batch: "micro_batch_size",
    eval_batch: "eval_batch_size",
    epochs: "num_epochs",
    schedule: "lr_scheduler",
    optimizer: "optimizer",
};
const DEFAULTS: Defaults = Defaults { micro_batch: 1, epochs: 1.0, lr: None, schedule: "cosine", seed: 42 };

/// Keys of a data set that are translated.
const OF_SET: [&str; 18] = [
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
    "message_property_mappings",
    "message_field_role",
    "message_field_content",
    "field",
    "roles",
    "train_on_eos",
    "roles_to_train",
    "train_on_eot",
];

/// A recipe from the text of a configuration; `place` names it in errors.
///
/// # Errors
/// [`Error::Model`](crate::Error::Model) for a text that is not YAML, [`Error::Argument`](crate::Error::Argument) for
/// unknown and refused keys and values.
pub fn axolotl(text: &str, place: &str, options: &ImportOptions) -> Result<Sheet> {
    let s = Settings::read(text, place, KEYS)?;
    let mut sheet = Sheet::new(format!("axolotl, {}", printable(place, 200)));
    model(&s, &mut sheet)?;
    adapter(&s, &mut sheet)?;
    let has_eval = data(&s, &mut sheet)?;
    trainer::translate(&s, (&NAMES, &DEFAULTS), (options, has_eval), &mut sheet)?;
    if s.flag("gradient_checkpointing").or_else(|error| match s.text("gradient_checkpointing")? {
        // "unsloth" and "offload" keep the inputs elsewhere.
        Some(_) => Ok(true),
        None => Err(error),
    })? {
        sheet.text(keys::RECOMPUTE, "blocks", s.shown("gradient_checkpointing"));
    }
    watchdog(&s, &mut sheet)?;
    let output = s.text("output_dir")?;
    let from = output.map_or_else(|| "output_dir, default ./model-out".to_owned(), |_| s.shown("output_dir"));
    sheet.text(keys::OUTPUT, output.unwrap_or("./model-out"), from);
    if let Some(name) = s.text("run_name")? {
        sheet.text(keys::RUN_NAME, name, s.shown("run_name"));
    }
    s.account(options, &mut sheet)?;
    sheet.apply(&options.sets)?;
    Ok(sheet)
}

fn model(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    let Some(model) = s.text("base_model")? else {
        return s.refuse("base_model", "there is no model", "write base_model: ORG/NAME");
    };
    sheet.text(keys::MODEL_PATH, model, s.shown("base_model"));
    if let Some(revision) = s.text("revision_of_model")? {
        sheet.text("model.revision", revision, s.shown("revision_of_model"));
    }
    if let Some(tokenizer) = s.text("tokenizer_config")? {
        let why = "the tokenizer is the one in the model's directory: copy its files there if they differ";
        let kind = if tokenizer == model { NoteKind::Unused } else { NoteKind::Differs };
        sheet.note(kind, s.shown("tokenizer_config"), why);
    }
    Ok(())
}

fn adapter(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    match s.text("adapter")? {
        None | Some("") => {
            for key in ["lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear"] {
                if s.get(key).is_some() {
                    sheet.note(NoteKind::Unused, s.shown(key), "there is no adapter: the whole model is trained");
                }
            }
            return Ok(());
        }
        Some("lora") => sheet.text(keys::ADAPTER, "lora", s.shown("adapter")),
        Some("qlora") => {
            let fix = "write adapter: lora, and remove load_in_4bit";
            return s.refuse("adapter", super::QUANTIZED, fix);
        }
        Some(other) => {
            let reason = format!("the adapter {} is not available", printable(other, 60));
            return s.refuse("adapter", reason, "write adapter: lora, or remove it");
        }
    }
    if let Some(path) = s.text("lora_model_dir")? {
        sheet.text(keys::ADAPTER_PATH, path, s.shown("lora_model_dir"));
        for key in [
            "lora_r",
            "lora_alpha",
            "lora_dropout",
            "lora_target_modules",
            "lora_target_linear",
            "lora_modules_to_save",
            "peft_use_rslora",
            "peft_use_dora",
        ] {
            if s.get(key).is_some() {
                sheet.note(NoteKind::Unused, s.shown(key), "lora_model_dir has the adapter and its settings");
            }
        }
        return Ok(());
    }
    let rank = s.whole("lora_r")?;
    let from = rank.map_or_else(|| "lora_r, default 8".to_owned(), |_| s.shown("lora_r"));
    sheet.whole(keys::RANK, rank.unwrap_or(8), from);
    let alpha = s.number("lora_alpha")?;
    let from = alpha.map_or_else(|| "lora_alpha, default 8".to_owned(), |_| s.shown("lora_alpha"));
    sheet.number(keys::ALPHA, alpha.unwrap_or(8.0), from);
    if let Some(dropout) = s.number("lora_dropout")?.filter(|dropout| *dropout > 0.0) {
        sheet.number(keys::ADAPTER_DROPOUT, dropout, s.shown("lora_dropout"));
    }
    if s.flag("peft_use_rslora")? {
        sheet.flag(keys::RANK_STABILIZED, true, s.shown("peft_use_rslora"));
    }
    if s.flag("peft_use_dora")? {
        sheet.flag(keys::DORA, true, s.shown("peft_use_dora"));
    }
    let linear = s.flag("lora_target_linear")?;
    match (linear, s.texts("lora_target_modules")?) {
        (true, targets) => {
            if targets.is_some() {
                sheet.note(NoteKind::Unused, s.shown("lora_target_modules"), "lora_target_linear names all layers");
            }
            sheet.list(keys::TARGETS, &["all-linear".to_owned()], s.shown("lora_target_linear"));
        }
        (false, Some(targets)) => sheet.list(keys::TARGETS, &targets, s.shown("lora_target_modules")),
        (false, None) => return s.refuse("adapter", "no layers are named", "write lora_target_linear: true"),
    }
    if let Some(modules) = s.texts("lora_modules_to_save")? {
        sheet.list(keys::ADAPTER_TRAINED, &modules, s.shown("lora_modules_to_save"));
    }
    if s.flag("merge_lora")? {
        sheet.flag(keys::SAVE_MERGED, true, s.shown("merge_lora"));
    }
    Ok(())
}

/// What a data set's `type` comes to.
struct Form {
    /// The form of the records; `None` for what the first record has.
    records: Option<&'static str>,
    /// Columns: our keys with the names of the file.
    columns: Vec<(&'static str, String)>,
    as_chat: bool,
}

/// Whether there are evaluation data.
fn data(s: &Settings<'_>, sheet: &mut Sheet) -> Result<bool> {
    sheet.text(keys::TASK, "sft", "axolotl's data sets");
    let key = if s.has("datasets") { "datasets" } else { "pretraining_dataset" };
    let given = match s.get(key) {
        Some(Value::Array(sets)) if !sets.is_empty() => sets.clone(),
        Some(one @ (Value::Object(_) | Value::String(_))) => vec![one.clone()],
        _ => return s.refuse("datasets", "there is no data set", "write datasets: with path and type"),
    };
    let eval = match s.get("test_datasets") {
        Some(Value::Array(sets)) => sets.clone(),
        _ => Vec::new(),
    };
    let mut sets: Vec<Vec<(&str, String)>> = Vec::new();
    let mut columns: Vec<(&'static str, String)> = Vec::new();
    let mut as_chat = false;
    for (at, set) in given.iter().enumerate() {
        let set = match set {
            Value::String(path) => Map::from_iter([("path".to_owned(), Value::from(path.clone()))]),
            Value::Object(set) => set.clone(),
            _ => return Err(s.wrong(key, "a list of data sets")),
        };
        check_set(s, key, &set)?;
        let form = form(s, key, &set, key == "pretraining_dataset")?;
        as_chat |= form.as_chat;
        for (column, name) in form.columns {
            match columns.iter().find(|(held, _)| *held == column) {
                Some((_, held)) if *held != name => {
                    let reason = format!("data sets have different columns for {column}: {held} and {name}");
                    return s.refuse(key, reason, "rename the columns of one, or import the data sets one by one");
                }
                Some(_) => {}
                None => columns.push((column, name)),
            }
        }
        let path = path(s, key, &set, sheet)?;
        let mut fields = vec![("path", quote(&path))];
        if let Some(Value::Object(eval)) = eval.get(at) {
            fields.push(("eval", quote(&self::path(s, "test_datasets", eval, sheet)?)));
        }
        if let Some(records) = form.records {
            fields.push(("records", quote(records)));
        }
        sets.push(fields);
    }
    if eval.len() > given.len() {
        let why = "each data set has evaluation data of its own; further ones are left out";
        sheet.note(NoteKind::Differs, s.shown("test_datasets"), why);
    }
    let from = s.shown(key);
    if let [one] = sets.as_slice() {
        for (field, value) in one {
            let key = match *field {
                "path" => keys::TRAIN,
                "eval" => keys::EVAL,
                _ => keys::RECORDS,
            };
            sheet.raw(key, value.clone(), from.clone());
        }
    } else {
        let text = |fields: &Vec<(&str, String)>| {
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            format!("{{ {} }}", fields.join(", "))
        };
        let all: Vec<String> = sets.iter().map(text).collect();
        sheet.raw(keys::SETS, format!("[{}]", all.join(", ")), from.clone());
    }
    for (column, name) in columns {
        sheet.text(column, &name, format!("{key}, type"));
    }
    if as_chat {
        sheet.flag(keys::AS_CHAT, true, "the type formats records by the chat template");
    }
    lengths(s, sheet)?;
    template(s, sheet)?;
    Ok(!eval.is_empty())
}

fn lengths(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    let length = s.whole("sequence_len")?;
    let from = length.map_or_else(|| "sequence_len, default 512".to_owned(), |_| s.shown("sequence_len"));
    sheet.whole(keys::MAX_LENGTH, length.unwrap_or(512), from);
    if s.flag("sample_packing")? {
        sheet.flag(keys::PACKING, true, s.shown("sample_packing"));
        let why = "a micro-batch has micro_batch_size samples, joined; there it is filled up to sequence_len, and has \
                   more of them: raise train.micro_batch_size";
        sheet.note(NoteKind::Differs, s.shown("sample_packing"), why);
    }
    if s.flag("train_on_inputs")? {
        sheet.text(keys::LOSS_ON, "all", s.shown("train_on_inputs"));
    }
    if let Some(Value::Bool(false)) = s.get("shuffle_merged_datasets") {
        let why = "several data sets are mixed in a random order, one is with data.shuffle";
        sheet.note(NoteKind::Differs, s.shown("shuffle_merged_datasets"), why);
    }
    if let Some(share) = s.number("val_set_size")?.filter(|share| *share > 0.0) {
        let why = format!("{share} of the data are split off there: `init` writes such a split, or set data.eval");
        sheet.note(NoteKind::Differs, s.shown("val_set_size"), why);
    }
    Ok(())
}

fn template(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    if let Some(name) = s.text("chat_template")? {
        match name.starts_with("tokenizer_default") {
            true => sheet.note(NoteKind::Unused, s.shown("chat_template"), "the model's own template is always used"),
            false => {
                let why = "the template in the model's directory is used: put this one there as chat_template.jinja";
                sheet.note(NoteKind::Differs, s.shown("chat_template"), why);
            }
        }
    }
    if s.get("chat_template_jinja").is_some() {
        let why = "put the template into the model's directory as chat_template.jinja";
        sheet.note(NoteKind::Differs, "chat_template_jinja", why);
    }
    Ok(())
}

/// Refuses keys of a data set that are not translated.
fn check_set(s: &Settings<'_>, key: &str, set: &Map<String, Value>) -> Result<()> {
    let is_known = |name: &&String| OF_SET.contains(&name.as_str());
    match set.iter().find(|(name, value)| !is_known(name) && !value.is_null()) {
        None => Ok(()),
        Some((name, _)) => {
            let reason = format!("{} of a data set has no counterpart", printable(name, 60));
            s.refuse(key, reason, "remove it, and prepare the records so that they do not need it")
        }
    }
}

/// The file, or the directory, of a data set.
fn path(s: &Settings<'_>, key: &str, set: &Map<String, Value>, sheet: &mut Sheet) -> Result<String> {
    let text = |name: &str| set.get(name).and_then(Value::as_str);
    let Some(path) = text("path") else {
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
    Ok(found)
}

/// The form of the records of a data set.
fn form(s: &Settings<'_>, key: &str, set: &Map<String, Value>, is_pretraining: bool) -> Result<Form> {
    let column = |ours: &'static str, name: &str, usual: &str| {
        set.get(name).and_then(Value::as_str).filter(|name| *name != usual).map(|name| (ours, name.to_owned()))
    };
    let plain = |records: Option<&'static str>| Form { records, columns: Vec::new(), as_chat: false };
    for name in ["conversation", "roles", "train_on_eos", "roles_to_train", "train_on_eot"] {
        let is_usual = match set.get(name) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => ["turn", "chatml", "llama-3"].contains(&text.as_str()),
            Some(Value::Array(roles)) => roles.iter().all(|role| ["assistant", "gpt"].iter().any(|own| role == *own)),
            Some(_) => name == "roles",
        };
        if !is_usual {
            let reason =
                format!("{name} has no counterpart: turns of the assistant are learned, with the token that ends them");
            return s.refuse(key, reason, "remove it, or set data.loss_on in the recipe");
        }
    }
    if let Some(Value::Object(own)) = set.get("type") {
        return own_form(s, key, own);
    }
    let name = set.get("type").and_then(Value::as_str).unwrap_or(if is_pretraining { "completion" } else { "" });
    // `alpaca:chatml` and `sharegpt.load_role` are variants.
    let (base, variant) = name.split_once([':', '.']).map_or((name, None), |(base, variant)| (base, Some(variant)));
    match base {
        "alpaca" | "explainchoice" | "reflection" if variant.is_none() => Ok(plain(Some("alpaca"))),
        "alpaca" | "alpaca_chat" => Ok(Form { as_chat: true, ..plain(Some("alpaca")) }),
        "chat_template" => {
            let columns = column(keys::COLUMN_MESSAGES, "field_messages", "messages").into_iter().collect();
            Ok(Form { columns, ..plain(Some("messages")) })
        }
        "sharegpt" => {
            let columns = column(keys::COLUMN_MESSAGES, "field_messages", "conversations").into_iter().collect();
            Ok(Form { columns, ..plain(Some("sharegpt")) })
        }
        "completion" | "pretrain" => {
            let columns = column(keys::COLUMN_TEXT, "field", "text").into_iter().collect();
            Ok(Form { columns, ..plain(Some("text")) })
        }
        "" => Ok(plain(None)),
        other => {
            let reason = format!("the type {} is not available", printable(other, 60));
            s.refuse(key, reason, "use alpaca, chat_template, sharegpt, completion, or fields of your own")
        }
    }
}

/// A type with fields of its own.
fn own_form(s: &Settings<'_>, key: &str, own: &Map<String, Value>) -> Result<Form> {
    let text = |name: &str| own.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    for name in own.keys().map(String::as_str) {
        let is_read = ["field_instruction", "field_output", "field_input", "field_system"].contains(&name);
        let is_plain = text(name).is_none_or(|format| ["{instruction}", "{instruction} {input}"].contains(&format));
        if !is_read && !is_plain {
            let reason =
                format!("{} of a type makes text of a prompt, which input_format does here", printable(name, 60));
            return s.refuse(key, reason, "remove it, and set data.input_format = \"… __input__ …\" in the recipe");
        }
    }
    let Some(prompt) = text("field_instruction") else {
        return s.refuse(key, "a type of fields has no field_instruction", "write the column of the prompt");
    };
    let mut columns = vec![(keys::COLUMN_PROMPT, prompt.to_owned())];
    columns.push((keys::COLUMN_COMPLETION, text("field_output").unwrap_or("output").to_owned()));
    if let Some(input) = text("field_input") {
        columns.push((keys::COLUMN_INPUT, input.to_owned()));
    }
    if let Some(system) = text("field_system") {
        columns.push((keys::COLUMN_SYSTEM, system.to_owned()));
    }
    let records = if text("field_input").is_some() { "alpaca" } else { "prompt-completion" };
    Ok(Form { records: Some(records), columns, as_chat: false })
}

/// A limit of the loss ends the run there; here a loss that leaves its course does.
fn watchdog(s: &Settings<'_>, sheet: &mut Sheet) -> Result<()> {
    let patience = s.whole("loss_watchdog_patience")?;
    if let Some(limit) = s.number("loss_watchdog_threshold")? {
        let mut from = s.shown("loss_watchdog_threshold");
        if s.has("loss_watchdog_patience") {
            from += &format!(", {}", s.shown("loss_watchdog_patience"));
        }
        sheet.whole("train.divergence.patience", patience.unwrap_or(3).max(1), from.clone());
        let why =
            format!("losses above the first steps', or spikes, end the run, whatever they are; there {limit} does");
        sheet.note(NoteKind::Differs, from, why);
    }
    Ok(())
}
