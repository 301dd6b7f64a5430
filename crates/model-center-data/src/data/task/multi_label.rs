//! Any number of labels for each text: as a list in one column, or as a column for each label.
//!
//! Defines [`MultiLabelTask`]. Called by training.

use std::collections::HashMap;
use std::path::Path;

use super::columns::LabelReader;
use super::{SplitSource, Task};
use crate::data::{
    Example, LabelSpec,
    dataset::Dataset,
    read::{ReadOptions, read, renumber},
};
use crate::metrics::{LabelKind, MULTI_LABEL_METRICS, Metric};
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace};
use model_center_formats::io::record::{Format, Record};

/// Where the labels of a text are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelColumns {
    /// A column with a list of labels, of JSON lines.
    List(String),
    /// A column for each label, with 1 or true where the text has it, and 0 or false elsewhere. Columns name the
    /// labels.
    Flags(Vec<String>),
}

/// Columns of files whose texts have any number of labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiLabelTask {
    /// Column of the text, or of the first of a pair.
    pub text: String,
    /// Column of the second of a pair.
    pub text_pair: Option<String>,
    /// Columns of the labels.
    pub columns: LabelColumns,
    /// The labels of lists.
    pub labels: LabelSpec,
    /// The format of files; `None` derives it from the file name.
    pub format: Option<Format>,
}

/// The distinct sets of labels of a file, in the order in which they occur.
#[derive(Default)]
struct DistinctSets {
    sets: Vec<Vec<u32>>,
    index: HashMap<Vec<u32>, usize>,
}

impl DistinctSets {
    /// The number of a set of labels.
    fn number(&mut self, mut set: Vec<u32>) -> usize {
        set.sort_unstable();
        set.dedup();
        if let Some(number) = self.index.get(&set) {
            return *number;
        }
        let number = self.sets.len();
        self.sets.push(set.clone());
        self.index.insert(set, number);
        number
    }
}

impl MultiLabelTask {
    /// Reads a file. A text may have no label at all.
    ///
    /// # Errors
    /// What is wrong with the file or a record, with its place; fewer than two labels; unknown labels.
    pub fn read(&self, path: &Path, options: &ReadOptions<'_>) -> Result<Dataset> {
        let format = self.format.map_or_else(|| Format::of(path), Ok)?;
        let of_flags = match &self.columns {
            LabelColumns::List(_) => None,
            LabelColumns::Flags(columns) => Some(LabelSpec::Found(columns.clone())),
        };
        let mut labels = LabelReader::new(of_flags.as_ref().unwrap_or(&self.labels))?;
        let mut found = DistinctSets::default();
        let mut dataset = read(path, format, options, LabelSpace::LabelSets(Vec::new()), &mut |record, examples| {
            let first = record.filled(&self.text)?.to_owned();
            let second = self.text_pair.as_ref().map(|column| record.filled(column).map(str::to_owned)).transpose()?;
            let set = self.set_of(record, &mut labels)?;
            examples.push(Example { first, second, label: Label::Set(found.number(set)) });
            Ok(())
        })?;
        let (names, order) = labels.names();
        if names.len() < 2 {
            let reason = match names.first() {
                Some(name) => format!("{name:?} is the only label"),
                None => "no record has a label".to_owned(),
            };
            let fix = "name the right column in data.columns.label, or list all labels in data.labels";
            return Err(Error::data(path.display().to_string(), reason, fix));
        }
        dataset.sets = found.sets;
        renumber(&mut dataset, &order);
        dataset.labels = LabelSpace::LabelSets(names);
        dataset.seal();
        Ok(dataset)
    }

    /// The labels of a record, numbered as the reader has them.
    fn set_of(&self, record: &Record<'_>, labels: &mut LabelReader<'_>) -> Result<Vec<u32>> {
        match &self.columns {
            LabelColumns::List(column) => {
                let number = |label: &String| {
                    let class = labels.class(label, |reason, fix| record.error(column, reason, fix))?;
                    Ok(class as u32)
                };
                record.texts(column)?.iter().map(number).collect()
            }
            LabelColumns::Flags(columns) => {
                let mut set = Vec::new();
                for (number, column) in columns.iter().enumerate() {
                    if record.flag(column)? {
                        set.push(number as u32);
                    }
                }
                Ok(set)
            }
        }
    }
}

impl Task for MultiLabelTask {
    fn name(&self) -> &'static str {
        "multi-label-classification"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::LabelSets
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        Some(MULTI_LABEL_METRICS)
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        let labels = source.labels(&self.labels);
        MultiLabelTask { labels, ..self.clone() }.read(source.path, &source.options)
    }
}
