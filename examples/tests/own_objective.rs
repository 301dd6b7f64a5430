//! The loss of the example of an objective of one's own.
#![allow(missing_docs, clippy::unwrap_used, dead_code)]

#[path = "../src/bin/own_objective.rs"]
mod own_objective;

use own_objective::surrogate;

/// Log-probabilities of four tokens, three of them of a completion; ratios 1, within the clipping, above and below it.
const OLD: [f32; 5] = [-1.0, -2.0, -3.0, -4.0, -5.0];
const NOW: [f32; 5] = [-1.0, -1.9, -2.5, -4.6, -0.5];
const COUNTS: [bool; 5] = [true, true, true, true, false];

#[test]
fn the_loss_is_the_mean_of_clipped_ratios_times_advantages() {
    for (advantage, clipped) in [(2.0f64, 1), (-0.5, 1)] {
        let ratios = NOW.iter().zip(OLD).take(4).map(|(now, old)| f64::from(now - old).exp());
        let terms = ratios.map(|ratio| (ratio * advantage).min(ratio.clamp(0.8, 1.2) * advantage));
        let expected = -terms.sum::<f64>() / 4.0;
        let (loss, _, share) = surrogate(&NOW, &OLD, &[advantage as f32; 5], &COUNTS);
        // Arithmetic in f32.
        assert!((f64::from(loss) - expected).abs() < 1e-6, "{loss} for {expected}");
        assert_eq!(share, clipped as f32 / 4.0);
    }
}

#[test]
fn its_gradient_is_that_of_finite_differences() {
    let advantages = [1.5, -0.7, 1.5, 1.5, 9.0];
    let (_, gradient, _) = surrogate(&NOW, &OLD, &advantages, &COUNTS);
    let loss = |at: usize, change: f32| {
        let mut now = NOW;
        now[at] += change;
        surrogate(&now, &OLD, &advantages, &COUNTS).0
    };
    for (at, ours) in gradient.iter().enumerate() {
        let difference = (loss(at, 5e-3) - loss(at, -5e-3)) / 1e-2;
        // The loss in f32, and the second derivative of the exponential.
        assert!((difference - ours).abs() < 1e-4, "token {at}: {ours} for {difference}");
    }
    assert_eq!(gradient[4], 0.0, "a token of the prompt");
}
