//! Pretraining objectives: what their samples have in common with each other, and what each promises of its own.

mod bert;
mod cpm;
mod gpt;
mod groups;
mod masking;
mod refusals;
mod t5;
mod training;

use std::path::Path;
use std::sync::Arc;

use model_center::corpus::{
    DocumentSet, GroupOptions, MixtureWeight, SampleOptions, SampleOrder, TokenFile, TokenType,
};
use model_center::data::{Batch, IGNORED, Labels};
use model_center::pretraining::{CorpusPart, PretrainingSamples, RowOptions, RowSampler};

use crate::corpus::write;
use crate::mutants::Random;

/// Tokens of text are numbered from here on, each once in a corpus, so that a token tells where it is from. Special
/// tokens have smaller ids.
const FIRST: u32 = 100;
const EOD: u32 = 7;

/// Writes documents of these numbers of tokens in each sentence; every token is another.
fn numbered(prefix: &Path, documents: &[Vec<u32>], eod: bool) -> u32 {
    let mut next = FIRST;
    let documents: Vec<Vec<Vec<u32>>> = documents
        .iter()
        .map(|sentences| {
            let mut made: Vec<Vec<u32>> = sentences
                .iter()
                .map(|length| {
                    next += length;
                    (next - length..next).collect()
                })
                .collect();
            if let (true, Some(last)) = (eod, made.last_mut()) {
                last.push(EOD);
            }
            made
        })
        .collect();
    write(prefix, TokenType::I32, &documents);
    next
}

/// Random numbers of sentences and of tokens in each.
fn lengths(documents: usize, sentences: usize, tokens: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut random = Random(seed);
    let mut document = || (0..1 + random.below(sentences)).map(|_| 1 + random.below(tokens) as u32).collect();
    (0..documents).map(|_| document()).collect()
}

/// All sequences of a corpus, or all documents.
fn part(prefix: &Path, of_documents: bool) -> CorpusPart {
    let file = Arc::new(TokenFile::open(prefix).unwrap());
    let count = if of_documents { file.documents() } else { file.sequences() };
    CorpusPart { file, documents: DocumentSet::range(0..count), weight: MixtureWeight::Number(1.0) }
}

fn rows(cache: &Path, length: u64, samples: u64, vocabulary: u32) -> RowOptions {
    RowOptions {
        samples: SampleOptions {
            sequence_length: length,
            samples,
            seed: 3,
            order: SampleOrder::Addressed,
            part: "train".into(),
            cache: Some(cache.to_owned()),
            threads: 2,
        },
        sampler: RowSampler::Packed,
        eod: Some(EOD),
        vocabulary,
    }
}

fn groups(cache: &Path) -> GroupOptions {
    GroupOptions {
        target_tokens: 0,
        fewest: 0,
        short: 0.1,
        longest_sentence: 512,
        seed: 3,
        part: "train".into(),
        cache: Some(cache.to_owned()),
        threads: 2,
    }
}

fn predicted(batch: &Batch) -> &[i64] {
    let Some(Labels::Predicted(labels)) = &batch.labels else { panic!("{:?}", batch.labels) };
    labels
}

/// What every objective promises: a sample is the same alone, beside others, in any order and in any thread; the weight
/// is the number of labels with a loss; numbers beyond the last are refused.
fn check_purity(objective: &dyn PretrainingSamples) {
    let count = objective.len().min(40);
    let alone: Vec<Batch> = (0..count).map(|sample| objective.batch(&[sample]).unwrap()).collect();
    assert!(alone.windows(2).any(|pair| pair[0].input_ids != pair[1].input_ids), "all samples are one");
    let order: Vec<u64> = (0..count).rev().collect();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let together = objective.batch(&order).unwrap();
                let width = together.labels.as_ref().unwrap().len() / order.len();
                let mut weight = 0;
                for (row, sample) in order.iter().enumerate() {
                    let own = &alone[*sample as usize];
                    let tokens = row * own.length..(row + 1) * own.length;
                    assert_eq!(together.input_ids[tokens.clone()], own.input_ids);
                    let labels = |batch: &Batch| batch.labels.as_ref().unwrap().ids().unwrap().to_vec();
                    assert_eq!(labels(&together)[row * width..(row + 1) * width], labels(own));
                    let mask = |batch: &Batch| batch.attention_mask.clone();
                    assert_eq!(mask(&together).map(|mask| mask[tokens.clone()].to_vec()), mask(own));
                    let starts = |batch: &Batch| batch.document_starts.clone();
                    assert_eq!(starts(&together).map(|starts| starts[tokens.clone()].to_vec()), starts(own));
                    let sentence = |batch: &Batch, row: usize| batch.next_sentence.as_ref().map(|next| next[row]);
                    assert_eq!(sentence(&together, row), sentence(own, 0));
                    let own_weight = labels(own).iter().filter(|id| **id != IGNORED).count() as u64;
                    assert_eq!(objective.weight_of(&[*sample]).unwrap(), own_weight);
                    weight += own_weight;
                }
                assert_eq!(objective.weight_of(&order).unwrap(), weight);
            });
        }
    });
    assert!(alone.iter().all(|batch| batch.length <= objective.max_length()));
    let error = objective.batch(&[objective.len()]).unwrap_err().to_string();
    assert!(error.contains("numbered from 0"), "{error}");
}

/// Five standard deviations of a binomial.
fn bound(trials: f64, probability: f64) -> f64 {
    5.0 * (trials * probability * (1.0 - probability)).sqrt()
}

/// Whether tokens of text follow each other in the corpus.
fn are_consecutive(ids: &[i64]) -> bool {
    ids.windows(2).all(|pair| pair[1] == pair[0] + 1)
}
