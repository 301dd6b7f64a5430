//! Computes the document map, the sample map and, in Megatron-LM's orders, the shuffle map.
//!
//! The document map is made and written window by window. Where the samples of a window begin follows from sums of
//! lengths: pieces of a window are summed in parallel, and each then places the samples whose first token it has.

use std::ops::Range;

use super::super::npy::{NpyInteger, NpyWriter};
use super::super::numpy_random::NumpyRandom;
use super::super::split::DocumentSet;
use super::super::threads::in_parallel;
use super::super::token_file::TokenFile;
use super::{Extent, SampleOrder, epoch_order};
use crate::{Error, Result};

/// Documents of a piece of work.
const PIECE: u64 = 1 << 16;
/// Lengths are read in pieces of this many.
const LENGTHS: usize = 1 << 20;
/// Megatron-LM shuffles the last epoch apart if it uses less than this share.
const LAST_EPOCH_SHARE: f64 = 0.80;

/// The lengths of the documents that a set may have.
#[derive(Debug)]
pub(super) struct Lengths {
    first: u64,
    lengths: Vec<u32>,
    /// Tokens of the documents of the set.
    pub(super) tokens: u64,
}

impl Lengths {
    /// Reads them: 4 bytes of memory for each sequence.
    ///
    /// # Errors
    /// [`Error::Data`] for lengths that the token file does not have the ids for: maps would take space and time by
    /// them.
    pub(super) fn read(file: &TokenFile, set: &DocumentSet, threads: usize) -> Result<Lengths> {
        let span = set.span();
        if span.end > file.sequences() {
            let reason = format!("documents up to {}, and the file has {} sequences", span.end, file.sequences());
            return Err(Error::argument("documents", reason, "take the parts from the number of sequences"));
        }
        let count = usize::try_from(span.end.saturating_sub(span.start)).unwrap_or(usize::MAX);
        let mut lengths = Vec::new();
        lengths
            .try_reserve_exact(count)
            .map_err(|_| Error::argument("documents", format!("no memory for {count} lengths"), "split the corpus"))?;
        lengths.resize(count, 0);
        for (at, piece) in lengths.chunks_mut(LENGTHS).enumerate() {
            file.lengths(span.start + (at * LENGTHS) as u64, piece)?;
        }
        let described = lengths.iter().map(|length| u64::from(*length)).sum();
        file.require_tokens(format_args!("sequences {} to {} have", span.start, span.end), described)?;
        let mut read = Lengths { first: span.start, lengths, tokens: 0 };
        let pieces = set.len().div_ceil(PIECE) as usize;
        let sums = in_parallel(threads, pieces, |piece| {
            let from = piece as u64 * PIECE;
            (from..(from + PIECE).min(set.len())).map(|at| u64::from(read.of(set.at(at)))).sum::<u64>()
        });
        read.tokens = sums.into_iter().sum();
        Ok(read)
    }

    fn of(&self, document: u64) -> u32 {
        self.lengths.get((document - self.first) as usize).copied().unwrap_or(0)
    }
}

/// A piece of the document map.
struct Walked {
    documents: Vec<u64>,
    lengths: Vec<u32>,
    /// Their sum.
    tokens: u64,
}

/// Inputs of the maps.
#[derive(Debug)]
pub(super) struct MapBuilder<'a> {
    pub(super) set: &'a DocumentSet,
    pub(super) lengths: &'a Lengths,
    pub(super) extent: Extent,
    /// Samples that were asked for.
    pub(super) samples: u64,
    pub(super) order: SampleOrder,
    pub(super) seed: u64,
    pub(super) threads: usize,
}

/// Which files the maps go to, and the type of their numbers.
#[derive(Debug)]
pub(super) struct MapWriters {
    pub(super) documents: NpyWriter,
    pub(super) samples: NpyWriter,
    /// In Megatron-LM's orders.
    pub(super) shuffle: Option<NpyWriter>,
}

impl MapBuilder<'_> {
    /// The type of the document map, of the sample map and of the shuffle map: 32 bits where all numbers fit, as in
    /// Megatron-LM.
    pub(super) fn integers(&self) -> [NpyInteger; 3] {
        let fits = |most: u64| if most <= i32::MAX as u64 { NpyInteger::I32 } else { NpyInteger::I64 };
        let entries = self.set.len() * self.extent.epochs;
        let samples = self.extent.samples();
        let shuffle = if samples < u64::from(u32::MAX) - 1 { NpyInteger::U32 } else { NpyInteger::I64 };
        [fits(self.set.span().end), fits(entries), shuffle]
    }

    /// Computes and writes all maps.
    pub(super) fn write(&self, writers: &mut MapWriters) -> Result<()> {
        match self.order {
            SampleOrder::Addressed => self.walk(writers, &|range| self.addressed(range)),
            SampleOrder::Megatron | SampleOrder::MegatronV1 => self.write_megatron(writers),
        }
    }

    /// Entries of the document map in the addressed order.
    fn addressed(&self, mut range: Range<u64>) -> Vec<u64> {
        let mut documents = Vec::with_capacity((range.end - range.start) as usize);
        while !range.is_empty() {
            let epoch = range.start / self.set.len();
            let (first, end) = (epoch * self.set.len(), range.end.min((epoch + 1) * self.set.len()));
            let order = epoch_order(self.seed, "corpus documents", epoch, self.set.len());
            documents.extend((range.start - first..end - first).map(|at| self.set.at(order.at(at).unwrap_or(at))));
            range.start = end;
        }
        documents
    }

    fn write_megatron(&self, writers: &mut MapWriters) -> Result<()> {
        let seed = u32::try_from(self.seed).map_err(|_| {
            let reason = format!("{} is above 2^32 - 1, the most that NumPy's generator takes", self.seed);
            Error::argument("seed", reason, "use a smaller seed, or the addressed order")
        })?;
        let (documents, samples) = (self.set.len(), self.extent.samples());
        if self.set.span().end > i32::MAX as u64 || samples >= u64::from(u32::MAX) - 1 {
            let reason = "Megatron-LM's orders have at most 2^31 - 1 documents and 2^32 - 3 samples";
            return Err(Error::argument("order", reason, "use the addressed order"));
        }
        let entries = documents.checked_mul(self.extent.epochs).and_then(|entries| usize::try_from(entries).ok());
        let mut order: Vec<u32> = Vec::new();
        if entries.is_none_or(|entries| order.try_reserve_exact(entries).is_err()) {
            let reason = format!("no memory for the order of {documents} documents in {} epochs", self.extent.epochs);
            return Err(Error::argument("order", reason, "use the addressed order"));
        }
        for _ in 0..self.extent.epochs {
            order.extend((0..documents).map(|at| self.set.at(at) as u32));
        }
        let mut random = NumpyRandom::new(seed);
        let apart = self.is_last_epoch_apart();
        let together = order.len() - if apart { documents as usize } else { 0 };
        let (first, last) = order.split_at_mut(together);
        random.shuffle(first);
        random.shuffle(last);
        let part = |range: Range<u64>| &order[range.start as usize..range.end as usize];
        self.walk(writers, &|range| part(range).iter().map(|document| u64::from(*document)).collect())?;
        drop(order);
        let mut shuffled: Vec<u32> = (0..samples as u32).collect();
        let together = if apart { self.extent.samples_of(self.extent.epochs - 1) } else { samples };
        let (first, last) = shuffled.split_at_mut(together as usize);
        random.shuffle(first);
        random.shuffle(last);
        match &mut writers.shuffle {
            Some(shuffle) => {
                shuffled.chunks(PIECE as usize).try_for_each(|part| shuffle.write(part.iter().map(|n| u64::from(*n))))
            }
            None => Ok(()),
        }
    }

    fn is_last_epoch_apart(&self) -> bool {
        let Extent { tokens, length, epochs } = self.extent;
        if self.order != SampleOrder::Megatron || epochs == 1 {
            return false;
        }
        let last = self.samples.saturating_sub(self.extent.samples_of(epochs - 1));
        let whole = (tokens - 1) / length;
        last < (LAST_EPOCH_SHARE * whole as f64) as u64
    }

    /// Writes the document map, whose entries of a range are `documents(range)`, and the sample map that follows from
    /// it.
    fn walk(&self, writers: &mut MapWriters, documents: &(dyn Fn(Range<u64>) -> Vec<u64> + Sync)) -> Result<()> {
        let entries = self.set.len() * self.extent.epochs;
        let window = PIECE * 4 * self.threads as u64;
        let mut tokens = 0;
        // The first sample begins with the first document, even if that has no tokens.
        writers.samples.write([0, 0])?;
        for start in (0..entries).step_by(window as usize) {
            let end = (start + window).min(entries);
            let pieces = (end - start).div_ceil(PIECE) as usize;
            let range = |piece: usize| {
                let from = start + piece as u64 * PIECE;
                from..(from + PIECE).min(end)
            };
            let walked = in_parallel(self.threads, pieces, |piece| {
                let documents = documents(range(piece));
                // Lengths are all over the memory: fetched together, and once.
                let lengths: Vec<u32> = documents.iter().map(|document| self.lengths.of(*document)).collect();
                let tokens = lengths.iter().map(|length| u64::from(*length)).sum();
                Walked { documents, lengths, tokens }
            });
            let mut begins = Vec::with_capacity(pieces);
            for piece in &walked {
                begins.push(tokens);
                tokens += piece.tokens;
            }
            let samples = in_parallel(self.threads, pieces, |piece| {
                self.place(range(piece).start, begins[piece], &walked[piece].lengths)
            });
            for (piece, samples) in walked.into_iter().zip(samples) {
                writers.documents.write(piece.documents)?;
                writers.samples.write(samples)?;
            }
        }
        Ok(())
    }

    /// Entries of the sample map, but the first, that are in documents of these lengths: entries of the document map
    /// from `entry` on, preceded by `tokens` tokens.
    fn place(&self, entry: u64, mut tokens: u64, lengths: &[u32]) -> Vec<u64> {
        let mut placed = Vec::new();
        let mut sample = tokens.div_ceil(self.extent.length).max(1);
        for (at, length) in lengths.iter().enumerate() {
            let end = tokens + u64::from(*length);
            while sample <= self.extent.samples() && sample * self.extent.length < end {
                placed.extend([entry + at as u64, sample * self.extent.length - tokens]);
                sample += 1;
            }
            tokens = end;
        }
        placed
    }
}
