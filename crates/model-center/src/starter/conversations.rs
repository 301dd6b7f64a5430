//! Conversations, prompts with completions, and texts: their form, their columns, their lengths.

use super::model::{FoundModel, limit};
use super::split::{self, Sides};
use super::table::{Table, evaluation_file, single};
use super::{Starter, StarterOptions, TrainingSamples};
use crate::data::RecordForm;
use crate::import::keys;
use crate::recipe::quote;
use crate::{Error, Result};
use serde_json::{Map, Value};

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
/// Tokens of Alpaca's own prompt, about.
const OF_ALPACA: usize = 50;

/// Writes `[data]`.
pub(super) fn write(options: &StarterOptions, model: &FoundModel, made: &mut Starter) -> Result<TrainingSamples> {
    let mut data = options.data.clone();
    let eval = match (&options.eval, evaluation_file(&data)) {
        (None, Some(at)) => Some(data.remove(at)),
        (given, _) => given.clone(),
    };
    let table = Table::read(&data)?;
    let found = Found::of(&table, options)?;
    let is_chat = matches!(found.form, RecordForm::Messages | RecordForm::ShareGpt);
    if is_chat && model.tokenizer.is_some() && !model.has_template {
        let reason = format!("{} has conversations, and the model has no chat template", table.place);
        let fix = "name a model with one, such as HuggingFaceTB/SmolLM2-135M-Instruct, or put chat_template.jinja into \
                   the model's directory";
        return Err(Error::model(model.name.clone(), reason, fix));
    }
    let sheet = &mut made.sheet;
    sheet.text(keys::TASK, "sft", "the completions, or what the assistant writes, are learned");
    let mut count = table.rows.len();
    let names: Vec<String> = data.iter().map(|path| path.display().to_string()).collect();
    match (&eval, names.as_slice()) {
        (None, _) if table.is_whole && count >= 10 => {
            let text = |row: &Map<String, Value>| Some((texts(row, &found).concat(), String::new()));
            let rows: Vec<Option<(String, String)>> = table.rows.iter().map(text).collect();
            let Sides { train, eval } = split::divide(&rows);
            let [train_path, eval_path] = split::paths(options);
            let why = format!("{} of the records of {}", train.len(), names.join(", "));
            sheet.text(keys::TRAIN, &train_path.display().to_string(), why);
            let why = format!("the other {}: about a tenth, chosen by the hash of the text", eval.len());
            sheet.text(keys::EVAL, &eval_path.display().to_string(), why);
            count = train.len();
            made.files.push((train_path, split::lines(&table.rows, &train)));
            made.files.push((eval_path, split::lines(&table.rows, &eval)));
        }
        (eval, [train]) => {
            sheet.text(keys::TRAIN, train, format!("{count} records"));
            match eval {
                Some(eval) => sheet.text(keys::EVAL, &eval.display().to_string(), "given"),
                None => made.remark("data.eval", "too few or too many records to split; give --eval FILE".into()),
            }
        }
        (eval, several) => {
            let set = |(at, path): (usize, &String)| match eval {
                Some(eval) if at == 0 => {
                    format!("{{ path = {}, eval = {} }}", quote(path), quote(&eval.display().to_string()))
                }
                _ => format!("{{ path = {} }}", quote(path)),
            };
            let sets: Vec<String> = several.iter().enumerate().map(set).collect();
            let why = format!("{count} records; `proportion` of a set is its share of an epoch");
            sheet.raw(keys::SETS, format!("[{}]", sets.join(", ")), why);
        }
    }
    found.write(model, made);
    let step = table.rows.len().div_ceil(1000).max(1);
    let sampled = table.rows.iter().step_by(step);
    let lengths: Result<Vec<usize>> = sampled
        .map(|row| {
            let texts = texts(row, &found);
            let has_own_prompt = found.form == RecordForm::Alpaca && !model.has_template;
            let more = if has_own_prompt { OF_ALPACA } else { OF_TURN * texts.len() };
            Ok(model.count(&texts.join("\n"), None)? + more)
        })
        .collect();
    let (length, longest) = limit(&mut lengths?, model.positions);
    let positions =
        model.positions.map_or_else(String::new, |positions| format!("; the model has {positions} positions"));
    let counted = model.counted();
    let why = format!(
        "the 99th percentile of the samples' tokens{counted}, the longest about {longest}{positions}; \
         `data preview` counts exactly"
    );
    made.sheet.whole(keys::MAX_LENGTH, length as u64, why);
    if let Some(flaws) = table.flaws() {
        made.sheet.text(keys::ON_BAD_RECORD, "skip", flaws.clone());
        made.remark(&table.place, flaws);
    }
    Ok(TrainingSamples { count, length, is_run: false })
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
        let pair = PAIRS.iter().find_map(|(one, other)| Some((table.usual(&[*one])?, table.usual(&[*other])?)));
        if let Some((prompt, completion)) = pair {
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

    fn write(&self, model: &FoundModel, made: &mut Starter) {
        let sheet = &mut made.sheet;
        sheet.text(keys::RECORDS, self.name, format!("columns {}", self.columns.join(", ")));
        if !self.is_usual {
            let keys = match self.form {
                RecordForm::Messages | RecordForm::ShareGpt => vec![keys::COLUMN_MESSAGES],
                RecordForm::Text => vec![keys::COLUMN_TEXT],
                _ => vec![keys::COLUMN_PROMPT, keys::COLUMN_COMPLETION],
            };
            for (key, name) in keys.into_iter().zip(&self.columns) {
                sheet.text(key, name, "the file's name of it");
            }
        }
        let is_pair = matches!(self.form, RecordForm::Alpaca | RecordForm::PromptCompletion | RecordForm::InputOutput);
        if is_pair && model.has_template {
            let why = "the model has a chat template: prompts and completions become its turns";
            sheet.flag(keys::AS_CHAT, true, why);
        }
    }
}

fn name(form: RecordForm) -> &'static str {
    RecordForm::ALL.iter().find(|(_, other)| *other == form).map_or("auto", |(name, _)| name)
}

/// The texts of a record, one for each turn.
fn texts(row: &Map<String, Value>, found: &Found) -> Vec<String> {
    let of = |value: &Value| match value {
        Value::Array(items) => items
            .iter()
            .filter_map(|item| ["content", "value"].iter().find_map(|name| item.get(*name)).and_then(single))
            .collect(),
        other => single(other).into_iter().collect::<Vec<String>>(),
    };
    found.columns.iter().filter_map(|name| row.get(name)).flat_map(of).collect()
}
