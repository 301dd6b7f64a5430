//! Classification, regression and reranking from any JSONL, CSV or TSV file.
//!
//! Defines [`ColumnTask`] (which columns hold text and label) and [`LabelSpec`] (what the labels are). Validation
//! files are read with the label names found in training, see [`LabelSpec::of`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use super::{SplitSource, Task};
use crate::data::{
    Example,
    dataset::Dataset,
    read::{ReadOptions, RecordSource, renumber},
};
use crate::metrics::LabelKind;
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace};
use model_center_formats::io::record::{Format, Record, SKIPPABLE, Scalar, shorten, unknown_label};
use serde_json::{Map, Value};

/// More distinct labels than this are taken for a column that holds no classes.
const MAX_CLASSES: usize = 10_000;

/// Values of a label column.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelSpec {
    /// Classes, named by whatever occurs, in sorted order: numerically if all are whole numbers, else by bytes.
    #[default]
    Discover,
    /// Classes with these names, in this order, as the user listed them. A number that is not a name counts as an
    /// index,
    /// unless a name is a number itself.
    Names(Vec<String>),
    /// Classes with these names, in this order, as another file had them. A label is one of the names, nothing else.
    Found(Vec<String>),
    /// Class numbers from 0 to below this count.
    Count(usize),
    /// A finite number.
    Value,
    /// A number from 0 to 1: the probability that the second text of a pair answers the first.
    Probability,
}

impl LabelSpec {
    /// Whether labels are numbers.
    fn is_number(&self) -> bool {
        matches!(self, LabelSpec::Value | LabelSpec::Probability)
    }

    /// The specification that reads another file with the labels found in one already read. Labels that the user listed
    /// need none: their own specification serves every file.
    pub fn of(dataset: &Dataset) -> LabelSpec {
        match dataset.labels() {
            LabelSpace::Classes(names) => LabelSpec::Found(names.clone()),
            LabelSpace::Verbalizer(answers) => LabelSpec::Found(answers.names.clone()),
            LabelSpace::Choices(choices) => LabelSpec::Count(*choices),
            LabelSpace::TokenClasses(names) | LabelSpace::LabelSets(names) => LabelSpec::Found(names.clone()),
            LabelSpace::Value
            | LabelSpace::NextTokens
            | LabelSpace::Pairs
            | LabelSpace::Unpaired
            | LabelSpace::Texts(_)
            | LabelSpace::Target
            | LabelSpace::Span
            | LabelSpace::MaskedTokens { .. } => LabelSpec::Value,
        }
    }
}

/// A task given by column names.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnTask {
    /// Column of the text, or of the first of a pair.
    #[serde(default = "text_column")]
    pub text: String,
    /// Column of the second of a pair.
    #[serde(default)]
    pub text_pair: Option<String>,
    /// Column of the label.
    #[serde(default = "label_column")]
    pub label: String,
    /// Label space.
    #[serde(default)]
    pub labels: LabelSpec,
    /// The format of files; `None` derives it from the file name.
    #[serde(default)]
    pub format: Option<Format>,
}

fn text_column() -> String {
    "text".into()
}

fn label_column() -> String {
    "label".into()
}

impl Default for ColumnTask {
    fn default() -> Self {
        ColumnTask {
            text: text_column(),
            text_pair: None,
            label: label_column(),
            labels: LabelSpec::default(),
            format: None,
        }
    }
}

impl ColumnTask {
    /// Reads a file.
    ///
    /// Errors: what is wrong with the file or a record, with its place; label names that repeat or are fewer than two.
    pub fn read(&self, path: &Path, options: &ReadOptions<'_>) -> Result<Dataset> {
        self.read_from(RecordSource::File(path, self.format.map_or_else(|| Format::of(path), Ok)?), options)
    }

    /// Reads records that a program made, objects with the columns as keys; `name` stands for a file in messages.
    ///
    /// Errors: as [`ColumnTask::read`].
    pub fn read_rows(&self, name: &str, rows: Vec<Map<String, Value>>, options: &ReadOptions<'_>) -> Result<Dataset> {
        self.read_from(RecordSource::Given(Path::new(name), rows), options)
    }

    fn read_from(&self, source: RecordSource<'_>, options: &ReadOptions<'_>) -> Result<Dataset> {
        let path = source.path();
        let mut labels = LabelReader::new(&self.labels)?;
        let space = match self.labels {
            LabelSpec::Value | LabelSpec::Probability => LabelSpace::Value,
            _ => LabelSpace::Classes(Vec::new()),
        };
        let mut dataset = source.read(options, space, &mut |record, examples| {
            let first = record.filled(&self.text)?.to_owned();
            let second = self.text_pair.as_ref().map(|column| record.filled(column).map(str::to_owned)).transpose()?;
            let label = labels.label(record, &self.label)?;
            examples.push(Example { first, second, label });
            Ok(())
        })?;
        if !self.labels.is_number() {
            let (names, order) = labels.names();
            if names.len() < 2 {
                return Err(Error::data(
                    path.display().to_string(),
                    format!("every record has the same label, {:?}", shorten(names.first().map_or("", String::as_str))),
                    "name the right column in data.columns.label, or list all classes in data.labels",
                ));
            }
            renumber(&mut dataset, &order);
            dataset.labels = LabelSpace::Classes(names);
        }
        dataset.seal();
        Ok(dataset)
    }
}

impl Task for ColumnTask {
    fn name(&self) -> &'static str {
        match self.labels {
            LabelSpec::Value => "regression",
            LabelSpec::Probability => "rerank",
            _ => "classification",
        }
    }

    fn has_probabilities(&self) -> bool {
        self.labels == LabelSpec::Probability
    }

    fn label_kind(&self) -> LabelKind {
        if self.labels.is_number() { LabelKind::Values } else { LabelKind::Classes }
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        let labels = source.labels(&self.labels);
        ColumnTask { labels, ..self.clone() }.read(source.path, &source.options)
    }
}

/// Turns label values into labels and remembers the names met.
pub struct LabelReader<'a> {
    spec: Cow<'a, LabelSpec>,
    names: Vec<String>,
    index: HashMap<String, usize>,
}

impl<'a> LabelReader<'a> {
    pub(crate) fn new(spec: &'a LabelSpec) -> Result<Self> {
        LabelReader::of(Cow::Borrowed(spec))
    }

    /// A reader of labels of a specification.
    ///
    /// # Errors
    /// [`Error::Argument`] for more classes than are accepted, one label twice, or fewer than two.
    pub fn of(spec: Cow<'a, LabelSpec>) -> Result<Self> {
        let names = match &*spec {
            LabelSpec::Names(names) | LabelSpec::Found(names) => names.clone(),
            LabelSpec::Count(count) if *count <= MAX_CLASSES => (0..*count).map(|class| class.to_string()).collect(),
            LabelSpec::Count(count) => {
                let reason = format!("{count} classes are more than the accepted {MAX_CLASSES}");
                return Err(Error::argument("data.labels", reason, "check the count"));
            }
            LabelSpec::Discover | LabelSpec::Value | LabelSpec::Probability => Vec::new(),
        };
        let index: HashMap<String, usize> = names.iter().cloned().zip(0..).collect();
        let listed = *spec != LabelSpec::Discover && !spec.is_number();
        if index.len() != names.len() || (names.len() < 2 && listed) {
            let reason = format!("{} labels, {} of them distinct", names.len(), index.len());
            return Err(Error::argument("data.labels", reason, "list every label once, at least two of them"));
        }
        Ok(LabelReader { spec, names, index })
    }

    /// The label in a column of a record.
    ///
    /// # Errors
    /// [`Error::Data`] with the place in the file for an empty, missing or unlisted label.
    pub fn label(&mut self, record: &Record<'_>, column: &str) -> Result<Label> {
        let value = record.scalar(column)?;
        if value.spelled().trim().is_empty() {
            return Err(record.error(column, format!("the label in {column:?} is empty"), SKIPPABLE));
        }
        if self.spec.is_number() {
            let label = number(record, column, &value)?;
            return match label {
                Label::Value(number) if *self.spec == LabelSpec::Probability && !(0.0..=1.0).contains(&number) => {
                    let reason = format!("label {:?} is not a number from 0 to 1", shorten(&value.spelled()));
                    let fix = "write 1 for a document that answers the query and 0 for one that does not, or divide \
                               grades by the largest";
                    Err(record.error(column, reason, fix))
                }
                label => Ok(label),
            };
        }
        self.class(&value.spelled(), |reason, fix| record.error(column, reason, fix)).map(Label::Class)
    }

    /// The class of a spelled label; `error` makes an error of reason and fix. Labels are trimmed, unless a listed name
    /// has the same white space.
    ///
    /// # Errors
    /// A label that is not listed; more classes than are accepted.
    pub fn class(&mut self, spelled: &str, error: impl Fn(String, String) -> Error) -> Result<usize> {
        if let Some(class) = self.index.get(spelled).or_else(|| self.index.get(spelled.trim())) {
            return Ok(*class);
        }
        let spelled = spelled.trim();
        if spelled.is_empty() {
            return Err(error("a label is empty".to_owned(), SKIPPABLE.to_owned()));
        }
        match &*self.spec {
            LabelSpec::Discover if self.names.len() < MAX_CLASSES => {
                let class = self.names.len();
                self.names.push(spelled.to_owned());
                self.index.insert(spelled.to_owned(), class);
                Ok(class)
            }
            LabelSpec::Discover => Err(error(
                format!("more than {MAX_CLASSES} different labels"),
                "set data.task = \"regression\" if the column holds numbers to predict".to_owned(),
            )),
            LabelSpec::Count(count) => Err(error(
                format!("label {:?} is out of range", shorten(spelled)),
                format!("labels are whole numbers from 0 to {}; correct the record or data.labels", count - 1),
            )),
            // Files often number the classes that a recipe names, so an index is as good as a name. But for names that
            // are numbers, and for names that another file happened to have, the meaning of an index is undefined.
            LabelSpec::Names(names) if !names.iter().any(|name| name.parse::<i64>().is_ok()) => {
                self.numbered(spelled, &error)
            }
            _ => Err(self.unknown(spelled, &error)),
        }
    }

    fn numbered(&self, spelled: &str, error: &dyn Fn(String, String) -> Error) -> Result<usize> {
        match (spelled.parse::<usize>(), spelled.parse::<i64>()) {
            (Ok(class), _) if class < self.names.len() => Ok(class),
            (_, Ok(_)) => Err(error(
                format!("label {spelled} is out of range"),
                format!("there are {} labels, numbered from 0: {}", self.names.len(), shorten(&self.names.join(", "))),
            )),
            _ => Err(self.unknown(spelled, error)),
        }
    }

    fn unknown(&self, spelled: &str, error: &dyn Fn(String, String) -> Error) -> Error {
        let fix = "correct the record, add the label to data.labels or to the training file, or leave such records out \
                   with data.on_bad_record = \"skip\"";
        error(unknown_label(spelled, &self.names), fix.to_owned())
    }

    /// The names in their final order, and for each index given so far its final index.
    pub(crate) fn names(self) -> (Vec<String>, Vec<usize>) {
        let mut sorted: Vec<(usize, String)> = self.names.into_iter().enumerate().collect();
        if *self.spec == LabelSpec::Discover {
            if sorted.iter().all(|(_, name)| name.parse::<i64>().is_ok()) {
                sorted.sort_by_key(|(_, name)| (name.parse::<i64>().unwrap_or(0), name.clone()));
            } else {
                sorted.sort_by(|(_, a), (_, b)| a.cmp(b));
            }
        }
        let mut order = vec![0; sorted.len()];
        for (new, (old, _)) in sorted.iter().enumerate() {
            order[*old] = new;
        }
        (sorted.into_iter().map(|(_, name)| name).collect(), order)
    }
}

fn number(record: &Record<'_>, column: &str, value: &Scalar<'_>) -> Result<Label> {
    let parsed = match value {
        Scalar::Flag(_) => None,
        other => other.spelled().trim().parse::<f32>().ok().filter(|number| number.is_finite()),
    };
    parsed.map(Label::Value).ok_or_else(|| {
        record.error(
            column,
            format!("label {:?} is not a finite number", shorten(&value.spelled())),
            "write a number such as 3.5, or set data.task = \"classification\"",
        )
    })
}
