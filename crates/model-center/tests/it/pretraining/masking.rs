//! How often tokens are predicted, masked, kept and replaced, over a million tokens.

use model_center::corpus::GroupOptions;
use model_center::data::IGNORED;
use model_center::pretraining::{MaskedLm, MaskedLmOptions, Masking, PretrainingSamples, SecondSentence};
use tempfile::tempdir;

use super::bert::options;
use super::{FIRST, bound, numbered, part, predicted};

const MASK: i64 = 3;

#[test]
fn frequencies_over_a_million_tokens_are_those_of_the_recipe() {
    let directory = tempdir().unwrap();
    let prefix = directory.path().join("c");
    // Sentences of 509 tokens: every input is full, and every text token another.
    let vocabulary = numbered(&prefix, &vec![vec![509; 3]; 400], false);
    let base = options(directory.path(), 512, 2000, vocabulary);
    let groups = GroupOptions { short: 0.0, ..base.groups.clone() };
    let options = MaskedLmOptions { second: SecondSentence::Order, groups, ..base };
    let objective = MaskedLm::open(&[part(&prefix, true)], &options).unwrap();
    let (mut masked, mut kept, mut replaced, mut all) = (0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
    // Predictions at each position, and inputs that have text there.
    let (mut positions, mut texts) = ([0.0_f64; 512], [0.0_f64; 512]);
    let mut special = 0.0_f64;
    let mut halves = [0.0_f64; 2];
    for sample in 0..2000 {
        let batch = objective.batch(&[sample]).unwrap();
        assert!(batch.attention_mask.as_ref().unwrap().iter().all(|is| *is == 1), "an input is not full");
        let labels = predicted(&batch);
        let second = batch.token_type_ids.as_ref().unwrap().iter().position(|is| *is == 1).unwrap();
        (1..511).filter(|at| *at != second - 1).for_each(|at| texts[at] += 1.0);
        for (at, (id, label)) in batch.input_ids.iter().zip(labels).enumerate() {
            if *label == IGNORED {
                continue;
            }
            all += 1.0;
            positions[at] += 1.0;
            if *id == MASK {
                masked += 1.0;
            } else if id == label {
                kept += 1.0;
            } else {
                replaced += 1.0;
                special += f64::from(u8::from(*id < i64::from(FIRST)));
                halves[usize::from(*id >= i64::from(vocabulary / 2))] += 1.0;
            }
        }
        // 15 % of 512, rounded.
        assert_eq!(labels.iter().filter(|label| **label != IGNORED).count(), 77);
    }
    assert_eq!((all, 2000.0 * 512.0 > 1e6), (2000.0 * 77.0, true));
    let random = 0.1 / f64::from(vocabulary);
    for (name, seen, share) in
        [("masked", masked, 0.8 + random), ("kept", kept, 0.1 + random), ("replaced", replaced, 0.1 - 2.0 * random)]
    {
        assert!((seen - all * share).abs() < bound(all, share), "{name}: {seen} of {all}");
    }
    let [masked, kept, percent] = [masked, kept, replaced].map(|seen| 100.0 * seen / all);
    println!("figure: {masked:.2}% masked,{kept:.2}% kept,{percent:.2}% random of {all}");
    // Random tokens are of the whole vocabulary.
    let share = f64::from(FIRST) / f64::from(vocabulary);
    assert!((special - replaced * share).abs() < bound(replaced, share).max(5.0), "{special} of {replaced}");
    assert!((halves[0] - replaced / 2.0).abs() < bound(replaced, 0.5), "{halves:?}");
    // No position is preferred among those without a special token.
    assert_eq!((positions[0], positions[511]), (0.0, 0.0));
    let share = 77.0 / 509.0;
    for (at, (count, texts)) in positions.iter().zip(texts).enumerate() {
        assert!((count - texts * share).abs() <= bound(texts, share), "position {at}: {count} of {texts}");
    }
}

#[test]
fn predictions_are_a_rounded_share_within_bounds() {
    let masking = Masking::bert(512);
    assert_eq!((masking.most, Masking::bert(128).most, Masking::bert(1).most), (80, 20, 10));
    for (length, predictions) in [(512, 77), (128, 19), (5, 1), (3, 1), (10, 2), (30, 4), (1000, 80)] {
        assert_eq!(masking.predictions(length), predictions, "{length}");
    }
}
