//! Pairs of texts that belong together, with a third that does not where there is one: their columns and lengths.

use super::files::{self, Usable, data_and_eval};
use super::model::FoundModel;
use super::table::{Column, Table, single};
use super::{Starter, StarterOptions, TrainingSamples};
use crate::{Error, Result};
use model_center_data::Record;
use model_center_recipe::key;
use serde_json::{Map, Value};

/// Usual names of two texts that belong together.
const MATCHES: [(&str, &str); 14] = [
    ("anchor", "positive"),
    ("query", "positive"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "answer"),
    ("question", "answer"),
    ("question", "context"),
    ("question1", "question2"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("title", "abstract"),
    ("title", "body"),
    ("title", "text"),
];
/// Usual names of a text that looks similar and does not belong.
const NEGATIVES: [&str; 4] = ["negative", "hard_negative", "neg", "negative_passage"];
/// Usual names of a column that states whether, or how well, two texts belong together.
const JUDGEMENTS: [&str; 6] = ["label", "score", "similarity", "similarity_score", "is_duplicate", "relevance"];

/// Writes `[data]`.
pub(super) fn write(options: &StarterOptions, model: &FoundModel, made: &mut Starter) -> Result<TrainingSamples> {
    let (data, eval) = data_and_eval(options);
    let table = Table::read(&data)?;
    let found = Found::of(&table, options)?;
    let why = match found.negative {
        Some(negative) => {
            let (anchor, positive) = (&found.anchor.name, &found.positive.name);
            format!("\"{anchor}\" is to be near \"{positive}\", and far from \"{}\"", negative.name)
        }
        None => format!("\"{}\" is to be near \"{}\" of its own record alone", found.anchor.name, found.positive.name),
    };
    made.sheet.text(key!(data.task), "embedding", why);
    // Equal anchors are on one side.
    let of_anchor = |row: &Map<String, Value>| row.get(&found.anchor.name).and_then(single).unwrap_or_default();
    let filled = |record: &Record<'_>| found.columns().try_for_each(|column| record.filled(&column.name).map(drop));
    let usable = Usable::of(&table, filled)?;
    let count = files::write(options, (&table, &data, eval.as_ref()), &usable.rows(&table, of_anchor), made);
    found.write(made);
    let lengths = usable.sampled(&table, files::COUNTED).into_iter().map(|(_, record)| {
        let lengths = found.columns().filter_map(|column| record.text(&column.name).ok());
        lengths.map(|text| model.count(text, None)).try_fold(0, |most, length| Ok::<_, Error>(length?.max(most)))
    });
    let length = files::write_length(lengths.collect::<Result<_>>()?, (model, true), made);
    if let Some(judgement) = table.usual(&JUDGEMENTS) {
        let why = format!(
            "every record is a pair that belongs together: column \"{}\" is not read; leave out the records that it \
             rates low",
            judgement.name
        );
        made.remark(&table.place, why);
    }
    files::write_flaws(&table, Some(&usable), made);
    Ok(TrainingSamples { count, length, sequences: found.columns().count(), is_run: false })
}

/// The columns of the texts.
struct Found<'t> {
    anchor: &'t Column,
    positive: &'t Column,
    negative: Option<&'t Column>,
}

impl<'t> Found<'t> {
    fn of(table: &'t Table, options: &StarterOptions) -> Result<Found<'t>> {
        let (anchor, positive) = match (table.named(options, "anchor")?, table.named(options, "positive")?) {
            (Some(anchor), Some(positive)) => (anchor, positive),
            (None, None) => match (table.usual_pair(&MATCHES), two_of_texts(table)) {
                (Some(found), _) | (None, Some(found)) => found,
                (None, None) => {
                    let fix = format!("name them: --column anchor=NAME --column positive=NAME; {}", table.list());
                    let reason = "no two columns look like texts that belong together";
                    return Err(Error::data(table.place.clone(), reason, fix));
                }
            },
            _ => {
                let fix = "give --column anchor=NAME and --column positive=NAME";
                return Err(Error::argument("--column", "a pair of texts is two columns", fix));
            }
        };
        let negative = match table.named(options, "negative")? {
            Some(negative) => Some(negative),
            None => table.usual(&NEGATIVES),
        };
        Ok(Found { anchor, positive, negative })
    }

    fn columns(&self) -> impl Iterator<Item = &'t Column> {
        [self.anchor, self.positive].into_iter().chain(self.negative)
    }

    fn write(&self, made: &mut Starter) {
        let columns = [
            (key!(data.columns.anchor), "anchor", self.anchor),
            (key!(data.columns.positive), "positive", self.positive),
        ];
        for (key, usual, column) in columns {
            if column.name != usual {
                made.sheet.text(key, &column.name, "the file's name of it");
            }
        }
        if let Some(negative) = self.negative {
            let why = "a text that does not belong; without this line it is not read";
            made.sheet.text(key!(data.columns.negative), &negative.name, why);
        }
    }
}

/// The columns of a table that has two of texts and no others.
fn two_of_texts(table: &Table) -> Option<(&Column, &Column)> {
    match table.columns.as_slice() {
        [one, other]
            if [one, other].iter().all(|column| column.is_single && !column.is_number && column.filled > 0) =>
        {
            Some((one, other))
        }
        _ => None,
    }
}
