//! Changes of logits before a token is chosen.

use model_center::generate::{RepetitionPenalty, argmax, force_token, log_softmax, repeated_ngrams};

#[test]
fn tokens_of_the_window_are_penalized_once_and_away_from_zero() {
    let penalty = RepetitionPenalty { factor: 2.0, window: Some(3) };
    let mut logits = [4.0, -4.0, 1.0, 0.0, 8.0];
    penalty.apply(&[4, 0, 1, 1], &mut logits);
    assert_eq!(logits, [2.0, -8.0, 1.0, 0.0, 8.0]);
    RepetitionPenalty { window: None, ..penalty }.apply(&[4, 99], &mut logits);
    assert_eq!(logits[4], 4.0);
    let before = logits;
    RepetitionPenalty::default().apply(&[0, 1, 2], &mut logits);
    assert_eq!(logits, before);
}

#[test]
fn impossible_settings_are_errors() {
    for factor in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = RepetitionPenalty { factor, window: None }.validate().unwrap_err().to_string();
        assert!(error.contains("repetition_penalty"), "{error}");
    }
    assert!(RepetitionPenalty { factor: 1.0, window: Some(0) }.validate().is_err());
    assert!(RepetitionPenalty::default().validate().is_ok());
}

#[test]
fn log_probabilities_sum_to_one_and_keep_minus_infinity() {
    let mut logits = [1000.0, 1000.0 - 2_f32.ln(), f32::NEG_INFINITY];
    log_softmax(&mut logits);
    assert!((logits[0].exp() - 2.0 / 3.0).abs() < 1e-4);
    assert_eq!(logits[2], f32::NEG_INFINITY);
    let mut nothing = [f32::NEG_INFINITY; 2];
    log_softmax(&mut nothing);
    assert_eq!(nothing, [f32::NEG_INFINITY; 2]);
    let mut none: [f32; 0] = [];
    log_softmax(&mut none);
}

#[test]
fn repeated_ngrams_are_found() {
    assert_eq!(repeated_ngrams(&[1, 2, 3, 1, 2, 4, 1, 2], 3), [3, 4]);
    assert_eq!(repeated_ngrams(&[1, 2, 1], 1), [1, 2, 1]);
    assert_eq!(repeated_ngrams(&[5, 5], 2), [5]);
    for (row, size) in [(&[1, 2][..], 3), (&[1, 2], 4), (&[], 1), (&[1, 2], 0)] {
        assert!(repeated_ngrams(row, size).is_empty(), "{row:?} {size}");
    }
}

#[test]
fn a_forced_token_is_certain() {
    let mut logits = [3.0, f32::NEG_INFINITY, 1.0];
    force_token(1, &mut logits);
    assert_eq!(logits, [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
}

#[test]
fn the_first_of_equal_logits_is_the_largest() {
    assert_eq!(argmax(&[1.0, 3.0, f32::NAN, 3.0]), Some(1));
    assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), None);
}
