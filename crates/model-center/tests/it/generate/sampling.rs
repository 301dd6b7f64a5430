//! Filters of sampling, and samples as pure functions of their address.

use bmtrain_dist::bmtrain_core::philox::Key;
use model_center::generate::{RandomAddress, Sampling};

/// Logits with these probabilities.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|probability| probability.ln() + 3.0).collect()
}

fn tokens(sampling: Sampling, probabilities: &[f32]) -> Vec<u32> {
    let mut tokens: Vec<u32> =
        sampling.probabilities(&logits(probabilities)).into_iter().map(|(token, _)| token).collect();
    tokens.sort_unstable();
    tokens
}

const ALL: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 };

#[test]
fn filters_keep_the_most_probable() {
    let probabilities = [0.1, 0.4, 0.05, 0.3, 0.15];
    assert_eq!(tokens(ALL, &probabilities), [0, 1, 2, 3, 4]);
    assert_eq!(tokens(Sampling { top_k: Some(2), ..ALL }, &probabilities), [1, 3]);
    assert_eq!(tokens(Sampling { top_k: Some(9), ..ALL }, &probabilities), [0, 1, 2, 3, 4]);
    // The token that crosses the bound is kept.
    assert_eq!(tokens(Sampling { top_p: 0.41, ..ALL }, &probabilities), [1, 3]);
    assert_eq!(tokens(Sampling { top_p: 0.39, ..ALL }, &probabilities), [1]);
    assert_eq!(tokens(Sampling { top_p: 1e-9, ..ALL }, &probabilities), [1]);
    assert_eq!(tokens(Sampling { min_p: 0.3, ..ALL }, &probabilities), [1, 3, 4]);
    // The second filter sees the renormalized probabilities of the first.
    assert_eq!(tokens(Sampling { top_k: Some(2), top_p: 0.6, ..ALL }, &probabilities), [1, 3]);
    assert_eq!(tokens(Sampling { top_k: Some(2), top_p: 0.5, ..ALL }, &probabilities), [1]);
}

#[test]
fn tokens_as_probable_as_the_last_stay_too() {
    assert_eq!(tokens(Sampling { top_k: Some(2), ..ALL }, &[0.2, 0.4, 0.2, 0.2]), [0, 1, 2, 3]);
}

#[test]
fn temperature_sharpens() {
    let hot = Sampling { temperature: 0.5, ..ALL }.probabilities(&logits(&[0.2, 0.8]));
    assert!((hot[1].1 - 0.64 / 0.68).abs() < 1e-6);
}

#[test]
fn many_words_are_sorted_as_far_as_needed() {
    let logits: Vec<f32> = (0..5000).map(|token| -((token * 7919 % 5000) as f32) / 500.0).collect();
    let probabilities = Sampling { top_p: 0.9, ..ALL }.probabilities(&logits);
    let mut sorted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let all: f64 = sorted.iter().sum();
    let mut sum = 0.0;
    let needed = sorted
        .iter()
        .take_while(|&&mass| {
            let more = sum < 0.9_f32 as f64 * all;
            sum += mass;
            more
        })
        .count();
    assert_eq!(probabilities.len(), needed);
    assert!(probabilities.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    assert!((probabilities.iter().map(|(_, probability)| probability).sum::<f64>() - 1.0).abs() < 1e-12);
}

#[test]
fn samples_follow_the_probabilities_and_their_address_alone() {
    let (logits, sampling) = (logits(&[0.1, 0.6, 0.3]), ALL);
    let key = Key::new(7, "sampling");
    let sample = |position| sampling.sample(&logits, RandomAddress { key, row: 3, position }).unwrap();
    let mut counts = [0_u32; 3];
    (0..10_000).for_each(|position| counts[sample(position) as usize] += 1);
    for (count, probability) in counts.iter().zip([0.1, 0.6, 0.3]) {
        // Five standard deviations.
        let deviation = 5.0 * (10_000.0_f64 * probability * (1.0 - probability)).sqrt();
        assert!((f64::from(*count) - 10_000.0 * probability).abs() < deviation, "{counts:?}");
    }
    assert_eq!((0..50).map(sample).collect::<Vec<_>>(), (0..50).map(sample).collect::<Vec<_>>());
}

#[test]
fn the_smallest_temperatures_leave_the_most_probable() {
    let coldest = Sampling { temperature: f32::MIN_POSITIVE, ..ALL };
    let sample = RandomAddress { key: Key::new(1, "x"), row: 0, position: 0 };
    assert_eq!(coldest.sample(&[-40.0, 30.0, 29.0, f32::NEG_INFINITY], sample), Some(1));
}

#[test]
fn rows_without_a_possible_word_have_none() {
    let sample = RandomAddress { key: Key::new(0, "x"), row: 0, position: 0 };
    assert_eq!(ALL.sample(&[f32::NEG_INFINITY, f32::NAN], sample), None);
    assert_eq!(ALL.sample(&[f32::NEG_INFINITY, -1e30], sample), Some(1));
}

#[test]
fn settings_out_of_range_are_errors() {
    let wrong = [
        Sampling { temperature: 0.0, ..ALL },
        Sampling { temperature: f32::NAN, ..ALL },
        Sampling { top_k: Some(0), ..ALL },
        Sampling { top_p: 0.0, ..ALL },
        Sampling { top_p: 1.5, ..ALL },
        Sampling { min_p: 1.0, ..ALL },
        Sampling { min_p: -0.1, ..ALL },
    ];
    for sampling in wrong {
        assert!(sampling.validate().is_err(), "{sampling:?}");
    }
    assert!(ALL.validate().is_ok());
}
