//! The optimizer and its manager: steps against plain host arithmetic, clipping, skipped steps, state.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, DType, Device, Segment, Tensor, Var, ops};
use bmtrain_dist::optim::{
    Adam, AdamOffload, AdamOptions, Clip, DecayForm, Optimizer, ParamGroup, ParamState, Schedule, ScheduleKind,
    Scheduler, StepInfo, Warmup,
};
use bmtrain_dist::param::{BuilderOptions, Init, Split};
use bmtrain_dist::{Builder, OptimManager, Param, Parameters};

/// Two parameters in one block, a weight that decays and a bias that does not.
struct Model {
    device: Device,
    weight: Param,
    bias: Param,
    parameters: Parameters,
}

const WEIGHT: [f32; 4] = [0.5, -1.0, 2.0, 0.25];
const BIAS: [f32; 2] = [0.1, -0.2];

fn model(dtype: DType) -> Model {
    let device = Device::cpu(1).unwrap();
    let options = BuilderOptions { dtype, grad_dtype: dtype, ..BuilderOptions::default() };
    let builder = Builder::new(&device, options);
    let declare = |builder: &Builder| -> bmtrain_dist::Result<(Param, Param)> {
        Ok((
            builder.param("weight", [2, 2], Init::ZEROS, Split::Replicated, true)?,
            builder.param("bias", [2], Init::ZEROS, Split::Replicated, false)?,
        ))
    };
    let (weight, bias) = builder.at("layer").block(declare).unwrap();
    weight.load(&WEIGHT).unwrap();
    bias.load(&BIAS).unwrap();
    Model { device, weight, bias, parameters: builder.finish() }
}

fn manager(model: &Model, clip: Clip, decay: f32, options: AdamOptions, lr: f64) -> OptimManager {
    manager_of(model, clip, lr, adam(model, decay, options))
}

fn manager_of(model: &Model, clip: Clip, lr: f64, optimizer: Box<dyn Optimizer>) -> OptimManager {
    let mut optim = OptimManager::new(&model.device, clip).unwrap();
    optim.add(optimizer, lr);
    optim
}

fn adam(model: &Model, decay: f32, options: AdamOptions) -> Box<dyn Optimizer> {
    Box::new(Adam::new(ParamGroup::by_decay(&model.parameters, decay), options).unwrap())
}

fn offload(model: &Model, decay: f32, options: AdamOptions) -> Box<dyn Optimizer> {
    Box::new(AdamOffload::new(ParamGroup::by_decay(&model.parameters, decay), options).unwrap())
}

/// State on the device and on the host.
type Make = fn(&Model, f32, AdamOptions) -> Box<dyn Optimizer>;
const BOTH: [Make; 2] = [adam, offload];

/// Make the gradients of weight and bias what is given: the loss is their weighted sum.
fn backward(model: &Model, optim: &OptimManager, weight: [f32; 4], bias: [f32; 2]) {
    let mut cx = Ctx::training(&model.device, Randomness::default());
    let term = |param: &Param, factors: &[f32]| {
        let shape = [factors.len()];
        let factors = Tensor::from_slice_in(&model.device, shape, factors, Segment::Data).unwrap();
        let values = ops::cast(&cx, &param.var(&cx).unwrap(), DType::F32).unwrap().reshape(shape).unwrap();
        ops::sum(&cx, &ops::mul(&cx, &values, &Var::constant(factors)).unwrap()).unwrap()
    };
    let loss = ops::add(&cx, &term(&model.weight, &weight), &term(&model.bias, &bias)).unwrap();
    optim.backward(&loss, 1.0, &mut cx).unwrap();
}

const WEIGHT_GRAD: [f32; 4] = [3.0, -4.0, 0.5, 1.0];
const BIAS_GRAD: [f32; 2] = [-2.0, 1.5];

fn step(model: &Model, optim: &mut OptimManager) -> StepInfo {
    backward(model, optim, WEIGHT_GRAD, BIAS_GRAD);
    optim.step().unwrap()
}

/// The textbook's Adam in f64, for a gradient that is the same in every step.
fn expected(values: &[f32], grads: &[f32], steps: u32, lr: f64, decay: f64, options: &AdamOptions) -> Vec<f64> {
    let (beta1, beta2) = (f64::from(options.beta1), f64::from(options.beta2));
    let one = |(&value, &grad): (&f32, &f32)| {
        let (mut value, mut m, mut v) = (f64::from(value), 0.0, 0.0);
        for step in 1..=steps {
            let lr = if u64::from(step) <= options.hold_steps { 0.0 } else { lr };
            let mut grad = if options.maximize { -f64::from(grad) } else { f64::from(grad) };
            match options.decay_form {
                DecayForm::Decoupled => value -= lr * decay * value,
                DecayForm::Coupled => grad += decay * value,
            }
            m = beta1 * m + (1.0 - beta1) * grad;
            v = beta2 * v + (1.0 - beta2) * grad * grad;
            let (m, v) = (m / (1.0 - beta1.powi(step as i32)), v / (1.0 - beta2.powi(step as i32)));
            value -= lr * m / (v.sqrt() + f64::from(options.epsilon));
        }
        value
    };
    values.iter().zip(grads).map(one).collect()
}

fn assert_close(what: &str, got: &[f32], expected: &[f64]) {
    for (got, expected) in got.iter().zip(expected) {
        // A few roundings of values around one.
        assert!((f64::from(*got) - expected).abs() < 1e-6, "{what}: {got} instead of {expected}");
    }
}

#[test]
fn steps_follow_the_formulas_in_every_form() {
    let decays = [DecayForm::Decoupled, DecayForm::Coupled];
    let forms = decays.into_iter().flat_map(|d| [(d, false, 0), (d, true, 0), (d, false, 2)]);
    for (make, (decay_form, maximize, hold_steps)) in forms.flat_map(|form| BOTH.map(|make| (make, form))) {
        let options = AdamOptions { decay_form, maximize, hold_steps, ..AdamOptions::default() };
        let model = model(DType::F32);
        let mut optim = manager_of(&model, Clip::default(), 0.01, make(&model, 0.1, options));
        for _ in 0..5 {
            step(&model, &mut optim);
        }
        let what = format!("{options:?}");
        let weight = expected(&WEIGHT, &WEIGHT_GRAD, 5, 0.01, 0.1, &options);
        assert_close(&what, &model.weight.read().unwrap(), &weight);
        let bias = expected(&BIAS, &BIAS_GRAD, 5, 0.01, 0.0, &options);
        assert_close(&what, &model.bias.read().unwrap(), &bias);
    }
}

#[test]
fn half_precision_is_the_rounded_master() {
    for (make, dtype) in BOTH.into_iter().flat_map(|make| [(make, DType::F16), (make, DType::BF16)]) {
        let model = model(dtype);
        let mut optim = manager_of(&model, Clip::default(), 1e-4, make(&model, 0.0, AdamOptions::default()));
        for _ in 0..20 {
            step(&model, &mut optim);
        }
        let (adam, _) = optim.parts().next().unwrap();
        let state = adam.state().unwrap();
        let weight = state.iter().find(|state| state.name == "layer.weight").unwrap();
        let master = &weight.tensors.iter().find(|(name, _)| *name == "master").unwrap().1;
        // Twenty steps of 1e-4 are below half a unit of bf16 at 2.0; the master has them all.
        assert!((master[2] - (2.0 - 20.0 * 1e-4)).abs() < 1e-5, "{dtype}: {master:?}");
        let rounded = |value: &f32| match dtype {
            DType::F16 => half::f16::from_f32(*value).to_f32(),
            _ => half::bf16::from_f32(*value).to_f32(),
        };
        assert_eq!(model.weight.read().unwrap(), master.iter().map(rounded).collect::<Vec<_>>(), "{dtype}");
    }
}

#[test]
fn clipping_gives_the_true_norm_and_scales_to_the_bound() {
    let squares: f64 = WEIGHT_GRAD.iter().chain(&BIAS_GRAD).map(|g| f64::from(*g).powi(2)).sum();
    for (order, norm) in [(NormOrder::Two, squares.sqrt()), (NormOrder::Infinity, 4.0)] {
        let (free, bound) = (model(DType::F32), model(DType::F32));
        // With a large epsilon Adam's step is in proportion to the gradient, so that clipping shows.
        let options = AdamOptions { epsilon: 1e6, ..AdamOptions::default() };
        let mut wide = manager(&free, Clip { order, max_norm: f32::INFINITY }, 0.0, options, 1e5);
        let mut tight = manager(&bound, Clip { order, max_norm: 1.0 }, 0.0, options, 1e5);
        for (model, optim) in [(&free, &mut wide), (&bound, &mut tight)] {
            let info = step(model, optim);
            assert!((f64::from(info.grad_norm) - norm).abs() < 1e-5, "{order:?}: {}", info.grad_norm);
            assert!(!info.skipped);
        }
        let moved = |model: &Model| f64::from(model.weight.read().unwrap()[1] - WEIGHT[1]);
        // torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm it divides by.
        assert!((moved(&free) / moved(&bound) - norm).abs() < 1e-3 * norm, "{order:?}");
    }
}

#[test]
fn gradients_of_micro_batches_add_up() {
    let (whole, parts) = (model(DType::F32), model(DType::F32));
    let mut one = manager(&whole, Clip::default(), 0.0, AdamOptions::default(), 0.01);
    let mut two = manager(&parts, Clip::default(), 0.0, AdamOptions::default(), 0.01);
    backward(&whole, &one, WEIGHT_GRAD, BIAS_GRAD);
    backward(&parts, &two, WEIGHT_GRAD.map(|g| 0.25 * g), BIAS_GRAD);
    backward(&parts, &two, WEIGHT_GRAD.map(|g| 0.75 * g), [0.0; 2]);
    assert_eq!(one.step().unwrap().grad_norm, two.step().unwrap().grad_norm);
    assert_eq!(whole.weight.read().unwrap(), parts.weight.read().unwrap());
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_and_is_named() {
    BOTH.into_iter().for_each(a_lost_step_changes_nothing);
}

fn a_lost_step_changes_nothing(make: Make) {
    let model = model(DType::F32);
    let adam = make(&model, 0.1, AdamOptions { record_delta: true, ..AdamOptions::default() });
    let mut optim = OptimManager::new(&model.device, Clip::default()).unwrap();
    let schedule = Schedule::new(ScheduleKind::Linear, 0.1, Warmup::Steps(0), 10, 0.0).unwrap();
    optim.add_scheduled(adam, Scheduler::new(schedule));
    step(&model, &mut optim);
    let before = (optim.fingerprint().unwrap(), optim.lr());
    for bad in [f32::NAN, f32::INFINITY] {
        backward(&model, &optim, WEIGHT_GRAD, [1.0, bad]);
        let info = optim.step().unwrap();
        assert!(info.skipped && !info.grad_norm.is_finite());
        assert_eq!(optim.broken_gradient(), Some("layer.bias"));
        assert_eq!((optim.fingerprint().unwrap(), optim.lr()), before);
        assert!(optim.deltas().unwrap().iter().all(|delta| delta.norm == 0.0));
    }
    let info = step(&model, &mut optim);
    assert!(!info.skipped && optim.broken_gradient().is_none());
    assert_ne!(optim.fingerprint().unwrap(), before.0);
}

#[test]
fn a_step_without_gradients_is_refused() {
    let model = model(DType::F32);
    let mut optim = manager(&model, Clip::default(), 0.0, AdamOptions::default(), 0.01);
    assert!(optim.step().unwrap_err().to_string().contains("call backward first"));
}

#[test]
fn a_frozen_parameter_is_left_alone() {
    for make in BOTH {
        let model = model(DType::F32);
        model.bias.set_trainable(false);
        let mut optim = manager_of(&model, Clip::default(), 0.01, make(&model, 0.1, AdamOptions::default()));
        let info = step(&model, &mut optim);
        let squares: f32 = WEIGHT_GRAD.iter().map(|g| g * g).sum();
        assert!((info.grad_norm - squares.sqrt()).abs() < 1e-5, "its gradient counts for nothing");
        assert_eq!(model.bias.read().unwrap(), BIAS);
        assert_ne!(model.weight.read().unwrap(), WEIGHT);
    }
}

#[test]
fn the_recorded_delta_is_the_norm_of_what_a_step_changed() {
    for (make, dtype) in BOTH.into_iter().flat_map(|make| [(make, DType::F32), (make, DType::BF16)]) {
        let model = model(dtype);
        let options = AdamOptions { record_delta: true, ..AdamOptions::default() };
        let mut optim = manager_of(&model, Clip::default(), 1e-4, make(&model, 0.0, options));
        assert!(optim.deltas().unwrap().is_empty(), "before the first step nothing was updated");
        for _ in 0..3 {
            step(&model, &mut optim);
        }
        // With one gradient in every step Adam moves each value by the learning rate, also where a bf16 does not show
        // it.
        let deltas = optim.deltas().unwrap();
        assert_eq!(deltas.iter().map(|delta| delta.name.as_str()).collect::<Vec<_>>(), ["layer.weight", "layer.bias"]);
        for (delta, elements) in deltas.iter().zip([4.0f64, 2.0]) {
            // A move of 1e-4 from values around one is known to 1e-7.
            assert!((delta.norm / (1e-4 * elements.sqrt()) - 1.0).abs() < 2e-3, "{dtype}: {delta:?}");
        }
    }
}

#[test]
fn state_carries_on_to_the_same_bits() {
    for dtype in [DType::F32, DType::BF16] {
        let straight = model(dtype);
        let mut optim = manager(&straight, Clip::default(), 0.1, AdamOptions::default(), 0.01);
        for _ in 0..3 {
            step(&straight, &mut optim);
        }
        let (weight, bias) = (straight.weight.read().unwrap(), straight.bias.read().unwrap());
        let state = optim.parts().next().unwrap().0.state().unwrap();
        let resumed = model(dtype);
        resumed.weight.load(&weight).unwrap();
        resumed.bias.load(&bias).unwrap();
        let mut again = manager(&resumed, Clip::default(), 0.1, AdamOptions::default(), 0.01);
        again.parts_mut().next().unwrap().0.load_state(&state).unwrap();
        assert_eq!(again.fingerprint().unwrap(), optim.fingerprint().unwrap(), "{dtype}");
        step(&straight, &mut optim);
        step(&resumed, &mut again);
        assert_eq!(again.fingerprint().unwrap(), optim.fingerprint().unwrap(), "{dtype}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing() {
    for (make, dtype) in BOTH.into_iter().flat_map(|make| [(make, DType::F32), (make, DType::BF16)]) {
        let model = model(dtype);
        let mut optim = manager_of(&model, Clip::default(), 0.01, make(&model, 0.0, AdamOptions::default()));
        step(&model, &mut optim);
        let good = optim.parts().next().unwrap().0.state().unwrap();
        let before = optim.fingerprint().unwrap();
        let mut refused = |change: &dyn Fn(&mut Vec<ParamState>), place: &str, reason: &str| {
            let mut state = good.clone();
            state[0].tensors[0].1[0] += 1.0;
            change(&mut state);
            let error = optim.parts_mut().next().unwrap().0.load_state(&state).unwrap_err().to_string();
            assert!(error.contains(place) && error.contains(reason), "{error}");
            assert_eq!(optim.fingerprint().unwrap(), before, "{error}");
        };
        refused(&|state| state[1].tensors[0].1.truncate(1), "layer.bias", "m: expected 2 values, got 1 values");
        refused(&|state| drop(state[1].tensors.remove(1)), "layer.bias", "v: expected 2 values, got nothing");
        refused(&|state| state[1].name = "another.weight".into(), "another.weight", "in no group");
        refused(&|state| state[1] = state[0].clone(), "layer.weight", "twice");
        refused(&|state| state[1].steps = 0, "layer.bias", "0 steps");
        match dtype {
            DType::F32 => {
                let master = |state: &mut Vec<ParamState>| state[1].tensors.push(("master", vec![0.0; 2]));
                refused(&master, "layer.bias", "master: a parameter of type f32 has m, v alone");
            }
            _ => refused(&|state| drop(state[1].tensors.pop()), "layer.bias", "master: expected 2 values, got nothing"),
        }
    }
}

#[test]
fn fingerprints_tell_weights_from_optimizer_state() {
    let model = model(DType::F32);
    let mut optim = manager(&model, Clip::default(), 0.0, AdamOptions::default(), 0.01);
    let born = optim.fingerprint().unwrap();
    step(&model, &mut optim);
    let stepped = optim.fingerprint().unwrap();
    assert_ne!(stepped.weights, born.weights);
    assert_ne!(stepped.optimizer, born.optimizer);
    let mut values = model.bias.read().unwrap();
    values[1] = f32::from_bits(values[1].to_bits() ^ 1);
    model.bias.load(&values).unwrap();
    let changed = optim.fingerprint().unwrap();
    assert_ne!(changed.weights, stepped.weights, "one bit is enough");
    assert_eq!(changed.optimizer, stepped.optimizer);
}

#[test]
fn state_is_visited_in_stretches_of_a_bounded_length() {
    const ELEMENTS: usize = (5 << 20) / 2;
    for offload in [false, true] {
        let device = Device::cpu(1).unwrap();
        let builder = Builder::new(&device, BuilderOptions::default());
        let declare = |builder: &Builder| builder.param("long", [ELEMENTS], Init::ZEROS, Split::Replicated, true);
        let long = builder.at("layer").block(declare).unwrap();
        long.load(&vec![0.5; ELEMENTS]).unwrap();
        let groups = ParamGroup::all([&long], 0.0);
        let optimizer: Box<dyn Optimizer> = match offload {
            false => Box::new(Adam::new(groups, AdamOptions::default()).unwrap()),
            true => Box::new(AdamOffload::new(groups, AdamOptions::default()).unwrap()),
        };
        let mut optim = OptimManager::new(&device, Clip::default()).unwrap();
        optim.add(optimizer, 0.1);
        let mut cx = Ctx::training(&device, Randomness::default());
        let factors: Vec<f32> = (0..ELEMENTS).map(|index| index as f32 / ELEMENTS as f32).collect();
        let factors = Tensor::from_slice_in(&device, [ELEMENTS], &factors, Segment::Data).unwrap();
        let product = ops::mul(&cx, &long.var(&cx).unwrap(), &Var::constant(factors)).unwrap();
        optim.backward(&ops::sum(&cx, &product).unwrap(), 1.0, &mut cx).unwrap();
        optim.step().unwrap();
        let (mut joined, mut longest) = (Vec::<(&str, Vec<f32>)>::new(), 0);
        let adam = optim.parts().next().unwrap().0;
        adam.visit_stretches(&mut |stretch| {
            assert_eq!((stretch.param, stretch.steps, stretch.len), ("layer.long", 1, ELEMENTS));
            if joined.last().is_none_or(|(tensor, _)| *tensor != stretch.tensor) {
                joined.push((stretch.tensor, Vec::new()));
            }
            let values = &mut joined.last_mut().unwrap().1;
            assert_eq!(values.len(), stretch.start);
            values.extend(stretch.values);
            longest = longest.max(stretch.values.len());
            Ok(())
        })
        .unwrap();
        // What is in the host's memory already is shown where it is.
        assert!(longest <= 1 << 20 || offload, "{longest}");
        assert_eq!(joined, adam.state().unwrap()[0].tensors);
        let (mut values, mut longest) = (Vec::new(), 0);
        let mut add = |stretch: &[f32]| {
            values.extend_from_slice(stretch);
            longest = longest.max(stretch.len());
        };
        long.read_stretches(&mut add).unwrap();
        assert!(values == long.read().unwrap() && longest <= 1 << 20);
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let model = model(DType::F32);
    let adam = |options, decay| Adam::new(ParamGroup::all(&model.parameters, decay), options);
    assert!(AdamOffload::new(ParamGroup::all(&model.parameters, -1.0), AdamOptions::default()).is_err());
    assert!(adam(AdamOptions { beta1: 1.0, ..AdamOptions::default() }, 0.0).is_err());
    assert!(adam(AdamOptions { epsilon: -1.0, ..AdamOptions::default() }, 0.0).is_err());
    assert!(adam(AdamOptions::default(), f32::NAN).is_err());
    let twice = [ParamGroup::all(&model.parameters, 0.0), ParamGroup::all(&model.parameters, 0.0)].concat();
    let error = Adam::new(twice, AdamOptions::default()).unwrap_err().to_string();
    assert!(error.contains("layer.weight"), "{error}");
    let clip = Clip { max_norm: 0.0, ..Clip::default() };
    assert!(OptimManager::new(&model.device, clip).is_err());
}
