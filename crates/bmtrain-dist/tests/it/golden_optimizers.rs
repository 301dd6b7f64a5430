//! Optimizers and schedules against PyTorch and transformers; `scripts/golden/make_optimizers.py` makes the data.

use crate::ranks::{OTHERS, RULES, Rank, Setting, Which, on_ranks, run};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::kernel::UpdateRule;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::optim::{
    Adafactor, AdafactorOptions, Adam, Adam8bit, Adam8bitOptions, AdamOptions, Clip, DecayForm, DecayShape,
    Elementwise, ElementwiseOptions, Muon, MuonOptions, MuonScale, Optimizer, ParamGroup, Schedule, ScheduleKind,
    Warmup,
};
use bmtrain_dist::param::{BuilderOptions, Fusion, FusionTable, Init, Split};
use bmtrain_dist::shard::ZeroLevel;
use bmtrain_dist::{Builder, OptimManager, Param};
use safetensors::SafeTensors;
use std::path::PathBuf;
use std::sync::Arc;

const STEPS: usize = 50;

/// The committed data, or those that a claim has just made.
fn golden() -> Vec<u8> {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let directory = std::env::var_os("BMTRAIN_OPTIMIZER_GOLDENS").map_or_else(|| PathBuf::from(committed), Into::into);
    std::fs::read(directory.join("optimizers/golden.safetensors")).unwrap()
}

fn f32s(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).unwrap().data().as_chunks().0;
    bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn rule(rule: UpdateRule) -> ElementwiseOptions {
    ElementwiseOptions::new(rule)
}

/// Optimizers over two groups, what decays and what does not.
type Make = Box<dyn Fn(Vec<ParamGroup>) -> Vec<Box<dyn Optimizer>>>;

/// The name in the file, the optimizers, and their learning rate.
fn optimizers() -> Vec<(&'static str, Make, f64)> {
    let (epsilon, momentum_decay) = (1e-8, 4e-3);
    let [beta1, beta2] = [0.9, 0.999];
    let coupled = AdamOptions { decay_form: DecayForm::Coupled, ..AdamOptions::default() };
    let adams = [
        ("adam", coupled),
        ("adamw", AdamOptions { beta2: 0.95, ..AdamOptions::default() }),
        ("adam-climbing", AdamOptions { maximize: true, ..coupled }),
    ];
    let sgd = |momentum, dampening, nesterov| rule(UpdateRule::Sgd { momentum, dampening, nesterov });
    let rms_prop = |rho, momentum, centered| rule(UpdateRule::RmsProp { rho, epsilon, momentum, centered });
    let nadam = rule(UpdateRule::NAdam { beta1, beta2, epsilon, momentum_decay });
    let radam = rule(UpdateRule::RAdam { beta1, beta2, epsilon });
    let adagrad = rule(UpdateRule::Adagrad { lr_decay: 0.01, epsilon: 1e-10 });
    let others = [
        ("sgd", sgd(0.0, 0.0, false)),
        ("sgd-momentum", sgd(0.9, 0.25, false)),
        ("sgd-nesterov", sgd(0.9, 0.0, true)),
        ("sgd-climbing", ElementwiseOptions { maximize: true, ..sgd(0.9, 0.0, false) }),
        ("adagrad", ElementwiseOptions { initial: 0.1, ..adagrad }),
        ("rmsprop", rms_prop(0.99, 0.0, false)),
        ("rmsprop-momentum", rms_prop(0.9, 0.5, false)),
        ("rmsprop-centered", rms_prop(0.99, 0.0, true)),
        ("rmsprop-both", rms_prop(0.99, 0.5, true)),
        ("adadelta", rule(UpdateRule::Adadelta { rho: 0.9, epsilon: 1e-6 })),
        ("adamax", rule(UpdateRule::Adamax { beta1, beta2, epsilon })),
        ("nadam", nadam),
        ("nadam-decoupled", ElementwiseOptions { decay_form: DecayForm::Decoupled, ..nadam }),
        ("radam", radam),
        ("radam-decoupled", ElementwiseOptions { decay_form: DecayForm::Decoupled, ..radam }),
        ("lion", rule(UpdateRule::Lion { beta1, beta2: 0.99 })),
    ];
    let plain = MuonOptions { momentum: 0.9, nesterov: false, scale: MuonScale::MatchAdamW, ..MuonOptions::default() };
    let mut all: Vec<(&str, Make, f64)> = Vec::new();
    for (name, options) in adams {
        all.push((name, Box::new(move |groups| vec![Box::new(Adam::new(groups, options).unwrap())]), 0.01));
    }
    for (name, options) in others {
        let lr = if name == "adadelta" { 1.0 } else { 0.01 };
        all.push((name, Box::new(move |groups| vec![Box::new(Elementwise::new(groups, options).unwrap())]), lr));
    }
    let scaled = AdafactorOptions { scale_parameter: true, clip_threshold: 0.5, ..AdafactorOptions::default() };
    for (name, options, lr) in [("adafactor", AdafactorOptions::default(), 0.01), ("adafactor-scaled", scaled, 0.1)] {
        all.push((name, Box::new(move |groups| vec![Box::new(Adafactor::new(groups, options).unwrap())]), lr));
    }
    for (name, options) in [("muon", MuonOptions::default()), ("muon-plain", plain)] {
        let make = move |mut groups: Vec<ParamGroup>| -> Vec<Box<dyn Optimizer>> {
            let rest = Adam::new(groups.split_off(1), AdamOptions::default()).unwrap();
            vec![Box::new(Muon::new(groups, options).unwrap()), Box::new(rest)]
        };
        all.push((name, Box::new(make), 0.001));
    }
    all
}

const PARTS: [&str; 3] = ["weight", "wide", "bias"];

/// The parameters after all steps.
fn trained(file: &SafeTensors<'_>, make: &Make, lr: f64) -> [Vec<f32>; 3] {
    let device = Device::cpu(1).unwrap();
    let builder = Builder::new(&device, BuilderOptions::default());
    let declare = |builder: &Builder| -> bmtrain_dist::Result<[Param; 3]> {
        Ok([
            builder.param("weight", [6, 4], Init::ZEROS, Split::Replicated, true)?,
            builder.param("wide", [3, 5], Init::ZEROS, Split::Replicated, true)?,
            builder.param("bias", [5], Init::ZEROS, Split::Replicated, false)?,
        ])
    };
    let params = builder.at("layer").block(declare).unwrap();
    for (param, name) in params.iter().zip(PARTS) {
        param.load(&f32s(file, &format!("start.{name}"))).unwrap();
    }
    let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
    for optimizer in make(ParamGroup::by_decay(&builder.finish(), 0.1)) {
        optim.add(optimizer, lr);
    }
    let grads = PARTS.map(|name| f32s(file, &format!("grad.{name}")));
    for step in 0..STEPS {
        let mut cx = Ctx::training(&device, Randomness::default());
        let term = |param: &Param, grads: &[f32]| {
            let len = grads.len() / STEPS;
            let grads = &grads[step * len..(step + 1) * len];
            let grads = Tensor::from_slice_in(&device, [len], grads, Segment::Data).unwrap();
            let values = param.var(&cx).unwrap().reshape([len]).unwrap();
            ops::sum(&cx, &ops::mul(&cx, &values, &Var::constant(grads)).unwrap()).unwrap()
        };
        let matrices = ops::add(&cx, &term(&params[0], &grads[0]), &term(&params[1], &grads[1])).unwrap();
        let loss = ops::add(&cx, &matrices, &term(&params[2], &grads[2])).unwrap();
        optim.backward(&loss, 1.0, &mut cx).unwrap();
        assert!(!optim.step().unwrap().skipped);
    }
    params.map(|param| param.read().unwrap())
}

#[test]
fn fifty_steps_of_every_optimizer_end_where_pytorch_does() {
    let bytes = golden();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (mut worst, all) = (0.0f32, optimizers());
    let known = |name: &&str| !["start", "grad", "schedule"].contains(name);
    let in_file = file.names().into_iter().filter_map(|name| name.split('.').next()).filter(known);
    assert_eq!(in_file.collect::<std::collections::HashSet<_>>().len(), all.len());
    for (name, make, lr) in &all {
        for (got, part) in trained(&file, make, *lr).iter().zip(PARTS) {
            let expected = f32s(&file, &format!("{name}.{part}"));
            let started = f32s(&file, &format!("start.{part}"));
            assert!(got.iter().zip(&started).any(|(got, start)| (got - start).abs() > 1e-3), "{name} moves {part}");
            for (got, expected) in got.iter().zip(&expected) {
                worst = worst.max((got - expected).abs());
                // Roundings of fifty steps of values below one.
                assert!((got - expected).abs() < 1e-6, "{name}, {part}: {got} instead of {expected}");
            }
        }
    }
    println!("figure: {}/{worst:.1e}", all.len());
}

#[test]
fn schedules_are_those_of_pytorch_and_transformers() {
    let (bytes, end) = (golden(), 60);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let wsd = |shape| ScheduleKind::Wsd { share: 0.2, shape };
    let cases = [
        ("constant", ScheduleKind::NoDecay, 0.0),
        ("linear", ScheduleKind::Linear, 0.0),
        ("cosine", ScheduleKind::Cosine, 0.0),
        ("cosine-with-min", ScheduleKind::CosineWithMin, 0.1),
        ("linear-with-min", ScheduleKind::LinearWithMin, 0.1),
        ("cosine-restarts", ScheduleKind::CosineRestarts { cycles: 3 }, 0.0),
        ("polynomial", ScheduleKind::Polynomial { power: 2.0 }, 0.1),
        ("wsd-cosine", wsd(DecayShape::Cosine), 0.0),
        ("wsd-linear", wsd(DecayShape::Linear), 0.0),
        ("wsd-root", wsd(DecayShape::Root), 0.0),
        ("one-cycle", ScheduleKind::OneCycle { start: 0.04 }, 0.1),
    ];
    for (name, kind, floor) in cases {
        let expected = file.tensor(&format!("schedule.{name}")).unwrap().data().as_chunks().0;
        let expected: Vec<f64> = expected.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        let schedule = Schedule::new(kind, 0.01, Warmup::Steps(10), end, floor).unwrap();
        assert_eq!(expected.len(), end as usize);
        for (n, expected) in expected.iter().enumerate() {
            let got = schedule.lr(n as u64);
            // Roundings of doubles, in another order.
            assert!((got - expected).abs() < 1e-15, "{name} at {n}: {got} instead of {expected}");
        }
        let after = [end, end + 1, 2 * end].map(|n| schedule.lr(n));
        assert!(kind == ScheduleKind::NoDecay || after.iter().all(|lr| (lr - 0.01 * floor).abs() < 1e-15), "{name}");
    }
}

#[test]
fn every_optimizer_has_the_same_bits_on_two_ranks_under_zero_3() {
    for (number, optimizer) in RULES.map(Which::Rule).into_iter().chain([OTHERS; 3].concat()).enumerate() {
        let dtype = [DType::F32, DType::BF16, DType::F16][number % 3];
        let alone = Setting { dtype, optimizer, ..Setting::default() };
        let expected = run(&alone);
        let sharded = run(&Setting { ranks: 2, level: ZeroLevel::Three, ..alone.clone() });
        assert_eq!(sharded, expected, "{alone:?}");
        assert_ne!(expected.fingerprint, run(&Setting { optimizer: Which::Adam, ..alone }).fingerprint);
    }
}

#[test]
fn fused_parameters_have_the_same_bits_on_any_ranks_and_levels() {
    for optimizer in &OTHERS[..4] {
        for dtype in [DType::F32, DType::BF16] {
            let alone = Setting { dtype, optimizer: *optimizer, fused: true, steps: 3, ..Setting::default() };
            let expected = run(&alone);
            for (ranks, level) in [(2, ZeroLevel::One), (4, ZeroLevel::Two), (3, ZeroLevel::Three)] {
                let micro_batches = if ranks == 3 { 3 } else { alone.micro_batches };
                let expected = match micro_batches == alone.micro_batches {
                    true => expected.clone(),
                    false => run(&Setting { micro_batches, ..alone.clone() }),
                };
                assert_eq!(run(&Setting { ranks, level, micro_batches, ..alone.clone() }), expected, "{optimizer:?}");
            }
            let whole = run(&Setting { fused: false, ..alone });
            assert_ne!(whole.fingerprint, expected.fingerprint, "{optimizer:?} sees the tensors");
        }
    }
}

/// Tensors of these rows, of four columns, and of as many elements, after steps that do not treat them alike: as
/// parameters of their own, or fused in one matrix and one vector.
fn after_steps(rows: &[usize], is_fused: bool, make: impl Fn(Vec<ParamGroup>) -> Box<dyn Optimizer>) -> Vec<u32> {
    const COLUMNS: usize = 4;
    let device = Device::cpu(1).unwrap();
    let (sum, own) = (rows.iter().sum::<usize>(), rows.to_vec());
    let fusion = FusionTable::new(move |_, _| Fusion { rows: own.clone(), transposed: false });
    let fusion = if is_fused { fusion } else { FusionTable::default() };
    let builder = Builder::new(&device, BuilderOptions { fusion, ..BuilderOptions::default() });
    let parts = if is_fused { vec![sum] } else { rows.to_vec() };
    let declare = |builder: &Builder| -> bmtrain_dist::Result<Vec<Param>> {
        let mut params = Vec::new();
        for (number, rows) in parts.iter().enumerate() {
            let at = builder.index(number);
            params.push(at.param("weight", [*rows, COLUMNS], Init::ZEROS, Split::Replicated, true)?);
            params.push(at.param("bias", [*rows], Init::ZEROS, Split::Replicated, false)?);
        }
        Ok(params)
    };
    let params = builder.at("layer").block(declare).unwrap();
    // Values by their places in the fused parameters; each tensor's gradients are of another size.
    let value = |row: usize, column: usize, step: usize| {
        let tensor = rows.iter().scan(0, |end, rows| Some(*end + rows).inspect(|next| *end = *next));
        let tensor = tensor.take_while(|end| *end <= row).count();
        ((row * 7 + column * 3 + step * 5) as f32 * 0.37).sin() * 10f32.powi(tensor as i32)
    };
    let of = |param: usize, step: usize| -> Vec<f32> {
        let (first, rows) = (parts[..param / 2].iter().sum::<usize>(), parts[param / 2]);
        let columns = if param.is_multiple_of(2) { COLUMNS } else { 1 };
        (0..rows * columns)
            .map(|at| value(first + at / columns, at % columns + 9 * (columns % COLUMNS), step))
            .collect()
    };
    params.iter().enumerate().for_each(|(number, param)| param.load(&of(number, 99)).unwrap());
    let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
    optim.add(make(ParamGroup::by_decay(&builder.finish(), 0.1)), 0.01);
    for step in 0..4 {
        let mut cx = Ctx::training(&device, Randomness::default());
        let term = |(number, param): (usize, &Param)| {
            let grads = of(number, step);
            let values = param.var(&cx).unwrap().reshape([grads.len()]).unwrap();
            let grads = Tensor::from_slice_in(&device, [grads.len()], &grads, Segment::Data).unwrap();
            ops::sum(&cx, &ops::mul(&cx, &values, &Var::constant(grads)).unwrap()).unwrap()
        };
        let terms: Vec<Var> = params.iter().enumerate().map(term).collect();
        let loss = terms.into_iter().reduce(|sum, term| ops::add(&cx, &sum, &term).unwrap()).unwrap();
        optim.backward(&loss, 1.0, &mut cx).unwrap();
        assert!(!optim.step().unwrap().skipped);
    }
    // Of all matrices, then of all vectors.
    let of_kind = |kind: usize| params.iter().skip(kind).step_by(2).flat_map(|param| param.read().unwrap());
    of_kind(0).chain(of_kind(1)).map(f32::to_bits).collect()
}

#[test]
fn tensors_of_a_fused_parameter_are_updated_as_parameters_of_their_own() {
    let scaled = AdafactorOptions { scale_parameter: true, ..AdafactorOptions::default() };
    // Blocks of 256 elements begin with each tensor, or hold several tensors.
    for rows in [&[64, 128, 64][..], &[9, 20, 5], &[1, 1, 1, 1]] {
        for options in [AdafactorOptions::default(), scaled] {
            let of =
                |is_fused| after_steps(rows, is_fused, |groups| Box::new(Adafactor::new(groups, options).unwrap()));
            assert_eq!(of(true), of(false), "{options:?}");
        }
        let of = |is_fused| {
            after_steps(rows, is_fused, |groups| Box::new(Adam8bit::new(groups, Adam8bitOptions::default()).unwrap()))
        };
        assert_eq!(of(true), of(false), "8 bits, {rows:?}");
    }
}

#[test]
fn a_matrix_with_a_tiny_norm_is_divided_by_the_least_one_of_pytorch() {
    for gradient in [1e-9f32, 1e-3] {
        let device = Device::cpu(1).unwrap();
        let builder = Builder::new(&device, BuilderOptions::default());
        let param = builder.param("weight", [1, 1], Init::ZEROS, Split::Replicated, true).unwrap();
        let options = MuonOptions { momentum: 0.0, nesterov: false, ..MuonOptions::default() };
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        optim.add(Box::new(Muon::new(ParamGroup::all([&param], 0.0), options).unwrap()), 1.0);
        let mut cx = Ctx::training(&device, Randomness::default());
        let loss = ops::scale(&cx, &param.var(&cx).unwrap().reshape([1]).unwrap(), gradient).unwrap();
        optim.backward(&loss, 1.0, &mut cx).unwrap();
        optim.step().unwrap();
        // Of one element the iterations are a polynomial.
        let mut expected = f64::from(gradient) / f64::from(gradient).max(1e-7);
        for _ in 0..5 {
            expected = 3.4445 * expected - 4.775 * expected.powi(3) + 2.0315 * expected.powi(5);
        }
        let got = -f64::from(param.read().unwrap()[0]);
        assert!((got - expected).abs() < 1e-5, "{gradient}: {got} instead of {expected}");
    }
}

#[test]
fn averages_of_another_form_are_refused_by_name() {
    let device = Device::cpu(1).unwrap();
    let state_of = |rows: &'static [usize], loaded: Option<&[bmtrain_dist::optim::ParamState]>| {
        let fusion = FusionTable::new(|_, _| Fusion { rows: rows.to_vec(), transposed: false });
        let builder = Builder::new(&device, BuilderOptions { fusion, ..BuilderOptions::default() });
        let param = builder.param("qkv", [6, 4], Init::ONES, Split::Replicated, true).unwrap();
        let mut optimizer = Adafactor::new(ParamGroup::all([&param], 0.0), AdafactorOptions::default()).unwrap();
        match loaded {
            Some(state) => optimizer.load_state(state).map(|()| Vec::new()),
            None => {
                let tensors = optimizer.kept_specs(&param).into_iter().map(|spec| {
                    let len = spec.form.shape(&param.spec().shape).iter().product();
                    (spec.name, vec![0.5; len])
                });
                let tensors = tensors.collect();
                Ok(vec![bmtrain_dist::optim::ParamState { name: "qkv".into(), steps: 3, tensors }])
            }
        }
    };
    let (whole, parts) = (state_of(&[], None).unwrap(), state_of(&[2, 2, 2], None).unwrap());
    assert!(state_of(&[2, 2, 2], Some(&parts)).is_ok());
    let refused = state_of(&[2, 2, 2], Some(&whole)).unwrap_err().to_string();
    assert!(refused.contains("qkv") && refused.contains("column-average: expected 12 values, got 4"), "{refused}");
}

#[test]
fn every_rule_has_the_same_bits_with_its_state_on_the_host() {
    let adam = AdamOptions { record_delta: true, ..AdamOptions::default() };
    for (number, rule) in RULES.into_iter().enumerate() {
        let dtype = [DType::F32, DType::BF16, DType::F16][number % 3];
        let of = |optimizer, ranks, level| run(&Setting { dtype, optimizer, ranks, level, adam, ..Setting::default() });
        let expected = of(Which::Rule(rule), 1, ZeroLevel::Zero);
        assert_eq!(of(Which::RuleOffload(rule), 1, ZeroLevel::Zero), expected, "{rule:?}");
        assert_eq!(of(Which::RuleOffload(rule), 2, ZeroLevel::Three), expected, "{rule:?}, two ranks");
    }
}

#[test]
fn the_relative_step_of_adafactor_is_a_schedule() {
    let of = |warmup| Schedule::new(ScheduleKind::RelativeStep, 0.01, Warmup::Steps(warmup), 50_000, 0.0).unwrap();
    // transformers counts steps from 1: min(1e-2, 1 / sqrt(step)), with warmup_init min(1e-6 step, 1 / sqrt(step)).
    for (step, expected) in [(1, 0.01), (10_000, 0.01), (40_000, 0.005)] {
        assert_eq!(of(0).lr(step - 1), expected, "{step}");
    }
    assert!((of(10_000).lr(5_000) - 5e-3).abs() < 1e-15 && of(10_000).lr(39_999) == 0.005);
}

#[test]
fn a_step_that_is_not_finite_changes_no_statistics() {
    for optimizer in OTHERS {
        let setting = Setting { optimizer, ranks: 2, level: ZeroLevel::Two, ..Setting::default() };
        // Steps by their numbers; the broken ones have a loss that is not finite on one rank.
        let after = |numbers: &[usize], broken: &[usize]| {
            on_ranks(2, setting.options, |comm| {
                let number = comm.rank();
                let mut this = Rank::new(Arc::new(comm), &setting).unwrap();
                for &step in numbers {
                    for index in (number..4).step_by(2) {
                        let is_broken = broken.contains(&step) && index == 3;
                        this.micro_batch(step, index, 4, if is_broken { f32::INFINITY } else { 1.0 }).unwrap();
                    }
                    assert_eq!(this.optim.step().unwrap().skipped, broken.contains(&step), "{optimizer:?}");
                }
                this.optim.fingerprint().unwrap()
            })
        };
        let expected = after(&[1, 3], &[]);
        assert_eq!(after(&[0, 1, 2, 3], &[0, 2]), expected, "{optimizer:?}");
        assert_ne!(after(&[0, 1, 2, 3], &[0]), expected, "{optimizer:?}: a step makes a difference");
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let refused = |options: ElementwiseOptions| Elementwise::new(Vec::new(), options).unwrap_err().to_string();
    let sgd = |momentum, dampening, nesterov| rule(UpdateRule::Sgd { momentum, dampening, nesterov });
    assert!(refused(sgd(1.0, 0.0, false)).contains("momentum 1"));
    assert!(refused(sgd(0.9, 0.5, true)).contains("Nesterov"));
    assert!(refused(rule(UpdateRule::Adagrad { lr_decay: -1.0, epsilon: 0.0 })).contains("lr_decay -1"));
    assert!(refused(rule(UpdateRule::Lion { beta1: 0.9, beta2: f64::NAN })).contains("beta2 NaN"));
    let muon = MuonOptions { momentum: 1.0, ..MuonOptions::default() };
    assert!(Muon::new(Vec::new(), muon).unwrap_err().to_string().contains("momentum 1"));
    let adafactor = |options| Adafactor::new(Vec::new(), options).unwrap_err().to_string();
    assert!(adafactor(AdafactorOptions { decay_rate: 0.0, ..AdafactorOptions::default() }).contains("decay rate 0"));
    assert!(adafactor(AdafactorOptions { epsilon: 0.0, ..AdafactorOptions::default() }).contains("epsilon 0"));
    assert!(refused(ElementwiseOptions { initial: 1.0, ..sgd(0.9, 0.0, false) }).contains("initial state 1"));
}
