//! From positions to padded batches.
//!
//! Defines [`Loader`], its [`Order`]s, [`Position`] and [`Batch`]. Which samples form batch `index` of an epoch is a
//! pure function of (seed, epoch, index), whichever rank asks: rank r of R takes the indices r, r + R, … and
//! nothing has to be split, padded or sent. Rows are padded to the longest of their own batch.
//! Training calls [`Loader::batch`] once per micro-batch.

use model_center_base::batch::Position;
use std::sync::Arc;

use bmtrain_core::philox::Key;

use super::packing::packed;
use super::{Dataset, Permutation};
use crate::{Error, Result};
use model_center_base::batch::{Batch, IGNORED, Label, LabelSpace, Labels, VerbalizerBatch, VerbalizerPosition};

/// In which order samples are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As in the file.
    Sequential,
    /// A new random order every epoch.
    #[default]
    Shuffled,
    /// Shuffled, then sorted by length inside windows of this number of batches, then the batches of a window shuffled.
    ///
    /// Rows of a batch are of similar length, so little is padded, while batches stay random. The samples left
    /// over by full batches form the last batch, or are dropped, as they fall: not the longest ones.
    LengthGrouped {
        /// Batches per window; 50 is a good value. A window of 1 is [`Order::Shuffled`].
        window: usize,
    },
    /// Longest first; the least padding for evaluation, and the largest batch shows at once if memory suffices.
    SortedByLength,
}

impl Order {
    /// Batches per window in training whose batches are grouped by length.
    const WINDOW: usize = 50;

    /// The order of training by the settings of a recipe's `[data]`; what is not shuffled is not grouped either.
    pub fn training(shuffle: bool, length_grouped: bool) -> Self {
        match (shuffle, length_grouped) {
            (false, _) => Order::Sequential,
            (true, true) => Order::LengthGrouped { window: Self::WINDOW },
            (true, false) => Order::Shuffled,
        }
    }
}

/// How batches are formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LoaderOptions {
    /// Samples per batch.
    pub batch_size: usize,
    /// In which order.
    pub order: Order,
    /// Leave out the last batch of an epoch if it is not full. For training; evaluation sees every sample once.
    pub drop_last: bool,
    /// Where the last batch may not be full: an epoch has a multiple of this number of batches, and its last ones may
    /// have no samples, so that ranks that share this number each have the same number; 1 for none.
    pub round_epoch_to: usize,
    /// Pad lengths up to a multiple of this, at most up to the dataset's length limit; 1 for none.
    pub pad_to_multiple_of: usize,
    /// Join the sequences of a batch to one without padding, whose attention stays within each of them. For next-token
    /// prediction.
    pub packing: bool,
    /// Decides the orders.
    pub seed: u64,
}

impl LoaderOptions {
    /// Shuffled full batches.
    pub fn training(batch_size: usize, seed: u64) -> Self {
        LoaderOptions {
            batch_size,
            order: Order::Shuffled,
            drop_last: true,
            round_epoch_to: 1,
            pad_to_multiple_of: 1,
            packing: false,
            seed,
        }
    }

    /// Every sample exactly once, similar lengths together.
    pub fn evaluation(batch_size: usize) -> Self {
        LoaderOptions { order: Order::SortedByLength, drop_last: false, ..LoaderOptions::training(batch_size, 0) }
    }
}

/// The samples of one window in visiting order, kept because computing them costs a sort.
#[derive(Debug, Clone)]
struct Window {
    epoch: u64,
    number: u64,
    samples: Vec<u32>,
}

/// Forms batches of a dataset.
#[derive(Debug, Clone)]
pub struct Loader {
    dataset: Arc<Dataset>,
    options: LoaderOptions,
    /// Samples by falling length, for [`Order::SortedByLength`].
    sorted: Vec<u32>,
    window: Option<Window>,
    /// An epoch and its order, of data sets that are mixed.
    mixed: Option<(u64, Arc<Vec<u32>>)>,
    /// Weight of a sample of each class in a mean.
    class_weights: Option<Vec<f32>>,
}

impl Loader {
    /// A loader over `dataset`.
    ///
    /// Errors: a size of 0, packing for labels that are not next tokens, or fewer samples than one full batch where
    /// only full batches count.
    pub fn new(dataset: Arc<Dataset>, options: LoaderOptions) -> Result<Loader> {
        let wrong = |key: &str, reason: String, fix: &str| Err(Error::argument(key, reason, fix));
        if options.batch_size == 0 {
            return wrong("batch size", "a batch of 0 samples".into(), "use at least 1");
        }
        if options.pad_to_multiple_of == 0 {
            return wrong("LoaderOptions::pad_to_multiple_of", "a multiple of 0".into(), "use 1 for no rounding");
        }
        if matches!(options.order, Order::LengthGrouped { window: 0 }) {
            return wrong("LoaderOptions::order", "a window of 0 batches".into(), "use at least 1, e.g. 50");
        }
        if options.packing && *dataset.labels() != LabelSpace::NextTokens {
            let reason = "sequences are packed for next-token prediction alone".into();
            return wrong("data.packing", reason, "set it to false");
        }
        if dataset.is_empty() || (options.drop_last && dataset.len() < options.batch_size) {
            let reason = format!("{} samples do not fill one batch of {}", dataset.len(), options.batch_size);
            return wrong("batch size", reason, "use smaller batches or more data");
        }
        let mut sorted = Vec::new();
        if options.order == Order::SortedByLength {
            sorted = (0..dataset.len() as u32).collect();
            sorted.sort_by_key(|sample| (std::cmp::Reverse(dataset.length(*sample as usize)), *sample));
        }
        Ok(Loader { dataset, options, sorted, window: None, mixed: None, class_weights: None })
    }

    /// The same, with samples that count in a mean as their class weighs; `None` where all count the same.
    #[must_use]
    pub fn weighing(self, class_weights: Option<Vec<f32>>) -> Loader {
        Loader { class_weights, ..self }
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// How batches are formed.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// Samples of a batch; the last of an epoch may have fewer.
    pub fn batch_size(&self) -> usize {
        self.options.batch_size
    }

    /// Number of batches of an epoch, the same for every epoch and at least 1.
    pub fn batches_per_epoch(&self) -> u64 {
        let (samples, size) = (self.dataset.len(), self.options.batch_size);
        let batches = match self.options.drop_last {
            true => samples / size,
            false => samples.div_ceil(size).next_multiple_of(self.options.round_epoch_to.max(1)),
        };
        batches as u64
    }

    /// The batch at a position. Takes `&mut` only for a cache: equal positions always give equal batches.
    ///
    /// A batch without samples, of an epoch that is rounded, has the first row of the dataset in their place, so that
    /// it can be computed; its share is 0.
    ///
    /// Errors: an index beyond the epoch.
    pub fn batch(&mut self, position: Position) -> Result<Batch> {
        let samples = self.samples(position)?;
        if samples.is_empty() {
            return Ok(Batch { samples, ..self.collate(position, vec![0]) });
        }
        Ok(self.collate(position, samples))
    }

    /// The weight of each of `count` batches from `first` on in their mean: by samples for per-sample losses, which is
    /// equal for full batches, by target tokens for per-token losses, by the samples' weights if classes have weights.
    /// The same on every rank.
    ///
    /// Errors: as [`Loader::samples`].
    pub fn shares(&mut self, first: Position, count: u64) -> Result<Vec<f32>> {
        if self.class_weights.is_some() {
            return self.weighed(first, count);
        }
        let by_token = self.dataset.labels().loss_is_by_token();
        if !by_token && self.options.drop_last {
            return Ok(vec![1.0 / count as f32; count as usize]);
        }
        let mut weights = Vec::with_capacity(count as usize);
        for index in first.index..first.index + count {
            let samples = self.samples(Position { index, ..first })?;
            weights.push(if by_token { self.dataset.weight_of(&samples) } else { samples.len() as u64 });
        }
        let all: u64 = weights.iter().sum();
        Ok(weights.into_iter().map(|weight| (weight as f64 / all.max(1) as f64) as f32).collect())
    }

    /// The shares of batches whose samples count as their class weighs.
    fn weighed(&mut self, first: Position, count: u64) -> Result<Vec<f32>> {
        let mut sums = Vec::with_capacity(count as usize);
        for index in first.index..first.index + count {
            let samples = self.samples(Position { index, ..first })?;
            let weight = |sample: &u32| match (self.dataset.label(*sample as usize), &self.class_weights) {
                (Some(Label::Class(class)), Some(weights)) => weights.get(class).copied().map_or(1.0, f64::from),
                _ => 1.0,
            };
            sums.push(samples.iter().map(weight).sum::<f64>());
        }
        let all: f64 = sums.iter().sum();
        Ok(sums.into_iter().map(|sum| (sum / all) as f32).collect())
    }

    /// The share of each of `count` batches from `first` on in their prompt tokens; 0 without prompts. The same on
    /// every rank.
    ///
    /// Errors: as [`Loader::samples`].
    pub fn prompt_shares(&mut self, first: Position, count: u64) -> Result<Vec<f32>> {
        let tokens = (first.index..first.index + count).map(|index| {
            let samples = self.samples(Position { index, ..first })?;
            // Each token but the first is predicted, and so is the answer.
            Ok(samples.iter().map(|sample| self.dataset.length(*sample as usize) as u64).sum::<u64>())
        });
        let tokens = tokens.collect::<Result<Vec<u64>>>()?;
        let all: u64 = tokens.iter().sum();
        Ok(tokens.into_iter().map(|tokens| (tokens as f64 / all.max(1) as f64) as f32).collect())
    }

    /// All batches of an epoch in order.
    pub fn epoch(&mut self, epoch: u64) -> impl Iterator<Item = Result<Batch>> {
        let count = self.batches_per_epoch();
        (0..count).map(move |index| self.batch(Position { epoch, index }))
    }

    /// The dataset indices of the samples in the batch at a position.
    ///
    /// Errors: an index beyond the epoch.
    pub fn samples(&mut self, position: Position) -> Result<Vec<u32>> {
        let count = self.batches_per_epoch();
        if position.index >= count {
            return Err(Error::data(
                format!("batch {} of epoch {}", position.index, position.epoch),
                format!("an epoch has {count} batches"),
                "the data or the batch size changed since the position was saved; start the epoch again",
            ));
        }
        let size = self.options.batch_size as u64;
        let start = position.index * size;
        let range = start..(start + size).min(self.dataset.len() as u64);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        match self.options.order {
            Order::Sequential => Ok(range.map(|index| index as u32).collect()),
            Order::SortedByLength => Ok(self.sorted[range.start as usize..range.end as usize].to_vec()),
            Order::Shuffled => Ok(self.shuffled(position.epoch, range)),
            Order::LengthGrouped { window } => Ok(self.grouped(position, window as u64)),
        }
    }

    /// Samples at the places `range` of the epoch's random order.
    fn shuffled(&mut self, epoch: u64, range: std::ops::Range<u64>) -> Vec<u32> {
        if let Some(mixture) = self.dataset.mixture() {
            let kept = self.mixed.take().filter(|(kept, _)| *kept == epoch);
            let (_, order) =
                self.mixed.insert(kept.unwrap_or_else(|| (epoch, Arc::new(mixture.epoch(self.options.seed, epoch)))));
            return order.get(range.start as usize..range.end as usize).unwrap_or_default().to_vec();
        }
        let key = Key::new(self.options.seed, "data.order");
        let order = Permutation::new(key, epoch_stream(epoch, 0), self.dataset.len() as u64);
        range.filter_map(|index| order.at(index)).map(|item| item as u32).collect()
    }

    fn grouped(&mut self, position: Position, batches: u64) -> Vec<u32> {
        let Position { epoch, index } = position;
        let size = self.options.batch_size as u64;
        let full = self.dataset.len() as u64 / size;
        if index >= full {
            return self.shuffled(epoch, full * size..self.dataset.len() as u64);
        }
        let number = index / batches;
        let first = number * batches;
        let count = batches.min(full - first);
        let cached = self.window.take().filter(|window| (window.epoch, window.number) == (epoch, number));
        let window = cached.unwrap_or_else(|| {
            let mut samples = self.shuffled(epoch, first * size..(first + count) * size);
            // A stable sort: equal lengths keep their random order.
            samples.sort_by_key(|sample| self.dataset.length(*sample as usize));
            Window { epoch, number, samples }
        });
        let key = Key::new(self.options.seed, "data.window");
        let order = Permutation::new(key, epoch_stream(epoch, number as u32), count);
        let batch = order.at(index - first).unwrap_or(0) as usize;
        let size = self.options.batch_size;
        let samples = window.samples[batch * size..(batch + 1) * size].to_vec();
        self.window = Some(window);
        samples
    }

    fn collate(&self, position: Position, samples: Vec<u32>) -> Batch {
        let dataset = &self.dataset;
        let inputs = || samples.iter().flat_map(|sample| dataset.inputs(*sample as usize));
        let longest = inputs().map(|row| row.input_ids.len()).max().unwrap_or(0);
        let rounded = longest.checked_next_multiple_of(self.options.pad_to_multiple_of).unwrap_or(longest);
        let len = rounded.min(dataset.max_length().max(longest));
        let rows = inputs().count();
        let count = rows * len;
        let mut input_ids = Vec::with_capacity(count);
        let (mut mask, mut segments) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for row in inputs() {
            input_ids.extend(row.input_ids.iter().map(|id| i64::from(*id)));
            mask.resize(input_ids.len(), 1);
            segments.extend(row.token_type_ids.iter().map(|segment| i64::from(*segment)));
            let padded = mask.len() + len - row.input_ids.len();
            input_ids.resize(padded, i64::from(dataset.pad_id()));
            mask.resize(padded, 0);
            segments.resize(padded, 0);
        }
        // The rows of a pair are sequences of their own.
        let are_texts = matches!(dataset.labels(), LabelSpace::Texts(_));
        let are_alone = are_texts || dataset.labels().are_compared();
        let choices = if are_alone { 1 } else { (rows / samples.len().max(1)).max(1) };
        let batch = Batch {
            position,
            rows,
            attention_mask: Some(mask),
            token_type_ids: Some(segments),
            labels: (!are_texts).then(|| self.labels(&samples, len)),
            judgements: self.judgements(&samples),
            choices,
            ..Batch::new(len, input_ids)
        };
        let batch = self.with_verbalizer(Batch { samples, ..batch });
        match self.options.packing {
            true => packed(batch, dataset.pad_id(), self.options.pad_to_multiple_of),
            false => batch,
        }
    }

    /// Which of these samples are good, where they are judged.
    fn judgements(&self, samples: &[u32]) -> Option<Vec<bool>> {
        let is_good = |sample: &u32| self.dataset.label(*sample as usize) == Some(Label::Class(1));
        (*self.dataset.labels() == LabelSpace::Unpaired).then(|| samples.iter().map(is_good).collect())
    }

    /// The batch with the label words and their positions, where the labels are told by a verbalizer.
    fn with_verbalizer(&self, batch: Batch) -> Batch {
        let LabelSpace::Verbalizer(verbalizer) = self.dataset.labels() else { return batch };
        let positions = |length: usize| -> Vec<i64> {
            let position = |sample: &u32| self.dataset.place(*sample as usize).unwrap_or(0);
            batch.samples.iter().enumerate().map(|(row, sample)| (row * length + position(sample)) as i64).collect()
        };
        let ids = |ids: &[u32]| ids.iter().map(|id| i64::from(*id)).collect::<Vec<_>>();
        let of = |positions| Some(VerbalizerBatch { label_words: ids(&verbalizer.tokens), positions });
        match verbalizer.place {
            VerbalizerPosition::Next => Batch { verbalizer: of(positions(batch.length)), ..batch },
            VerbalizerPosition::Blank => {
                let positions = positions(batch.length);
                // The blank follows the token that predicts it.
                let mut context = vec![1; batch.input_ids.len()];
                for position in &positions {
                    if let Some(blank) = context.get_mut(*position as usize + 1) {
                        *blank = 0;
                    }
                }
                Batch { verbalizer: of(positions), context: Some(context), ..batch }
            }
            VerbalizerPosition::Sentinel { .. } => {
                let decoder = ids(&verbalizer.decoder);
                let verbalizer = of(positions(decoder.len()));
                Batch { verbalizer, decoder_input_ids: Some(decoder.repeat(batch.samples.len())), ..batch }
            }
        }
    }

    /// The labels of samples whose rows are of this length.
    fn labels(&self, samples: &[u32], len: usize) -> Labels {
        let dataset = &self.dataset;
        let rows = || samples.iter().map(|sample| *sample as usize);
        let padded = |words: Vec<i64>, len: usize| words.into_iter().chain(std::iter::repeat(IGNORED)).take(len);
        match dataset.labels() {
            LabelSpace::NextTokens | LabelSpace::MaskedTokens { .. } => {
                let words = |sample: usize| {
                    if dataset.label(sample) == Some(Label::Learned) {
                        let ids = dataset.inputs(sample).flat_map(|row| row.input_ids).zip(dataset.learned(sample));
                        let words = ids.map(|(id, learned)| if *learned == 1 { i64::from(*id) } else { IGNORED });
                        return padded(words.collect(), len);
                    }
                    let from = if let Some(Label::TokensFrom(from)) = dataset.label(sample) { from } else { 0 };
                    let ids = dataset.inputs(sample).flat_map(|row| row.input_ids).enumerate();
                    padded(ids.map(|(at, id)| if at < from { IGNORED } else { i64::from(*id) }).collect(), len)
                };
                Labels::NextTokens(rows().flat_map(words).collect())
            }
            LabelSpace::Pairs | LabelSpace::Unpaired => {
                let mut labels = Vec::with_capacity(2 * samples.len() * len);
                for sample in rows() {
                    let mut mask = dataset.learned(sample).iter();
                    for row in dataset.inputs(sample) {
                        let label = |id: &u32| if mask.next() == Some(&1) { i64::from(*id) } else { IGNORED };
                        let own = row.input_ids.iter().map(label).collect();
                        labels.extend(padded(own, len));
                    }
                }
                Labels::NextTokens(labels)
            }
            LabelSpace::Target => {
                let ids = |sample: usize| dataset.target(sample).map_or(&[][..], |row| row.input_ids);
                let longest = rows().map(|sample| ids(sample).len()).max().unwrap_or(0);
                let words = |sample: usize| padded(ids(sample).iter().map(|id| i64::from(*id)).collect(), longest);
                Labels::Target(rows().flat_map(words).collect())
            }
            LabelSpace::TokenClasses(_) => {
                let tags = |sample: usize| dataset.tags(sample).iter().map(|tag| i64::from(*tag)).collect();
                Labels::TokenClasses(rows().flat_map(|sample| padded(tags(sample), len)).collect())
            }
            LabelSpace::Span => Labels::Spans(
                rows()
                    .filter_map(|sample| match dataset.label(sample)? {
                        Label::Span(span) => Some(span.map(i64::from)),
                        _ => None,
                    })
                    .collect(),
            ),
            LabelSpace::LabelSets(names) => {
                let mut flags = vec![0.0; samples.len() * names.len()];
                for (sample, flags) in rows().zip(flags.chunks_mut(names.len().max(1))) {
                    for label in dataset.label_set(sample) {
                        flags.get_mut(*label as usize).into_iter().for_each(|flag| *flag = 1.0);
                    }
                }
                Labels::Values(flags)
            }
            LabelSpace::Value => Labels::Values(
                rows()
                    .filter_map(|sample| match dataset.label(sample)? {
                        Label::Value(value) => Some(value),
                        _ => None,
                    })
                    .collect(),
            ),
            LabelSpace::Classes(_) | LabelSpace::Choices(_) | LabelSpace::Verbalizer(_) | LabelSpace::Texts(_) => {
                Labels::Classes(
                    rows()
                        .filter_map(|sample| match dataset.label(sample)? {
                            Label::Class(class) => Some(class as i64),
                            _ => None,
                        })
                        .collect(),
                )
            }
        }
    }
}

fn epoch_stream(epoch: u64, window: u32) -> [u32; 3] {
    [epoch as u32, (epoch >> 32) as u32, window]
}
