//! Statistics of parameters and gradients: the same at every ZeRO level and on any number of ranks, and no trace of the
//! look.

use crate::ranks::{Rank, Setting, on_ranks, peak};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::{DType, Segment};
use bmtrain_dist::inspect::{AverageRecorder, Moments, SummaryRow, format_summary, inspect_model};
use bmtrain_dist::optim::{Fingerprint, ScalePolicy};
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use std::sync::Arc;

const LEVELS: [ZeroLevel; 4] = [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three];

/// The rows after one step and the micro-batches of the next.
fn rows_of(comm: Arc<dyn Communicator>, setting: &Setting, scale: f32) -> Vec<SummaryRow> {
    let (own, ranks) = (comm.rank(), comm.size());
    let mut rank = Rank::new(comm, setting).unwrap();
    for step in 0..2 {
        for index in (own..setting.micro_batches).step_by(ranks) {
            rank.micro_batch(step, index, setting.micro_batches, 1.0).unwrap();
        }
        if step == 0 {
            rank.optim.step().unwrap();
        }
    }
    inspect_model(&rank.model.parameters, "*", scale).unwrap()
}

fn everywhere(setting: &Setting, scale: f32) -> Vec<SummaryRow> {
    match setting.ranks {
        1 => rows_of(Arc::new(Solo), setting, scale),
        ranks => {
            let mut all = on_ranks(ranks, setting.options, |comm| rows_of(Arc::new(comm), setting, scale));
            let first = all.remove(0);
            assert!(all.iter().all(|rows| *rows == first), "ranks see different tables");
            first
        }
    }
}

/// Largest difference of two tables, relative to the deviations.
fn apart(a: &[SummaryRow], b: &[SummaryRow]) -> f64 {
    assert_eq!(a.len(), b.len());
    let between = |a: &Moments, b: &Moments| {
        assert_eq!(a.count, b.count);
        let differences = [a.mean - b.mean, a.deviation() - b.deviation(), a.max - b.max, a.min - b.min];
        let scale = a.deviation() + a.mean.abs() + 1e-30;
        differences.into_iter().map(|difference| difference.abs() / scale).fold(0.0, f64::max)
    };
    let of_row = |(a, b): (&SummaryRow, &SummaryRow)| {
        assert_eq!((&a.name, &a.shape, a.gradient.is_some()), (&b.name, &b.shape, b.gradient.is_some()));
        let gradients = a.gradient.as_ref().zip(b.gradient.as_ref());
        between(&a.values, &b.values).max(gradients.map_or(0.0, |(a, b)| between(a, b)))
    };
    a.iter().zip(b).map(of_row).fold(0.0, f64::max)
}

#[test]
fn the_table_is_the_same_at_every_level_and_on_any_number_of_ranks() {
    for dtype in [DType::F32, DType::BF16] {
        let alone = everywhere(&Setting { dtype, ..Setting::default() }, 1.0);
        assert!(alone.len() > 10 && alone.iter().all(|row| row.gradient.is_some()), "{}", format_summary(&alone));
        for level in LEVELS {
            for ranks in [2, 4] {
                for sum in [GradientSum::Elastic, GradientSum::Fast] {
                    let found = everywhere(&Setting { dtype, ranks, level, sum, ..Setting::default() }, 1.0);
                    // With elastic sums every bit of values and gradients is the same, and only the f64 sums of the
                    // statistics are cut elsewhere. Fast sums differ by f32 rounding, which the first step's weights
                    // carry on: in bf16 by whole digits of those.
                    let most = match (sum, dtype) {
                        (GradientSum::Elastic, _) => 1e-12,
                        (GradientSum::Fast, DType::BF16) => 2e-2,
                        (GradientSum::Fast, _) => 1e-4,
                    };
                    let apart = apart(&alone, &found);
                    assert!(apart < most, "{dtype} {level:?} {sum:?}, {ranks} ranks: {apart}");
                }
            }
        }
    }
}

#[test]
fn the_table_shows_the_values_and_the_gradients_of_plain_arithmetic() {
    let setting = Setting { sum: GradientSum::Fast, ..Setting::default() };
    let mut rank = Rank::new(Arc::new(Solo), &setting).unwrap();
    rank.micro_batch(0, 0, 1, 1.0).unwrap();
    let rows = inspect_model(&rank.model.parameters, "*", 1.0).unwrap();
    for (row, param) in rows.iter().zip(rank.model.parameters.iter()) {
        let gradient: Vec<f32> = param.grad().unwrap().unwrap().to_vec().unwrap();
        assert_eq!(row.name, param.name());
        for (values, found) in [(param.read().unwrap(), &row.values), (gradient, row.gradient.as_ref().unwrap())] {
            let wide: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
            let mean = wide.iter().sum::<f64>() / wide.len() as f64;
            let deviation = (wide.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / wide.len() as f64).sqrt();
            assert!((found.mean - mean).abs() < 1e-12 && (found.deviation() - deviation).abs() < 1e-12, "{}", row.name);
            assert_eq!(found.max, wide.iter().copied().fold(f64::MIN, f64::max));
            assert_eq!(found.min, wide.iter().copied().fold(f64::MAX, f64::min));
        }
    }
}

/// Train, looking at everything in between or not.
fn trained(comm: Arc<dyn Communicator>, setting: &Setting, look: bool) -> Fingerprint {
    let (own, ranks) = (comm.rank(), comm.size());
    let mut rank = Rank::new(comm, setting).unwrap();
    for step in 0..3 {
        for index in (own..setting.micro_batches).step_by(ranks) {
            rank.micro_batch(step, index, setting.micro_batches, 1.0).unwrap();
            if look {
                inspect_model(&rank.model.parameters, "*", 1.0).unwrap();
            }
        }
        if look {
            inspect_model(&rank.model.parameters, "blocks.?.up.*", 1.0).unwrap();
        }
        rank.optim.step().unwrap();
    }
    rank.optim.fingerprint().unwrap()
}

#[test]
fn looking_changes_no_bit_of_the_run() {
    for sum in [GradientSum::Fast, GradientSum::Elastic] {
        for level in LEVELS {
            let setting = Setting { ranks: 2, level, sum, ..Setting::default() };
            let of = |look| on_ranks(2, setting.options, |comm| trained(Arc::new(comm), &setting, look));
            assert_eq!(of(true), of(false), "{level:?} {sum:?}");
        }
        let setting = Setting { sum, ..Setting::default() };
        assert_eq!(trained(Arc::new(Solo), &setting, true), trained(Arc::new(Solo), &setting, false), "alone, {sum:?}");
    }
}

#[test]
fn nothing_is_gathered_for_a_look() {
    let setting = Setting {
        ranks: 4,
        level: ZeroLevel::Three,
        sum: GradientSum::Fast,
        blocks: 6,
        size: 64,
        ..Setting::default()
    };
    on_ranks(setting.ranks, setting.options, |comm| {
        let own = bmtrain_core::comm::Communicator::rank(&comm);
        let mut rank = Rank::new(Arc::new(comm), &setting).unwrap();
        rank.micro_batch(0, own, 4, 1.0).unwrap();
        rank.device.sync().unwrap();
        rank.device.reset_peaks();
        let before = rank.device.memory();
        inspect_model(&rank.model.parameters, "*", 1.0).unwrap();
        let after = rank.device.memory();
        assert_eq!(peak(&after, Segment::Gathered), peak(&before, Segment::Gathered));
        // The integers of the table of all ranks, and no block of 64 x 128 values.
        assert!(after.total.peak < before.total.now + (64 << 10), "{} {}", after.total.peak, before.total.now);
    });
}

#[test]
fn patterns_choose_frozen_parameters_have_no_gradient_and_the_loss_scale_is_taken_out() {
    let plain = Setting { sum: GradientSum::Fast, ..Setting::default() };
    let policy = ScalePolicy::BmTrain { start: 1024.0, factor: 2.0, every: 100, min: 1.0, max: 4096.0 };
    let scaled = Setting { scale: Some(policy), ..plain.clone() };
    // Powers of two change no digit.
    assert_eq!(everywhere(&scaled, 1024.0), everywhere(&plain, 1.0));
    let mut rank = Rank::new(Arc::new(Solo), &plain).unwrap();
    for param in rank.model.parameters.iter().filter(|param| param.name().ends_with("bias")) {
        param.set_trainable(false);
    }
    rank.micro_batch(0, 0, 1, 1.0).unwrap();
    let rows = inspect_model(&rank.model.parameters, "blocks.0.up.*", 1.0).unwrap();
    let seen: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.gradient.is_some())).collect();
    assert_eq!(seen, [("blocks.0.up.weight", true), ("blocks.0.up.bias", false)]);
    let shown = format_summary(&rows);
    let of_bias: Vec<&str> = shown.lines().nth(2).unwrap().split_whitespace().collect();
    assert!(of_bias.ends_with(&["0.0000", "-", "-"]), "\n{shown}");
    assert!(inspect_model(&rank.model.parameters, "nothing", 1.0).unwrap().is_empty());
    for scale in [0.0, -1.0, f32::NAN] {
        let error = inspect_model(&rank.model.parameters, "*", scale).unwrap_err().to_string();
        assert!(error.contains("must be above 0"), "{error}");
    }
}

#[test]
fn the_first_values_are_not_pulled_to_zero() {
    let mut average = AverageRecorder::default();
    assert_eq!(average.value(), None);
    average.record(5.0);
    assert!((average.value().unwrap() - 5.0).abs() < 1e-12);
    average.record(7.0);
    // (0.9 * 0.1 * 5 + 0.1 * 7) / (1 - 0.81)
    assert!((average.value().unwrap() - 1.15 / 0.19).abs() < 1e-12);
    let mut constant = AverageRecorder::new(0.99).unwrap();
    for _ in 0..1000 {
        constant.record(3.0);
        assert!((constant.value().unwrap() - 3.0).abs() < 1e-9, "a constant is its own average");
    }
    assert_eq!(constant.count(), 1000);
}

#[test]
fn weights_that_forget_nothing_or_everything_twice_are_refused() {
    for alpha in [1.0, -0.1, f64::NAN, 2.0] {
        assert!(AverageRecorder::new(alpha).is_err(), "{alpha}");
    }
    let mut last = AverageRecorder::new(0.0).unwrap();
    last.record(1.0);
    last.record(2.0);
    assert_eq!(last.value(), Some(2.0));
}
