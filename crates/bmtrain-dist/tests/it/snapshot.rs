//! Training that is saved, interrupted and resumed has the same bits on any number of ranks.

use crate::ranks::{OTHERS, RULES, Rank, Setting, Which, on_ranks};
use bmtrain_core::DType;
use bmtrain_core::comm::host::HostOptions;
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_dist::checkpoint::simulated::{FailingDisk, Failure, MemoryDisk};
use bmtrain_dist::checkpoint::{Checkpoint, Facts, Fault, Store};
use bmtrain_dist::checkpoint::{
    Kind, SaveEvent, Saver, TrainingState, load_averages, load_parameters, restore, restore_without_optimizer_state,
};
use bmtrain_dist::optim::{AverageForm, Fingerprint, ScalePolicy};
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use bmtrain_dist::{ControlGroup, Error, Result};
use std::sync::Arc;

/// Loss and norm bits of every step, for those micro-batches that this rank computes.
type Course = Vec<(usize, Vec<(usize, u32)>, u32)>;

/// Train steps `steps` of a run, from the newest checkpoint if `resume`, saving after every step in `saved`.
fn train(
    comm: Arc<dyn Communicator>,
    setting: &Setting,
    store: &Store,
    steps: std::ops::Range<usize>,
    saved: &[usize],
) -> Result<(Course, Fingerprint)> {
    let mut this = Rank::new(Arc::clone(&comm), setting)?;
    let control = ControlGroup::new(Arc::clone(&comm), &this.device);
    if steps.start > 0 {
        let checkpoint = newest(store);
        assert_eq!(checkpoint.manifest().step, steps.start as u64);
        let state = checkpoint.manifest().facts.state["training"].clone();
        let state: TrainingState = serde_json::from_value(state).unwrap();
        restore(&checkpoint, &state, &this.model.parameters, &mut this.optim)?;
    }
    let mut saver = Saver::new(store.clone(), control, 2)?;
    let mut course = Vec::new();
    for step in steps {
        let mut losses = Vec::new();
        for index in (comm.rank()..setting.micro_batches).step_by(comm.size()) {
            let is_broken = setting.broken == Some(step) && index == setting.micro_batches - 1;
            let factor = if is_broken { f32::INFINITY } else { 1.0 };
            losses.push((index, this.micro_batch(step, index, setting.micro_batches, factor)?));
        }
        let info = this.optim.step()?;
        course.push((step, losses, info.grad_norm.to_bits()));
        well(saver.advance()?);
        if saved.contains(&(step + 1)) {
            let state = TrainingState::of(&this.optim, &this.model.parameters)?;
            let state = [("training".to_owned(), serde_json::to_value(state).unwrap())].into_iter().collect();
            let facts = Facts { recipe: "r".into(), state, ..Facts::default() };
            well(saver.begin(&this.device, step as u64 + 1, facts, &this.model.parameters, &this.optim)?);
        }
    }
    well(saver.finish()?);
    Ok((course, this.optim.fingerprint()?))
}

fn well(event: Option<SaveEvent>) {
    assert!(!matches!(event, Some(SaveEvent::Failed { .. })), "{event:?}");
}

fn newest(store: &Store) -> Checkpoint {
    store.newest_verified().unwrap().checkpoint.unwrap()
}

fn memory() -> Store {
    Store::on(Arc::new(MemoryDisk::default()))
}

/// Runs it on all ranks of a group; losses by micro-batch.
fn run(
    setting: &Setting,
    store: &Store,
    steps: std::ops::Range<usize>,
    saved: &[usize],
) -> (Vec<(usize, usize, u32)>, Vec<u32>, Fingerprint) {
    let all = match setting.ranks {
        1 => vec![train(Arc::new(Solo), setting, store, steps, saved).unwrap()],
        ranks => on_ranks(ranks, setting.options, |rank| {
            train(Arc::new(rank), setting, store, steps.clone(), saved).unwrap()
        }),
    };
    let mut losses: Vec<_> = all
        .iter()
        .flat_map(|(course, _)| course)
        .flat_map(|(step, losses, _)| losses.iter().map(|(index, loss)| (*step, *index, *loss)))
        .collect();
    losses.sort_unstable();
    (losses, all[0].0.iter().map(|(_, _, norm)| *norm).collect(), all[0].1.clone())
}

fn levels() -> [ZeroLevel; 4] {
    [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three]
}

#[test]
fn a_run_that_is_taken_up_again_has_the_bits_of_one_that_was_not_cut_off() {
    for (level, dtype) in levels().into_iter().zip([DType::F32, DType::BF16, DType::F16, DType::F32]) {
        for (ranks, optimizer) in [(1, Which::Adam), (2, Which::Adam), (4, Which::Adam), (2, Which::Offload)] {
            let scale = (dtype == DType::F16).then_some(ScalePolicy::MEGATRON);
            let broken = Some(2);
            let setting = Setting { ranks, level, dtype, scale, steps: 6, broken, optimizer, ..Setting::default() };
            let whole = run(&setting, &memory(), 0..6, &[]);
            let store = memory();
            let first = run(&setting, &store, 0..3, &[1, 2, 3]);
            assert_eq!(store.list().unwrap().len(), 2, "only the newest are kept");
            let second = run(&setting, &store, 3..6, &[]);
            assert_eq!([first.0, second.0].concat(), whole.0, "{setting:?}");
            assert_eq!([first.1, second.1].concat(), whole.1, "{setting:?}");
            assert_eq!(second.2, whole.2, "{setting:?}");
        }
    }
}

#[test]
fn every_optimizer_is_resumed_with_the_same_bits_on_one_rank_or_two() {
    for (number, optimizer) in RULES.map(Which::Rule).into_iter().chain(OTHERS).chain(OTHERS).enumerate() {
        // The second time the others have the other dtype, and fused parameters.
        let second = number / (RULES.len() + OTHERS.len());
        let (dtype, fused) = ([DType::F32, DType::BF16][(number + second) % 2], second > 0);
        let of = |ranks, level| Setting { ranks, level, dtype, fused, optimizer, steps: 6, ..Setting::default() };
        let (alone, sharded) = (of(1, ZeroLevel::Zero), of(2, ZeroLevel::Three));
        let whole = run(&alone, &memory(), 0..6, &[]);
        let store = memory();
        let first = run(&sharded, &store, 0..3, &[3]);
        for setting in [&alone, &sharded] {
            let second = run(setting, &store, 3..6, &[]);
            assert_eq!([first.0.clone(), second.0].concat(), whole.0, "{setting:?}");
            assert_eq!([first.1.clone(), second.1].concat(), whole.1, "{setting:?}");
            assert_eq!(second.2, whole.2, "{setting:?}");
        }
    }
}

#[test]
fn averages_of_one_tensor_are_no_state_of_the_tensors_of_a_fused_parameter() {
    let whole = Setting { optimizer: OTHERS[1], steps: 1, ..Setting::default() };
    let store = memory();
    run(&whole, &store, 0..1, &[1]);
    let checkpoint = newest(&store);
    let state = checkpoint.manifest().facts.state["training"].clone();
    let state: TrainingState = serde_json::from_value(state).unwrap();
    let mut fused = Rank::new(Arc::new(Solo), &Setting { fused: true, ..whole }).unwrap();
    let error = restore(&checkpoint, &state, &fused.model.parameters, &mut fused.optim).unwrap_err().to_string();
    for part in ["column-average blocks.0.up.weight", "saved as f32 [24], wanted as f32 [3, 24]", "--fresh-optimizer"] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
}

#[test]
fn averages_of_a_checkpoint_are_loaded_in_the_place_of_the_parameters_on_any_ranks() {
    let values =
        |this: &Rank| -> Vec<Vec<f32>> { this.model.parameters.iter().map(|param| param.read().unwrap()).collect() };
    let optimizer = Which::Averaged(AverageForm::Exponential { decay: 0.75 });
    for dtype in [DType::F32, DType::BF16] {
        let alone = Setting { dtype, optimizer, steps: 3, ..Setting::default() };
        let store = memory();
        run(&Setting { ranks: 2, level: ZeroLevel::Three, ..alone.clone() }, &store, 0..3, &[3]);
        let checkpoint = newest(&store);
        let mut trained = Rank::new(Arc::new(Solo), &alone).unwrap();
        let state = checkpoint.manifest().facts.state["training"].clone();
        let state: TrainingState = serde_json::from_value(state).unwrap();
        restore(&checkpoint, &state, &trained.model.parameters, &mut trained.optim).unwrap();
        let own = values(&trained);
        let used = trained.optim.use_averages().unwrap();
        let expected = values(&trained);
        used.restore().unwrap();
        assert_ne!(own, expected);
        let loaded = |comm: Arc<dyn Communicator>, setting: &Setting| {
            let fresh = Rank::new(comm, setting).unwrap();
            load_averages(&checkpoint, &fresh.model.parameters).unwrap();
            values(&fresh)
        };
        assert_eq!(loaded(Arc::new(Solo), &alone), expected);
        for level in [ZeroLevel::Two, ZeroLevel::Three] {
            let setting = Setting { ranks: 2, level, ..alone.clone() };
            for found in on_ranks(2, setting.options, |rank| loaded(Arc::new(rank), &setting)) {
                assert_eq!(found, expected, "{level:?}");
            }
        }
    }
}

#[test]
fn other_numbers_of_ranks_and_other_levels_continue_with_the_same_bits_with_state_on_device_or_host() {
    let of = |ranks, level, optimizer| Setting {
        ranks,
        level,
        optimizer,
        steps: 8,
        sum: GradientSum::Elastic,
        ..Setting::default()
    };
    let whole = run(&of(1, ZeroLevel::Zero, Which::Adam), &memory(), 0..8, &[8]);
    let store = memory();
    let legs = [
        (2, ZeroLevel::Three, Which::Offload),
        (4, ZeroLevel::One, Which::Adam),
        (1, ZeroLevel::Three, Which::Offload),
        (2, ZeroLevel::Zero, Which::Offload),
    ];
    let mut losses = Vec::new();
    for (leg, (ranks, level, optimizer)) in legs.into_iter().enumerate() {
        let end = 2 * leg + 2;
        let (more, _, fingerprint) = run(&of(ranks, level, optimizer), &store, end - 2..end, &[end]);
        losses.extend(more);
        if end == 8 {
            assert_eq!(fingerprint, whole.2);
        }
    }
    assert_eq!(losses, whole.0);
    // What a checkpoint means does not tell how many ranks saved it.
    let alone = memory();
    run(&of(1, ZeroLevel::Two, Which::Adam), &alone, 0..8, &[8]);
    assert_eq!(newest(&store).digest().unwrap(), newest(&alone).digest().unwrap());
    assert_eq!((newest(&store).manifest().files.len(), newest(&alone).manifest().files.len()), (2, 1));
}

#[test]
fn what_is_frozen_stays_frozen_and_its_moments_are_kept() {
    let setting = Setting::default();
    let store = memory();
    let mut this = Rank::new(Arc::new(Solo), &setting).unwrap();
    this.micro_batch(0, 0, 1, 1.0).unwrap();
    this.optim.step().unwrap();
    let frozen = this.model.parameters.get("blocks.1.up.weight").unwrap().clone();
    frozen.set_trainable(false);
    save(&mut this, &store, 1);
    let mut again = Rank::new(Arc::new(Solo), &setting).unwrap();
    // A state for all parameters, and another one.
    again.micro_batch(5, 0, 1, 1.0).unwrap();
    again.optim.step().unwrap();
    let checkpoint = newest(&store);
    let state: TrainingState = serde_json::from_value(checkpoint.manifest().facts.state["training"].clone()).unwrap();
    assert_eq!(state.frozen.frozen.iter().collect::<Vec<_>>(), [frozen.name()]);
    restore(&checkpoint, &state, &again.model.parameters, &mut again.optim).unwrap();
    assert!(!again.model.parameters.get(frozen.name()).unwrap().is_trainable());
    assert_eq!(again.optim.fingerprint().unwrap(), this.optim.fingerprint().unwrap());
    for rank in [&mut this, &mut again] {
        rank.model.parameters.get("blocks.1.up.weight").unwrap().set_trainable(true);
        rank.micro_batch(1, 0, 1, 1.0).unwrap();
        rank.optim.step().unwrap();
    }
    assert_eq!(again.optim.fingerprint().unwrap(), this.optim.fingerprint().unwrap());
}

fn save(this: &mut Rank, store: &Store, step: u64) {
    let state = TrainingState::of(&this.optim, &this.model.parameters).unwrap();
    save_state(this, store, step, state);
}

fn save_state(this: &mut Rank, store: &Store, step: u64, state: TrainingState) {
    let control = ControlGroup::new(Arc::new(Solo), &this.device);
    let saver = Saver::new(store.clone(), control, 2).unwrap();
    let mut saver = saver.with_optimizer_state(state.has_optimizer_state);
    let state = [("training".to_owned(), serde_json::to_value(state).unwrap())].into_iter().collect();
    let facts = Facts { recipe: "r".into(), state, ..Facts::default() };
    saver.begin(&this.device, step, facts, &this.model.parameters, &this.optim).unwrap();
    let event = saver.finish().unwrap();
    assert!(matches!(event, Some(SaveEvent::Saved { step: s, committed: Some(_) }) if s == step), "{event:?}");
}

#[test]
fn a_snapshot_is_of_its_step_though_the_next_one_is_under_way() {
    [Which::Adam, Which::Offload, Which::Both].into_iter().for_each(a_snapshot_is_of_its_step);
}

fn a_snapshot_is_of_its_step(optimizer: Which) {
    // Begun, then two more steps at once: what is saved must be what was there.
    let setting = Setting { size: 96, optimizer, ..Setting::default() };
    let (store, now) = (memory(), memory());
    let mut this = Rank::new(Arc::new(Solo), &setting).unwrap();
    this.micro_batch(0, 0, 1, 1.0).unwrap();
    this.optim.step().unwrap();
    save(&mut this, &now, 1);
    let control = ControlGroup::new(Arc::new(Solo), &this.device);
    let mut saver = Saver::new(store.clone(), control, 2).unwrap();
    let facts = Facts { recipe: "r".into(), ..Facts::default() };
    saver.begin(&this.device, 1, facts, &this.model.parameters, &this.optim).unwrap();
    for step in 1..3 {
        this.micro_batch(step, 0, 1, 1.0).unwrap();
        this.optim.step().unwrap();
    }
    well(saver.finish().unwrap());
    assert_eq!(newest(&store).digest().unwrap().tensors, newest(&now).digest().unwrap().tensors);
    save(&mut this, &now, 2);
    assert_ne!(newest(&store).digest().unwrap().tensors, newest(&now).digest().unwrap().tensors);
}

#[test]
fn a_full_disk_of_one_rank_fails_the_save_on_all_and_training_continues() {
    // A rank that has not even the directory, which the other one has made, and one that has.
    for (failing, change) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let good = Arc::new(MemoryDisk::default());
        let store = Store::on(good.clone());
        let events = on_ranks(2, HostOptions::default(), |rank| {
            let number = rank.rank();
            let setting = Setting { ranks: 2, level: ZeroLevel::Three, ..Setting::default() };
            let full = Store::on(Arc::new(FailingDisk::new(good.clone(), Failure::Full, change)));
            let rank: Arc<dyn Communicator> = Arc::new(rank);
            let mut this = Rank::new(Arc::clone(&rank), &setting).unwrap();
            let control = ControlGroup::new(rank, &this.device);
            let here = if number == failing { full } else { store.clone() };
            let mut saver = Saver::new(here, control, 2).unwrap();
            let mut events = Vec::new();
            for step in 0..4 {
                this.micro_batch(step, number, 2, 1.0).unwrap();
                this.optim.step().unwrap();
                events.extend(saver.advance().unwrap());
                let facts = Facts { recipe: "r".into(), ..Facts::default() };
                let params = &this.model.parameters;
                events.extend(saver.begin(&this.device, step as u64 + 1, facts, params, &this.optim).unwrap());
            }
            events.extend(saver.finish().unwrap());
            events
        });
        for events in &events {
            let failed: Vec<bool> = events.iter().map(|event| matches!(event, SaveEvent::Failed { .. })).collect();
            assert_eq!(failed, [true; 4], "{events:?}");
            let SaveEvent::Failed { error, .. } = &events[0] else { panic!() };
            assert!(matches!(error, Error::Checkpoint { fault: Fault::Disk, .. }), "{error}");
            assert!(error.to_string().contains("make room"), "{error}");
        }
        assert_eq!(good.names(), [], "rank {failing}, change {change}: a directory was left");
    }
}

#[test]
fn another_model_is_refused_by_name() {
    let store = memory();
    let mut this = Rank::new(Arc::new(Solo), &Setting::default()).unwrap();
    this.micro_batch(0, 0, 1, 1.0).unwrap();
    this.optim.step().unwrap();
    save(&mut this, &store, 1);
    let checkpoint = newest(&store);
    let state: TrainingState = serde_json::from_value(checkpoint.manifest().facts.state["training"].clone()).unwrap();
    let others = [
        (Setting { blocks: 4, ..Setting::default() }, "there is no parameter blocks.3."),
        (Setting { blocks: 2, ..Setting::default() }, "parameters were saved, the model has"),
        (Setting { size: 28, ..Setting::default() }, "saved as f32 [13, 24], wanted as f32 [13, 28]"),
        (Setting { dtype: DType::BF16, ..Setting::default() }, "wanted as bf16"),
    ];
    for (setting, reason) in others {
        let mut other = Rank::new(Arc::new(Solo), &setting).unwrap();
        let error = restore(&checkpoint, &state, &other.model.parameters, &mut other.optim).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { fault: Fault::Request, .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn weights_alone_are_taken_without_the_optimizer() {
    let store = memory();
    let mut this = Rank::new(Arc::new(Solo), &Setting::default()).unwrap();
    this.micro_batch(0, 0, 1, 1.0).unwrap();
    this.optim.step().unwrap();
    save(&mut this, &store, 1);
    let fresh = Rank::new(Arc::new(Solo), &Setting::default()).unwrap();
    load_parameters(&newest(&store), &fresh.model.parameters).unwrap();
    let (old, new) = (this.optim.fingerprint().unwrap(), fresh.optim.fingerprint().unwrap());
    assert_eq!(new.weights, old.weights);
    assert_ne!(new.optimizer, old.optimizer);
}

#[test]
fn a_state_with_an_unknown_field_is_refused() {
    let mut this = Rank::new(Arc::new(Solo), &Setting { frozen: &["table.weight"], ..Setting::default() }).unwrap();
    this.micro_batch(0, 0, 1, 1.0).unwrap();
    this.optim.step().unwrap();
    let state = TrainingState::of(&this.optim, &this.model.parameters).unwrap();
    let mut value = serde_json::to_value(&state).unwrap();
    assert_eq!(value["frozen"], serde_json::json!(["table.weight"]));
    assert_eq!(serde_json::from_value::<TrainingState>(value.clone()).unwrap(), state);
    value["frozzen"] = serde_json::json!([]);
    let error = serde_json::from_value::<TrainingState>(value).unwrap_err().to_string();
    assert!(error.contains("frozzen"), "{error}");
}

#[test]
fn without_optimizer_state_a_checkpoint_is_smaller_and_optimizers_begin_anew_at_the_same_place() {
    // 16-bit values, whose master weights are left out too.
    let setting = Setting { dtype: DType::BF16, ..Setting::default() };
    let (complete, store) = (memory(), memory());
    let mut this = Rank::new(Arc::new(Solo), &setting).unwrap();
    for step in 0..2 {
        this.micro_batch(step, 0, 1, 1.0).unwrap();
        this.optim.step().unwrap();
    }
    save(&mut this, &complete, 2);
    let state = TrainingState::of(&this.optim, &this.model.parameters).unwrap().without_optimizer_state();
    save_state(&mut this, &store, 2, state);
    let checkpoint = newest(&store);
    assert!(checkpoint.tensors().iter().all(|tensor| tensor.kind == Kind::Parameter));
    // Values of 2 bytes beside two moments and a master of 4 each.
    assert!(6 * checkpoint.contents().bytes < newest(&complete).contents().bytes);
    let state: TrainingState = serde_json::from_value(checkpoint.manifest().facts.state["training"].clone()).unwrap();
    assert!(!state.has_optimizer_state);
    let mut fresh = Rank::new(Arc::new(Solo), &setting).unwrap();
    let error = restore(&checkpoint, &state, &fresh.model.parameters, &mut fresh.optim).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { fault: Fault::Request, .. }), "{error}");
    assert!(error.to_string().contains("saved without optimizer state"), "{error}");
    let complete_state = newest(&complete).manifest().facts.state["training"].clone();
    assert!(complete_state.get("has_optimizer_state").is_none(), "{complete_state}");
    let complete_state: TrainingState = serde_json::from_value(complete_state).unwrap();
    // From either checkpoint the same comes out: the values, and the state of an optimizer that made no step.
    let mut other = Rank::new(Arc::new(Solo), &setting).unwrap();
    restore_without_optimizer_state(&checkpoint, &state, &fresh.model.parameters, &mut fresh.optim).unwrap();
    let from = (&newest(&complete), &complete_state);
    restore_without_optimizer_state(from.0, from.1, &other.model.parameters, &mut other.optim).unwrap();
    let iteration = |rank: &Rank| rank.optim.parts().map(|(_, schedule)| schedule.map(|s| s.iteration())).collect();
    let iterations: Vec<Option<u64>> = iteration(&this);
    assert_eq!(iteration(&fresh), iterations);
    for rank in [&fresh, &other] {
        assert_eq!(rank.optim.fingerprint().unwrap().weights, this.optim.fingerprint().unwrap().weights);
        assert!(TrainingState::of(&rank.optim, &rank.model.parameters).unwrap().optimizers[0].steps.is_empty());
    }
    for rank in [&mut this, &mut fresh, &mut other] {
        rank.micro_batch(2, 0, 1, 1.0).unwrap();
        rank.optim.step().unwrap();
    }
    let [this, fresh, other] = [this, fresh, other].map(|rank| rank.optim.fingerprint().unwrap());
    assert_eq!(fresh, other);
    assert_ne!(fresh.optimizer, this.optimizer);
}
