//! Averages of parameters.

use super::{solo, steps};
use crate::ranks::{Rank, Setting, Which, on_ranks};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_dist::optim::AverageForm;
use bmtrain_dist::param::NamePatterns;
use bmtrain_dist::shard::ZeroLevel;
use std::sync::Arc;

#[test]
fn averages_follow_their_formula_and_the_parameters_come_back() {
    let ema = AverageForm::Exponential { decay: 0.75 };
    let places = [(1, ZeroLevel::Zero), (2, ZeroLevel::One), (2, ZeroLevel::Two), (2, ZeroLevel::Three)];
    for form in [ema, AverageForm::Uniform { from: 3 }] {
        for (ranks, level) in places {
            let setting = Setting { ranks, level, optimizer: Which::Averaged(form), ..Setting::default() };
            let body = |comm: Arc<dyn Communicator>| {
                let number = comm.rank();
                let mut this = Rank::new(comm, &setting).unwrap();
                let values = |this: &Rank| -> Vec<f32> {
                    this.model.parameters.iter().flat_map(|param| param.read().unwrap()).collect()
                };
                let mut expected: Vec<f64> = Vec::new();
                for step in 0..5 {
                    steps(&mut this, &setting, number, step..step + 1);
                    let own = values(&this);
                    let share = match form {
                        _ if step == 0 => 1.0,
                        AverageForm::Exponential { decay } => 1.0 - decay,
                        AverageForm::Uniform { .. } => [1.0, 1.0, 1.0, 0.5, 1.0 / 3.0][step],
                    };
                    expected.resize(own.len(), 0.0);
                    for (average, own) in expected.iter_mut().zip(&own) {
                        *average += share * (f64::from(*own) - *average);
                    }
                    let used = this.optim.use_averages().unwrap();
                    assert!(!used.is_empty());
                    let worst = values(&this).into_iter().zip(&expected).map(|(got, e)| (f64::from(got) - e).abs());
                    // Roundings of five steps of values below four.
                    assert!(worst.fold(0.0, f64::max) < 1e-6, "{form:?} {level:?}, step {step}");
                    used.restore().unwrap();
                    assert_eq!(values(&this), own, "{form:?} {level:?}, step {step}");
                }
                assert!(
                    expected.iter().zip(values(&this)).any(|(average, own)| (average - f64::from(own)).abs() > 1e-3)
                );
            };
            match ranks {
                1 => body(Arc::new(Solo)),
                _ => drop(on_ranks(ranks, setting.options, |rank| body(Arc::new(rank)))),
            }
        }
    }
    let this = solo(&Setting::default());
    assert!(this.optim.use_averages().unwrap().is_empty(), "nothing is averaged");
}

#[test]
fn averages_of_parameters_that_are_frozen_later_are_used_and_restored_on_any_ranks() {
    let optimizer = Which::Averaged(AverageForm::Exponential { decay: 0.75 });
    let body = |comm: Arc<dyn Communicator>, setting: &Setting| {
        let number = comm.rank();
        let mut this = Rank::new(comm, setting).unwrap();
        let values = |this: &Rank| -> Vec<Vec<f32>> {
            this.model.parameters.iter().map(|param| param.read().unwrap()).collect()
        };
        steps(&mut this, setting, number, 0..3);
        this.model.parameters.freeze(&NamePatterns::new(["blocks.*"]));
        steps(&mut this, setting, number, 3..4);
        let own = values(&this);
        let used = this.optim.use_averages().unwrap();
        let averages = values(&this);
        used.restore().unwrap();
        assert_eq!(values(&this), own, "{setting:?}");
        assert!(own.iter().zip(&averages).all(|(own, average)| own != average), "{setting:?}");
        (own, averages)
    };
    let expected = body(Arc::new(Solo), &Setting { optimizer, ..Setting::default() });
    for level in [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three] {
        let setting = Setting { ranks: 2, level, optimizer, ..Setting::default() };
        for found in on_ranks(2, setting.options, |rank| body(Arc::new(rank), &setting)) {
            assert_eq!(found, expected, "{level:?}");
        }
    }
}
