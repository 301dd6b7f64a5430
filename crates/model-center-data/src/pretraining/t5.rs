//! Span corruption: hidden spans of the input are the target, as T5 and CPM-2 are pretrained.
//!
//! Defines [`SpanCorruption`]. Each hidden span is one sentinel in the input, and in the target the sentinel with the
//! tokens of the span after it.

use std::ops::Range;
use std::sync::Arc;

use bmtrain_core::philox::Key;

use super::pairs::Sentences;
use super::parts::{CorpusPart, Mixed, fingerprint};
use super::random::SampleRandom;
use super::rows::{RowOptions, Rows};
use super::sentinels::Sentinels;
use super::spans::{SpanLengths, choose, segment_counts, segments};
use super::{PretrainingSamples, SampleInfo, loss_tokens};
use crate::corpus::{GroupOptions, SampleOptions, SentenceGroups};
use crate::{Error, Result};
use model_center_base::batch::{Batch, IGNORED, LabelSpace, Labels};

/// Tokens of a sample before corruption, at most.
const MAX_TOKENS: usize = 1 << 24;

/// Which spans are hidden.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SpanScheme {
    /// Random segments of the T5 paper, with spans of this mean length. Number of tokens and of spans are exact.
    Segments(f64),
    /// Spans at random places with random lengths until the share is reached: Megatron-LM's.
    Placed(SpanLengths),
}

/// End of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetEnd {
    /// The EOS token, which ends the input, too: T5. The decoder begins with the model's start token.
    Eos(u32),
    /// One more sentinel: CPM-2. The decoder begins with the first sentinel.
    Sentinel,
}

/// Contents of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Packing {
    /// A row of documents one after the other: inputs without padding. Spans are chosen over the whole row.
    Rows,
    /// The same, with spans chosen in each document: they begin and end in it, and with random segments its EOD is
    /// always hidden. Documents shorter than this number of tokens are left as they are, unless all of a row are: spans
    /// are then chosen over the whole row. CPM-2's.
    RowsByDocument(usize),
    /// Sentences of one document, of a random number of tokens with this probability: inputs are padded.
    Documents(f64),
}

/// How samples are corrupted.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanOptions {
    /// Share of hidden tokens.
    pub density: f64,
    /// Which spans are hidden.
    pub scheme: SpanScheme,
    /// The tokens that stand for spans.
    pub sentinels: Sentinels,
    /// End of a target.
    pub end: TargetEnd,
    /// Fills inputs up.
    pub pad: u32,
    /// Contents of a sample.
    pub packing: Packing,
}

impl SpanOptions {
    /// The T5 paper's: 15 % of the tokens in spans of 3 on average, over packed rows.
    pub fn t5(sentinels: Sentinels, eos: u32, pad: u32) -> SpanOptions {
        SpanOptions {
            density: 0.15,
            scheme: SpanScheme::Segments(3.0),
            sentinels,
            end: TargetEnd::Eos(eos),
            pad,
            packing: Packing::Rows,
        }
    }

    /// Megatron-LM's T5: spans of geometric length with a mean of 5, at most 10, in the sentences of one document.
    pub fn megatron(sentinels: Sentinels, eos: u32, pad: u32) -> SpanOptions {
        SpanOptions {
            scheme: SpanScheme::Placed(SpanLengths::Geometric(0.2, 10)),
            packing: Packing::Documents(0.1),
            ..SpanOptions::t5(sentinels, eos, pad)
        }
    }

    /// CPM-2's: T5's spans in each document of at least 10 tokens, and a sentinel at the end.
    pub fn cpm2(sentinels: Sentinels, pad: u32) -> SpanOptions {
        SpanOptions {
            end: TargetEnd::Sentinel,
            packing: Packing::RowsByDocument(10),
            ..SpanOptions::t5(sentinels, 0, pad)
        }
    }

    /// The lengths of samples whose inputs have at most `inputs` tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] for a share outside 0 to 1, a mean below 1, and inputs too short for a span.
    pub fn lengths(&self, inputs: usize) -> Result<SpanSampleLengths> {
        let wrong = |reason: String, fix: &str| Err(Error::argument("span corruption", reason, fix));
        if !(self.density > 0.0 && self.density < 1.0) {
            return wrong(format!("a share of {} hidden tokens", self.density), "use a share between 0 and 1");
        }
        let ends = usize::from(matches!(self.end, TargetEnd::Eos(_)));
        let (tokens, hidden, spans) = match self.scheme {
            SpanScheme::Segments(mean) if mean >= 1.0 => {
                let counts = |tokens: usize| segment_counts(tokens, self.density, mean);
                let input = |tokens: usize| {
                    let (hidden, spans) = counts(tokens);
                    tokens - hidden + spans + ends
                };
                // One token more makes an input longer by one or not at all, so that the last length fills it.
                let last = (2..MAX_TOKENS).take_while(|tokens| input(*tokens) <= inputs).last().unwrap_or(0);
                let (hidden, spans) = counts(last.max(2));
                (last, hidden, spans)
            }
            SpanScheme::Segments(mean) => return wrong(format!("spans of {mean} tokens"), "use a mean of 1 or more"),
            SpanScheme::Placed(_) => {
                let tokens = inputs.saturating_sub(ends);
                let hidden = ((tokens as f64 * self.density).round_ties_even() as usize).max(1);
                (tokens, hidden, hidden.div_ceil(2))
            }
        };
        if tokens < 2 || tokens + 1 >= MAX_TOKENS {
            let reason = format!("inputs of {inputs} tokens make samples of {tokens} tokens");
            return wrong(reason, "use the number of positions of the model, and a smaller share");
        }
        // Rounding in each document hides a few tokens more or less than in the row.
        let by_document = matches!(self.packing, Packing::RowsByDocument(_));
        let more = if by_document { (hidden + spans).div_ceil(4) } else { 0 };
        Ok(SpanSampleLengths { tokens, hidden, spans, targets: hidden + spans + more + 1 })
    }
}

/// The lengths of samples of span corruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanSampleLengths {
    /// Tokens before corruption.
    pub tokens: usize,
    /// Hidden tokens: the number with random segments over a whole row, about as many otherwise.
    pub hidden: usize,
    /// Hidden spans, the same.
    pub spans: usize,
    /// Tokens of a target at most, with its end.
    pub targets: usize,
}

/// Samples of span corruption.
#[derive(Debug)]
pub struct SpanCorruption {
    source: Source,
    options: SpanOptions,
    eod: Option<u32>,
    lengths: SpanSampleLengths,
    key: Key,
    info: SampleInfo,
}

#[derive(Debug)]
enum Source {
    Rows(Rows),
    Documents(Mixed<(SentenceGroups, Sentences)>),
}

/// Input and target of a sample under construction.
#[derive(Debug, Default)]
struct Corrupted {
    input: Vec<u32>,
    target: Vec<u32>,
    spans: u32,
}

impl SpanCorruption {
    /// Opens the corpora; `rows.samples.sequence_length` is the length of inputs.
    ///
    /// # Errors
    /// [`Error::Argument`] for lengths and shares that leave nothing to predict, too few sentinels, tokens outside the
    /// vocabulary; what opening samples or groups reports.
    pub fn open(parts: &[CorpusPart], rows: &RowOptions, options: &SpanOptions) -> Result<SpanCorruption> {
        let SampleOptions { sequence_length, samples, seed, .. } = rows.samples;
        let inputs = usize::try_from(sequence_length).unwrap_or(usize::MAX);
        let lengths = options.lengths(inputs)?;
        options.sentinels.check(rows.vocabulary)?;
        let needed = lengths.spans + usize::from(options.end == TargetEnd::Sentinel);
        // Where spans are placed one after the other, placing ends with the sentinels.
        if needed > options.sentinels.count as usize && matches!(options.scheme, SpanScheme::Segments(_)) {
            let reason = format!("{needed} are needed, and there are {}", options.sentinels.count);
            return Err(Error::argument("sentinels", reason, "use shorter inputs, longer spans or a smaller share"));
        }
        if matches!(options.packing, Packing::RowsByDocument(_)) {
            rows.require_eod()?;
        }
        let ends = [Some(options.pad), if let TargetEnd::Eos(eos) = options.end { Some(eos) } else { None }];
        if let Some(id) = ends.into_iter().flatten().find(|id| *id >= rows.vocabulary) {
            let reason = format!("token {id} is not below the vocabulary's {}", rows.vocabulary);
            return Err(Error::argument("span corruption", reason, "use PAD and EOS of the tokenizer"));
        }
        let own = SampleOptions { sequence_length: lengths.tokens as u64, ..rows.samples.clone() };
        let source = match options.packing {
            Packing::Documents(short) => Source::Documents(Mixed::open(parts, (samples, seed), |part, _| {
                let groups = GroupOptions {
                    target_tokens: lengths.tokens as u64,
                    fewest: 1,
                    short,
                    longest_sentence: u32::MAX,
                    seed,
                    part: own.part.clone(),
                    cache: own.cache.clone(),
                    threads: own.threads,
                };
                let groups = SentenceGroups::open(Arc::clone(&part.file), &part.documents, &groups)?;
                Ok((groups, Sentences { file: Arc::clone(&part.file), vocabulary: rows.vocabulary }))
            })?),
            _ => Source::Rows(Rows::open(parts, &RowOptions { samples: own, ..rows.clone() })?),
        };
        let (labels, fingerprint) = (LabelSpace::Target, fingerprint("spans", &(rows.settings(), options), parts)?);
        let info = match &source {
            Source::Rows(rows) => rows.info(labels, fingerprint),
            Source::Documents(groups) => {
                SampleInfo { len: groups.len(), labels, gives_decoder_inputs: false, max_length: inputs, fingerprint }
            }
        };
        // The first sentinel begins it, where targets end with one.
        let gives_decoder_inputs = options.end == TargetEnd::Sentinel;
        Ok(SpanCorruption {
            source,
            options: options.clone(),
            eod: rows.eod,
            lengths,
            key: Key::new(seed, "hidden spans"),
            info: SampleInfo { gives_decoder_inputs, max_length: inputs, ..info },
        })
    }

    /// The lengths of samples.
    pub fn lengths(&self) -> SpanSampleLengths {
        self.lengths
    }

    fn corrupted(&self, sample: u64) -> Result<Corrupted> {
        let mut ids = Vec::new();
        match &self.source {
            Source::Rows(rows) => rows.read(sample, &mut ids)?,
            Source::Documents(groups) => {
                let ((groups, sentences), own) = groups.at(sample)?;
                let group = groups.at(own)?;
                let found = sentences.lengths(group.sentences, group.target_tokens)?;
                ids = sentences.read(&found)?;
                ids.truncate(usize::try_from(group.target_tokens).unwrap_or(usize::MAX));
            }
        }
        ids.truncate(self.lengths.tokens);
        let mut random = SampleRandom::new(self.key, sample);
        let mut made = Corrupted::default();
        match (self.options.packing, self.eod) {
            (Packing::RowsByDocument(shortest), Some(eod)) => {
                for document in ids.split_inclusive(|id| *id == eod) {
                    if !self.add_document(&mut made, document, shortest, &mut random) {
                        break;
                    }
                }
                // Without a span there would be nothing to predict, and the mean loss of nothing is not a number.
                if made.spans == 0 {
                    made = Corrupted::default();
                    self.add_document(&mut made, &ids, 0, &mut random);
                }
            }
            _ => {
                let spans = self.spans(&ids, (&made, &mut random));
                self.add(&mut made, &ids, &spans);
            }
        }
        match self.options.end {
            TargetEnd::Eos(eos) => {
                made.input.push(eos);
                made.target.push(eos);
            }
            TargetEnd::Sentinel => made.target.extend(self.options.sentinels.id(made.spans)),
        }
        Ok(made)
    }

    /// The hidden spans of tokens, up to the room that is left.
    fn spans(&self, ids: &[u32], (made, random): (&Corrupted, &mut SampleRandom)) -> Vec<Range<usize>> {
        match self.options.scheme {
            SpanScheme::Segments(mean) => segments(ids.len(), self.options.density, mean, random),
            SpanScheme::Placed(lengths) => {
                let words: Vec<Range<usize>> = (0..ids.len()).map(|at| at..at + 1).collect();
                let most = ((ids.len() as f64 * self.options.density).round_ties_even() as usize).max(1);
                let room = self.lengths.targets - 1 - made.target.len();
                let reserved = usize::from(self.options.end == TargetEnd::Sentinel);
                let sentinels = self.options.sentinels.count as usize - reserved - made.spans as usize;
                choose(&words, lengths, random, |tokens, spans| {
                    tokens <= most && tokens + spans <= room && spans <= sentinels
                })
            }
        }
    }

    /// Appends a document, shortened where input or target have no room for it; whether there is room for more.
    fn add_document(&self, made: &mut Corrupted, document: &[u32], shortest: usize, random: &mut SampleRandom) -> bool {
        let mut ids = document;
        loop {
            let spans = if ids.len() < shortest.max(2) { Vec::new() } else { self.spans(ids, (&*made, &mut *random)) };
            let hidden: usize = spans.iter().map(Range::len).sum();
            let input = (made.input.len() + ids.len() - hidden + spans.len()).saturating_sub(self.info.max_length);
            let target = (made.target.len() + hidden + spans.len() + 1).saturating_sub(self.lengths.targets);
            let reserved = usize::from(self.options.end == TargetEnd::Sentinel);
            let sentinels =
                (made.spans as usize + spans.len() + reserved).saturating_sub(self.options.sentinels.count as usize);
            if input == 0 && target == 0 && sentinels == 0 {
                self.add(made, ids, &spans);
                return ids.len() == document.len();
            }
            let excess = input.max(target).max(sentinels);
            let Some(shorter) = ids.len().checked_sub(excess).filter(|length| *length > 0) else { return false };
            ids = &ids[..shorter];
        }
    }

    /// Appends tokens with these spans hidden.
    fn add(&self, made: &mut Corrupted, ids: &[u32], spans: &[Range<usize>]) {
        let mut at = 0;
        for span in spans {
            let sentinel = self.options.sentinels.id(made.spans);
            made.spans += 1;
            made.input.extend(&ids[at..span.start]);
            made.input.extend(sentinel);
            made.target.extend(sentinel);
            made.target.extend(&ids[span.clone()]);
            at = span.end;
        }
        made.input.extend(&ids[at..]);
    }
}

impl PretrainingSamples for SpanCorruption {
    fn info(&self) -> &SampleInfo {
        &self.info
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch> {
        let (inputs, targets) = (self.info.max_length, self.lengths.targets);
        let pad = i64::from(self.options.pad);
        // Where the first sentinel begins the decoder's input, targets are one token shorter.
        let begun = usize::from(self.info.gives_decoder_inputs);
        let width = targets - begun;
        let mut ids = vec![pad; samples.len() * inputs];
        let (mut mask, mut labels) = (vec![0; ids.len()], vec![IGNORED; samples.len() * width]);
        let (mut decoder, mut decoder_mask) = (vec![pad; labels.len()], vec![0; labels.len()]);
        for (row, sample) in samples.iter().enumerate() {
            let Corrupted { input, target, .. } = self.corrupted(*sample)?;
            fill(&mut ids[row * inputs..], &input);
            mask[row * inputs..row * inputs + input.len()].fill(1);
            fill(&mut labels[row * width..], &target[begun..]);
            if begun > 0 {
                let before = &target[..target.len() - 1];
                fill(&mut decoder[row * width..], before);
                decoder_mask[row * width..row * width + before.len()].fill(1);
            }
        }
        Ok(Batch {
            attention_mask: Some(mask),
            decoder_input_ids: (begun > 0).then_some(decoder),
            decoder_attention_mask: (begun > 0).then_some(decoder_mask),
            labels: Some(Labels::Target(labels)),
            ..Batch::new(inputs, ids)
        })
    }

    fn weight_of(&self, samples: &[u64]) -> Result<u64> {
        match (self.options.scheme, self.options.packing) {
            (SpanScheme::Segments(_), Packing::Rows) => {
                let begun = u64::from(self.info.gives_decoder_inputs);
                Ok(samples.len() as u64 * (self.lengths.targets as u64 - begun))
            }
            _ => Ok(loss_tokens(&self.batch(samples)?)),
        }
    }
}

fn fill(row: &mut [i64], ids: &[u32]) {
    row.iter_mut().zip(ids).for_each(|(own, id)| *own = i64::from(*id));
}
