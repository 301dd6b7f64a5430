//! Batches of token files that threads form before a step asks for them.
//!
//! Defines [`Prefetcher`]. Step k of a run has the micro-batches from k times their number on; the threads take steps
//! in turn, and each is at most two steps ahead of the trainer.

use crate::{Error, Result};
use model_center_base::batch::Batch;
use model_center_data::pretraining::PretrainingSamples;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Steps that a thread has ready beside the one that it works on.
const READY: usize = 1;

/// Which micro-batches of a step a rank computes: `rank`, `rank + ranks` and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepPart {
    pub(super) rank: u64,
    pub(super) ranks: u64,
}

/// Forms the batches of the steps to come.
#[derive(Debug)]
pub(super) struct Prefetcher {
    samples: Arc<dyn PretrainingSamples>,
    size: usize,
    part: StepPart,
    threads: usize,
    course: Option<Course>,
    /// The batches of the step at hand, by their index.
    ready: BTreeMap<u64, Batch>,
}

/// Steps in their order.
#[derive(Debug)]
struct Course {
    /// The first micro-batch of the next step.
    next: u64,
    /// Micro-batches of a step.
    count: u64,
    /// Steps received.
    received: usize,
    workers: Vec<Receiver<Result<Step>>>,
}

/// Samples of a step.
#[derive(Debug)]
struct Step {
    /// Weights of all its micro-batches.
    weights: Vec<u64>,
    /// The batches of this rank.
    batches: BTreeMap<u64, Batch>,
}

/// Steps that a thread forms: every `stride`-th one.
struct Work {
    samples: Arc<dyn PretrainingSamples>,
    size: u64,
    part: StepPart,
    first: u64,
    count: u64,
    stride: u64,
    /// Samples there are.
    end: u64,
}

impl Prefetcher {
    /// For batches of `size` samples, on one thread.
    pub(super) fn new(samples: Arc<dyn PretrainingSamples>, size: usize, part: StepPart) -> Self {
        Prefetcher { samples, size, part, threads: 1, course: None, ready: BTreeMap::new() }
    }

    /// The same on this number of threads, at least one.
    #[must_use]
    pub(super) fn with_threads(self, threads: usize) -> Self {
        Prefetcher { threads: threads.max(1), ..self }
    }

    /// The weights of the `count` micro-batches of the step that begins with `first`; its batches are ready then. `end`
    /// is the number of samples.
    ///
    /// # Errors
    /// What reading the samples reports.
    pub(super) fn step(&mut self, first: u64, count: u64, end: u64) -> Result<Vec<u64>> {
        let continues = self.course.as_ref().is_some_and(|course| course.next == first && course.count == count);
        if !continues {
            // Dropping the receivers of another course ends its threads.
            self.course = None;
            self.course = Some(self.start(first, count, end)?);
        }
        let Some(course) = &mut self.course else { return Err(ended()) };
        let worker = course.received % course.workers.len();
        let received = course.workers.get(worker).and_then(|worker| worker.recv().ok());
        (course.received, course.next) = (course.received + 1, course.next + count);
        let step = received.unwrap_or_else(|| Err(ended()))?;
        self.ready = step.batches;
        Ok(step.weights)
    }

    /// A batch of the step at hand; `None` where it is another's.
    pub(super) fn take(&mut self, index: u64) -> Option<Batch> {
        self.ready.remove(&index)
    }

    fn start(&self, first: u64, count: u64, end: u64) -> Result<Course> {
        let threads = self.threads as u64;
        let workers = (0..threads).map(|worker| {
            let work = Work {
                samples: Arc::clone(&self.samples),
                size: self.size as u64,
                part: self.part,
                first: first + worker * count,
                count,
                stride: threads,
                end,
            };
            let (to, from) = sync_channel(READY);
            let thread = std::thread::Builder::new().name(format!("loading {worker}"));
            match thread.spawn(move || work.run(&to)) {
                Ok(_) => Ok(from),
                Err(error) => {
                    let reason = format!("no thread for loading samples: {error}");
                    Err(Error::argument("data.loading_threads", reason, "set fewer, or raise the limit of threads"))
                }
            }
        });
        Ok(Course { next: first, count, received: 0, workers: workers.collect::<Result<_>>()? })
    }
}

fn ended() -> Error {
    Error::data("loading samples", "a loading thread ended", "see its message above")
}

impl Work {
    /// Sends steps until there are no more samples, one cannot be formed, or they are no longer received.
    fn run(&self, to: &SyncSender<Result<Step>>) {
        let mut first = self.first;
        while (first + self.count).saturating_mul(self.size) <= self.end {
            let step = self.step(first);
            let is_last = step.is_err();
            if to.send(step).is_err() || is_last {
                return;
            }
            first += self.stride * self.count;
        }
    }

    fn step(&self, first: u64) -> Result<Step> {
        let mut step = Step { weights: Vec::with_capacity(self.count as usize), batches: BTreeMap::new() };
        for number in 0..self.count {
            let index = first + number;
            let samples: Vec<u64> = (index * self.size..(index + 1) * self.size).collect();
            if number % self.part.ranks != self.part.rank {
                step.weights.push(self.samples.weight_of(&samples)?);
                continue;
            }
            let batch = self.samples.batch(&samples)?;
            step.weights.push(self.samples.weight(&batch));
            step.batches.insert(index, batch);
        }
        Ok(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center_base::batch::LabelSpace;
    use model_center_data::pretraining::SampleInfo;

    /// Sample i has the token i.
    #[derive(Debug)]
    struct Numbers(SampleInfo);

    fn numbers(len: u64) -> Arc<dyn PretrainingSamples> {
        let (labels, fingerprint) = (LabelSpace::NextTokens, "numbers".to_owned());
        Arc::new(Numbers(SampleInfo { len, labels, gives_decoder_inputs: false, max_length: 1, fingerprint }))
    }

    impl PretrainingSamples for Numbers {
        fn info(&self) -> &SampleInfo {
            &self.0
        }

        fn batch(&self, samples: &[u64]) -> Result<Batch> {
            if samples.contains(&40) {
                return Err(Error::data("sample 40", "it is damaged", "mend it"));
            }
            Ok(Batch::new(1, samples.iter().map(|sample| *sample as i64).collect()))
        }

        fn weight_of(&self, samples: &[u64]) -> Result<u64> {
            Ok(samples.iter().sum())
        }

        fn weight(&self, batch: &Batch) -> u64 {
            batch.input_ids.iter().map(|id| *id as u64).sum()
        }
    }

    #[test]
    fn steps_come_in_their_order_on_any_number_of_threads() {
        for threads in 1..4 {
            let samples = numbers(36);
            let part = StepPart { rank: 1, ranks: 2 };
            let mut prefetcher = Prefetcher::new(samples, 2, part).with_threads(threads);
            // From the beginning, and from elsewhere: a resumed run.
            for first in [0, 4, 8, 12, 0, 4] {
                let weights = prefetcher.step(first, 4, 36).unwrap();
                let expected: Vec<u64> = (first..first + 4).map(|index| 4 * index + 1).collect();
                assert_eq!(weights, expected);
                assert!(prefetcher.take(first).is_none() && prefetcher.take(first + 2).is_none());
                let batch = prefetcher.take(first + 3).unwrap();
                assert_eq!(batch.input_ids, [2 * first as i64 + 6, 2 * first as i64 + 7]);
            }
            // Two samples are left, and a step has eight.
            assert!(prefetcher.step(16, 4, 36).is_err());
        }
    }

    #[test]
    fn an_error_reaches_the_step_whose_samples_have_it() {
        let samples = numbers(64);
        let mut prefetcher = Prefetcher::new(samples, 4, StepPart { rank: 0, ranks: 1 }).with_threads(2);
        for first in [0, 2, 4, 6, 8] {
            prefetcher.step(first, 2, 64).unwrap();
        }
        assert!(prefetcher.step(10, 2, 64).unwrap_err().to_string().contains("damaged"));
    }
}
