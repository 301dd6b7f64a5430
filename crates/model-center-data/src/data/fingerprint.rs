//! The fingerprint of a dataset.
//!
//! Adds [`Dataset::seal`], the last step of every reader.

use super::Dataset;
use model_center_base::batch::{Label, LabelSpace, Member, Verbalizer, VerbalizerPosition};

impl Dataset {
    /// Computes the fingerprint; the last step of reading.
    pub(super) fn seal(&mut self) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"tokenised dataset 2");
        let mut number = |number: u64| {
            hasher.update(&number.to_le_bytes());
        };
        number(self.labels.rows_per_sample() as u64);
        number(self.labels.outputs() as u64);
        number(self.ends.len() as u64);
        self.ends.iter().for_each(|end| number(*end as u64));
        for target in &self.targets {
            match target {
                Label::Class(class) | Label::Set(class) => number(*class as u64),
                Label::TokensFrom(from) => number(*from as u64),
                Label::Value(value) => number(u64::from(value.to_bits())),
                Label::Span([start, end]) => number(u64::from(*start) << 32 | u64::from(*end)),
                Label::Tags | Label::Learned => number(0),
            }
        }
        for set in &self.sets {
            number(set.len() as u64);
            set.iter().for_each(|label| number(u64::from(*label)));
        }
        number(self.repeats.as_ref().map_or(0, Vec::len) as u64);
        self.repeats.iter().flatten().for_each(|stored| number(u64::from(*stored)));
        if let LabelSpace::Verbalizer(Verbalizer { tokens: words, place, decoder, .. }) = &self.labels {
            number(u64::from(*place == VerbalizerPosition::Blank));
            words.iter().chain(decoder).chain(&self.places).for_each(|id| number(u64::from(*id)));
        }
        for Member { question, credit } in &self.members {
            number(u64::from(*question));
            credit.iter().flatten().for_each(|credit| number(u64::from(credit.to_bits())));
        }
        for answers in &self.references {
            number(answers.len() as u64);
            answers.iter().for_each(|answer| number(answer.len() as u64));
        }
        for answer in self.references.iter().flatten() {
            hasher.update(answer.as_bytes());
        }
        for chunk in self.ids.chunks(4096) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|id| id.to_le_bytes()).collect();
            hasher.update(&bytes);
        }
        hasher.update(&self.types);
        hasher.update(&self.learned);
        if let Some(mixture) = &self.mixture {
            mixture.quotas().iter().for_each(|quota| {
                hasher.update(&quota.to_le_bytes());
            });
        }
        for chunk in self.tags.chunks(4096) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|tag| tag.to_le_bytes()).collect();
            hasher.update(&bytes);
        }
        self.fingerprint = hasher.finalize().to_hex().to_string();
    }
}
