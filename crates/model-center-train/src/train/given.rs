//! The micro-batches of one step, which a program gives.
//!
//! Defines [`GivenBatches`], which [`StepTrainer`](super::StepTrainer) fills before each step.

use crate::{Error, Result};
use model_center_base::batch::{Batch, LabelSpace, Labels, Position};

/// The micro-batches of a step.
#[derive(Debug)]
pub(crate) struct GivenBatches {
    batches: Vec<Batch>,
    labels: LabelSpace,
}

impl GivenBatches {
    /// These batches. Those without sample numbers get the numbers of their samples in the step.
    ///
    /// # Errors
    /// No batch, one without labels, or labels of several kinds.
    pub(super) fn new(batches: Vec<Batch>) -> Result<Self> {
        let wrong = |place: String, reason: &str, fix: &str| Err(Error::data(place, reason, fix));
        let Some(first) = batches.first() else {
            return wrong("the step".to_owned(), "it has no batch", "give at least one");
        };
        let labels = first.labels.as_ref().map(|labels| space_of(labels, first));
        let Some(labels) = labels else {
            return wrong("batch 0".to_owned(), "it has no labels", "give one for each row or token");
        };
        for (number, batch) in batches.iter().enumerate().skip(1) {
            if batch.labels.as_ref().map(|labels| space_of(labels, batch)).as_ref() != Some(&labels) {
                let reason = "its labels are not of the kind of batch 0's";
                return wrong(format!("batch {number}"), reason, "give batches of one task to a step");
            }
        }
        let mut first_sample = 0;
        let numbered = batches.into_iter().map(|batch| {
            let samples = (batch.rows / batch.choices.max(1)) as u32;
            let numbers = (first_sample..first_sample + samples).collect();
            first_sample += samples;
            if batch.samples.is_empty() { Batch { samples: numbers, ..batch } } else { batch }
        });
        Ok(GivenBatches { batches: numbered.collect(), labels })
    }

    /// None yet, before the first step.
    pub(super) fn none() -> Self {
        GivenBatches { batches: Vec::new(), labels: LabelSpace::NextTokens }
    }

    pub(super) fn labels(&self) -> &LabelSpace {
        &self.labels
    }

    /// Samples of the largest batch.
    pub(super) fn size(&self) -> usize {
        self.batches.iter().map(|batch| batch.samples.len()).max().unwrap_or(0)
    }

    pub(super) fn count(&self) -> u64 {
        self.batches.len() as u64
    }

    pub(super) fn batch(&self, position: Position) -> Result<Batch> {
        let batch = usize::try_from(position.index).ok().and_then(|index| self.batches.get(index));
        batch.map(|batch| Batch { position, ..batch.clone() }).ok_or_else(|| {
            let reason = format!("the step has {} batches", self.batches.len());
            Error::data(format!("batch {}", position.index), reason, "give all batches of the step")
        })
    }

    /// The share of each batch in the mean of the step.
    pub(super) fn shares(&self) -> Vec<f32> {
        let all: u64 = self.batches.iter().map(Batch::weight).sum();
        self.batches.iter().map(|batch| (batch.weight() as f64 / all.max(1) as f64) as f32).collect()
    }
}

/// Label space; names of classes are the model's.
fn space_of(labels: &Labels, batch: &Batch) -> LabelSpace {
    match labels {
        Labels::Classes(_) if batch.choices > 1 => LabelSpace::Choices(batch.choices),
        Labels::Classes(_) => LabelSpace::Classes(Vec::new()),
        Labels::Values(_) => LabelSpace::Value,
        Labels::NextTokens(_) => LabelSpace::NextTokens,
        Labels::TokenClasses(_) => LabelSpace::TokenClasses(Vec::new()),
        Labels::Spans(_) => LabelSpace::Span,
        Labels::Target(_) => LabelSpace::Target,
        Labels::Predicted(_) => LabelSpace::MaskedTokens { sentences: batch.next_sentence.is_some() },
    }
}
