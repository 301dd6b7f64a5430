//! A tokenised dataset in memory.
//!
//! Defines [`Dataset`]: all token ids in one flat vector with offsets (5 bytes per token, 8 per row), labels beside
//! them, and what reading found ([`ReadReport`]). Filled by [`super::read`], batched by [`super::loader`].

use super::read::renumber;
use super::{EpochMixture, SpanWindows};
use crate::metrics::Evaluator;
use crate::{Error, Result};
use model_center_base::batch::{IGNORED, Label, LabelSpace, Member, Verbalizer, VerbalizerPosition};
use std::sync::Arc;

/// Report of reading a file.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
pub struct ReadReport {
    /// Records in the file, bad ones included.
    pub records: u64,
    /// Bad records left out.
    pub skipped: u64,
    /// Reasons of the first few of them.
    pub first_skipped: Vec<String>,
    /// Rows (model inputs) kept.
    pub rows: u64,
    /// Rows that were longer than the limit and lost tokens.
    pub truncated: u64,
    /// Tokens that truncation removed, over all rows.
    pub removed_tokens: u64,
    /// Tokens kept, special tokens included.
    pub tokens: u64,
    /// Tokens of the longest row kept.
    pub longest: usize,
    /// Columns of conversations and completions that no reader uses, of many the first.
    pub unused_columns: Vec<String>,
}

impl ReadReport {
    /// Share of rows that lost tokens, 0 to 1.
    pub fn truncated_share(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.truncated as f64 / self.rows as f64 }
    }
}

/// One row of a dataset, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRef<'a> {
    /// Token ids, length L.
    pub input_ids: &'a [u32],
    /// Segment of each token, length L.
    pub token_type_ids: &'a [u8],
}

/// A labelled dataset, tokenised.
///
/// It holds samples; a sample is one row, one row per choice, or one that is read and one that is to be written.
#[derive(Debug, Clone)]
pub struct Dataset {
    pub(super) labels: LabelSpace,
    pub(super) pad_id: u32,
    pub(super) max_length: usize,
    pub(super) ids: Vec<u32>,
    pub(super) types: Vec<u8>,
    /// Ends of rows in `ids`.
    pub(super) ends: Vec<usize>,
    pub(super) targets: Vec<Label>,
    /// Place of the answer in each row, or in the decoder's.
    pub(super) places: Vec<u32>,
    /// Group of each sample, where several are scored together.
    pub(super) members: Vec<Member>,
    /// Texts that answer each sample, where a text is to be written.
    pub(super) references: Vec<Vec<String>>,
    /// The class of each token, [`IGNORED`] for none; empty unless tokens have classes.
    pub(super) tags: Vec<i32>,
    /// The distinct sets of labels, whose numbers samples have; empty of other labels. The labels of a set ascend.
    pub(super) sets: Vec<Vec<u32>>,
    /// Whether each token is learned, 1 or 0; empty unless samples mark them.
    pub(super) learned: Vec<u8>,
    /// Where the tokens of passages are in their texts, if answers are spans.
    pub(super) spans: Option<Arc<SpanWindows>>,
    /// With oversampling: the stored sample of each sample.
    pub(super) repeats: Option<Vec<u32>>,
    /// Order in which the samples of several datasets make an epoch.
    pub(super) mixture: Option<EpochMixture>,
    pub(super) report: ReadReport,
    pub(super) fingerprint: String,
}

impl Dataset {
    /// A data set without samples.
    pub(super) fn new(labels: LabelSpace, pad_id: u32, max_length: usize) -> Self {
        Dataset {
            labels,
            pad_id,
            max_length,
            ids: Vec::new(),
            types: Vec::new(),
            ends: Vec::new(),
            targets: Vec::new(),
            places: Vec::new(),
            members: Vec::new(),
            references: Vec::new(),
            tags: Vec::new(),
            sets: Vec::new(),
            learned: Vec::new(),
            spans: None,
            repeats: None,
            mixture: None,
            report: ReadReport::default(),
            fingerprint: String::new(),
        }
    }

    /// An empty evaluator for its samples.
    pub fn evaluator(&self) -> Evaluator {
        let members = (0..self.len()).filter_map(|sample| self.member(sample)).collect();
        Evaluator::with_members(self.labels(), members)
    }

    /// Number of samples, repeated ones counted each time.
    pub fn len(&self) -> usize {
        self.repeats.as_ref().map_or(self.targets.len(), Vec::len)
    }

    /// Whether there are no samples. A dataset that was read has at least one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Label space.
    pub fn labels(&self) -> &LabelSpace {
        &self.labels
    }

    /// Report of the reading.
    pub fn report(&self) -> &ReadReport {
        &self.report
    }

    /// BLAKE3, in hexadecimal, of all that training sees: token ids, segments, labels and repetitions.
    ///
    /// It changes with the file, the task, the tokenizer and the length limit, and with nothing else.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The limit on tokens per row that applied when the dataset was read.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// The id that fills rows of a batch; the attention mask hides it.
    pub fn pad_id(&self) -> u32 {
        self.pad_id
    }

    /// The rows of a sample, `None` beyond the end.
    pub fn rows(&self, sample: usize) -> Option<impl Iterator<Item = RowRef<'_>>> {
        let stored = self.stored(sample)?;
        let per_sample = self.labels.rows_per_sample();
        Some((stored * per_sample..(stored + 1) * per_sample).map(|row| self.row(row)))
    }

    /// The label of a sample, `None` beyond the end.
    pub fn label(&self, sample: usize) -> Option<Label> {
        self.targets.get(self.stored(sample)?).copied()
    }

    /// The rows of a sample that a model reads: all but a target.
    pub fn inputs(&self, sample: usize) -> impl Iterator<Item = RowRef<'_>> {
        let count = if self.labels == LabelSpace::Target { 1 } else { usize::MAX };
        self.rows(sample).into_iter().flatten().take(count)
    }

    /// The row of a sample that a model is to write; `None` where there are no targets, and beyond the end.
    pub fn target(&self, sample: usize) -> Option<RowRef<'_>> {
        self.rows(sample).filter(|_| self.labels == LabelSpace::Target)?.nth(1)
    }

    /// Tokens of the longest row of a sample, 0 beyond the end.
    pub fn length(&self, sample: usize) -> usize {
        self.rows(sample).and_then(|rows| rows.map(|row| row.input_ids.len()).max()).unwrap_or(0)
    }

    /// The weight of a sample in a mean over samples: its number of predicted tokens, or 1 if labels are not tokens.
    pub fn weight(&self, sample: usize) -> usize {
        match (self.label(sample), self.target(sample)) {
            (Some(Label::TokensFrom(_)), Some(target)) => target.input_ids.len(),
            // A sequence's first token is never predicted.
            (Some(Label::TokensFrom(from)), None) => self.length(sample).saturating_sub(from.max(1)),
            (Some(Label::Learned), _) if self.labels == LabelSpace::Pairs => 1,
            (Some(Label::Learned), _) => self.learned(sample).iter().skip(1).filter(|learned| **learned == 1).count(),
            (Some(Label::Tags), _) => self.tags(sample).iter().filter(|tag| i64::from(**tag) != IGNORED).count(),
            (Some(Label::Class(_) | Label::Value(_) | Label::Set(_) | Label::Span(_)), _) => 1,
            (None, _) => 0,
        }
    }

    /// The total weight of samples.
    pub fn weight_of(&self, samples: &[u32]) -> u64 {
        samples.iter().map(|sample| self.weight(*sample as usize) as u64).sum()
    }

    /// Number the classes in the order of `names`, the dataset's own names in any order. Changes the fingerprint with
    /// it.
    ///
    /// Errors: other names than the dataset's own.
    pub fn order_labels(&mut self, names: &[String]) -> Result<()> {
        let (LabelSpace::Classes(own) | LabelSpace::TokenClasses(own) | LabelSpace::LabelSets(own)) = &self.labels
        else {
            return Err(Error::data("labels", "the dataset has no named classes", "order classes only"));
        };
        let order: Option<Vec<usize>> = own.iter().map(|name| names.iter().position(|other| other == name)).collect();
        let Some(order) = order.filter(|order| order.len() == names.len()) else {
            let reason = format!("{} are not the names {} in another order", names.join(", "), own.join(", "));
            return Err(Error::data("labels", reason, "give every name of the dataset once"));
        };
        if *own != names {
            renumber(self, &order);
            self.labels = match self.labels {
                LabelSpace::TokenClasses(_) => LabelSpace::TokenClasses(names.to_vec()),
                LabelSpace::LabelSets(_) => LabelSpace::LabelSets(names.to_vec()),
                _ => LabelSpace::Classes(names.to_vec()),
            };
            self.seal();
        }
        Ok(())
    }

    /// The place in a sample's row, or in what the decoder reads, whose output is the answer; `None` where labels are
    /// no answers.
    pub fn place(&self, sample: usize) -> Option<usize> {
        self.places.get(self.stored(sample)?).map(|place| *place as usize)
    }

    /// Group of a sample, where several are scored together; `None` where each is scored by itself.
    pub fn member(&self, sample: usize) -> Option<Member> {
        self.members.get(self.stored(sample)?).copied()
    }

    /// Reference texts, each a correct answer to a sample; empty unless answers are generated.
    pub fn references(&self, sample: usize) -> &[String] {
        self.stored(sample).and_then(|stored| self.references.get(stored)).map_or(&[], Vec::as_slice)
    }

    /// The class of each token of a sample's row; empty unless tokens have classes.
    pub fn tags(&self, sample: usize) -> &[i32] {
        self.range(sample).and_then(|range| self.tags.get(range)).unwrap_or_default()
    }

    /// The labels of a sample, in ascending order; empty of one without labels, and unless samples have any number of
    /// them.
    pub fn label_set(&self, sample: usize) -> &[u32] {
        match self.label(sample) {
            Some(Label::Set(set)) => self.sets.get(set).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// Whether each token of a sample's rows is learned, 1 or 0; empty unless samples mark them.
    pub fn learned(&self, sample: usize) -> &[u8] {
        self.range(sample).and_then(|range| self.learned.get(range)).unwrap_or_default()
    }

    /// In which order the samples of several data sets make an epoch; `None` of one.
    pub fn mixture(&self) -> Option<&EpochMixture> {
        self.mixture.as_ref()
    }

    /// The tokens of all rows of a sample.
    fn range(&self, sample: usize) -> Option<std::ops::Range<usize>> {
        let per_sample = self.labels.rows_per_sample();
        let first = self.stored(sample)? * per_sample;
        let start = if first == 0 { 0 } else { *self.ends.get(first - 1)? };
        Some(start..*self.ends.get((first + per_sample).checked_sub(1)?)?)
    }

    /// Where the tokens of passages are in their texts, by stored sample.
    pub fn spans(&self) -> Option<&Arc<SpanWindows>> {
        self.spans.as_ref()
    }

    /// How often each class or label occurs, repetitions counted; empty for numbers.
    pub fn class_counts(&self) -> Vec<u64> {
        if let LabelSpace::LabelSets(names) = &self.labels {
            let mut counts = vec![0; names.len()];
            for label in (0..self.len()).flat_map(|sample| self.label_set(sample)) {
                counts.get_mut(*label as usize).into_iter().for_each(|count| *count += 1);
            }
            return counts;
        }
        let mut counts = vec![0; self.labels.classes().unwrap_or(0)];
        for sample in 0..self.len() {
            if let Some(Label::Class(class)) = self.label(sample)
                && let Some(count) = counts.get_mut(class)
            {
                *count += 1;
            }
        }
        counts
    }

    /// A dataset of `copies` of the longest sample, in which every batch is as large as the largest of this dataset can
    /// be; of samples with a target, the longest input with the longest target. Empty if this one is.
    #[must_use]
    pub fn of_longest(&self, copies: usize) -> Dataset {
        let longest = |length: &dyn Fn(usize) -> usize| {
            (0..self.len()).max_by_key(|sample| (length(*sample), std::cmp::Reverse(*sample)))
        };
        let tokens = |row: RowRef<'_>| row.input_ids.len();
        let sample = longest(&|sample| self.inputs(sample).map(tokens).max().unwrap_or(0));
        let target = longest(&|sample| self.target(sample).map_or(0, tokens)).and_then(|sample| self.target(sample));
        let mut all = Dataset {
            places: sample.and_then(|sample| self.place(sample)).map(|place| place as u32).into_iter().collect(),
            members: sample.and_then(|sample| self.member(sample)).into_iter().collect(),
            sets: self.sets.clone(),
            // Its answers have no text: what is counted are the sizes.
            spans: self.spans.as_ref().map(|spans| {
                Arc::new(SpanWindows { windows: Vec::new(), search: spans.search, may_be_none: spans.may_be_none })
            }),
            report: ReadReport { longest: self.report.longest, ..ReadReport::default() },
            ..Dataset::new(self.labels.clone(), self.pad_id, self.max_length)
        };
        if let Some((sample, label)) = sample.and_then(|sample| Some((sample, self.label(sample)?))) {
            all.tags = self.tags(sample).to_vec();
            all.learned = self.learned(sample).to_vec();
            for row in self.inputs(sample).chain(target) {
                all.ids.extend_from_slice(row.input_ids);
                all.types.extend_from_slice(row.token_type_ids);
                all.ends.push(all.ids.len());
            }
            // Stored once, however many copies.
            all.targets.push(label);
            all.repeats = Some(vec![0; copies]);
        }
        all.seal();
        all
    }

    /// This dataset of one stored sample, such as [`Dataset::of_longest`] makes, with every sequence cut or extended to
    /// `length` tokens and every target to `target`: for counting what sequences of a length take, whatever the data.
    /// What is cut keeps its last token at its end, where some models read.
    #[must_use]
    pub fn with_lengths(&self, length: usize, target: usize) -> Dataset {
        let mut all = self.clone();
        (all.ids, all.types, all.ends) = (Vec::new(), Vec::new(), Vec::new());
        let per_sample = self.labels.rows_per_sample();
        for row in 0..self.ends.len() {
            let RowRef { input_ids, token_type_ids } = self.row(row);
            let is_target = self.labels == LabelSpace::Target && row % per_sample == 1;
            let end = all.ids.len() + if is_target { target } else { length };
            all.ids.extend(shortened(input_ids, end - all.ids.len()));
            all.ids.resize(end, self.pad_id);
            all.types.extend(shortened(token_type_ids, end - all.types.len()));
            all.types.resize(end, 0);
            all.ends.push(end);
        }
        if !matches!(
            &self.labels,
            LabelSpace::Verbalizer(Verbalizer { place: VerbalizerPosition::Sentinel { .. }, .. })
        ) {
            // A blank comes after the place that predicts it.
            let last = length.saturating_sub(2) as u32;
            all.places.iter_mut().for_each(|place| *place = (*place).min(last));
        }
        if !all.tags.is_empty() {
            // At least one counts, as in the row.
            all.tags.resize(all.ids.len(), IGNORED as i32);
            all.tags.iter_mut().take(1).for_each(|tag| *tag = 0);
        }
        if !all.learned.is_empty() {
            all.learned = vec![1; all.ids.len()];
        }
        if let Some(Label::Span(span)) = all.targets.first_mut() {
            *span = [0, 0];
        }
        all.seal();
        all
    }

    /// Bytes of memory that the tokens, rows and labels take.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.ids)
            + size_of_val(&*self.types)
            + size_of_val(&*self.ends)
            + size_of_val(&*self.targets)
            + size_of_val(&*self.places)
            + size_of_val(&*self.members)
            + size_of_val(&*self.tags)
            + self.sets.iter().map(|set| size_of_val(&**set)).sum::<usize>()
            + size_of_val(&*self.learned)
            + self.references.iter().flatten().map(String::len).sum::<usize>()
            + self.repeats.as_deref().map_or(0, size_of_val)
    }

    fn stored(&self, sample: usize) -> Option<usize> {
        match &self.repeats {
            Some(repeats) => repeats.get(sample).map(|stored| *stored as usize),
            None => (sample < self.targets.len()).then_some(sample),
        }
    }

    fn row(&self, row: usize) -> RowRef<'_> {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        let range = start..self.ends[row];
        RowRef { input_ids: &self.ids[range.clone()], token_type_ids: &self.types[range] }
    }

    /// Repeats the samples of rare classes `floor(largest / count)` times, one copy after the other.
    ///
    /// Source: what the predecessor does with CommitmentBank's training split. Tokens are stored once.
    pub(super) fn oversample(&mut self) {
        let counts = self.class_counts();
        let largest = counts.iter().copied().max().unwrap_or(0);
        let mut repeats = Vec::new();
        for (stored, target) in self.targets.iter().enumerate() {
            let Label::Class(class) = target else { continue };
            let times = largest / counts.get(*class).copied().unwrap_or(1).max(1);
            repeats.extend((0..times).map(|_| stored as u32));
        }
        self.repeats = Some(repeats);
    }
}

/// At most `length` of the values, the last of them at the end.
fn shortened<T>(values: &[T], length: usize) -> impl Iterator<Item = &T> {
    let last = values.last().filter(|_| (1..values.len()).contains(&length));
    values.iter().take(length - usize::from(last.is_some())).chain(last)
}
