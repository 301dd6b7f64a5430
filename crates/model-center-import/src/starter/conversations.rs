//! Conversations, prompts with completions, and texts: their form, their columns, their lengths.

use super::files::{self, SftLengths, Usable, data_and_eval};
use super::model::FoundModel;
use super::table::{Table, single};
use super::{Starter, StarterOptions, TrainingSamples};
use crate::{Error, Result};
use model_center_data::{DataSet, LossOn, RecordForm, SftColumns, SftTask, TextFormats};
use model_center_formats::tokenizer::KeepSide;
use model_center_recipe::key;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Usual names of prompts and completions beside the forms that are known.
const PAIRS: [(&str, &str); 12] = [
    ("question", "answer"),
    ("prompt", "response"),
    ("instruction", "response"),
    ("query", "response"),
    ("question", "response"),
    ("prompt", "answer"),
    ("user", "assistant"),
    ("source", "target"),
    ("document", "summary"),
    ("article", "highlights"),
    ("text", "summary"),
    ("input", "target"),
];
/// Tokens that a template adds to a turn, about.
const OF_TURN: usize = 6;

/// Writes `[data]`.
pub(super) fn write(options: &StarterOptions, model: &FoundModel, made: &mut Starter) -> Result<TrainingSamples> {
    let (data, eval) = data_and_eval(options);
    let table = Table::read(&data)?;
    let found = Found::of(&table, options)?;
    if matches!(found.form, RecordForm::Messages | RecordForm::ShareGpt) {
        model.needs_template(&table.place)?;
    }
    made.sheet.text(key!(data.task), "sft", "the completions, or what the assistant writes, are learned");
    let of_row = |row: &Map<String, Value>| texts(row, &found);
    let task = found.task(model);
    let mut usable = Usable::of(&table, |record| task.check(record))?;
    let lengths = SftLengths::of(&table, &usable, &task, model)?;
    let lengths = lengths.map(|lengths| Ok::<_, Error>((lengths.limit(&table, model)?, lengths))).transpose()?;
    if let Some(((limit, _), lengths)) = &lengths {
        usable.exclude(lengths, *limit);
    }
    let rows = usable.rows(&table, |row| of_row(row).concat());
    let count = files::write(options, (&table, &data, eval.as_ref()), &rows, made);
    found.write(model, made);
    let length = match lengths {
        Some((limit, lengths)) => lengths.write(&table, limit, made),
        None => files::write_length(estimated(&table, of_row, model)?, (model, false), made),
    };
    files::write_flaws(&table, Some(&usable), made);
    Ok(TrainingSamples { count, length, sequences: 1, is_run: false })
}

/// The tokens of some records without a tokenizer, about.
pub(super) fn estimated(
    table: &Table,
    texts: impl Fn(&Map<String, Value>) -> Vec<String>,
    model: &FoundModel,
) -> Result<Vec<usize>> {
    let lengths = files::sampled(table, files::COUNTED).map(|row| {
        let texts = texts(row);
        Ok(model.count(&texts.join("\n"), None)? + OF_TURN * texts.len())
    });
    lengths.collect()
}

/// A task with one data set, for what its records are.
pub(super) fn task_of(form: Option<RecordForm>, columns: SftColumns, as_chat: bool) -> SftTask {
    let set = DataSet {
        path: PathBuf::new(),
        eval: None,
        class: None,
        config: Map::new(),
        proportion: 1.0,
        form,
        formats: TextFormats::default(),
        max_input_tokens: None,
        max_output_tokens: None,
    };
    SftTask {
        pairs: None,
        sets: vec![set],
        columns,
        format: None,
        loss_on: LossOn::default(),
        keep: KeepSide::default(),
        as_chat,
    }
}

/// The form of the records.
struct Found {
    form: RecordForm,
    /// The name of the form in recipes.
    name: &'static str,
    /// Columns in their order: what is read, what is learned.
    columns: Vec<String>,
    /// Whether these are the form's own names.
    is_usual: bool,
}

impl Found {
    fn of(table: &Table, options: &StarterOptions) -> Result<Found> {
        let named = |what: &str| Ok::<_, Error>(table.named(options, what)?.map(|column| column.name.clone()));
        let (prompt, completion) = (named("prompt")?, named("completion")?);
        let own = |form: RecordForm, columns: Vec<String>| Found { form, name: name(form), columns, is_usual: false };
        match (prompt, completion, named("messages")?, named("text")?) {
            (_, _, Some(messages), _) => return Ok(own(RecordForm::Messages, vec![messages])),
            (Some(prompt), Some(completion), ..) => {
                return Ok(own(RecordForm::PromptCompletion, vec![prompt, completion]));
            }
            (None, None, None, Some(text)) => return Ok(own(RecordForm::Text, vec![text])),
            (None, None, None, None) => {}
            _ => {
                let fix = "give --column prompt=NAME and --column completion=NAME";
                return Err(Error::argument("--column", "a prompt and its completion are two columns", fix));
            }
        }
        let has = |name: &str| table.column(name).is_some_and(|column| column.filled > 0 || !column.is_single);
        let usual: [(RecordForm, &[&str]); 6] = [
            (RecordForm::Messages, &["messages"]),
            (RecordForm::ShareGpt, &["conversations"]),
            (RecordForm::Alpaca, &["instruction", "output"]),
            (RecordForm::PromptCompletion, &["prompt", "completion"]),
            (RecordForm::InputOutput, &["input", "output"]),
            (RecordForm::Text, &["text"]),
        ];
        let is_there = |(_, columns): &&(RecordForm, &[&str])| columns.iter().all(|name| has(name));
        // A text beside other columns may be the prompt of a pair.
        let whole =
            usual.iter().find(is_there).filter(|(form, _)| *form != RecordForm::Text || table.columns.len() == 1);
        if let Some((form, columns)) = whole {
            let mut columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
            if *form == RecordForm::Alpaca && has("input") {
                columns.insert(1, "input".into());
            }
            return Ok(Found { form: *form, name: name(*form), columns, is_usual: true });
        }
        if let Some((prompt, completion)) = table.usual_pair(&PAIRS) {
            return Ok(own(RecordForm::PromptCompletion, vec![prompt.name.clone(), completion.name.clone()]));
        }
        match table.usual(&["text", "content", "body"]) {
            Some(text) => Ok(own(RecordForm::Text, vec![text.name.clone()])),
            None => {
                let fix = format!(
                    "name them: --column prompt=NAME --column completion=NAME, or --column text=NAME; {}",
                    table.list()
                );
                Err(Error::data(table.place.clone(), "the columns are of no known form", fix))
            }
        }
    }

    /// Whether prompts and completions become turns.
    fn as_chat(&self, model: &FoundModel) -> bool {
        let is_pair = matches!(self.form, RecordForm::Alpaca | RecordForm::PromptCompletion | RecordForm::InputOutput);
        is_pair && model.chat.is_some()
    }

    /// The task of the recipe.
    fn task(&self, model: &FoundModel) -> SftTask {
        let mut columns = SftColumns::default();
        if !self.is_usual {
            let mut names = self.columns.iter().cloned();
            match self.form {
                RecordForm::Messages | RecordForm::ShareGpt => columns.messages = names.next(),
                RecordForm::Text => columns.text = names.next(),
                _ => (columns.prompt, columns.completion) = (names.next(), names.next()),
            }
        }
        task_of(Some(self.form), columns, self.as_chat(model))
    }

    fn write(&self, model: &FoundModel, made: &mut Starter) {
        let sheet = &mut made.sheet;
        sheet.text(key!(data.records), self.name, format!("columns {}", self.columns.join(", ")));
        if !self.is_usual {
            let keys = match self.form {
                RecordForm::Messages | RecordForm::ShareGpt => vec![key!(data.columns.messages)],
                RecordForm::Text => vec![key!(data.columns.text)],
                _ => vec![key!(data.columns.prompt), key!(data.columns.completion)],
            };
            for (key, name) in keys.into_iter().zip(&self.columns) {
                sheet.text(key, name, "the file's name of it");
            }
        }
        if self.as_chat(model) {
            let why = "the model has a chat template: prompts and completions become its turns";
            sheet.flag(key!(data.as_chat), true, why);
        }
    }
}

fn name(form: RecordForm) -> &'static str {
    RecordForm::ALL.iter().find(|(_, other)| *other == form).map_or("auto", |(name, _)| name)
}

/// The texts of a record, one for each turn.
fn texts(row: &Map<String, Value>, found: &Found) -> Vec<String> {
    found.columns.iter().filter_map(|name| row.get(name)).flat_map(turns).collect()
}

/// The texts of a value: itself, or the contents of messages.
pub(super) fn turns(value: &Value) -> Vec<String> {
    let content = |item: &Value| ["content", "value"].iter().find_map(|name| item.get(*name)).and_then(single);
    match value {
        Value::Array(items) => items.iter().filter_map(content).collect(),
        other => single(other).into_iter().collect(),
    }
}
