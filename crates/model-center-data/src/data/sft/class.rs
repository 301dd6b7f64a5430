//! Classes of data sets: what reads files of a kind.
//!
//! Defines [`DataClass`], a registry line, with what its function is given. This crate's classes are in
//! [`super::classes`]; programs add their own.

use std::path::Path;

use serde_json::{Map, Value};

use super::Sample;
use super::keys::Unused;
use crate::data::Split;
use crate::{Error, Result};
use model_center_formats::tokenizer::Tokenizer;

/// A class of data sets.
///
/// ```
/// use model_center_data::data::{DataClass, Sample, Split};
/// use std::path::Path;
///
/// /// Sums: `config.count` of them.
/// static SUMS: &[DataClass] = &[DataClass {
///     name: "sums",
///     doc: "Sums of small numbers.",
///     has_split: |_, split| split == Split::Train,
///     read: |source, samples| {
///         for at in 0..source.whole("count", 100)? {
///             let sample = Sample::pair(format!("{at} + 1 ="), format!(" {}", at + 1));
///             if !samples.push(format!("sum {at}"), Ok(sample))? {
///                 break;
///             }
///         }
///         Ok(())
///     },
/// }];
///
/// // `Registry::default().with_classes(SUMS)`, given to `program!`: recipes know class = "sums".
/// assert!((SUMS[0].has_split)(Path::new("sums"), Split::Train));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct DataClass {
    /// Its name in recipes.
    pub name: &'static str,
    /// Description of its records, in one sentence.
    pub doc: &'static str,
    /// Whether a data set with this path has a split; not asked where a recipe names a file for it.
    pub has_split: fn(&Path, Split) -> bool,
    /// Pushes the samples of a split, until no more are wanted.
    pub read: fn(&ClassSource<'_>, &mut SampleSink<'_>) -> Result<()>,
}

/// By name, which identifies a class.
impl PartialEq for DataClass {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Input of a class.
#[derive(Debug, Clone, Copy)]
pub struct ClassSource<'a> {
    /// The file, or the directory of the data set.
    pub path: &'a Path,
    /// Which part.
    pub split: Split,
    /// The recipe's `config` of the data set.
    pub config: &'a Map<String, Value>,
    /// The model's tokenizer.
    pub tokenizer: &'a dyn Tokenizer,
    /// Most tokens of an input, if that is limited.
    pub max_input_tokens: Option<usize>,
    /// The same of an output.
    pub max_output_tokens: Option<usize>,
    /// Longest accepted line of a file, in bytes.
    pub max_line_bytes: usize,
    /// Whether prompts and completions become messages.
    pub as_chat: bool,
    /// Takes the names of columns without effect.
    pub(super) unused: &'a Unused,
}

impl ClassSource<'_> {
    /// A whole number of the configuration, `default` without the key.
    ///
    /// # Errors
    /// A value of another type.
    pub fn whole(&self, key: &str, default: usize) -> Result<usize> {
        match self.config.get(key) {
            None => Ok(default),
            Some(value) => value.as_u64().map(|value| value as usize).ok_or_else(|| self.wrong(key, "a whole number")),
        }
    }

    /// A text of the configuration, `default` without the key.
    ///
    /// # Errors
    /// A value of another type.
    pub fn text(&self, key: &str, default: &str) -> Result<String> {
        match self.config.get(key) {
            None => Ok(default.to_owned()),
            Some(value) => value.as_str().map(str::to_owned).ok_or_else(|| self.wrong(key, "a text")),
        }
    }

    /// A truth value of the configuration, `default` without the key.
    ///
    /// # Errors
    /// A value of another type.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.config.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    fn wrong(&self, key: &str, wanted: &str) -> Error {
        let reason = format!("config.{key} of {} is not {wanted}", self.path.display());
        Error::argument("data.sets", reason, "correct the value")
    }
}

/// Receiver of samples.
pub struct SampleSink<'a> {
    take: &'a mut dyn FnMut(String, Result<Sample>) -> Result<bool>,
}

impl std::fmt::Debug for SampleSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SampleSink")
    }
}

impl<'a> SampleSink<'a> {
    pub(super) fn new(take: &'a mut dyn FnMut(String, Result<Sample>) -> Result<bool>) -> Self {
        SampleSink { take }
    }

    /// Takes a sample, or the flaw of a record; `place` is where it is from, for messages. Whether more are wanted.
    ///
    /// # Errors
    /// A flaw, where that is an error.
    pub fn push(&mut self, place: String, sample: Result<Sample>) -> Result<bool> {
        (self.take)(place, sample)
    }
}
