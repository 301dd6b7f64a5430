//! The forms of records that a `type` of axolotl comes to.

use super::pairs::Samples;
use super::settings::Settings;
use crate::Result;
use crate::import::sheet::{NoteKind, Sheet};
use model_center_base::file::printable;
use model_center_data::TURN_MARKS;
use model_center_recipe::key;
use serde_json::{Map, Value};

/// A column of the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) key: &'static str,
    pub(super) name: String,
    /// Whether the form of the records has the name without a key.
    pub(super) is_usual: bool,
}

/// Form of records that the `type` of a data set means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Form {
    /// The form of the records; `None` for what the first record has, and for pairs.
    pub(super) records: Option<&'static str>,
    pub(super) columns: Vec<Column>,
    /// Whether texts become turns of the chat template; `None` where they are messages already.
    pub(super) as_chat: Option<bool>,
}

/// A type with columns of its own: keys with the names that they have, and whether the form has them without a key.
type Named = (&'static str, &'static [(&'static str, &'static str, bool)]);

const PROMPTS: [Named; 5] = [
    (
        "alpaca_chat.load_qa",
        &[(key!(data.columns.prompt), "question", false), (key!(data.columns.completion), "answer", false)],
    ),
    (
        "alpaca_chat.load_camel_ai",
        &[(key!(data.columns.prompt), "message_1", false), (key!(data.columns.completion), "message_2", false)],
    ),
    (
        "alpaca_w_system.load_open_orca",
        &[
            (key!(data.columns.prompt), "question", false),
            (key!(data.columns.completion), "response", false),
            (key!(data.columns.system), "system_prompt", false),
        ],
    ),
    ("oasst", &[(key!(data.columns.prompt), "INSTRUCTION", false), (key!(data.columns.completion), "RESPONSE", false)]),
    ("metharme", &[(key!(data.columns.prompt), "prompt", true), (key!(data.columns.completion), "generation", false)]),
];

/// Types of pairs after `chatml.`, `llama3.` and `chat_template.`.
const PAIRS: [Named; 7] = [
    (
        "argilla",
        &[
            (key!(data.columns.prompt), "instruction", false),
            (key!(data.columns.chosen), "chosen_response", false),
            (key!(data.columns.rejected), "rejected_response", false),
        ],
    ),
    ("argilla_chat", &CONVERSATIONS),
    ("ultra", &CONVERSATIONS),
    ("icr", &INPUTS),
    (
        "intel",
        &[
            (key!(data.columns.prompt), "question", false),
            (key!(data.columns.chosen), "chosen", true),
            (key!(data.columns.rejected), "rejected", true),
        ],
    ),
    ("prompt_pairs", &TEXTS),
    ("", &TEXTS),
];
const INPUTS: [(&str, &str, bool); 3] = [
    (key!(data.columns.prompt), "input", false),
    (key!(data.columns.chosen), "chosen", true),
    (key!(data.columns.rejected), "rejected", true),
];
const TEXTS: [(&str, &str, bool); 3] = [
    (key!(data.columns.prompt), "prompt", true),
    (key!(data.columns.chosen), "chosen", true),
    (key!(data.columns.rejected), "rejected", true),
];
const CONVERSATIONS: [(&str, &str, bool); 2] =
    [(key!(data.columns.chosen), "chosen", true), (key!(data.columns.rejected), "rejected", true)];

/// Names of roles that turns have here, by the role.
const ROLES: [(&str, &[&str]); 4] = [
    ("user", &["user", "human", "Human", "User"]),
    ("assistant", &["assistant", "gpt", "bot", "chatgpt", "model", "Assistant"]),
    ("system", &["system"]),
    ("tool", &["tool"]),
];

/// Part of axolotl's prompts besides the instruction and its input.
const NO_SENTENCE: &str = "Alpaca's sentence (\"Below is an instruction …\") is in the system turn there, and in none \
                           here: records may have a system text of their own, data.columns.system";

/// The form of the records of a data set.
pub(super) fn form(
    s: &Settings<'_>,
    (key, set): (&str, &Map<String, Value>),
    (samples, is_pretraining): (Samples, bool),
    sheet: &mut Sheet,
) -> Result<Form> {
    check_turns(s, key, set)?;
    if let Some(Value::Object(own)) = set.get("type") {
        return match samples {
            Samples::Single => own_form(s, key, own),
            _ => own_pairs(s, key, own),
        };
    }
    let name = set.get("type").and_then(Value::as_str).unwrap_or(if is_pretraining { "completion" } else { "" });
    match samples {
        Samples::Single => single(s, (key, set), name, sheet),
        Samples::Pairs("orpo") => pairs_of_orpo(s, key, name),
        Samples::Pairs(_) => pairs(s, (key, set), name),
        Samples::Rewards => rewards(s, key, name),
    }
}

fn column(key: &'static str, name: &str, usual: &str) -> Column {
    Column { key, name: name.to_owned(), is_usual: name == usual }
}

fn columns(named: &[(&'static str, &'static str, bool)]) -> Vec<Column> {
    let of = |(key, name, is_usual): &(&'static str, &'static str, bool)| Column {
        key,
        name: (*name).to_owned(),
        is_usual: *is_usual,
    };
    named.iter().map(of).collect()
}

/// A column that a key of the data set names.
fn field(set: &Map<String, Value>, key: &'static str, name: &str, default: &str, usual: &str) -> Column {
    column(key, set.get(name).and_then(Value::as_str).unwrap_or(default), usual)
}

fn single(s: &Settings<'_>, (key, set): (&str, &Map<String, Value>), name: &str, sheet: &mut Sheet) -> Result<Form> {
    if let Some((_, named)) = PROMPTS.iter().find(|(known, _)| *known == name) {
        let as_chat = name.starts_with("alpaca_chat") || name.starts_with("alpaca_w_system");
        return Ok(Form { records: Some("prompt-completion"), columns: columns(named), as_chat: Some(as_chat) });
    }
    // `alpaca:chatml` and `sharegpt.load_role` are variants.
    let (base, variant) = name.split_once([':', '.']).map_or((name, None), |(base, variant)| (base, Some(variant)));
    let alpaca = || {
        vec![
            column(key!(data.columns.prompt), "instruction", "instruction"),
            column(key!(data.columns.input), "input", "input"),
            column(key!(data.columns.completion), "output", "output"),
        ]
    };
    let of_alpaca = |as_chat: bool| Form { records: Some("alpaca"), columns: alpaca(), as_chat: Some(as_chat) };
    match (base, variant) {
        ("alpaca", None | Some("load")) => Ok(of_alpaca(false)),
        ("alpaca", Some("chatml" | "chat" | "llama3" | "mistral" | "instruct")) => {
            sheet.note(NoteKind::Differs, format!("{key}, type {name}"), NO_SENTENCE);
            Ok(of_alpaca(true))
        }
        ("alpaca_chat", None | Some("load" | "load_concise")) => {
            sheet.note(NoteKind::Differs, format!("{key}, type {name}"), NO_SENTENCE);
            if variant == Some("load_concise") {
                let why = "prompts do not ask for a concise answer";
                sheet.note(NoteKind::Differs, format!("{key}, type {name}"), why);
            }
            Ok(of_alpaca(true))
        }
        ("gpteacher", None) => {
            let columns = vec![
                column(key!(data.columns.prompt), "instruction", "instruction"),
                column(key!(data.columns.input), "input", "input"),
                column(key!(data.columns.completion), "response", "output"),
            ];
            Ok(Form { records: Some("alpaca"), columns, as_chat: Some(false) })
        }
        ("chat_template", _) => {
            let (records, usual) = turns(s, key, set)?;
            let columns = vec![field(set, key!(data.columns.messages), "field_messages", "messages", usual)];
            Ok(Form { records: Some(records), columns, as_chat: None })
        }
        ("sharegpt", _) => {
            let columns =
                vec![field(set, key!(data.columns.messages), "field_messages", "conversations", "conversations")];
            Ok(Form { records: Some("sharegpt"), columns, as_chat: None })
        }
        ("completion" | "pretrain", None) => {
            let columns = vec![field(set, key!(data.columns.text), "field", "text", "text")];
            Ok(Form { records: Some("text"), columns, as_chat: None })
        }
        ("", None) => Ok(Form { records: None, columns: Vec::new(), as_chat: None }),
        _ => {
            let reason = format!("the type {} is not available", printable(name, 60));
            s.refuse(key, reason, "use alpaca, chat_template, sharegpt, completion, or fields of your own")
        }
    }
}

fn pairs(s: &Settings<'_>, (key, set): (&str, &Map<String, Value>), name: &str) -> Result<Form> {
    let (base, variant) = name.split_once('.').unwrap_or((name, ""));
    let is_template = ["chatml", "llama3", "chat_template", ""].contains(&base);
    if base == "chat_template" && ["", "default"].contains(&variant) {
        if turns(s, key, set)?.0 != "messages" {
            return s.refuse(key, "messages of pairs have role and content", "rename the fields of the records");
        }
        let columns = vec![
            field(set, key!(data.columns.prompt), "field_messages", "messages", "prompt"),
            field(set, key!(data.columns.chosen), "field_chosen", "chosen", "chosen"),
            field(set, key!(data.columns.rejected), "field_rejected", "rejected", "rejected"),
        ];
        return Ok(Form { records: None, columns, as_chat: None });
    }
    let variant = if variant == "default" { "" } else { variant };
    match PAIRS.iter().find(|(known, _)| is_template && *known == variant) {
        Some((_, named)) => {
            let are_texts = named.len() == TEXTS.len();
            Ok(Form { records: None, columns: columns(named), as_chat: are_texts.then_some(!base.is_empty()) })
        }
        None => {
            let known: Vec<&str> = PAIRS.iter().map(|(known, _)| *known).filter(|known| !known.is_empty()).collect();
            let reason = format!("the type {} of pairs is not available", printable(name, 60));
            let fix = format!("use chatml.TYPE or chat_template.TYPE with one of {}, or fields", known.join(", "));
            s.refuse(key, reason, &fix)
        }
    }
}

/// Pairs of ORPO, whose types read conversations alone.
fn pairs_of_orpo(s: &Settings<'_>, key: &str, name: &str) -> Result<Form> {
    if !["chat_template", "chat_template.argilla", ""].contains(&name) {
        let reason = format!("the type {} of ORPO's pairs is not available", printable(name, 60));
        return s.refuse(key, reason, "use chat_template.argilla, or fields");
    }
    Ok(Form { records: None, columns: columns(&CONVERSATIONS), as_chat: None })
}

/// Pairs of a reward model.
fn rewards(s: &Settings<'_>, key: &str, name: &str) -> Result<Form> {
    if !["bradley_terry", "bradley_terry.chat_template", "bradley_terry.llama3"].contains(&name) {
        let reason = format!("the type {} of rewards is not available", printable(name, 60));
        return s.refuse(key, reason, "use bradley_terry.chat_template");
    }
    Ok(Form { records: None, columns: columns(&INPUTS), as_chat: Some(true) })
}

/// Messages with `role` and `content`, or with ShareGPT's `from` and `value`; and the usual column of them.
fn turns(s: &Settings<'_>, key: &str, set: &Map<String, Value>) -> Result<(&'static str, &'static str)> {
    let mapped = |name: &str, old: &str, usual: &'static str| {
        let mapping = set.get("message_property_mappings").and_then(|mapping| mapping.get(name));
        mapping.or_else(|| set.get(old)).and_then(Value::as_str).unwrap_or(usual).to_owned()
    };
    if let Some(Value::Object(mapping)) = set.get("message_property_mappings")
        && let Some(other) = mapping.keys().find(|name| !["role", "content"].contains(&name.as_str()))
    {
        let reason = format!("{} of a message has no counterpart", printable(other, 60));
        return s.refuse(key, reason, "map role and content alone");
    }
    let names = (mapped("role", "message_field_role", "role"), mapped("content", "message_field_content", "content"));
    match (names.0.as_str(), names.1.as_str()) {
        ("role", "content") => Ok(("messages", "messages")),
        ("from", "value") => Ok(("sharegpt", "conversations")),
        (role, content) => {
            let (role, content) = (printable(role, 30), printable(content, 30));
            let reason = format!("messages with {role} and {content} are of no form here");
            s.refuse(key, reason, "rename the fields of the records: role and content, or from and value")
        }
    }
}

/// Refuses what chooses turns in another way than here.
fn check_turns(s: &Settings<'_>, key: &str, set: &Map<String, Value>) -> Result<()> {
    for name in ["train_on_eos", "roles_to_train", "train_on_eot"] {
        let is_usual = match set.get(name) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text == "turn",
            Some(Value::Array(roles)) => roles.iter().all(|role| ["assistant", "gpt"].iter().any(|own| role == *own)),
            Some(_) => false,
        };
        if !is_usual {
            let reason =
                format!("{name} has no counterpart: turns of the assistant are learned, with the token that ends them");
            return s.refuse(key, reason, "remove it, or set data.loss_on in the recipe");
        }
    }
    check_marks(s, key, set)?;
    let roles = match set.get("roles") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(roles)) => roles,
        Some(_) => return s.refuse(key, "roles is not a mapping", "write roles: with the names of each role"),
    };
    for (role, names) in roles {
        let known = ROLES.iter().find(|(known, _)| known == role).map_or(&[][..], |(_, names)| names);
        let names: Vec<&str> = names.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if let Some(other) = names.iter().find(|name| !known.contains(name)) {
            let (other, role) = (printable(other, 30), printable(role, 30));
            let reason = format!("the role {role} is not called {other} here");
            return s.refuse(key, reason, "rename the roles of the records: system, user, assistant");
        }
    }
    Ok(())
}

/// Refuses fields that mark what is learned, but those that records have here.
fn check_marks(s: &Settings<'_>, key: &str, set: &Map<String, Value>) -> Result<()> {
    let named = |name: &str| set.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(name) = named("message_field_training_detail") {
        let reason = format!("{} marks parts of a turn, and a turn is learned as a whole", printable(name, 60));
        return s.refuse(key, reason, "remove message_field_training_detail, and mark turns with train");
    }
    match named("message_field_training").filter(|name| !TURN_MARKS.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let reason = format!("turns that are learned are not marked by {} here", printable(name, 60));
            s.refuse(key, reason, &format!("rename the field of the messages: one of {}", TURN_MARKS.join(", ")))
        }
    }
}

/// A type with fields of its own.
fn own_form(s: &Settings<'_>, key: &str, own: &Map<String, Value>) -> Result<Form> {
    let text = |name: &str| own.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let fields = ["field_instruction", "field_output", "field_input", "field_system"];
    check_fields(s, key, own, &fields, &["{instruction}", "{instruction} {input}"])?;
    let Some(prompt) = text("field_instruction") else {
        return s.refuse(key, "a type of fields has no field_instruction", "write the column of the prompt");
    };
    let has_input = text("field_input").is_some();
    let usual =
        if has_input { ("alpaca", "instruction", "output") } else { ("prompt-completion", "prompt", "completion") };
    let mut columns = vec![column(key!(data.columns.prompt), prompt, usual.1)];
    columns.push(column(key!(data.columns.completion), text("field_output").unwrap_or("output"), usual.2));
    columns.extend(text("field_input").map(|input| column(key!(data.columns.input), input, "input")));
    columns.extend(text("field_system").map(|system| column(key!(data.columns.system), system, "system")));
    Ok(Form { records: Some(usual.0), columns, as_chat: Some(false) })
}

/// Pairs with fields of their own.
fn own_pairs(s: &Settings<'_>, key: &str, own: &Map<String, Value>) -> Result<Form> {
    let fields = ["field_prompt", "field_system", "field_chosen", "field_rejected"];
    check_fields(s, key, own, &fields, &["{prompt}", "{chosen}", "{rejected}"])?;
    let mut columns = vec![
        field(own, key!(data.columns.prompt), "field_prompt", "prompt", "prompt"),
        field(own, key!(data.columns.chosen), "field_chosen", "chosen", "chosen"),
        field(own, key!(data.columns.rejected), "field_rejected", "rejected", "rejected"),
    ];
    let system = own.get("field_system").and_then(Value::as_str);
    columns.extend(system.map(|system| column(key!(data.columns.system), system, "system")));
    Ok(Form { records: None, columns, as_chat: Some(false) })
}

/// Refuses fields of a type that make other texts of the columns.
fn check_fields(s: &Settings<'_>, key: &str, own: &Map<String, Value>, fields: &[&str], plain: &[&str]) -> Result<()> {
    for name in own.keys().map(String::as_str).filter(|name| !fields.contains(name)) {
        let text = own.get(name).and_then(Value::as_str).unwrap_or_default();
        if !text.is_empty() && !plain.contains(&text) {
            let reason =
                format!("{} of a type makes text of a prompt, which input_format does here", printable(name, 60));
            return s.refuse(key, reason, "remove it, and set data.input_format = \"… __input__ …\" in the recipe");
        }
    }
    Ok(())
}
