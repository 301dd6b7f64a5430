//! The data files of a recipe: which are evaluated, what is split off, how long the samples are.

use super::model::{FoundModel, limit};
use super::split::{self, Row, Sides};
use super::table::{Table, evaluation_file};
use super::{Starter, StarterOptions};
use crate::import::{inline_tables, keys};
use crate::recipe::quote;
use serde_json::{Map, Value};
use std::path::PathBuf;

pub(super) const TOO_LARGE: &str = "the data are too large to be split here; give --eval FILE";
/// Fewer records are not split.
const FEWEST: usize = 10;
/// Records whose lengths are counted.
pub(super) const COUNTED: usize = 1000;

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

/// Writes the records of `name` to a file for each side; `kind` describes the evaluated ones. Returns the number of
/// training records. Where none are evaluated, all are for training, in a file of their own if some are on no side.
pub(super) fn split_off(
    options: &StarterOptions,
    (table, sides): (&Table, Sides),
    (name, kind): (&str, &str),
    made: &mut Starter,
) -> usize {
    let Sides { train, eval } = sides;
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
            let rows: Vec<Row> = table.rows.iter().map(|row| split::row(&text(row), String::new())).collect();
            let sides = split::divide(&rows);
            // The records of several files are joined where some are split off.
            if names.len() == 1 || !sides.eval.is_empty() {
                return split_off(options, (table, sides), (&names.join(", "), "about a tenth"), made);
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
    let mut sets: Vec<_> = names.iter().map(|path| vec![("path", quote(path))]).collect();
    if let (Some(first), Some(eval)) = (sets.first_mut(), eval) {
        first.push(("eval", quote(&eval.display().to_string())));
    }
    let why = format!("{count} records; `proportion` of a set is its share of an epoch");
    made.sheet.raw(keys::SETS, inline_tables(&sets), why);
}

/// At most `most` records, evenly chosen.
pub(super) fn sampled(table: &Table, most: usize) -> impl Iterator<Item = &Map<String, Value>> {
    table.rows.iter().step_by(table.rows.len().div_ceil(most).max(1))
}

/// Writes the limit of samples that have these tokens, and gives it; `is_exact` is whether they were counted as the
/// run counts them.
pub(super) fn write_length(
    mut lengths: Vec<usize>,
    (model, is_exact): (&FoundModel, bool),
    made: &mut Starter,
) -> usize {
    let (length, longest) = limit(&mut lengths, model.positions);
    let positions =
        model.positions.map_or_else(String::new, |positions| format!("; the model has {positions} positions"));
    let (of, longest, end) = match is_exact {
        true => ("texts", format!("; the longest has {longest}"), ""),
        false => ("samples", format!(", the longest about {longest}"), "; `data preview` counts exactly"),
    };
    let counted = model.counted();
    let why = format!("the 99th percentile of the {of}' tokens{counted}{longest}{positions}{end}");
    made.sheet.whole(keys::MAX_LENGTH, length as u64, why);
    length
}

/// Writes that records are skipped, where some cannot be read. The files of a split have none of these.
pub(super) fn write_flaws(table: &Table, made: &mut Starter) {
    if let Some(flaws) = table.flaws() {
        if made.files.is_empty() {
            made.sheet.text(keys::ON_BAD_RECORD, "skip", format!("{flaws}; data.bad_record_limit bounds them"));
        }
        made.remark(&table.place, flaws);
    }
}
