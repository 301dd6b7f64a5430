//! Parameters frozen from the start or later: what they cost, that no memory moves, and that their state continues.

use crate::ranks::{Rank, Seen, Setting, on_ranks, peak, run, train};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::{Device, Segment};
use bmtrain_dist::Builder;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, OptimManager, ParamGroup, ParamState};
use bmtrain_dist::param::{BuilderOptions, FreezeMask, Init, NamePatterns, Split};
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use std::rc::Rc;
use std::sync::Arc;

const ALMOST_ALL: &[&str] = &["blocks.*", "table.*"];
const UP: &[&str] = &["blocks.*.up.*"];

fn now(device: &Device, segment: Segment) -> usize {
    device.memory().segments.iter().find(|(known, _)| *known == segment).map_or(0, |(_, usage)| usage.now)
}

/// Bytes of f32 values as the pool counts them.
fn taken(elements: usize) -> usize {
    (4 * elements).next_multiple_of(512)
}

#[test]
fn a_parameter_born_frozen_takes_no_memory_for_gradients_and_optimizer_state() {
    let setting = Setting { frozen: UP, sum: GradientSum::Fast, ..Setting::default() };
    let mut rank = Rank::new(Arc::new(Solo), &setting).unwrap();
    let flats = rank.model.parameters.flats().to_vec();
    assert_eq!(flats.len(), 1 + 2 * setting.blocks, "the table, and two storages for each block");
    let trained: Vec<_> = flats.iter().filter(|flat| flat.layout().spans().len() != 2).collect();
    assert_eq!(trained.len(), 1 + setting.blocks, "up has a weight and a bias");
    let before = now(&rank.device, Segment::Optimizer);
    rank.micro_batch(0, 0, 1, 1.0).unwrap();
    rank.optim.step().unwrap();
    let gradients: usize = trained.iter().map(|flat| taken(flat.layout().gathered_len())).sum();
    // Of the table, which is the head too, two gradients are added.
    let twice = taken(trained[0].layout().gathered_len());
    assert_eq!(peak(&rank.device.memory(), Segment::Gradients), gradients + twice);
    let state: usize = trained.iter().map(|flat| 2 * taken(flat.state_len())).sum();
    assert_eq!(now(&rank.device, Segment::Optimizer) - before, state);
}

#[test]
fn frozen_from_the_start_or_before_the_first_step_is_the_same_run() {
    let later = |comm: Arc<dyn Communicator>, setting: &Setting| -> (Vec<u32>, String) {
        let (rank, ranks) = (comm.rank(), comm.size());
        let mut this = Rank::new(comm, setting).unwrap();
        this.model.parameters.freeze(&NamePatterns::new(UP.iter().copied()));
        let mut norms = Vec::new();
        for step in 0..setting.steps {
            for index in (rank..setting.micro_batches).step_by(ranks) {
                this.micro_batch(step, index, setting.micro_batches, 1.0).unwrap();
            }
            norms.push(this.optim.step().unwrap().grad_norm.to_bits());
        }
        (norms, this.optim.fingerprint().unwrap().weights)
    };
    let born = run(&Setting { frozen: UP, ..Setting::default() });
    let seen = |seen: &Seen| (seen.norms.clone(), seen.fingerprint.weights.clone());
    assert_ne!(seen(&born), seen(&run(&Setting::default())), "freezing makes a difference");
    assert_eq!(later(Arc::new(Solo), &Setting::default()), seen(&born));
    for level in [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three] {
        let setting = Setting { ranks: 2, level, ..Setting::default() };
        for frozen_later in on_ranks(2, setting.options, |comm| later(Arc::new(comm), &setting)) {
            assert_eq!(frozen_later, seen(&born), "{level:?}");
        }
        assert_eq!(run(&Setting { frozen: UP, ..setting }), born, "{level:?}");
    }
}

#[test]
fn a_builder_can_freeze_what_is_born_below_it() {
    let device = Device::cpu(1).unwrap();
    let options = BuilderOptions { frozen: NamePatterns::new(["head.bias"]), ..BuilderOptions::default() };
    let builder = Builder::new(&device, options);
    let declare = |b: &Builder, name: &str| b.param(name, [3], Init::ONES, Split::Replicated, true).unwrap();
    let frozen = declare(&builder.frozen().at("backbone"), "weight");
    let (weight, bias) = (declare(&builder.at("head"), "weight"), declare(&builder.at("head"), "bias"));
    assert_eq!([&frozen, &weight, &bias].map(|param| param.spec().trainable), [false, true, false]);
    assert_eq!([&frozen, &weight, &bias].map(|param| param.is_trainable()), [false, true, false]);
    let names = NamePatterns::new(["head.*", "tail.*"]);
    assert_eq!(names.idle(&builder.finish()), ["tail.*"]);
    let [frozen, trained] = ["head.*", "*.bias"].map(|pattern| NamePatterns::new([pattern]));
    let options = BuilderOptions { frozen, trained: Some(trained), ..BuilderOptions::default() };
    let builder = Builder::new(&device, options);
    let are_trained = ["backbone.weight", "backbone.bias", "head.bias"].map(|n| declare(&builder, n).is_trainable());
    assert_eq!(are_trained, [false, true, false], "only biases that are not in the head");
}

/// A manager that does not clip, so that gradients can be followed by hand.
fn plain(rank: &Rank) -> OptimManager {
    let adam = Adam::new(ParamGroup::all(&rank.model.parameters, 0.0), AdamOptions::default()).unwrap();
    let mut optim = OptimManager::new(&rank.device, Clip::default()).unwrap();
    optim.add(Box::new(adam), 1e-3);
    optim
}

#[test]
fn a_frozen_parameter_stays_as_it_is_and_continues_with_its_old_moments() {
    const NAME: &str = "blocks.1.up.weight";
    let setting = Setting { sum: GradientSum::Fast, ..Setting::default() };
    let mut rank = Rank::new(Arc::new(Solo), &setting).unwrap();
    rank.optim = plain(&rank);
    let param = rank.model.parameters.get(NAME).unwrap().clone();
    let home = Rc::clone(param.place().unwrap().0);
    let state = |rank: &Rank| -> ParamState {
        let (adam, _) = rank.optim.parts().next().unwrap();
        adam.state().unwrap().into_iter().find(|state| state.name == NAME).unwrap()
    };
    for step in 0..2 {
        rank.micro_batch(step, 0, 1, 1.0).unwrap();
        rank.optim.step().unwrap();
    }
    let (values, moments) = (param.read().unwrap(), state(&rank));
    param.set_trainable(false);
    for step in 2..4 {
        rank.micro_batch(step, 0, 1, 1.0).unwrap();
        assert!(param.grad().unwrap().is_none(), "no gradient is made");
        let others = rank.model.parameters.iter().filter_map(|param| param.grad().unwrap());
        let squares = others.flat_map(|grad| grad.to_vec::<f32>().unwrap()).map(|g| f64::from(g).powi(2)).sum::<f64>();
        let norm = rank.optim.step().unwrap().grad_norm;
        // Squares are summed in f64 on both sides; the norm is an f32.
        assert!((f64::from(norm) - squares.sqrt()).abs() < 1e-6 * squares.sqrt(), "{norm} {}", squares.sqrt());
    }
    assert_eq!((param.read().unwrap(), state(&rank)), (values, moments.clone()));
    param.set_trainable(true);
    assert!(Rc::ptr_eq(param.place().unwrap().0, &home), "nothing moved");
    rank.micro_batch(4, 0, 1, 1.0).unwrap();
    let grad: Vec<f32> = param.grad().unwrap().unwrap().to_vec().unwrap();
    rank.optim.step().unwrap();
    let after = state(&rank);
    assert_eq!(after.steps, moments.steps + 1);
    for ((got, m), g) in after.tensors[0].1.iter().zip(&moments.tensors[0].1).zip(&grad) {
        let (kept, added) = (0.9 * m, (1.0 - 0.9f32) * g);
        // The kernel may round once less.
        assert!((got - (kept + added)).abs() <= 2e-7 * (kept.abs() + added.abs()), "{got} {kept} {added}");
    }
}

#[test]
fn freezing_between_micro_batches_counts_what_was_made_while_it_was_trained() {
    let steps = |comm: Arc<dyn Communicator>, setting: &Setting| {
        let (number, ranks) = (comm.rank(), comm.size());
        let mut rank = Rank::new(comm, setting).unwrap();
        let param = rank.model.parameters.get("blocks.1.up.weight").unwrap().clone();
        for step in 0..3 {
            for index in (number..8).step_by(ranks) {
                // Frozen in the middle of each step, and in the first half of the last one.
                param.set_trainable(if step < 2 { !(2..6).contains(&index) } else { index >= 4 });
                rank.micro_batch(step, index, 8, 1.0).unwrap();
            }
            rank.optim.step().unwrap();
        }
        rank.optim.fingerprint().unwrap()
    };
    let alone = steps(Arc::new(Solo), &Setting::default());
    for level in [ZeroLevel::Zero, ZeroLevel::Three] {
        let setting = Setting { ranks: 2, level, ..Setting::default() };
        for shared in on_ranks(2, setting.options, |comm| steps(Arc::new(comm), &setting)) {
            assert_eq!(shared, alone, "{level:?}");
        }
    }
}

#[test]
fn blocks_below_all_that_is_trained_are_not_visited_on_the_way_back() {
    let gathers = |frozen: &'static [&'static str], recompute| {
        let setting = Setting { ranks: 2, level: ZeroLevel::Three, frozen, recompute, ..Setting::default() };
        let calls = on_ranks(2, setting.options, |comm| {
            let comm = Arc::new(comm);
            let mut rank = Rank::new(comm.clone(), &setting).unwrap();
            rank.micro_batch(0, comm.rank(), 2, 1.0).unwrap();
            rank.device.sync().unwrap();
            comm.traffic().iter().find(|(name, _)| *name == "all_gather").map_or(0, |(_, traffic)| traffic.calls)
        });
        calls[0]
    };
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        // The table, and three blocks there and back.
        assert_eq!(gathers(&[], recompute), 1 + 3 + 3, "{recompute:?}");
        assert_eq!(gathers(&["table.*", "blocks.0.*", "blocks.1.*"], recompute), 1 + 3 + 1, "{recompute:?}");
        // A trained table is below everything: gradients flow through blocks that are frozen.
        assert_eq!(gathers(&["blocks.0.*", "blocks.1.*"], recompute), 1 + 3 + 3, "{recompute:?}");
    }
}

#[test]
fn a_mask_says_by_name_what_is_frozen_and_brings_it_back() {
    let setting = Setting { frozen: UP, ..Setting::default() };
    let rank = Rank::new(Arc::new(Solo), &setting).unwrap();
    let parameters = &rank.model.parameters;
    assert_eq!(parameters.freeze(&NamePatterns::new(["table.weight"])), 1);
    let mask = parameters.freeze_mask();
    assert_eq!(mask.frozen.len(), 1 + 2 * setting.blocks);
    let text = serde_json::to_string(&mask).unwrap();
    let other = Rank::new(Arc::new(Solo), &Setting::default()).unwrap().model.parameters;
    other.set_freeze_mask(&serde_json::from_str::<FreezeMask>(&text).unwrap()).unwrap();
    assert_eq!(other.freeze_mask(), mask);
    other.set_freeze_mask(&FreezeMask::default()).unwrap();
    assert!(other.iter().all(|param| param.is_trainable()));
    let unknown = FreezeMask { frozen: ["table.weight", "tabel.weight"].map(String::from).into() };
    let error = other.set_freeze_mask(&unknown).unwrap_err().to_string();
    assert!(error.starts_with("parameter tabel.weight: is to be frozen, but"), "{error}");
    assert!(other.iter().all(|param| param.is_trainable()), "nothing was changed");
}

#[test]
fn with_nothing_left_to_train_the_step_says_so() {
    let setting = Setting { frozen: ALMOST_ALL, ..Setting::default() };
    let error = train(Arc::new(Solo), &setting).unwrap_err().to_string();
    assert_eq!(error, "step: no parameter has a gradient: call backward first");
}

#[test]
fn a_star_matches_any_run_of_characters() {
    for (pattern, name, expected) in [
        ("head.weight", "head.weight", true),
        ("head.weight", "head.weight2", false),
        ("head.*", "head.weight", true),
        ("head.*", "ahead.weight", false),
        ("*.bias", "blocks.0.up.bias", true),
        ("*.bias", "blocks.0.bias.scale", false),
        ("blocks.*.up.*", "blocks.11.up.weight", true),
        ("blocks.*.up.*", "blocks.11.down.weight", false),
        ("a*ab", "aab", true),
        // The head and the last piece may not share characters.
        ("ab*b", "ab", false),
        ("*", "", true),
        ("", "", true),
        ("", "a", false),
        ("*a*a*", "banana", true),
        ("*a*x*", "banana", false),
    ] {
        assert_eq!(NamePatterns::new([pattern]).matches(name), expected, "{pattern} and {name}");
    }
    assert!(!NamePatterns::default().matches("head.weight"));
}
