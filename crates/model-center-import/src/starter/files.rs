//! The data files of a recipe: which are evaluated, what is split off, how long the samples are.

use super::model::{FoundModel, limit};
use super::split::{self, Row, Sides};
use super::table::{Table, evaluation_file};
use super::{Starter, StarterOptions};
use crate::import::inline_tables;
use crate::{Error, Result};
use model_center_data::{OnBadRecord, Record, SampleLength, SftTask};
use model_center_recipe::{key, quote};
use serde_json::{Map, Value};
use std::path::PathBuf;

pub(super) const TOO_LARGE: &str = "the data are too large to be split here; give --eval FILE";
/// Fewer records are not split.
const FEWEST: usize = 10;
/// Ending of a length's reason in a recipe: how it follows from the samples' lengths.
const ROUNDED: &str = ", rounded up to a multiple of 8";
/// Records whose lengths are counted.
pub(super) const COUNTED: usize = 1000;
/// The smallest limit of a sample's tokens that a recipe may have.
const MINIMUM: usize = 3;

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
        made.sheet.text(key!(data.train), &path, why);
        if made.files.is_empty() {
            write_delimiter(table, made);
        }
        made.remark("data.eval", "too few different records to split; give --eval FILE".into());
        return train.len();
    }
    let why = format!("{} of the records of {name}", train.len());
    made.sheet.text(key!(data.train), &train_path.display().to_string(), why);
    let why = format!("the other {}: {kind}, chosen by the hash of the text", eval.len());
    made.sheet.text(key!(data.eval), &eval_path.display().to_string(), why);
    made.files.push((train_path, split::lines(&table.rows, &train)));
    made.files.push((eval_path, split::lines(&table.rows, &eval)));
    train.len()
}

/// Writes training and evaluation data of one file or of several data sets; the training records. `rows` are what
/// records are divided by, `None` for those that cannot be used.
pub(super) fn write(
    options: &StarterOptions,
    (table, data, eval): (&Table, &[PathBuf], Option<&PathBuf>),
    rows: &[Row],
    made: &mut Starter,
) -> usize {
    let count = rows.iter().flatten().count();
    let names: Vec<String> = data.iter().map(|path| path.display().to_string()).collect();
    match (eval, names.as_slice()) {
        (None, _) if table.is_whole && count >= FEWEST => {
            let sides = split::divide(rows);
            // The records of several files are joined where some are split off.
            if names.len() == 1 || !sides.eval.is_empty() {
                return split_off(options, (table, sides), (&names.join(", "), "about a tenth"), made);
            }
            write_sets(&names, None, count, made);
            write_delimiter(table, made);
        }
        (eval, [train]) => {
            made.sheet.text(key!(data.train), train, format!("{count} records"));
            match eval {
                Some(eval) => made.sheet.text(key!(data.eval), &eval.display().to_string(), "given"),
                None => {
                    let why = match table.is_whole {
                        true => format!("{count} records are too few to split (at least {FEWEST}); give --eval FILE"),
                        false => format!("{count} records were read, and a larger file is not split; give --eval FILE"),
                    };
                    made.remark("data.eval", why);
                }
            }
            write_delimiter(table, made);
        }
        (eval, several) => {
            write_sets(several, eval, count, made);
            write_delimiter(table, made);
        }
    }
    count
}

/// Writes the delimiter of a file that the recipe names.
pub(super) fn write_delimiter(table: &Table, made: &mut Starter) {
    if let Some(delimiter) = table.delimiter {
        made.sheet.text(key!(data.delimiter), &delimiter.to_string(), "what is between the columns of the header");
    }
}

fn write_sets(names: &[String], eval: Option<&PathBuf>, count: usize, made: &mut Starter) {
    let mut sets: Vec<_> = names.iter().map(|path| vec![("path", quote(path))]).collect();
    if let (Some(first), Some(eval)) = (sets.first_mut(), eval) {
        first.push(("eval", quote(&eval.display().to_string())));
    }
    let why = format!("{count} records; `proportion` of a set is its share of an epoch");
    made.sheet.raw(key!(data.sets), inline_tables(&sets), why);
}

/// At most `most` records, evenly chosen.
pub(super) fn sampled(table: &Table, most: usize) -> impl Iterator<Item = &Map<String, Value>> {
    table.rows.iter().step_by(table.rows.len().div_ceil(most).max(1))
}

/// Records that can be used.
pub(super) struct Usable {
    /// True for each record that can.
    rows: Vec<bool>,
    /// Why the first that cannot is so.
    first: Option<String>,
}

impl Usable {
    /// Looks at every record.
    ///
    /// # Errors
    /// The flaw of the first one where none can be used.
    pub(super) fn of(table: &Table, check: impl Fn(&Record<'_>) -> Result<()>) -> Result<Usable> {
        let mut first = None;
        let usable = table.records().map(|record| match check(&record) {
            Ok(()) => true,
            Err(error) => {
                first.get_or_insert(error);
                false
            }
        });
        let rows: Vec<bool> = usable.collect();
        match first {
            Some(error) if !rows.contains(&true) => Err(error),
            first => Ok(Usable { rows, first: first.map(|error| reason_of(&error)) }),
        }
    }

    /// Key that each usable record is split by.
    pub(super) fn rows(&self, table: &Table, text: impl Fn(&Map<String, Value>) -> String) -> Vec<Row> {
        let pairs = table.rows.iter().zip(&self.rows);
        pairs.map(|(row, usable)| usable.then(|| split::row(&text(row), String::new())).flatten()).collect()
    }

    /// The usable ones of some records, evenly chosen, with their numbers from 0.
    pub(super) fn sampled<'t>(&self, table: &'t Table, most: usize) -> Vec<(usize, Record<'t>)> {
        let usable: Vec<_> = table.records().enumerate().filter(|(at, _)| self.rows.get(*at) == Some(&true)).collect();
        let step = usable.len().div_ceil(most).max(1);
        usable.into_iter().step_by(step).collect()
    }

    /// Leaves out what has no token to learn within a limit, where every record was counted.
    pub(super) fn exclude(&mut self, lengths: &SftLengths, limit: usize) {
        if !lengths.is_whole {
            return;
        }
        for at in lengths.without(limit) {
            if let Some(usable) = self.rows.get_mut(at) {
                *usable = false;
            }
            self.first.get_or_insert_with(|| lengths.reason(limit));
        }
    }

    fn unusable(&self) -> usize {
        self.rows.iter().filter(|usable| !**usable).count()
    }
}

fn reason_of(error: &Error) -> String {
    match error {
        Error::Data { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

/// Lengths of the samples of a task, counted as the run counts them.
pub(super) struct SftLengths {
    /// By the number of the record.
    found: Vec<(usize, SampleLength)>,
    /// Records that the chat template or the tokenizer refuses, and why the first.
    refused: Vec<usize>,
    first: Option<String>,
    /// Whether these are all usable records.
    is_whole: bool,
}

impl SftLengths {
    /// Counts some samples; `None` without a tokenizer.
    ///
    /// # Errors
    /// What all of them are refused for.
    pub(super) fn of(table: &Table, usable: &Usable, task: &SftTask, model: &FoundModel) -> Result<Option<Self>> {
        let Some(tokenizer) = &model.tokenizer else { return Ok(None) };
        let records = usable.sampled(table, COUNTED);
        let is_whole = table.is_whole && records.len() == table.rows.len() - usable.unusable();
        let (mut found, mut refused, mut first) = (Vec::new(), Vec::new(), None);
        for (at, record) in records {
            match task.length(&record, &**tokenizer, model.sft()) {
                Ok(length) => found.push((at, length)),
                Err(error @ Error::Data { .. }) => {
                    refused.push(at);
                    first.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        match first {
            Some(error) if found.is_empty() => Err(error),
            first => {
                let first = first.map(|error| reason_of(&error));
                Ok(Some(SftLengths { found, refused, first, is_whole }))
            }
        }
    }

    /// A limit with room for 99 of 100 samples, with which every counted one has a token to learn, as far as the
    /// model's positions allow; and why it is that.
    ///
    /// # Errors
    /// [`Error::Data`] where no sample has a token to learn within the positions.
    pub(super) fn limit(&self, table: &Table, model: &FoundModel) -> Result<(usize, String)> {
        let mut lengths: Vec<usize> = self.found.iter().map(|(_, length)| length.tokens).collect();
        let (usual, longest) = limit(&mut lengths, model.positions);
        let needed = self.found.iter().map(|(_, length)| length.needed).max().unwrap_or(0);
        let most = model.positions.unwrap_or(usize::MAX).max(MINIMUM);
        let length = usual.max(needed.next_multiple_of(8)).min(most);
        let why = match length > usual {
            true => format!("every sample has a token to learn; 99 of 100 have at most {usual} tokens"),
            false => format!("the 99th percentile of the samples' tokens{ROUNDED}"),
        };
        let positions =
            model.positions.map_or_else(String::new, |positions| format!("; the model has {positions} positions"));
        if self.without(length).count() == self.found.len() + self.refused.len() {
            let reason = format!("no record has a token to learn: {}", self.reason(length));
            return Err(Error::data(
                table.place.clone(),
                reason,
                "take a model with more positions, or shorter prompts",
            ));
        }
        Ok((length, format!("{why}; the longest has {longest}{positions}")))
    }

    /// Writes the limit, and that records are skipped where some may have nothing to learn.
    pub(super) fn write(&self, table: &Table, (length, why): (usize, String), made: &mut Starter) -> usize {
        made.sheet.whole(key!(data.max_length), length as u64, why);
        let (without, counted) = (self.without(length).count(), self.found.len() + self.refused.len());
        if !self.is_whole {
            let why = match without {
                0 => format!("{counted} samples were counted; others may have prompts of more than {length} tokens"),
                _ => format!("{without} of {counted} samples cannot be learned from: {}", self.reason(length)),
            };
            skip(without as f64 / counted.max(1) as f64, why.clone(), made);
            if without > 0 {
                made.remark(&table.place, why);
            }
        }
        length
    }

    /// The records without a token to learn within a limit.
    fn without(&self, limit: usize) -> impl Iterator<Item = usize> {
        let cut = self.found.iter().filter(move |(_, length)| length.needed > limit).map(|(at, _)| *at);
        self.refused.iter().copied().chain(cut)
    }

    fn reason(&self, limit: usize) -> String {
        self.first.clone().unwrap_or_else(|| format!("a prompt has more than {limit} tokens"))
    }
}

/// Writes that records are skipped, with a limit above the share of all that are.
pub(super) fn skip(share: f64, why: String, made: &mut Starter) {
    made.left_out.0 += share;
    made.left_out.1.push(why);
    let why = made.left_out.1.join("; ");
    [key!(data.on_bad_record), key!(data.bad_record_limit)].iter().for_each(|key| made.sheet.remove(key));
    made.sheet.text(key!(data.on_bad_record), "skip", format!("{why}; data.bad_record_limit bounds them"));
    // A sample is never exact.
    let limit = (200.0 * made.left_out.0).ceil().min(100.0) / 100.0;
    if limit > OnBadRecord::SKIP_SHARE {
        made.sheet.number(key!(data.bad_record_limit), limit, "about twice the share of such records");
    }
}

/// Writes the limit of texts that have these tokens, and gives it; `is_exact` is whether they were counted as the run
/// counts them.
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
        false => ("samples", format!(", the longest about {longest}"), "; `bmtrain data preview` counts exactly"),
    };
    let counted = model.counted();
    let why = format!("the 99th percentile of the {of}' tokens{ROUNDED}{counted}{longest}{positions}{end}");
    made.sheet.whole(key!(data.max_length), length as u64, why);
    length
}

/// Writes that records are skipped, where some cannot be read or used. The files of a split have none of these.
pub(super) fn write_flaws(table: &Table, usable: Option<&Usable>, made: &mut Starter) {
    let unusable = usable.map_or(0, Usable::unusable);
    let first = usable.and_then(|usable| usable.first.clone());
    let unusable =
        first.map(|first| (unusable, format!("{unusable} records cannot be used and are left out: {first}")));
    let unread = table.flaws().map(|text| (table.flawed, text));
    for (count, text) in unread.into_iter().chain(unusable) {
        if made.files.is_empty() {
            let share = count as f64 / (table.rows.len() + table.flawed).max(1) as f64;
            skip(share, text.clone(), made);
        }
        made.remark(&table.place, text);
    }
}
