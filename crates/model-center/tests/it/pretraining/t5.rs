//! Span corruption: what was hidden is the target, lengths fill the model, and documents keep their ends.

use model_center::data::{Batch, IGNORED, Labels};
use model_center::pretraining::{
    PretrainingSamples, RowOptions, RowSampler, Sentinels, SpanCorruption, SpanLengths, SpanOptions, SpanScheme,
};
use tempfile::tempdir;

use super::{EOD, FIRST, are_consecutive, bound, check_purity, lengths, numbered, part, rows};

const EOS: u32 = 1;
/// The sentinels of tests are below the tokens of text: 99 to 10.
const SENTINELS: Sentinels = Sentinels { first: 99, count: 90, descending: true };

fn target(batch: &Batch) -> Vec<i64> {
    let Some(Labels::Target(labels)) = &batch.labels else { panic!("{:?}", batch.labels) };
    let used = labels.iter().take_while(|id| **id != IGNORED).count();
    assert!(labels[used..].iter().all(|id| *id == IGNORED));
    labels[..used].to_vec()
}

fn input(batch: &Batch) -> Vec<i64> {
    let mask = batch.attention_mask.as_ref().unwrap();
    let used = mask.iter().filter(|is| **is == 1).count();
    assert!(mask[..used].iter().all(|is| *is == 1) && batch.input_ids[used..].iter().all(|id| *id == 0));
    batch.input_ids[..used].to_vec()
}

/// The tokens before corruption, and the lengths of the spans; sentinels must come in their order in both.
fn restored(input: &[i64], target: &[i64], sentinels: Sentinels) -> (Vec<i64>, Vec<usize>) {
    let number_of = |id: i64| (0..sentinels.count).find(|n| sentinels.id(*n).map(i64::from) == Some(id));
    let mut spans: Vec<Vec<i64>> = Vec::new();
    for id in target {
        match number_of(*id) {
            Some(number) => {
                assert_eq!(number as usize, spans.len(), "sentinels of the target");
                spans.push(Vec::new());
            }
            None => spans.last_mut().expect("a target begins with a sentinel").push(*id),
        }
    }
    let mut next = 0;
    let mut tokens = Vec::new();
    for id in input {
        match number_of(*id) {
            Some(number) => {
                assert_eq!(number, next, "sentinels of the input");
                tokens.extend(&spans[next as usize]);
                next += 1;
            }
            None => tokens.push(*id),
        }
    }
    assert_eq!(next as usize, spans.len());
    (tokens, spans.iter().map(Vec::len).collect())
}

#[test]
fn lengths_are_those_that_were_published() {
    // T5: inputs of 512 tokens are made of 568, with targets of 114.
    let t5 = SpanOptions::t5(SENTINELS, EOS, 0);
    let found = t5.lengths(512).unwrap();
    assert_eq!((found.tokens, found.targets), (568, 114));
    for inputs in [8, 64, 100, 511, 1024, 2048, 4096] {
        for (density, mean) in [(0.15, 3.0), (0.5, 3.0), (0.15, 8.0), (0.25, 1.5), (0.05, 3.0)] {
            let options = SpanOptions { density, scheme: SpanScheme::Segments(mean), ..t5.clone() };
            let found = options.lengths(inputs).unwrap();
            assert_eq!(found.tokens - found.hidden + found.spans + 1, inputs, "{inputs} {density} {mean}");
            assert_eq!(found.targets, found.hidden + found.spans + 1);
        }
    }
}

#[test]
fn packed_rows_fill_inputs_and_targets_exactly_and_nothing_is_lost() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let vocabulary = numbered(&prefix, &lengths(300, 1, 200, 11), false);
    let rows = rows(directory.path(), 128, 150, vocabulary);
    let objective = SpanCorruption::open(&[part(&prefix, false)], &rows, &SpanOptions::t5(SENTINELS, EOS, 0)).unwrap();
    let lengths = objective.lengths();
    let mut firsts = Vec::new();
    for sample in 0..objective.len().min(150) {
        let batch = objective.batch(&[sample]).unwrap();
        let (input, target) = (input(&batch), target(&batch));
        assert_eq!((input.len(), target.len()), (128, lengths.targets), "padding");
        assert_eq!((input[127], target[target.len() - 1]), (i64::from(EOS), i64::from(EOS)));
        assert!(batch.decoder_input_ids.is_none());
        let (tokens, spans) = restored(&input[..127], &target[..target.len() - 1], SENTINELS);
        assert_eq!(
            (tokens.len(), spans.len(), spans.iter().sum::<usize>()),
            (lengths.tokens, lengths.spans, lengths.hidden)
        );
        firsts.push(tokens[0]);
    }
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts.len(), 150);
    check_purity(&objective);
}

#[test]
fn placed_spans_have_geometric_lengths_and_never_overflow_the_target() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let vocabulary = numbered(&prefix, &lengths(200, 12, 40, 12), false);
    let rows = rows(directory.path(), 100, 800, vocabulary);
    let options = SpanOptions::megatron(SENTINELS, EOS, 0);
    let objective = SpanCorruption::open(&[part(&prefix, true)], &rows, &options).unwrap();
    let (mut hidden, mut all, mut ten) = (0, 0, 0);
    for sample in 0..800 {
        let batch = objective.batch(&[sample]).unwrap();
        let (input, target) = (input(&batch), target(&batch));
        assert!(target.len() <= objective.lengths().targets && input.len() <= 100);
        let (tokens, spans) = restored(&input[..input.len() - 1], &target[..target.len() - 1], SENTINELS);
        assert!(are_consecutive(&tokens), "sentences of one document follow each other");
        assert!(spans.iter().all(|span| (1..=10).contains(span)));
        hidden += spans.iter().sum::<usize>();
        all += tokens.len();
        ten += spans.iter().filter(|span| **span == 10).count();
    }
    let share = hidden as f64 / all as f64;
    // Rounding of short samples.
    assert!((0.13..0.17).contains(&share), "{share}");
    assert!(ten > 50, "{ten}");
    check_purity(&objective);
    // Few sentinels end the placing early.
    let few = SpanOptions { sentinels: Sentinels { count: 3, ..SENTINELS }, ..options };
    let rows = super::rows(directory.path(), 100, 50, vocabulary);
    let objective = SpanCorruption::open(&[part(&prefix, true)], &rows, &few).unwrap();
    for sample in 0..50 {
        let batch = objective.batch(&[sample]).unwrap();
        let target = target(&batch);
        restored(&input(&batch)[..], &target[..target.len() - 1], few.sentinels);
    }
}

#[test]
fn documents_of_a_row_are_corrupted_one_by_one_and_their_ends_are_hidden() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let vocabulary = numbered(&prefix, &lengths(400, 1, 60, 13), true);
    let sentinels = Sentinels { first: 10, count: 60, descending: false };
    let options = SpanOptions::cpm2(sentinels, 0);
    let rows = rows(directory.path(), 160, 150, vocabulary);
    let objective = SpanCorruption::open(&[part(&prefix, false)], &rows, &options).unwrap();
    let eod = i64::from(EOD);
    let (mut hidden, mut all, mut padding) = (0, 0, 0);
    for sample in 0..150 {
        let batch = objective.batch(&[sample]).unwrap();
        let (input, labels) = (input(&batch), target(&batch));
        // The decoder begins with the first sentinel; the label of its last input is one more sentinel.
        let decoder = batch.decoder_input_ids.as_ref().unwrap();
        let mask = batch.decoder_attention_mask.as_ref().unwrap();
        assert_eq!(mask.iter().filter(|is| **is == 1).count(), labels.len());
        assert_eq!((decoder[0], &decoder[1..labels.len()]), (10, &labels[..labels.len() - 1]));
        let (closing, spans) = labels.split_last().unwrap();
        let target = [&[10], spans].concat();
        let (tokens, spans) = restored(&input, &target, sentinels);
        assert_eq!(*closing, 10 + spans.len() as i64);
        assert!(target.len() < objective.lengths().targets && input.len() <= 160);
        padding += 160 - input.len();
        for document in tokens.split_inclusive(|id| *id == eod) {
            assert!(are_consecutive(document.strip_suffix(&[eod]).unwrap_or(document)), "{document:?}");
            let is_whole = document.ends_with(&[eod]) && document.len() >= 10;
            hidden += usize::from(is_whole);
            all += usize::from(is_whole && !input.contains(&document[document.len() - 2]));
        }
        let shown = tokens.split_inclusive(|id| *id == eod).filter(|document| document.len() < 10).count();
        let ends = input.iter().filter(|id| **id == eod).count();
        assert!(ends <= shown, "an EOD of a long document is in the input");
    }
    assert!(hidden > 300 && all > hidden / 3, "{all} of {hidden}");
    assert!(padding < 150 * 12, "{padding}");
    check_purity(&objective);
}

#[test]
fn every_token_is_hidden_as_often_as_any_other() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let vocabulary = numbered(&prefix, &[vec![50_000]], false);
    let windows = RowOptions { sampler: RowSampler::RandomWindows, ..rows(directory.path(), 64, 4000, vocabulary) };
    let one = SpanScheme::Placed(SpanLengths::One);
    let options = SpanOptions { scheme: one, ..SpanOptions::t5(SENTINELS, EOS, 0) };
    let objective = SpanCorruption::open(&[part(&prefix, false)], &windows, &options).unwrap();
    let count = objective.lengths().tokens;
    let (mut places, mut all) = (vec![0.0_f64; count], 0.0_f64);
    for sample in 0..4000 {
        let batch = objective.batch(&[sample]).unwrap();
        let (input, target) = (input(&batch), target(&batch));
        let (tokens, _) = restored(&input[..input.len() - 1], &target[..target.len() - 1], SENTINELS);
        assert_eq!(tokens.len(), count);
        for id in target.iter().filter(|id| **id >= i64::from(FIRST)) {
            places[tokens.iter().position(|token| token == id).unwrap()] += 1.0;
            all += 1.0;
        }
    }
    let share = all / count as f64 / 4000.0;
    assert!(share > 0.1, "{share}");
    for (at, seen) in places.iter().enumerate() {
        assert!((seen - 4000.0 * share).abs() < bound(4000.0, share), "{at}: {seen} {share}");
    }
}

#[test]
fn sentinels_are_those_of_the_vocabulary() {
    let sentinels = Sentinels::at_end(32_100, 100);
    assert_eq!((sentinels.id(0), sentinels.id(99), sentinels.id(100)), (Some(32_099), Some(32_000), None));
    let ascending = Sentinels { first: 26_050, count: 190, descending: false };
    assert_eq!((ascending.id(0), ascending.id(189), ascending.id(190)), (Some(26_050), Some(26_239), None));
}
