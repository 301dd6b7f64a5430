//! Clipping and Adam against plain loops in doubles.

use super::{FLOATS, assert_close, device, filled, numbers, rounding, sampled, tensor, values, with_any_threads};
use bmtrain_core::Storage;
use bmtrain_core::device::Device;
use bmtrain_core::dtype::DType;
use bmtrain_core::error::Result;
use bmtrain_core::exact::{Sum, WORDS};
use bmtrain_core::kernel::*;
use bmtrain_core::pool::Segment;
use bmtrain_core::tensor::Tensor;

#[derive(Clone, Copy)]
struct Setting {
    parameter: DType,
    grad: DType,
    factor: f32,
    decoupled: bool,
    maximize: bool,
    step: u64,
}

fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for (parameter, grad) in FLOATS.into_iter().flat_map(|parameter| FLOATS.map(|grad| (parameter, grad))) {
        for (decoupled, maximize, step) in [(true, false, 1), (false, true, 7), (true, true, 100_000)] {
            settings.push(Setting { parameter, grad, factor: 0.25, decoupled, maximize, step });
        }
    }
    settings
}

/// Numbers of a step of Adam.
const SETTINGS: AdamSettings = AdamSettings {
    lr: 0.01,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    decay: 0.1,
    decoupled: true,
    maximize: false,
    step: 1,
};

/// Parameter, master, moments and gradient, before and after a step.
fn step(device: &Device, len: usize, s: Setting) -> Result<[Tensor; 10]> {
    let positive: Vec<f32> = values(len, 4).iter().map(|x| x.abs() * 0.1).collect();
    let new = || {
        let (parameter, master) = (sampled(device, s.parameter, len, 1), sampled(device, DType::F32, len, 1));
        let (m, v) = (sampled(device, DType::F32, len, 3), tensor(device, DType::F32, &positive));
        [parameter, master, m, v, sampled(device, s.grad, len, 2)]
    };
    let [mut parameter, mut master, mut m, mut v, grad] = new();
    let factor = filled(device, DType::F32, 1, s.factor);
    let Setting { decoupled, maximize, step, .. } = s;
    device.launch(Adam {
        runs: vec![AdamRun {
            parameter: parameter.view_mut()?,
            master: (s.parameter != DType::F32).then(|| master.view_mut()).transpose()?,
            m: m.view_mut()?,
            v: v.view_mut()?,
            grad: grad.view()?,
            settings: AdamSettings { decoupled, maximize, step, ..SETTINGS },
        }],
        factor: factor.view()?,
    })?;
    let [p, w, m_old, v_old, g] = new();
    Ok([p, w, m_old, v_old, g, parameter, master, m, v, grad])
}

#[test]
fn a_step_agrees_with_doubles_for_every_type() {
    for setting in settings() {
        for len in [1, 31, 1025, 70_000] {
            let results = with_any_threads(|device| step(device, len, setting));
            let (before, after) = results.split_at(5);
            let source = usize::from(setting.parameter != DType::F32);
            let (mut parameters, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
            let [lr, beta1, beta2, decay] = [0.01f32, 0.9, 0.999, 0.1].map(f64::from);
            let sign = if setting.maximize { -1.0 } else { 1.0 };
            for (i, p) in before[source].iter().enumerate() {
                let coupled = if setting.decoupled { 0.0 } else { decay * p };
                let g = sign * 0.25 * before[4][i] + coupled;
                let (m, v) = (beta1 * before[2][i] + (1.0 - beta1) * g, beta2 * before[3][i] + (1.0 - beta2) * g * g);
                let t = setting.step as f64;
                let change = m / (1.0 - beta1.powf(t)) / ((v / (1.0 - beta2.powf(t))).sqrt() + 1e-8);
                let decay = if setting.decoupled { lr * decay * p } else { 0.0 };
                parameters.push(p - lr * change - decay);
                first.push(m);
                second.push(v);
            }
            assert_close("first moment", &after[2], &first, 1e-6);
            assert_close("second moment", &after[3], &second, 1e-6);
            assert_close("parameter", &after[source], &parameters, 2e-6);
            if source == 1 {
                let rounded: Vec<f32> = after[1].iter().map(|x| *x as f32).collect();
                let rounded = numbers(&tensor(&device(1), setting.parameter, &rounded));
                assert_eq!(after[0], rounded, "rounded write-back");
                assert_close("parameter", &after[0], &parameters, rounding(setting.parameter));
            }
        }
    }
}

#[test]
fn a_factor_that_is_not_finite_changes_nothing() {
    for factor in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for parameter in FLOATS {
            let setting = Setting { parameter, grad: DType::F32, factor, decoupled: true, maximize: false, step: 3 };
            let results = step(&device(2), 40_000, setting).unwrap().map(|tensor| numbers(&tensor));
            assert_eq!(results[..5], results[5..]);
        }
    }
}

fn clip(order: NormOrder, max_norm: f32, scale: f32, accumulated: f32) -> [f32; 2] {
    let device = device(1);
    let [mut norm, mut factor] = [0.0, 0.0].map(|x| tensor(&device, DType::F32, &[x]));
    let words = match order {
        NormOrder::Two => {
            let mut sum = Sum::ZERO;
            sum.add(f64::from(accumulated));
            sum.words()
        }
        NormOrder::Infinity => std::array::from_fn(|i| if i == 0 { i64::from(accumulated.to_bits()) } else { 0 }),
    };
    let words = Tensor::from_slice_in(&device, [WORDS], &words, Segment::Data).unwrap();
    let accumulated = words.view().unwrap();
    let (norm_view, factor_view) = (norm.view_mut().unwrap(), factor.view_mut().unwrap());
    let clip = ClipFactor { order, max_norm, scale, accumulated, norm: norm_view, factor: factor_view };
    device.launch(clip).unwrap();
    [norm, factor].map(|x| x.item().unwrap())
}

#[test]
fn the_clipping_factor_is_that_of_the_true_norm() {
    assert_eq!(clip(NormOrder::Two, f32::INFINITY, 1.0, 16.0), [4.0, 1.0]);
    assert_eq!(clip(NormOrder::Two, 10.0, 2.0, 16.0), [2.0, 0.5]);
    assert_eq!(clip(NormOrder::Two, 1.0, 2.0, 16.0), [2.0, 1.0 / (2.0 + 1e-6) / 2.0]);
    assert_eq!(clip(NormOrder::Infinity, 1.0, 2.0, 16.0), [8.0, 1.0 / (8.0 + 1e-6) / 2.0]);
    for bad in [f32::NAN, f32::INFINITY] {
        let [norm, factor] = clip(NormOrder::Two, 1.0, 1.0, bad);
        assert!(!norm.is_finite() && factor.is_nan());
    }
}

#[test]
fn runs_are_stepped_as_each_by_itself_and_may_not_overlap() {
    const LEN: usize = 64;
    const RUNS: usize = 9;
    let device = Device::cpu(2).unwrap();
    let stored = |seed: u32| {
        let storage = Storage::zeros(&device, RUNS * LEN, DType::F32, Segment::Data).unwrap();
        let x = sampled(&device, DType::F32, RUNS * LEN, seed);
        let out = Dest { view: storage.view_mut(0..RUNS * LEN).unwrap(), add: false };
        device.launch(Cast { x: x.view().unwrap(), out }).unwrap();
        storage
    };
    let settings = |number: usize| AdamSettings { step: number as u64 + 1, ..SETTINGS };
    let factor = filled(&device, DType::F32, 1, 0.5);
    let states = || [stored(1), stored(3), Storage::zeros(&device, RUNS * LEN, DType::F32, Segment::Data).unwrap()];
    let (grads, (apart, together)) = (stored(2), (states(), states()));
    fn run<'a>([p, m, v]: &'a [Storage; 3], grads: &'a Storage, at: usize, settings: AdamSettings) -> AdamRun<'a> {
        let view = |storage: &'a Storage| storage.view_mut(at..at + LEN).unwrap();
        let grad = grads.view(at..at + LEN).unwrap();
        AdamRun { parameter: view(p), master: None, m: view(m), v: view(v), grad, settings }
    }
    let step = |runs| device.launch(Adam { runs, factor: factor.view().unwrap() });
    for number in 0..RUNS {
        step(vec![run(&apart, &grads, number * LEN, settings(number))]).unwrap();
    }
    step((0..RUNS).map(|number| run(&together, &grads, number * LEN, settings(number))).collect()).unwrap();
    let values = |states: &[Storage; 3]| {
        states.each_ref().map(|storage| storage.tensor(0, [RUNS * LEN]).unwrap().to_vec::<f32>().unwrap())
    };
    assert_eq!(values(&apart), values(&together));
    // The last one begins inside of the one before: found among more views than are held against each other in place.
    let starts = |last: usize| (0..RUNS - 1).map(|number| number * LEN).chain([last]);
    let overlapping = starts((RUNS - 1) * LEN - 1).map(|at| run(&together, &grads, at, settings(0))).collect();
    let error = step(overlapping).unwrap_err().to_string();
    assert!(error.contains("overlaps"), "{error}");
    let mut several = vec![run(&together, &grads, 0, settings(0)), run(&together, &grads, LEN, settings(0))];
    let narrow = Storage::zeros(&device, LEN, DType::BF16, Segment::Data).unwrap();
    several[1].grad = narrow.view(0..LEN).unwrap();
    let error = step(several).unwrap_err().to_string();
    assert!(error.contains("several types"), "{error}");
}
