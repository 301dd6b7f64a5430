//! Unpaired completions, each good or bad, and what each is compared with: its prompt with the completion of the
//! next sample.
//!
//! Defines [`sample`], which reads records, and [`Mismatch`], which pairs prompts with other completions. Source: TRL's
//! KTOTrainer, which takes the completion of the sample before.

use super::preference;
use super::record::{self, RecordForm, RecordReading};
use super::sample::Sample;
use crate::Result;
use model_center_formats::io::record::Record;

/// A record of a prompt, a completion and its label, or of a pair of completions.
pub(super) fn sample(record: &Record<'_>, pair: (&str, &str), reading: &RecordReading<'_>) -> Result<Sample> {
    if record.has_value(pair.0) && record.has_value(pair.1) {
        return preference::sample(record, pair, reading);
    }
    let is_good = record.flag(reading.columns.label.as_deref().unwrap_or("label"))?;
    let form = RecordForm::PromptCompletion;
    let (prompt, completion) = record::columns_of(form, reading.columns);
    Ok(Sample::unpaired(record::completed(record, form, (&prompt, &completion), reading)?, is_good))
}

/// Gives each sample the completion of the next one, and the last sample the completion of the first.
#[derive(Debug, Default)]
pub(super) struct Mismatch {
    /// The first sample without its label.
    first: Option<Sample>,
    /// The sample before, with its place and label.
    before: Option<(String, Sample, bool)>,
}

impl Mismatch {
    /// Adds a sample, of a pair both. Returns those whose mismatch is known by it.
    pub(super) fn add(&mut self, place: String, sample: Sample) -> Vec<(String, Sample)> {
        let parts = match sample {
            Sample::Unpaired { own, is_good, .. } => vec![(*own, is_good)],
            Sample::Preference { chosen, rejected } => vec![(*chosen, true), (*rejected, false)],
            // It is refused when it is encoded.
            other => return vec![(place, other)],
        };
        let mut known = Vec::new();
        for (own, is_good) in parts {
            known.extend(self.before.take().map(|before| with_completion(before, &own)));
            self.first.get_or_insert_with(|| own.clone());
            self.before = Some((place.clone(), own, is_good));
        }
        known
    }

    /// The last sample.
    pub(super) fn finish(self) -> Option<(String, Sample)> {
        Some(with_completion(self.before?, &self.first?))
    }
}

/// A sample with its prompt before the completion of another one, which is of the same form.
fn with_completion((place, own, is_good): (String, Sample, bool), other: &Sample) -> (String, Sample) {
    let mismatch = match (&own, other) {
        (Sample::Pair { input, before, tools, .. }, Sample::Pair { output, .. }) => Some(Sample::Pair {
            input: input.clone(),
            output: output.clone(),
            before: before.clone(),
            tools: tools.clone(),
        }),
        (
            Sample::Chat { messages, tools, more, learned_from, .. },
            Sample::Chat { messages: others, learned_from: from, excluded, .. },
        ) => {
            let before = messages.get(..*learned_from).unwrap_or_default();
            let after = others.get(*from..).unwrap_or_default();
            let excluded = excluded.iter().filter_map(|number| Some(number.checked_sub(*from)? + learned_from));
            Some(Sample::Chat {
                messages: [before, after].concat(),
                tools: tools.clone(),
                more: more.clone(),
                learned_from: *learned_from,
                excluded: excluded.collect(),
            })
        }
        _ => None,
    };
    (place, Sample::Unpaired { own: Box::new(own), mismatch: mismatch.map(Box::new), is_good })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(at: usize) -> Sample {
        Sample::pair(format!("prompt {at}"), format!("completion {at}"))
    }

    fn of(prompt: usize, mismatch: usize, is_good: bool) -> Sample {
        let mismatch = Some(Box::new(Sample::pair(format!("prompt {prompt}"), format!("completion {mismatch}"))));
        Sample::Unpaired { own: Box::new(pair(prompt)), mismatch, is_good }
    }

    #[test]
    fn every_prompt_meets_the_completion_of_the_next_sample_and_the_last_that_of_the_first() {
        let mut mismatch = Mismatch::default();
        let mut known = mismatch.add("a".to_owned(), Sample::unpaired(pair(0), true));
        assert!(known.is_empty());
        known.extend(mismatch.add("b".to_owned(), Sample::preference(pair(1), pair(2))));
        known.extend(mismatch.add("c".to_owned(), Sample::unpaired(pair(3), false)));
        known.extend(mismatch.finish());
        let places: Vec<&str> = known.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, ["a", "b", "b", "c"]);
        let samples: Vec<Sample> = known.into_iter().map(|(_, sample)| sample).collect();
        assert_eq!(samples, [of(0, 1, true), of(1, 2, true), of(2, 3, false), of(3, 0, false)]);
        assert_eq!(Mismatch::default().finish(), None);
    }
}
