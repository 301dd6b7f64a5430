//! Pairs of completions, a better and a worse one: their columns and lengths.

use super::conversations::{estimated, task_of, turns};
use super::files::{self, SftLengths, Usable, data_and_eval};
use super::model::FoundModel;
use super::table::{Column, Table};
use super::{Starter, StarterOptions, TrainingSamples};
use crate::{Error, Result};
use model_center_data::{PairLabels, SftColumns, SftTask};
use model_center_recipe::key;
use serde_json::{Map, Value};

/// Usual names of the better and the worse completion.
const PAIRS: [(&str, &str); 7] = [
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("response_chosen", "response_rejected"),
    ("preferred", "dispreferred"),
    ("better", "worse"),
    ("positive", "negative"),
    ("accepted", "rejected"),
];
/// Usual names of the prompt.
const PROMPTS: [&str; 6] = ["prompt", "instruction", "question", "input", "query", "messages"];

/// Writes `[data]`.
pub(super) fn write(options: &StarterOptions, model: &FoundModel, made: &mut Starter) -> Result<TrainingSamples> {
    let (data, eval) = data_and_eval(options);
    let table = Table::read(&data)?;
    let found = Found::of(&table, options)?;
    let are_chats = !found.chosen.is_single || !found.rejected.is_single;
    if are_chats {
        model.needs_template(&table.place)?;
    }
    made.sheet.text(
        key!(data.task),
        "preference",
        "of two completions the better one becomes more likely than the worse one",
    );
    let texts = |row: &Map<String, Value>, column: &Column| {
        let prompt = found.prompt.filter(|prompt| !are_chats || !prompt.is_single);
        let columns = prompt.into_iter().chain([column]);
        columns.filter_map(|column| row.get(&column.name)).flat_map(turns).collect::<Vec<String>>()
    };
    let of_pair = |row: &Map<String, Value>| [texts(row, found.chosen), texts(row, found.rejected)].concat().concat();
    let task = found.task(are_chats, model);
    let mut usable = Usable::of(&table, |record| task.check(record))?;
    let lengths = SftLengths::of(&table, &usable, &task, model)?;
    let lengths = lengths.map(|lengths| Ok::<_, Error>((lengths.limit(&table, model)?, lengths))).transpose()?;
    if let Some(((limit, _), lengths)) = &lengths {
        usable.exclude(lengths, *limit);
    }
    let rows = usable.rows(&table, of_pair);
    let count = files::write(options, (&table, &data, eval.as_ref()), &rows, made);
    found.write(are_chats, model, made);
    let length = match lengths {
        Some((limit, lengths)) => lengths.write(&table, limit, made),
        None => {
            let of = |column| estimated(&table, |row| texts(row, column), model);
            let longer = of(found.chosen)?.into_iter().zip(of(found.rejected)?).map(|(one, other)| one.max(other));
            files::write_length(longer.collect(), (model, false), made)
        }
    };
    files::write_flaws(&table, Some(&usable), made);
    Ok(TrainingSamples { count, length, sequences: 2, is_run: false })
}

/// The columns of pairs.
struct Found<'t> {
    prompt: Option<&'t Column>,
    chosen: &'t Column,
    rejected: &'t Column,
}

impl<'t> Found<'t> {
    fn of(table: &'t Table, options: &StarterOptions) -> Result<Found<'t>> {
        let usual = |name: &str| table.called(name).next();
        let (chosen, rejected) = match (table.named(options, "chosen")?, table.named(options, "rejected")?) {
            (Some(chosen), Some(rejected)) => (chosen, rejected),
            (None, None) => {
                let pair = PAIRS.iter().find_map(|(one, other)| Some((usual(one)?, usual(other)?)));
                pair.ok_or_else(|| {
                    let fix = format!(
                        "name them: --column chosen=NAME --column rejected=NAME, and --column prompt=NAME; {}",
                        table.list()
                    );
                    Error::data(table.place.clone(), "no two columns look like a better and a worse completion", fix)
                })?
            }
            _ => {
                let fix = "give --column chosen=NAME and --column rejected=NAME";
                return Err(Error::argument("--column", "a pair of completions is two columns", fix));
            }
        };
        let prompt = match table.named(options, "prompt")? {
            Some(prompt) => Some(prompt),
            None => PROMPTS.iter().find_map(|name| usual(name)),
        };
        Ok(Found { prompt, chosen, rejected })
    }

    /// Whether prompts and completions become turns.
    fn as_chat(&self, are_chats: bool, model: &FoundModel) -> bool {
        !are_chats && self.prompt.is_some() && model.chat.is_some()
    }

    /// The task of the recipe.
    fn task(&self, are_chats: bool, model: &FoundModel) -> SftTask {
        let named = |usual: &str, column: &Column| Some(column.name.clone()).filter(|name| name != usual);
        let columns = SftColumns {
            prompt: self.prompt.and_then(|prompt| named("prompt", prompt)),
            chosen: named("chosen", self.chosen),
            rejected: named("rejected", self.rejected),
            ..SftColumns::default()
        };
        SftTask { pairs: Some(PairLabels::LogProbs), ..task_of(None, columns, self.as_chat(are_chats, model)) }
    }

    fn write(&self, are_chats: bool, model: &FoundModel, made: &mut Starter) {
        let sheet = &mut made.sheet;
        let columns = [
            (key!(data.columns.prompt), "prompt", self.prompt),
            (key!(data.columns.chosen), "chosen", Some(self.chosen)),
            (key!(data.columns.rejected), "rejected", Some(self.rejected)),
        ];
        for (key, usual, column) in columns {
            if let Some(column) = column.filter(|column| column.name != usual) {
                sheet.text(key, &column.name, "the file's name of it");
            }
        }
        if self.as_chat(are_chats, model) {
            let why = "the model has a chat template: prompts and completions become its turns";
            sheet.flag(key!(data.as_chat), true, why);
        }
    }
}
