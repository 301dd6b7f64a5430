//! Beam search against the exhaustive search of a small space.

use model_center::generate::{BeamOptions, Beams, Hypothesis, Patience};

const OPTIONS: BeamOptions = BeamOptions { beams: 2, best: 2, ..BeamOptions::DEFAULT };

/// Logits with these probabilities.
fn row(chances: &[f32]) -> Vec<f32> {
    chances.iter().map(|chance| chance.ln()).collect()
}

fn unchanged(_: &[u32], _: &mut [f32]) {}

fn no_stop(_: &[u32]) -> bool {
    false
}

/// A Markov chain: row 0 follows the prompt, token 0 is the end token.
const CHAIN: [[f32; 4]; 4] =
    [[0.0, 0.5, 0.4, 0.1], [0.4, 0.2, 0.2, 0.2], [0.9, 0.05, 0.03, 0.02], [0.25, 0.25, 0.25, 0.25]];

fn search(options: BeamOptions, longest: usize) -> Vec<Hypothesis> {
    let mut beams = Beams::new(options, &[0], longest).unwrap();
    while !beams.is_done() {
        let last = |place: usize| beams.tokens(place).last().map_or(0, |token| *token as usize);
        let mut scores: Vec<Vec<f32>> = (0..beams.rows()).map(|place| row(&CHAIN[last(place)])).collect();
        let rows = beams.rows();
        let from = beams.step(&mut scores, unchanged, no_stop);
        assert!(from.iter().all(|&from| from < rows));
    }
    beams.finish()
}

/// All sequences up to a length with their scores, the best first.
fn all(longest: usize, exponent: f32) -> Vec<(Vec<u32>, f32)> {
    let mut done = Vec::new();
    let mut open = vec![(Vec::new(), 0.0_f32)];
    while let Some((tokens, sum)) = open.pop() {
        let last = tokens.last().map_or(0, |token: &u32| *token as usize);
        for (token, chance) in CHAIN[last].iter().enumerate() {
            let (mut tokens, sum) = (tokens.clone(), sum + chance.ln());
            tokens.push(token as u32);
            if token == 0 || tokens.len() == longest {
                let score = sum / (tokens.len() as f32).powf(exponent);
                done.push((tokens, score));
            } else {
                open.push((tokens, sum));
            }
        }
    }
    done.sort_by(|a, b| b.1.total_cmp(&a.1));
    done
}

#[test]
fn with_enough_beams_the_best_of_all_sequences_is_found() {
    for exponent in [0.0, 1.0, -0.5] {
        let wide = BeamOptions { beams: 64, length_penalty: exponent, patience: Patience::Never, best: 3, ..OPTIONS };
        let (found, all) = (search(wide, 4), all(4, exponent));
        for (found, (tokens, score)) in found.iter().zip(&all) {
            assert!((found.score - score).abs() < 1e-5, "{found:?} {tokens:?} {score}");
            assert!(found.is_finished);
        }
    }
}

#[test]
fn two_beams_find_what_one_misses() {
    // The most probable first token leads to a worse sequence.
    assert_eq!(search(BeamOptions { beams: 1, best: 1, length_penalty: 0.0, ..OPTIONS }, 3)[0].tokens, [1, 0]);
    let found = search(BeamOptions { length_penalty: 0.0, ..OPTIONS }, 3);
    assert_eq!((&found[0].tokens[..], &found[1].tokens[..]), (&[2, 0][..], &[1, 0][..]));
    assert!((found[0].score - 0.36_f32.ln()).abs() < 1e-6);
}

#[test]
fn the_first_finished_texts_end_an_impatient_search() {
    let found = search(BeamOptions { patience: Patience::First, ..OPTIONS }, 20);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|text| text.tokens.last() == Some(&0)));
}

#[test]
fn running_sequences_are_returned_if_too_few_are_finished() {
    let mut beams = Beams::new(OPTIONS, &[0], 9).unwrap();
    beams.step(&mut [row(&CHAIN[0])], unchanged, no_stop);
    assert_eq!((beams.rows(), beams.tokens(0), beams.tokens(1)), (2, &[1][..], &[2][..]));
    let cut = beams.finish();
    assert_eq!(cut.len(), 2);
    assert!(!cut[0].is_finished && (cut[0].score - 0.5_f32.ln()).abs() < 1e-6);
}

#[test]
fn a_row_without_possible_tokens_ends() {
    let mut beams = Beams::new(OPTIONS, &[0], 9).unwrap();
    assert!(beams.step(&mut [vec![f32::NEG_INFINITY, f32::NAN]], unchanged, no_stop).is_empty());
    assert!(beams.is_done() && beams.rows() == 0);
    assert!(beams.step(&mut [], unchanged, no_stop).is_empty());
    assert!(beams.finish().is_empty());
}

#[test]
fn processed_logits_can_forbid_a_token_after_others() {
    let mut beams = Beams::new(OPTIONS, &[0], 9).unwrap();
    let forbid = |tokens: &[u32], scores: &mut [f32]| {
        if tokens.is_empty() {
            scores[1] = f32::NEG_INFINITY;
        }
    };
    beams.step(&mut [row(&CHAIN[0])], forbid, no_stop);
    assert_eq!((beams.tokens(0), beams.tokens(1)), (&[2][..], &[3][..]));
}

#[test]
fn a_stop_ends_a_sequence() {
    let mut beams = Beams::new(BeamOptions { best: 1, ..OPTIONS }, &[0], 9).unwrap();
    beams.step(&mut [row(&CHAIN[0])], unchanged, |tokens| tokens == [1]);
    assert_eq!((beams.rows(), beams.tokens(0), beams.tokens(1)), (2, &[2][..], &[3][..]));
    assert_eq!(beams.finish()[0].tokens, [1]);
}

#[test]
fn options_out_of_range_are_errors() {
    for wrong in [
        BeamOptions { beams: 0, ..OPTIONS },
        BeamOptions { beams: usize::MAX, ..OPTIONS },
        BeamOptions { best: 0, ..OPTIONS },
        BeamOptions { best: 3, ..OPTIONS },
        BeamOptions { length_penalty: f32::NAN, ..OPTIONS },
    ] {
        assert!(Beams::new(wrong, &[0], 9).is_err(), "{wrong:?}");
    }
    assert!(Beams::new(OPTIONS, &[], 0).is_err());
}
