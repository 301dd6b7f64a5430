//! Causal language modelling: inputs, targets, document starts, random windows, mixtures.

use std::collections::HashMap;
use std::sync::Arc;

use model_center::corpus::{DocumentSet, MixtureWeight, TokenFile, TokenType};
use model_center::data::IGNORED;
use model_center::pretraining::{CausalLm, CausalOptions, CorpusPart, PretrainingSamples, RowOptions, RowSampler};
use tempfile::tempdir;

use super::{EOD, FIRST, are_consecutive, bound, check_purity, lengths, numbered, part, predicted, rows};
use crate::corpus::write;

const ALL: CausalOptions = CausalOptions { eod_mask_loss: true, reset_documents: true };

#[test]
fn targets_are_one_token_further_and_every_token_is_one_once_in_an_epoch() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let vocabulary = numbered(&prefix, &lengths(200, 1, 40, 1), true);
    let tokens = u64::from(vocabulary - FIRST) + 200;
    let rows = rows(directory.path(), 16, (tokens - 1) / 16, vocabulary);
    let objective = CausalLm::open(&[part(&prefix, false)], &rows, CausalOptions::default()).unwrap();
    let mut targets = Vec::new();
    for sample in 0..objective.len() {
        let batch = objective.batch(&[sample]).unwrap();
        let labels = predicted(&batch);
        assert_eq!((batch.rows, batch.length, labels.len()), (1, 16, 16));
        assert_eq!(labels[..15], batch.input_ids[1..]);
        assert!(batch.attention_mask.is_none() && batch.document_starts.is_none());
        targets.extend(labels.iter().filter(|id| **id >= i64::from(FIRST)).copied());
    }
    let count = targets.len();
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), count, "a token is a target twice");
    // All but the first token of the epoch and those after the last sample.
    assert!(count as u64 + 17 >= tokens - 200, "{count} of {tokens}");
    check_purity(&objective);
}

#[test]
fn documents_begin_after_eod_and_what_follows_it_has_no_loss() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let vocabulary = numbered(&prefix, &lengths(300, 1, 20, 2), true);
    let rows = rows(directory.path(), 32, 90, vocabulary);
    let objective = CausalLm::open(&[part(&prefix, false)], &rows, ALL).unwrap();
    let eod = i64::from(EOD);
    let mut ends = 0;
    for sample in 0..objective.len() {
        let batch = objective.batch(&[sample]).unwrap();
        let (ids, starts) = (&batch.input_ids, batch.document_starts.as_ref().unwrap());
        for (at, start) in starts.iter().map(|start| *start as usize).enumerate() {
            assert!(start <= at && (start == 0 || ids[start - 1] == eod), "{ids:?} {starts:?}");
            assert!(!ids[start..at].contains(&eod), "a document ends at its EOD: {ids:?} {starts:?}");
            assert_eq!(predicted(&batch)[at] == IGNORED, ids[at] == eod);
        }
        ends += ids.iter().filter(|id| **id == eod).count();
    }
    assert!(ends > 200, "{ends}");
    check_purity(&objective);
}

#[test]
fn random_windows_are_of_documents_in_proportion_to_their_length() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    // Documents of 10, 90 and 300 tokens, without EOD, and an empty one.
    write(
        &prefix,
        TokenType::I32,
        &[vec![(100..110).collect()], vec![vec![]], vec![(200..290).collect()], vec![(400..700).collect()]],
    );
    let windows = RowOptions { sampler: RowSampler::RandomWindows, ..rows(directory.path(), 24, 4000, 700) };
    let objective = CausalLm::open(&[part(&prefix, false)], &windows, ALL).unwrap();
    let mut first: HashMap<i64, f64> = HashMap::new();
    let mut starts = [0_usize; 300];
    for sample in 0..objective.len() {
        let batch = objective.batch(&[sample]).unwrap();
        let mut ids = batch.input_ids.clone();
        ids.push(predicted(&batch)[23]);
        *first.entry(ids[0] / 200).or_insert(0.0) += 1.0;
        if ids[0] < 200 {
            // A document shorter than the sample is whole, ends with EOD, and others follow it from their beginning.
            assert_eq!((ids[0], ids[9], ids[10]), (100, 109, i64::from(EOD)));
            assert!([100, 200, 400].contains(&ids[11]) && predicted(&batch)[10] == IGNORED, "{ids:?}");
        } else {
            let text = ids.iter().position(|id| *id == i64::from(EOD)).unwrap_or(ids.len());
            assert!(are_consecutive(&ids[..text]), "{ids:?}");
            // Only the last window of a document has its EOD.
            assert!(text >= 24, "{ids:?}");
        }
        if ids[0] >= 400 {
            starts[ids[0] as usize - 400] += 1;
        }
    }
    for (document, tokens) in [(0, 10.0), (1, 90.0), (2, 300.0)] {
        // The last document has ids from 400 to 700.
        let of = |part: i64| first.get(&part).copied().unwrap_or(0.0);
        let seen = of(document) + if document == 2 { of(3) } else { 0.0 };
        let expected = 4000.0 * tokens / 400.0;
        assert!((seen - expected).abs() < bound(4000.0, tokens / 400.0), "{document}: {seen} of {expected}");
    }
    // 301 tokens with EOD have 277 windows of 25, each with the same probability.
    assert!(starts[..277].iter().all(|count| *count < 40) && starts[277..].iter().all(|count| *count == 0));
    assert!(starts[276] > 0, "the window that ends with EOD never comes");
    check_purity(&objective);
}

#[test]
fn mixtures_have_their_shares_and_samples_do_not_depend_on_their_number() {
    let directory = tempdir().unwrap();
    let mut parts = Vec::new();
    for (name, first, weight) in [("a", 100, 3.0), ("b", 5000, 1.0)] {
        let prefix = directory.path().join(name);
        write(&prefix, TokenType::I32, &[vec![(first..first + 4000).collect()]]);
        let file = Arc::new(TokenFile::open(&prefix).unwrap());
        let documents = DocumentSet::range(0..1);
        parts.push(CorpusPart { file, documents, weight: MixtureWeight::Number(weight) });
    }
    let open =
        |samples| CausalLm::open(&parts, &rows(directory.path(), 8, samples, 9000), CausalOptions::default()).unwrap();
    let (few, many) = (open(1000), open(3000));
    assert_eq!(few.fingerprint(), many.fingerprint());
    let first = |objective: &CausalLm, sample| objective.batch(&[sample]).unwrap().input_ids[0];
    assert!((0..1000).all(|sample| first(&few, sample) == first(&many, sample)));
    let second = (0..3000).filter(|sample| first(&many, *sample) >= 5000).count() as f64;
    assert!((second - 750.0).abs() < bound(3000.0, 0.25), "{second}");
    check_purity(&many);
    // Everything that samples depend on changes the fingerprint.
    let mut other = rows(directory.path(), 8, 1000, 9000);
    other.samples.seed = 4;
    let reseeded = CausalLm::open(&parts, &other, CausalOptions::default()).unwrap();
    let masked = CausalLm::open(&parts, &rows(directory.path(), 8, 1000, 9000), ALL).unwrap();
    let alone = CausalLm::open(&parts[..1], &rows(directory.path(), 8, 1000, 9000), CausalOptions::default()).unwrap();
    for different in [reseeded, masked, alone] {
        assert_ne!(different.fingerprint(), few.fingerprint());
    }
}
