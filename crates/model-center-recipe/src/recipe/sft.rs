//! The keys of `[data]` that are for supervised fine-tuning and for pairs of completions: forms of records, what is
//! learned, several data sets.
//!
//! Called by `sources.rs`.

use super::data_source::{DataFiles, DataSource};
use super::engine::kinds::{Expected, Range, as_float, as_integer, quote};
use super::engine::layers::Value;
use super::engine::reader::{Otherwise, Reader, Spec};
use super::engine::schema::Shape;
use model_center_data::{
    DATA_CLASSES, DataClass, DataSet, Format, INPUT, LossOn, OUTPUT, PairLabels, RecordForm, SftColumns, SftTask,
    TextFormats,
};
use model_center_formats::tokenizer::KeepSide;
use serde_json::Map;
use std::path::PathBuf;
use std::sync::Arc;

/// Keys that no other task has.
const KEYS: [&str; 11] = [
    "data.sets",
    "data.records",
    "data.loss_on",
    "data.truncate",
    "data.as_chat",
    "data.input_format",
    "data.output_format",
    "data.columns.messages",
    "data.columns.completion",
    "data.columns.input",
    "data.columns.system",
];
/// Keys of pairs of completions alone.
const OF_PAIRS: [&str; 2] = ["data.columns.chosen", "data.columns.rejected"];
/// Keys of single samples, which have several forms.
const OF_SINGLE: [&str; 5] =
    ["data.records", "data.columns.messages", "data.columns.completion", "data.columns.input", "data.columns.text"];

/// Keys of a data set.
const OF_SET: [&str; 10] = [
    "path",
    "eval",
    "class",
    "config",
    "proportion",
    "records",
    "input_format",
    "output_format",
    "max_input_tokens",
    "max_output_tokens",
];

const FORMAT: Expected = Expected { what: "a text with __input__ or __output__", example: "Q: __input__\nA:" };

/// A data set as a recipe has it, with defaults of the recipe where it sets nothing.
#[derive(Debug, Clone, PartialEq, Default)]
struct GivenSet {
    path: PathBuf,
    eval: Option<PathBuf>,
    class: Option<&'static DataClass>,
    config: Map<String, serde_json::Value>,
    proportion: Option<f64>,
    form: Option<RecordForm>,
    input_format: Option<String>,
    output_format: Option<String>,
    max_input_tokens: Option<usize>,
    max_output_tokens: Option<usize>,
}

/// Settings of the keys of the task.
pub(super) struct SftKeys {
    sets: Vec<GivenSet>,
    form: Option<RecordForm>,
    loss_on: LossOn,
    keep: KeepSide,
    as_chat: bool,
    formats: TextFormats,
    columns: SftColumns,
}

/// The keys that several tasks have.
pub(super) struct Shared {
    /// Comparison of pairs of completions.
    pub(super) pairs: Option<PairLabels>,
    pub(super) train: Option<PathBuf>,
    pub(super) eval: Option<PathBuf>,
    pub(super) format: Option<Format>,
    pub(super) prompt: Option<String>,
    pub(super) text: String,
    pub(super) label: String,
}

/// Reads the keys.
pub(super) fn read(r: &mut Reader, column: Expected) -> SftKeys {
    let mut forms = vec![("auto", None)];
    forms.extend(RecordForm::ALL.map(|(name, form)| (name, Some(form))));
    let losses = [("assistant", LossOn::Assistant), ("last", LossOn::Last), ("all", LossOn::All)];
    let sides = [("right", KeepSide::Start), ("left", KeepSide::End)];
    let usual = "not set: as the form of the records has it";
    SftKeys {
        sets: read_sets(r).unwrap_or_default(),
        form: r.choice("data.records", &forms, None),
        loss_on: r.choice("data.loss_on", &losses, LossOn::Assistant),
        keep: r.choice("data.truncate", &sides, KeepSide::Start),
        as_chat: r.flag("data.as_chat", false),
        formats: TextFormats {
            input_format: r.text("data.input_format", INPUT, FORMAT),
            output_format: r.text("data.output_format", OUTPUT, FORMAT),
        },
        columns: SftColumns {
            messages: r.optional_text("data.columns.messages", usual, column),
            completion: r.optional_text("data.columns.completion", usual, column),
            input: r.optional_text("data.columns.input", "not set: `input`, where records have it", column),
            system: r.optional_text("data.columns.system", "not set: `system`, where records have it", column),
            chosen: r.optional_text("data.columns.chosen", "not set: `chosen`", column),
            rejected: r.optional_text("data.columns.rejected", "not set: `rejected`", column),
            prompt: None,
            text: None,
            label: None,
        },
    }
}

/// Refuses the keys, for another task.
pub(super) fn refuse(r: &mut Reader) {
    for key in KEYS {
        r.without_effect(key, "data.task", "it is for tasks sft, preference and reward", "remove it");
    }
    refuse_of_pairs(r);
}

/// Refuses the keys of pairs, for another task.
pub(super) fn refuse_of_pairs(r: &mut Reader) {
    for key in OF_PAIRS {
        r.without_effect(key, "data.task", "it is for tasks preference and reward", "remove it");
    }
}

/// Refuses the keys of single samples, for pairs.
pub(super) fn refuse_of_single(r: &mut Reader, labels: PairLabels) {
    for key in OF_SINGLE {
        // Where completions are judged, which is known later, `data.columns.completion` has an effect.
        if labels == PairLabels::Rewards || key != "data.columns.completion" {
            r.without_effect(key, "data.task", "records of pairs have one form", "remove it");
        }
    }
    if labels == PairLabels::Rewards {
        r.without_effect("data.loss_on", "data.task", "the head reads a sequence as a whole", "remove it");
    }
}

/// The source of the task.
pub(super) fn source(r: &mut Reader, keys: SftKeys, shared: Shared) -> DataSource {
    let SftKeys { sets, form, loss_on, keep, as_chat, formats, columns } = keys;
    for key in ["data.path", "data.labels", "data.template", "data.words"] {
        let fix = "remove it, and name files with data.train or data.sets";
        r.without_effect(key, "data.task", "it is for tasks with classes or with files of their own", fix);
    }
    let foreign = ["data.columns.text_pair", "data.columns.target", "data.columns.label"];
    // The label is of judged completions, which are known later.
    let count = if shared.pairs == Some(PairLabels::LogProbs) { 2 } else { 3 };
    for key in foreign.into_iter().take(count) {
        r.without_effect(key, "data.task", "records of the task have other columns", "remove it");
    }
    if shared.pairs != Some(PairLabels::Rewards) {
        r.without_effect("model.head", "data.task", "a model keeps its language-modelling head", "remove it");
    }
    if shared.format == Some(Format::Text) {
        let fix = "write records, or set data.task = \"language\"";
        r.contradiction(&["data.format", "data.task"], "plain text has no columns, and this task needs them", fix);
    }
    let text = r.is_explicit("data.columns.text").then_some(shared.text);
    if text.is_none() {
        r.without_effect("data.columns.text", "data.records", "the form of the records names it", "remove it");
    }
    let label = r.is_explicit("data.columns.label").then_some(shared.label);
    let columns = SftColumns { prompt: shared.prompt, text, label, ..columns };
    let one = |path: PathBuf| GivenSet { path, eval: shared.eval.clone(), ..GivenSet::default() };
    let given = match (shared.train, sets.is_empty()) {
        (Some(_), false) => {
            let reason = "`data.train` and `data.sets` both name the training data";
            r.contradiction(&["data.train", "data.sets"], reason, "keep one of the two");
            sets
        }
        (Some(train), true) => vec![one(train)],
        (None, false) => {
            let why = "each set of data.sets names its own evaluation data";
            r.without_effect("data.eval", "data.sets", why, "set `eval` of a data set");
            sets
        }
        (None, true) => {
            let fix = "set data.train = \"data/train.jsonl\"";
            let reason = "`data.train` is missing: the file or directory to learn from";
            r.absent(&["data.task", "data.train", "data.sets"], reason, fix);
            Vec::new()
        }
    };
    let set = |given: GivenSet| DataSet {
        path: given.path,
        eval: given.eval,
        class: given.class,
        config: given.config,
        proportion: given.proportion.unwrap_or(1.0),
        form: given.form.or(form),
        formats: TextFormats {
            input_format: given.input_format.unwrap_or_else(|| formats.input_format.clone()),
            output_format: given.output_format.unwrap_or_else(|| formats.output_format.clone()),
        },
        max_input_tokens: given.max_input_tokens,
        max_output_tokens: given.max_output_tokens,
    };
    let sets: Vec<DataSet> = given.into_iter().map(set).collect();
    if as_chat && sets.iter().any(|set| set.class.is_none() && has_limits(set)) {
        let reason = "`max_input_tokens` and `max_output_tokens` shorten texts, and `data.as_chat` makes turns of them";
        r.contradiction(&["data.sets", "data.as_chat"], reason, "remove them: data.max_length bounds a conversation");
    }
    for set in &sets {
        let TextFormats { input_format, output_format } = &set.formats;
        for (key, name, format) in
            [("data.input_format", INPUT, input_format), ("data.output_format", OUTPUT, output_format)]
        {
            if !format.contains(name) {
                let reason = format!("the format {} has no {name}", quote(format));
                r.contradiction(&[key, "data.sets"], reason, format!("write {name} where the text is to be"));
            }
        }
    }
    let task = SftTask { pairs: shared.pairs, sets, columns, format: shared.format, loss_on, keep, as_chat };
    DataSource::new(Arc::new(task), DataFiles::OfTask)
}

fn has_limits(set: &DataSet) -> bool {
    set.max_input_tokens.is_some() || set.max_output_tokens.is_some()
}

/// A list of tables, `[[data.sets]]`.
fn read_sets(r: &mut Reader) -> Option<Vec<GivenSet>> {
    let classes: Vec<&'static DataClass> = DATA_CLASSES.iter().chain(r.own.classes).collect();
    let names: Vec<&str> = classes.iter().map(|class| class.name).collect();
    if let Some((_, twice)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        let reason = format!("two classes of data of this program have the name {twice}");
        r.contradiction(&["data.sets"], reason, "rename the class that the program adds");
    }
    let wanted = format!(
        "a list of tables with path or class (records, {}) and, if need be, eval, config, proportion, records, \
         input_format, output_format, max_input_tokens, max_output_tokens",
        names.join(", ")
    );
    r.shape("data.sets", Shape::List(Shape::Table(&OF_SET, None).into()));
    r.read(Spec {
        key: "data.sets",
        textual: false,
        wanted,
        example: "[{ path = \"data/chats.jsonl\", proportion = 3 }, { path = \"data/facts\", proportion = 1 }]".into(),
        otherwise: Otherwise::Absent("not set: data.train"),
        read: &|value| match value {
            Value::Array(items) if !items.is_empty() => items.iter().map(|item| given_set(item, &classes)).collect(),
            _ => None,
        },
        render: &|sets: &Vec<GivenSet>| format!("[{}]", sets.iter().map(render).collect::<Vec<_>>().join(", ")),
    })
}

fn given_set(value: &Value, classes: &[&'static DataClass]) -> Option<GivenSet> {
    let Value::Table(entries) = value else { return None };
    let mut set = GivenSet::default();
    for (name, value) in entries {
        let text = || if let Value::Text(text) = value { Some(text.clone()) } else { None };
        let path = || text().filter(|text| !text.trim().is_empty()).map(PathBuf::from);
        let count = || as_integer(value).filter(|count| *count > 0).map(|count| count as usize);
        match name.as_str() {
            "path" => set.path = path()?,
            "eval" => set.eval = Some(path()?),
            "class" => match text()?.as_str() {
                "records" => set.class = None,
                name => set.class = Some(classes.iter().find(|class| class.name == name)?),
            },
            "config" => {
                let serde_json::Value::Object(fields) = json_of(value)? else { return None };
                set.config = fields;
            }
            "proportion" => set.proportion = Some(as_float(value).filter(|v| Range::Above(0.0).contains(*v))?),
            "records" => {
                let text = text()?;
                set.form = Some(RecordForm::ALL.iter().find(|(name, _)| *name == text).map(|(_, form)| *form)?);
            }
            "input_format" => set.input_format = Some(text()?),
            "output_format" => set.output_format = Some(text()?),
            "max_input_tokens" => set.max_input_tokens = Some(count()?),
            "max_output_tokens" => set.max_output_tokens = Some(count()?),
            _ => return None,
        }
    }
    // A class may have no files.
    (!set.path.as_os_str().is_empty() || set.class.is_some()).then_some(set)
}

fn json_of(value: &Value) -> Option<serde_json::Value> {
    Some(match value {
        Value::Text(text) => text.clone().into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Bool(flag) => (*flag).into(),
        Value::Array(items) => serde_json::Value::Array(items.iter().map(json_of).collect::<Option<_>>()?),
        Value::Table(entries) => {
            let fields = entries.iter().map(|(name, value)| Some((name.clone(), json_of(value)?)));
            serde_json::Value::Object(fields.collect::<Option<_>>()?)
        }
        Value::Other(_) | Value::Raw(_) => return None,
    })
}

fn toml_of(value: &serde_json::Value) -> String {
    use serde_json::Value as Json;
    match value {
        Json::String(text) => quote(text),
        Json::Array(items) => format!("[{}]", items.iter().map(toml_of).collect::<Vec<_>>().join(", ")),
        Json::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{} = {}", quote(name), toml_of(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        // No recipe has null.
        Json::Null | Json::Bool(_) | Json::Number(_) => value.to_string(),
    }
}

fn render(set: &GivenSet) -> String {
    let mut fields = Vec::new();
    let mut add = |name: &str, value: Option<String>| fields.extend(value.map(|value| format!("{name} = {value}")));
    let path = |path: &PathBuf| quote(&path.to_string_lossy());
    add("path", Some(&set.path).filter(|path| !path.as_os_str().is_empty()).map(path));
    add("eval", set.eval.as_ref().map(path));
    add("class", set.class.map(|class| quote(class.name)));
    add("config", (!set.config.is_empty()).then(|| toml_of(&set.config.clone().into())));
    add("proportion", set.proportion.map(|proportion| format!("{proportion:?}")));
    let name = |form| RecordForm::ALL.iter().find(|(_, other)| *other == form).map(|(name, _)| quote(name));
    add("records", set.form.and_then(name));
    add("input_format", set.input_format.as_deref().map(quote));
    add("output_format", set.output_format.as_deref().map(quote));
    add("max_input_tokens", set.max_input_tokens.map(|most| most.to_string()));
    add("max_output_tokens", set.max_output_tokens.map(|most| most.to_string()));
    format!("{{ {} }}", fields.join(", "))
}
