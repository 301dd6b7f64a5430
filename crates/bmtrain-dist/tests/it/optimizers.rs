//! Several optimizers in one manager, and runs that move between optimizers, ranks and levels.

mod averages;

use crate::ranks::{RULES, Rank, Setting, Which, on_ranks, peak};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::{DType, Segment};
use bmtrain_dist::optim::{
    Adam, AdamOffload, AdamOptions, Clip, Elementwise, ElementwiseOptions, Fingerprint, ManagerState, ParamGroup,
    ScalePolicy,
};
use bmtrain_dist::shard::ZeroLevel;
use bmtrain_dist::{OptimManager, Param};
use std::ops::Range;
use std::sync::Arc;

fn solo(setting: &Setting) -> Rank {
    Rank::new(Arc::new(Solo), setting).unwrap()
}

/// Optimizer steps of one of the ranks, by their numbers in the run.
fn steps(this: &mut Rank, setting: &Setting, rank: usize, steps: Range<usize>) {
    for step in steps {
        for index in (rank..setting.micro_batches).step_by(setting.ranks) {
            this.micro_batch(step, index, setting.micro_batches, 1.0).unwrap();
        }
        assert!(!this.optim.step().unwrap().skipped);
    }
}

/// A run in the middle: the parameters and the manager's state.
#[derive(Debug, Clone, PartialEq)]
struct Saved {
    params: Vec<Vec<f32>>,
    state: ManagerState,
}

fn save(this: &Rank) -> Saved {
    let params = this.model.parameters.iter().map(|param| param.read().unwrap()).collect();
    let mut state = this.optim.state().unwrap();
    state.params.sort_by(|a, b| a.name.cmp(&b.name));
    Saved { params, state }
}

/// Three steps from a saved run, or its first three.
fn three_steps(setting: &Setting, from: Option<&Saved>) -> (Saved, Fingerprint) {
    let body = |comm: Arc<dyn Communicator>| {
        let number = comm.rank();
        let mut this = Rank::new(comm, setting).unwrap();
        let first = if let Some(saved) = from {
            for (param, values) in this.model.parameters.iter().zip(&saved.params) {
                param.load(values).unwrap();
            }
            this.optim.load_state(&saved.state).unwrap();
            3
        } else {
            0
        };
        steps(&mut this, setting, number, first..first + 3);
        (save(&this), this.optim.fingerprint().unwrap())
    };
    if setting.ranks == 1 {
        return body(Arc::new(Solo));
    }
    on_ranks(setting.ranks, setting.options, |rank| body(Arc::new(rank))).swap_remove(0)
}

#[test]
fn a_state_moves_between_device_and_host_ranks_and_levels_without_losing_a_bit() {
    let scale = Some(ScalePolicy::BmTrain { start: 64.0, factor: 2.0, every: 2, min: 1.0, max: 4096.0 });
    let places = [
        (Which::Adam, 1, ZeroLevel::Zero),
        (Which::Offload, 1, ZeroLevel::Zero),
        (Which::Adam, 2, ZeroLevel::Three),
        (Which::Offload, 2, ZeroLevel::Zero),
        (Which::Offload, 4, ZeroLevel::One),
        (Which::Offload, 2, ZeroLevel::Two),
        (Which::Offload, 4, ZeroLevel::Three),
    ];
    for dtype in [DType::F32, DType::F16] {
        let at = |(optimizer, ranks, level)| Setting { dtype, scale, optimizer, ranks, level, ..Setting::default() };
        let (first, _) = three_steps(&at(places[0]), None);
        let expected = three_steps(&at(places[0]), Some(&first));
        assert_ne!(expected.0, first);
        for place in places {
            let (begun, _) = three_steps(&at(place), None);
            assert_eq!(begun, first, "{dtype}, saved at {place:?}");
            assert_eq!(three_steps(&at(place), Some(&first)), expected, "{dtype}, continued at {place:?}");
        }
    }
}

#[test]
fn optimizers_with_rates_of_their_own_move_their_own_parameters() {
    let setting = Setting::default();
    let mut this = solo(&setting);
    let values = |this: &Rank| -> Vec<Vec<f32>> { this.model.parameters.iter().map(|p| p.read().unwrap()).collect() };
    let of = |wanted: bool, this: &Rank| -> Vec<Param> {
        let params = this.model.parameters.iter();
        params.filter(|param| param.name().starts_with("table") == wanted).cloned().collect()
    };
    let group = |params: Vec<Param>| ParamGroup::all(&params, 0.0);
    let held = AdamOptions { hold_steps: 2, ..AdamOptions::default() };
    let mut optim = OptimManager::new(&this.device, Clip::default()).unwrap();
    optim.add(Box::new(AdamOffload::new(group(of(true, &this)), AdamOptions::default()).unwrap()), 0.5);
    optim.add(Box::new(Adam::new(group(of(false, &this)), held).unwrap()), 0.25);
    assert_eq!(optim.untrained(&this.model.parameters), [""; 0]);
    this.optim = optim;
    for step in 0..3 {
        let before = values(&this);
        this.micro_batch(step, 0, 1, 1.0).unwrap();
        let info = this.optim.step().unwrap();
        assert_eq!((info.lr, &info.rates[..]), (0.5, &[0.5, 0.25][..]));
        let after = values(&this);
        for ((param, before), after) in this.model.parameters.iter().zip(before).zip(after) {
            let is_held = step < 2 && !param.name().starts_with("table");
            assert_eq!(before == after, is_held, "step {step}, {}", param.name());
        }
    }
}

#[test]
fn a_parameter_of_two_optimizers_is_refused_and_one_of_none_is_named() {
    let this = solo(&Setting::default());
    let half = |from: usize| -> Vec<ParamGroup> {
        let params: Vec<Param> = this.model.parameters.iter().skip(from).cloned().collect();
        ParamGroup::all(&params, 0.0)
    };
    let mut optim = OptimManager::new(&this.device, Clip::default()).unwrap();
    optim.add(Box::new(AdamOffload::new(half(2), AdamOptions::default()).unwrap()), 0.1);
    let names: Vec<&str> = this.model.parameters.iter().map(Param::name).collect();
    assert_eq!(optim.untrained(&this.model.parameters), &names[..2]);
    this.model.parameters.get(names[1]).unwrap().set_trainable(false);
    assert_eq!(optim.untrained(&this.model.parameters), &names[..1], "what is frozen needs no optimizer");
    optim.add(Box::new(Adam::new(half(names.len() - 1), AdamOptions::default()).unwrap()), 0.1);
    for error in [optim.step().unwrap_err(), optim.state().unwrap_err(), optim.zero_grad().unwrap_err()] {
        let error = error.to_string();
        assert!(error.contains(names[names.len() - 1]) && error.contains("two optimizers"), "{error}");
    }
}

#[test]
fn a_managers_state_of_another_form_is_refused() {
    let setting = Setting::default();
    let mut this = solo(&setting);
    steps(&mut this, &setting, 0, 0..1);
    let state = this.optim.state().unwrap();
    let mut refused = |change: &dyn Fn(&mut ManagerState), reason: &str| {
        let mut state = state.clone();
        change(&mut state);
        let error = this.optim.load_state(&state).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(this.optim.state().unwrap().schedules, [Some(1)], "{error}");
    };
    refused(&|state| state.schedules.push(None), "2 optimizers, expected 1");
    refused(&|state| state.schedules[0] = None, "has a schedule and a constant rate in the state");
    refused(&|state| state.params[0].name = "gone".into(), "gone: has optimizer state but is in no optimizer");
    refused(&|state| state.scale.scale = 3.0, "loss scale");
}

#[test]
fn offloaded_state_is_the_hosts_memory_and_not_the_devices() {
    for (dtype, tensors) in [(DType::F32, 2), (DType::BF16, 3)] {
        let setting = Setting { dtype, size: 64, optimizer: Which::Offload, ..Setting::default() };
        let [device, host] = [Which::Adam, Which::Offload].map(|optimizer| {
            let setting = Setting { optimizer, ..setting.clone() };
            let mut this = solo(&setting);
            steps(&mut this, &setting, 0, 0..2);
            let report = this.device.memory();
            [Segment::Optimizer, Segment::Offload].map(|segment| peak(&report, segment))
        });
        assert_eq!(device[1], 0);
        // The manager's own numbers.
        assert!(host[0] < 4096 && device[0] > 100_000, "{dtype}: {host:?} {device:?}");
        // Whole pages for each tensor of the three blocks and the table.
        let (least, most) = (device[0] - 4096, device[0] + 4 * tensors * 4096);
        assert!((least..most).contains(&host[1]), "{dtype}: {host:?} {device:?}");
    }
}

#[test]
fn adam_in_8_bits_learns_as_adam_does_and_keeps_a_quarter_of_its_state() {
    // The same four batches again and again, so that the loss falls to 0.
    let of = |optimizer: Which| -> Vec<f64> {
        let mut this = solo(&Setting::default());
        let mut optim = OptimManager::new(&this.device, Clip::default()).unwrap();
        for optimizer in optimizer.make(&this.model.parameters, AdamOptions::default()).unwrap() {
            optim.add(optimizer, 0.001);
        }
        this.optim = optim;
        let mut losses = Vec::new();
        for _ in 0..120 {
            let batches = (0..4).map(|index| f32::from_bits(this.micro_batch(0, index, 4, 1.0).unwrap()));
            losses.push(batches.map(f64::from).sum::<f64>() / 4.0);
            assert!(!this.optim.step().unwrap().skipped);
        }
        losses
    };
    let (exact, coded) = (of(Which::Adam), of(Which::Adam8bit));
    let first = exact[0];
    assert!(exact[119] < 0.8 * first, "the model learns: {first} {}", exact[119]);
    let above = exact.iter().zip(&coded).enumerate().filter(|(_, (exact, _))| **exact > 0.2 * first);
    for (step, (exact, coded)) in above {
        // What codes of 8 bits may cost.
        assert!((coded / exact - 1.0).abs() < 0.01, "step {step}: {coded} beside {exact}");
    }
    assert!(exact != coded);
    let [exact, coded] = [Which::Adam, Which::Adam8bit].map(|optimizer| {
        let setting = Setting { size: 64, optimizer, ..Setting::default() };
        let mut this = solo(&setting);
        steps(&mut this, &setting, 0, 0..2);
        peak(&this.device.memory(), Segment::Optimizer)
    });
    assert!(4 * coded < exact + 4 * 8192, "{coded} bytes beside {exact}");
}

#[test]
fn a_group_has_a_learning_rate_of_its_own_in_every_optimizer() {
    let moved = |factors: [f64; 2], rate: f64, optimizer: Which| -> Vec<Vec<f32>> {
        let setting = Setting { dtype: DType::F32, ..Setting::default() };
        let mut this = solo(&setting);
        let mut optim = OptimManager::new(&this.device, Clip::default()).unwrap();
        let mut groups = ParamGroup::by_decay(&this.model.parameters, 0.0);
        for (group, lr_factor) in groups.iter_mut().zip(factors) {
            group.lr_factor = lr_factor;
        }
        let adam = AdamOptions::default();
        optim.add(
            match optimizer {
                Which::Offload => Box::new(AdamOffload::new(groups, adam).unwrap()),
                Which::Rule(rule) => Box::new(Elementwise::new(groups, ElementwiseOptions::new(rule)).unwrap()),
                _ => Box::new(Adam::new(groups, adam).unwrap()),
            },
            rate,
        );
        this.optim = optim;
        this.micro_batch(0, 0, 1, 1.0).unwrap();
        this.optim.step().unwrap();
        this.model.parameters.iter().map(|param| param.read().unwrap()).collect()
    };
    let decays: Vec<bool> = solo(&Setting::default()).model.parameters.iter().map(|param| param.spec().decay).collect();
    for optimizer in [Which::Adam, Which::Offload, Which::Rule(RULES[0]), Which::Rule(RULES[10])] {
        let [mixed, fast, slow] = [
            moved([1.0, 0.25], 0.5, optimizer),
            moved([1.0, 1.0], 0.5, optimizer),
            moved([1.0, 1.0], 0.125, optimizer),
        ];
        assert!(decays.contains(&true) && decays.contains(&false) && fast != slow);
        for (((decays, mixed), fast), slow) in decays.iter().zip(mixed).zip(fast).zip(slow) {
            assert_eq!(mixed, if *decays { fast } else { slow }, "{optimizer:?}");
        }
    }
}
