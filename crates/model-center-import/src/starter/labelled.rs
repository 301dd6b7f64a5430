//! Texts with labels: which columns they are in, which classes there are, how uneven they are.

use super::files::{self, TOO_LARGE, data_and_eval, split_off};
use super::model::FoundModel;
use super::split::{self, Row};
use super::table::{Column, Table, single};
use super::{Starter, StarterOptions, TrainingSamples};
use crate::{Error, Result};
use model_center_recipe::key;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Usual names of columns of labels.
const LABELS: [&str; 15] = [
    "label",
    "labels",
    "class",
    "category",
    "target",
    "sentiment",
    "intent",
    "topic",
    "type",
    "queue",
    "rating",
    "stars",
    "score",
    "tag",
    "y",
];
/// Usual names of columns of texts.
const TEXTS: [&str; 17] = [
    "text",
    "sentence",
    "content",
    "review",
    "body",
    "message",
    "comment",
    "tweet",
    "description",
    "abstract",
    "utterance",
    "question",
    "query",
    "document",
    "title",
    "input",
    "prompt",
];
/// Usual names of the two texts of a pair.
const PAIRS: [(&str, &str); 6] = [
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("text", "text_pair"),
];
/// Texts whose tokens are counted.
const COUNTED: usize = 2000;
/// More different labels than this are no classes that a newcomer means.
const MAX_CLASSES: usize = 1000;
/// Numbers of more different values are predicted as numbers.
const MAX_NUMBERS: usize = 50;
/// From this ratio of the largest class to the smallest on, classes are weighted.
const UNEVEN: f64 = 3.0;
/// Classes that are listed in the recipe.
const LISTED: usize = 50;

/// Writes `[data]` and `[eval]`.
pub(super) fn write(options: &StarterOptions, model: &FoundModel, made: &mut Starter) -> Result<TrainingSamples> {
    let (data, eval) = data_and_eval(options);
    if let [first, _, ..] = data.as_slice() {
        let reason = format!("{} files of training data, and a classification reads one", data.len());
        let fix = format!("join them, or name the one to evaluate on: --data {} --eval FILE", first.display());
        return Err(Error::argument("--data", reason, fix));
    }
    let table = Table::read(&data)?;
    let columns = Columns::of(&table, options)?;
    let is_regression =
        columns.label.is_number && (columns.label.has_fraction || columns.label.values.len() > MAX_NUMBERS);
    // Labels are trimmed when they are read.
    let mut classes: BTreeMap<String, usize> = BTreeMap::new();
    for (name, count) in &columns.label.values {
        *classes.entry(name.trim().to_owned()).or_default() += count;
    }
    let classes = &classes;
    if !is_regression && classes.len() < 2 {
        let reason = format!("column \"{}\" has the same value in all records", columns.label.name);
        return Err(Error::data(
            table.place.clone(),
            reason,
            format!("name the labels: --column label=NAME; {}", table.list()),
        ));
    }
    let sheet = &mut made.sheet;
    let (task, why) = match is_regression {
        true => ("regression", format!("column \"{}\" has numbers", columns.label.name)),
        false => ("classification", format!("column \"{}\" has {} classes", columns.label.name, classes.len())),
    };
    sheet.text(key!(data.task), task, why);
    let train = data.first().map(|path| path.display().to_string()).unwrap_or_default();
    let of = |row: &Map<String, Value>, name: &str| row.get(name).and_then(single);
    let is_filled = |text: &String| !text.trim().is_empty();
    let row = |row: &Map<String, Value>| -> Row {
        let text = of(row, &columns.text.name).filter(is_filled)?;
        columns.pair.is_none_or(|pair| of(row, &pair.name).is_some_and(|text| is_filled(&text))).then_some(())?;
        let label = of(row, &columns.label.name).filter(is_filled)?;
        split::row(&text, if is_regression { String::new() } else { label.trim().to_owned() })
    };
    let rows: Vec<Row> = table.rows.iter().map(row).collect();
    let mut count = rows.iter().flatten().count();
    let left_out = rows.len() - count;
    let without = columns.without(&table);
    match &eval {
        Some(eval) => {
            sheet.text(key!(data.train), &train, format!("{count} records"));
            sheet.text(key!(data.eval), &eval.display().to_string(), "given");
            files::write_delimiter(&table, made);
            if left_out > 0 {
                let fix = "remove them, or leave --eval out: a split leaves them out";
                return Err(Error::data(table.place.clone(), without.join(", "), fix));
            }
        }
        None if table.is_whole => {
            let has_groups = !is_regression && classes.values().any(|count| *count >= 5);
            let kind = if has_groups { "a tenth of each class" } else { "about a tenth" };
            count = split_off(options, (&table, split::divide(&rows)), (&train, kind), made);
            if left_out > 0 {
                made.remark(&train, format!("{}: they are left out", without.join(", ")));
            }
        }
        None => {
            sheet.text(key!(data.train), &train, format!("more than {count} records"));
            made.remark("data.eval", TOO_LARGE.into());
            files::write_delimiter(&table, made);
            if left_out > 0 {
                let why = without.join(", ");
                made.remark(&train, format!("{why}: they are left out"));
                files::skip(left_out as f64 / rows.len().max(1) as f64, why, made);
            }
        }
    }
    let has_eval = made.sheet.get(key!(data.eval)).is_some();
    columns.write(made);
    if !is_regression {
        remark_similar(classes, &table.place, made);
        write_classes(classes, has_eval, made);
    }
    let length = files::write_length(columns.lengths(&table, model)?, (model, true), made);
    files::write_flaws(&table, None, made);
    Ok(TrainingSamples { count, length, sequences: 1, is_run: false })
}

/// The classes, and what their numbers call for.
fn write_classes(classes: &BTreeMap<String, usize>, has_eval: bool, made: &mut Starter) {
    let mut names: Vec<&String> = classes.keys().collect();
    if names.iter().all(|name| name.parse::<i64>().is_ok()) {
        names.sort_by_key(|name| name.parse::<i64>().unwrap_or(0));
    }
    let shares: Vec<String> = names.iter().take(12).map(|name| format!("{name} {}", classes[*name])).collect();
    let more = if names.len() > shares.len() { ", …" } else { "" };
    let shares = format!("{}{more}", shares.join(", "));
    if names.len() <= LISTED {
        let list: Vec<String> = names.iter().map(|name| (*name).clone()).collect();
        made.sheet.list(key!(data.labels), &list, format!("records of each: {shares}"));
    }
    let (least, most) = (classes.values().min().copied().unwrap_or(1), classes.values().max().copied().unwrap_or(1));
    let ratio = most as f64 / least.max(1) as f64;
    let (metric, reason) = match ratio < UNEVEN {
        true => ("accuracy", "classes have about as many records"),
        false => ("f1_macro", "every class counts alike; accuracy favours the largest"),
    };
    if has_eval {
        made.sheet.text(key!(eval.metric), metric, reason);
    }
    if ratio < UNEVEN {
        return;
    }
    let why = format!(
        "the largest class has {ratio:.1} times the records of the smallest: a sample weighs samples / (classes × \
         samples of its class); remove the line to learn the frequencies as they are"
    );
    made.sheet.text(key!(data.class_weights), "balanced", why);
}

/// Remarks that classes have names that differ in their case alone.
fn remark_similar(classes: &BTreeMap<String, usize>, place: &str, made: &mut Starter) {
    let mut similar: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in classes.keys() {
        similar.entry(name.to_lowercase()).or_default().push(name);
    }
    for names in similar.into_values().filter(|names| names.len() > 1).take(LISTED) {
        let why =
            format!("the classes {} differ in their case alone: write one of them if they are one", names.join(", "));
        made.remark(place, why);
    }
}

/// The columns of texts and labels.
struct Columns<'t> {
    text: &'t Column,
    pair: Option<&'t Column>,
    label: &'t Column,
}

impl<'t> Columns<'t> {
    fn of(table: &'t Table, options: &StarterOptions) -> Result<Columns<'t>> {
        let records = table.rows.len();
        let is_label = |column: &&Column| {
            let values = column.values.len();
            column.is_single && values >= 2 && (column.is_number || values <= MAX_CLASSES) && 2 * values <= records
        };
        let fewest = || {
            let candidates = table.columns.iter().filter(is_label).filter(|column| !column.has_fraction);
            candidates.filter(|column| column.mean() < 40.0).min_by_key(|column| column.values.len())
        };
        let usual = LABELS.iter().find_map(|name| table.usual(&[*name]).filter(is_label));
        let label = match table.named(options, "label")? {
            Some(column) => Some(column),
            None => usual.or_else(fewest),
        };
        let missing = |what: &str, flag: &str| {
            let fix = format!("name it: --column {flag}=NAME; {}", table.list());
            Error::data(table.place.clone(), format!("no column looks like {what}"), fix)
        };
        let label = label.ok_or_else(|| missing("a label that repeats", "label"))?;
        let is_other = |column: &&Column| column.name != label.name && column.is_single && column.filled > 0;
        let (first, second) = (table.named(options, "text")?, table.named(options, "text_pair")?);
        let (text, pair) = match (first, second, table.usual_pair(&PAIRS)) {
            (Some(text), pair, _) => (Some(text), pair),
            (None, None, Some((text, pair))) => (Some(text), Some(pair)),
            (None, pair, _) => {
                let usual = TEXTS.iter().find_map(|name| table.usual(&[*name]).filter(is_other));
                let longest = || {
                    let others = table.columns.iter().filter(is_other).filter(|column| !column.is_number);
                    others.max_by(|one, other| one.mean().total_cmp(&other.mean()))
                };
                (usual.or_else(longest), pair)
            }
        };
        Ok(Columns { text: text.ok_or_else(|| missing("a text", "text"))?, pair, label })
    }

    /// Remarks on records that have no value in a column.
    fn without(&self, table: &Table) -> Vec<String> {
        let columns = [("label", Some(self.label)), ("text", Some(self.text)), ("text", self.pair)];
        let without = columns.into_iter().filter_map(|(what, column)| Some((what, column?)));
        let without = without.map(|(what, column)| (what, table.rows.len() - column.filled, &column.name));
        let without = without.filter(|(_, count, _)| *count > 0);
        without.map(|(what, count, name)| format!("{count} records have no {what} in column \"{name}\"")).collect()
    }

    fn write(&self, made: &mut Starter) {
        let mean = |column: &Column| format!("{:.0} characters in the mean", column.mean());
        made.sheet.text(key!(data.columns.text), &self.text.name, mean(self.text));
        if let Some(pair) = self.pair {
            made.sheet.text(key!(data.columns.text_pair), &pair.name, mean(pair));
        }
        let values = self.label.values.len();
        made.sheet.text(key!(data.columns.label), &self.label.name, format!("{values} different values"));
    }

    /// Tokens of some texts.
    fn lengths(&self, table: &Table, model: &FoundModel) -> Result<Vec<usize>> {
        let of = |row: &Map<String, Value>, column: &Column| row.get(&column.name).and_then(single);
        let texts = files::sampled(table, COUNTED).filter_map(|row| {
            let second = self.pair.map(|pair| of(row, pair).unwrap_or_default());
            Some((of(row, self.text)?, second))
        });
        texts.map(|(first, second)| model.count(&first, second.as_deref())).collect()
    }
}
