//! The tokens of single records, before a limit of them is chosen.
//!
//! Defines [`SampleLength`], which the recipes of `init` are made from.

use super::encoder::{EncodedSample, SampleEncoder};
use super::keys::Unused;
use super::record::{RecordForm, sample};
use super::{DataSet, Sample, SftTask, TaskModel};
use crate::data::read::ReadOptions;
use crate::{Error, Result};
use model_center_formats::io::record::Record;
use model_center_formats::tokenizer::Tokenizer;

/// No limit that a record could reach.
const ANY_LENGTH: usize = 1 << 30;

/// Tokens of a sample; of a pair, of its longer sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleLength {
    /// All of them.
    pub tokens: usize,
    /// Those up to the first one that is learned: with a smaller limit there is nothing to learn.
    pub needed: usize,
}

impl SftTask {
    /// Whether a record can be used, as far as that is known before it is tokenized.
    ///
    /// # Errors
    /// What makes it unusable.
    pub fn check(&self, record: &Record<'_>) -> Result<()> {
        self.with_sample(record, |_, _| Ok(()))
    }

    /// The length of a record as a run of this task has it, by its first data set.
    ///
    /// # Errors
    /// What makes the record unusable.
    pub fn length(&self, record: &Record<'_>, tokenizer: &dyn Tokenizer, model: TaskModel<'_>) -> Result<SampleLength> {
        let options = ReadOptions::new(tokenizer, ANY_LENGTH);
        let encoded = self.with_sample(record, |set, sample| {
            SampleEncoder { task: self, set, options: &options, model }.encode(&record.place(), sample)
        });
        let EncodedSample { rows, learned, .. } = encoded?;
        let (mut length, mut learned) = (SampleLength { tokens: 0, needed: 0 }, learned.as_slice());
        for row in rows {
            let tokens = row.input_ids.len();
            let own = learned.split_off(..tokens.min(learned.len())).unwrap_or_default();
            // The first token is never predicted.
            let first = own.iter().skip(1).position(|learned| *learned == 1).map_or(0, |at| at + 2);
            length = SampleLength { tokens: length.tokens.max(tokens), needed: length.needed.max(first) };
        }
        Ok(length)
    }

    fn with_sample<T>(&self, record: &Record<'_>, then: impl Fn(&DataSet, &Sample) -> Result<T>) -> Result<T> {
        let unused = Unused::default();
        let set = self.sets.first();
        let set = set.ok_or_else(|| Error::argument("data.sets", "there is no data set", "name one"))?;
        let reading = self.record_reading(set, &unused);
        let form = reading.form.map_or_else(|| RecordForm::of(record, &self.columns), Ok)?;
        then(set, &sample(record, form, &reading)?)
    }
}
