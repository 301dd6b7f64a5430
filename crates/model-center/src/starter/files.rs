//! The data files of a recipe: which are evaluated, what is split off, how long the samples are.

use super::model::{FoundModel, limit};
use super::split::{self, Sides};
use super::table::{Table, evaluation_file};
use super::{Starter, StarterOptions};
use crate::import::keys;
use crate::recipe::quote;
use serde_json::{Map, Value};
use std::path::PathBuf;

pub(super) const TOO_LARGE: &str = "the data are too large to be split here; give --eval FILE";
/// Fewer records are not split.
const FEWEST: usize = 10;
/// Records whose lengths are counted.
const COUNTED: usize = 1000;

/// The training data and the evaluation data: `--eval`, or the one of several files that has a name of such data.
pub(super) fn data_and_eval(options: &StarterOptions) -> (Vec<PathBuf>, Option<PathBuf>) {
    let mut data = options.data.clone();
    match (&options.eval, evaluation_file(&data)) {
        (None, Some(at)) => {
            let eval = data.remove(at);
            (data, Some(eval))
        }
        (given, _) => (data, given.clone()),
    }
}

/// Splits evaluation data off the records of `name`, `kind` of them, and writes both files; the training records.
/// Where none can be split off, all are for training, in a file of their own if some records are on no side.
///
/// `rows` are the text and the group of each record.
pub(super) fn split_off(
    options: &StarterOptions,
    (table, rows): (&Table, &[Option<(String, String)>]),
    (name, kind): (&str, &str),
    made: &mut Starter,
) -> usize {
    let Sides { train, eval } = split::divide(rows);
    let [train_path, eval_path] = split::paths(options);
    if eval.is_empty() {
        let (path, why) = match train.len() == table.rows.len() {
            true => (name.to_owned(), format!("{} records", train.len())),
            false => {
                made.files.push((train_path.clone(), split::lines(&table.rows, &train)));
                (train_path.display().to_string(), format!("{} of the records of {name}", train.len()))
            }
        };
        made.sheet.text(keys::TRAIN, &path, why);
        made.remark("data.eval", "too few different records to split; give --eval FILE".into());
        return train.len();
    }
    let why = format!("{} of the records of {name}", train.len());
    made.sheet.text(keys::TRAIN, &train_path.display().to_string(), why);
    let why = format!("the other {}: {kind}, chosen by the hash of the text", eval.len());
    made.sheet.text(keys::EVAL, &eval_path.display().to_string(), why);
    made.files.push((train_path, split::lines(&table.rows, &train)));
    made.files.push((eval_path, split::lines(&table.rows, &eval)));
    train.len()
}

/// Writes training and evaluation data of one file or of several data sets; the training records. `text` gives what
/// records are divided by.
pub(super) fn write(
    options: &StarterOptions,
    (table, data, eval): (&Table, &[PathBuf], Option<&PathBuf>),
    text: impl Fn(&Map<String, Value>) -> String,
    made: &mut Starter,
) -> usize {
    let count = table.rows.len();
    let names: Vec<String> = data.iter().map(|path| path.display().to_string()).collect();
    match (eval, names.as_slice()) {
        (None, _) if table.is_whole && count >= FEWEST => {
            let rows: Vec<Option<(String, String)>> =
                table.rows.iter().map(|row| Some((text(row), String::new()))).collect();
            // Of several files the records are joined, whatever is split off.
            if let [name] = names.as_slice() {
                return split_off(options, (table, &rows), (name, "about a tenth"), made);
            }
            if !split::divide(&rows).eval.is_empty() {
                return split_off(options, (table, &rows), (&names.join(", "), "about a tenth"), made);
            }
            write_sets(&names, None, count, made);
        }
        (eval, [train]) => {
            made.sheet.text(keys::TRAIN, train, format!("{count} records"));
            match eval {
                Some(eval) => made.sheet.text(keys::EVAL, &eval.display().to_string(), "given"),
                None => made.remark("data.eval", "too few or too many records to split; give --eval FILE".into()),
            }
        }
        (eval, several) => write_sets(several, eval, count, made),
    }
    count
}

fn write_sets(names: &[String], eval: Option<&PathBuf>, count: usize, made: &mut Starter) {
    let set = |(at, path): (usize, &String)| match eval {
        Some(eval) if at == 0 => {
            format!("{{ path = {}, eval = {} }}", quote(path), quote(&eval.display().to_string()))
        }
        _ => format!("{{ path = {} }}", quote(path)),
    };
    let sets: Vec<String> = names.iter().enumerate().map(set).collect();
    let why = format!("{count} records; `proportion` of a set is its share of an epoch");
    made.sheet.raw(keys::SETS, format!("[{}]", sets.join(", ")), why);
}

/// Some records, evenly chosen.
pub(super) fn sampled(table: &Table) -> impl Iterator<Item = &Map<String, Value>> {
    table.rows.iter().step_by(table.rows.len().div_ceil(COUNTED).max(1))
}

/// Writes the limit of samples that have these tokens, and gives it.
pub(super) fn write_length(lengths: &mut [usize], model: &FoundModel, made: &mut Starter) -> usize {
    let (length, longest) = limit(lengths, model.positions);
    let positions =
        model.positions.map_or_else(String::new, |positions| format!("; the model has {positions} positions"));
    let counted = model.counted();
    let why = format!(
        "the 99th percentile of the samples' tokens{counted}, the longest about {longest}{positions}; \
         `data preview` counts exactly"
    );
    made.sheet.whole(keys::MAX_LENGTH, length as u64, why);
    length
}

/// Writes that records are skipped, where some cannot be read.
pub(super) fn write_flaws(table: &Table, made: &mut Starter) {
    if let Some(flaws) = table.flaws() {
        made.sheet.text(keys::ON_BAD_RECORD, "skip", flaws.clone());
        made.remark(&table.place, flaws);
    }
}
