//! Masked language modelling over pairs of sentences: layout, pairs and predictions of every sampler.

use std::path::Path;
use std::sync::Arc;

use model_center::corpus::{GroupOptions, TokenFile};
use model_center::data::{Batch, IGNORED, LabelSpace};
use model_center::pretraining::{
    MaskTokens, MaskedLm, MaskedLmOptions, Masking, PairSampler, PretrainingSamples, SecondSentence, SpanLengths,
};
use tempfile::tempdir;

use super::{FIRST, are_consecutive, bound, check_purity, groups, lengths, numbered, part, predicted};

const CLS: u32 = 1;
const SEP: u32 = 2;
const MASK: u32 = 3;

pub(super) fn options(cache: &Path, length: usize, samples: u64, vocabulary: u32) -> MaskedLmOptions {
    MaskedLmOptions {
        sequence_length: length,
        samples,
        tokens: MaskTokens { cls: CLS, sep: SEP, mask: MASK, pad: 0, vocabulary },
        masking: Masking::bert(length),
        second: SecondSentence::Next,
        sampler: PairSampler::Groups,
        groups: groups(cache),
    }
}

/// The tokens of the two segments before they were masked.
fn segments(batch: &Batch) -> [Vec<i64>; 2] {
    let mask = batch.attention_mask.as_ref().unwrap();
    let used = mask.iter().filter(|is| **is == 1).count();
    assert!(mask[..used].iter().all(|is| *is == 1), "padding is at the end");
    assert!(batch.input_ids[used..].iter().all(|id| *id == 0));
    let labels = predicted(batch);
    assert!(labels[used..].iter().all(|label| *label == IGNORED), "padding is predicted");
    let restored: Vec<i64> = batch.input_ids[..used]
        .iter()
        .zip(labels)
        .map(|(id, label)| if *label == IGNORED { *id } else { *label })
        .collect();
    let ends: Vec<usize> = (0..used).filter(|at| restored[*at] == i64::from(SEP)).collect();
    assert_eq!((restored[0], *ends.last().unwrap()), (i64::from(CLS), used - 1));
    for at in std::iter::once(0).chain(ends.iter().copied()) {
        assert_eq!(labels[at], IGNORED, "a special token is predicted");
    }
    let Some(types) = &batch.token_type_ids else {
        assert_eq!(ends.len(), 1);
        return [restored[1..used - 1].to_vec(), Vec::new()];
    };
    assert_eq!(ends.len(), 2);
    // CLS and the first SEP are of the first segment, the last SEP of the second, padding of none.
    let expected = (0..types.len()).map(|at| i64::from(at > ends[0] && at < used)).collect::<Vec<_>>();
    assert_eq!(*types, expected);
    [restored[1..ends[0]].to_vec(), restored[ends[0] + 1..used - 1].to_vec()]
}

/// The document of a token.
fn document_of(sizes: &[Vec<u32>], token: i64) -> usize {
    let mut end = i64::from(FIRST);
    sizes
        .iter()
        .position(|sentences| {
            end += sentences.iter().map(|length| i64::from(*length)).sum::<i64>();
            token < end
        })
        .unwrap()
}

#[test]
fn pairs_of_every_kind_are_consecutive_sentences_and_their_label_tells_which() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let sizes = lengths(150, 20, 25, 8);
    let vocabulary = numbered(&prefix, &sizes, false);
    for sampler in [PairSampler::Groups, PairSampler::Random] {
        for second in [SecondSentence::Next, SecondSentence::Order] {
            let options = MaskedLmOptions { second, sampler, ..options(directory.path(), 64, 800, vocabulary) };
            let objective = MaskedLm::open(&[part(&prefix, true)], &options).unwrap();
            assert_eq!(*objective.labels(), LabelSpace::MaskedTokens { sentences: true });
            let mut others = 0;
            for sample in 0..800 {
                let batch = objective.batch(&[sample]).unwrap();
                let [first, last] = segments(&batch);
                assert!(!first.is_empty() && !last.is_empty() && first.len() + last.len() <= 61);
                assert!(are_consecutive(&first) && are_consecutive(&last));
                let [one, two] = [&first, &last].map(|segment| document_of(&sizes, segment[0]));
                let is_other = batch.next_sentence.as_ref().unwrap()[0] == 1;
                others += usize::from(is_other);
                match (second, is_other) {
                    (SecondSentence::Next, true) => assert_ne!(one, two, "a random sentence of the same document"),
                    (SecondSentence::Order, true) => assert!(one == two && last[0] < first[0]),
                    _ => assert!(one == two && first[first.len() - 1] < last[0]),
                }
                // What is missing between two segments was cut off, so that the pair is full.
                if one == two && first.len() + last.len() < 61 && sampler == PairSampler::Random {
                    let (before, after) = if first[0] < last[0] { (&first, &last) } else { (&last, &first) };
                    assert_eq!(before[before.len() - 1] + 1, after[0], "a gap in a pair that is not full");
                }
                let count = predicted(&batch).iter().filter(|label| **label != IGNORED).count();
                let text = first.len() + last.len();
                assert_eq!(count, options.masking.predictions(text + 3).min(text));
            }
            // A random place may have one sentence after it, whose second is always a random one.
            let is_even = sampler == PairSampler::Groups || second == SecondSentence::Order;
            let (others, few) = (others as f64, 400.0 - bound(800.0, 0.5));
            assert!(others > few && (!is_even || others < 800.0 - few), "{sampler:?} {second:?}: {others}");
            check_purity(&objective);
        }
    }
}

#[test]
fn one_segment_has_no_second_sentence_and_no_label() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let sizes = lengths(60, 20, 25, 9);
    let vocabulary = numbered(&prefix, &sizes, false);
    for sampler in [PairSampler::Groups, PairSampler::Random] {
        let options =
            MaskedLmOptions { second: SecondSentence::None, sampler, ..options(directory.path(), 40, 300, vocabulary) };
        let objective = MaskedLm::open(&[part(&prefix, true)], &options).unwrap();
        assert_eq!(*objective.labels(), LabelSpace::MaskedTokens { sentences: false });
        for sample in 0..300 {
            let batch = objective.batch(&[sample]).unwrap();
            let [first, last] = segments(&batch);
            assert!(batch.next_sentence.is_none() && last.is_empty());
            assert!(are_consecutive(&first) && (1..=38).contains(&first.len()));
            let _ = document_of(&sizes, first[0]);
        }
        check_purity(&objective);
    }
}

#[test]
fn an_epoch_of_groups_has_every_sentence_and_short_targets_make_short_inputs() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    // Sentences of one token, so that nothing is cut off.
    let sizes: Vec<Vec<u32>> = (0..80).map(|document| vec![1; 2 + document % 50]).collect();
    let vocabulary = numbered(&prefix, &sizes, false);
    let options = options(directory.path(), 23, 10_000, vocabulary);
    let options = MaskedLmOptions {
        second: SecondSentence::Order,
        groups: GroupOptions { short: 0.5, ..options.groups.clone() },
        ..options
    };
    let objective = MaskedLm::open(&[part(&prefix, true)], &options).unwrap();
    let file = Arc::new(TokenFile::open(&prefix).unwrap());
    let documents = model_center::corpus::DocumentSet::range(0..80);
    let groups = GroupOptions { target_tokens: 20, fewest: 2, ..options.groups };
    let epoch = model_center::corpus::SentenceGroups::open(file, &documents, &groups).unwrap().groups_per_epoch();
    let mut seen: Vec<i64> = Vec::new();
    for sample in 0..epoch {
        let [first, last] = segments(&objective.batch(&[sample]).unwrap());
        seen.extend(first.into_iter().chain(last));
    }
    seen.sort_unstable();
    // The last group of a document may have one sentence above its target, which is cut off.
    let all = i64::from(vocabulary - FIRST);
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "a sentence comes twice");
    assert!(seen.len() as i64 > all * 95 / 100, "{} of {all}", seen.len());
}

#[test]
fn words_are_masked_whole_and_spans_have_several() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    let vocabulary = numbered(&prefix, &[vec![100; 40], vec![100; 40]], false);
    // Two of three tokens continue the one before.
    let table: Arc<[bool]> = (0..vocabulary).map(|id| id >= FIRST && id % 3 != 0).collect();
    for lengths in [SpanLengths::One, SpanLengths::Inverse(3)] {
        let base = options(directory.path(), 128, 300, vocabulary);
        let masking = Masking { lengths, continuations: Some(Arc::clone(&table)), ..base.masking.clone() };
        let groups = GroupOptions { short: 0.0, ..base.groups.clone() };
        let options = MaskedLmOptions { masking, groups, ..base };
        let objective = MaskedLm::open(&[part(&prefix, true)], &options).unwrap();
        let mut sizes = [0; 4];
        for sample in 0..300 {
            let batch = objective.batch(&[sample]).unwrap();
            let labels = predicted(&batch);
            for (at, label) in labels.iter().enumerate().filter(|(_, label)| **label != IGNORED) {
                // The tokens of its word beside it, within the segment.
                for (beside, continues) in [(at - 1, label % 3 != 0), (at + 1, (label + 1) % 3 != 0)] {
                    let is_special =
                        [CLS, SEP].contains(&(batch.input_ids[beside] as u32)) && labels[beside] == IGNORED;
                    let is_same = !is_special && continues;
                    assert!(!is_same || labels[beside] != IGNORED, "a word is masked in part");
                }
            }
            let count = labels.iter().filter(|label| **label != IGNORED).count();
            assert!((17..=19).contains(&count), "{count}");
            for run in labels.split(|label| *label == IGNORED).filter(|run| !run.is_empty()) {
                sizes[(run.len() / 3).min(3)] += 1;
            }
        }
        match lengths {
            SpanLengths::One => assert!(sizes[1] > 3 * (sizes[2] + sizes[3]), "{sizes:?}"),
            _ => assert!(sizes[2] > sizes[1] / 4 && sizes[3] > sizes[1] / 8, "{sizes:?}"),
        }
        check_purity(&objective);
    }
}
