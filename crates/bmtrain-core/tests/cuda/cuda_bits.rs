//! Kernels of the CUDA backend that have the very bits of the CPU, on an emulated driver: masks, initial values, norms
//! of gradients, clipping and Adam.
//!
//! Everything here is emulated: it proves nothing about what the device's compiler makes of a kernel.
#![cfg(feature = "cuda")]

use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::exact::{Sum, WORDS};
use bmtrain_core::kernel::{
    Adam, Adam8bit, AdamRun, AdamSettings, Cast, ClipFactor, Dest, Distribution, Dropout, DropoutApply, FillRandom,
    GradNorm, NormOrder, STATE_BLOCK, Update, UpdateRule, UpdateSettings,
};
use bmtrain_core::philox::Key;
use bmtrain_core::{DType, Device, Float, Lane, Segment, Storage, Tensor};
use cuda_emulator::{Driver, with_driver};
use half::{bf16, f16};
use std::{fmt::Debug, sync::Arc};

pub const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The CPU and an emulated device.
pub struct Pair {
    pub cpu: Device,
    pub emulated: Device,
}

impl Pair {
    /// Asserts that `work` leaves the same bits on both devices.
    pub fn same_bits<T: PartialEq + Debug>(&self, what: &str, work: impl Fn(&Device) -> T) {
        assert_eq!(work(&self.emulated), work(&self.cpu), "{what}");
    }
}

pub fn on_pair(test: &str, body: impl FnOnce(&Pair)) {
    with_driver(test, Driver::Emulated, &[], || {
        let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
        let emulated = CudaBackend::open(0, &options).unwrap();
        body(&Pair { cpu: Device::cpu(2).unwrap(), emulated: Device::new(Arc::new(emulated)) });
    });
}

/// Numbers between -1 and 1 that repeat in no short period.
fn values(len: usize, seed: u32) -> Vec<f32> {
    let word = |i: u32| (i ^ seed.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b9) >> 8;
    (0..len as u32).map(|i| word(i) as f32 / 8_388_608.0 - 1.0).collect()
}

/// A tensor of floats in a type, converted on the host.
pub fn tensor(device: &Device, dtype: DType, values: &[f32]) -> Tensor {
    fn of<T: Float>(device: &Device, values: &[f32]) -> Tensor {
        let values: Vec<T> = values.iter().map(|x| T::from_f32(*x)).collect();
        Tensor::from_slice_in(device, [values.len()], &values, Segment::Data).unwrap()
    }
    match dtype {
        DType::F16 => of::<f16>(device, values),
        DType::BF16 => of::<bf16>(device, values),
        _ => of::<f32>(device, values),
    }
}

pub fn bytes(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes()];
    let backend = tensor.device().backend();
    backend.download(tensor.view().unwrap(), &mut bytes, Lane::Compute).unwrap();
    bytes
}

#[test]
fn initial_values_have_the_bits_of_the_cpu() {
    on_pair("initial_values_have_the_bits_of_the_cpu", |pair| {
        let distributions = [
            Distribution::Normal(0.5, 2.0),
            Distribution::Uniform(-3.0, 5.0),
            Distribution::TruncatedNormal(0.1, 0.02),
        ];
        for distribution in distributions {
            for dtype in FLOATS {
                for (offset, len) in [(0, 20_000), (3, 37), ((1 << 34) - 70, 200), (5, 0)] {
                    pair.same_bits(&format!("{distribution:?} in {dtype}, {len} from {offset}"), |device| {
                        let mut out = tensor(device, dtype, &vec![0.0; len]);
                        let view = out.view_mut().unwrap();
                        let key = Key::new(7, "encoder.weight");
                        device.launch(FillRandom { distribution, key, offset, out: view }).unwrap();
                        bytes(&out)
                    });
                }
            }
        }
    });
}

/// The one rounding to f32 hides nearly all of a double. Where the mean is minus the value, the two cancel
/// and what is left shows the last bits: a multiplication fused with an addition anywhere would be seen.
#[test]
fn initial_values_agree_in_the_last_bits_of_a_double() {
    on_pair("initial_values_agree_in_the_last_bits_of_a_double", |pair| {
        let filled = |device: &Device, distribution, offset, len: usize| {
            let mut out = tensor(device, DType::F32, &vec![0.0; len]);
            let key = Key::new(11, "decoder.weight");
            device.launch(FillRandom { distribution, key, offset, out: out.view_mut().unwrap() }).unwrap();
            out.to_vec::<f32>().unwrap()
        };
        // A last bit of the logarithm survives to the value about once in a thousand.
        let count = 6000;
        let normals = filled(&pair.cpu, Distribution::Normal(0.0, 1.0), 0, count);
        let truncated = filled(&pair.cpu, Distribution::TruncatedNormal(0.0, 1.0), 0, count / 10);
        let uniform = filled(&pair.cpu, Distribution::Uniform(0.0, 1.0), 0, count / 10);
        let normals = (0..).zip(normals).map(|(i, x)| (i, Distribution::Normal(-x, 1.0)));
        let truncated = (0..).zip(truncated).map(|(i, x)| (i, Distribution::TruncatedNormal(-x, 1.0)));
        let uniform = (0..).zip(uniform).map(|(i, x)| (i, Distribution::Uniform(-x / (1.0 - x), 1.0)));
        for (offset, distribution) in normals.chain(truncated).chain(uniform) {
            pair.same_bits(&format!("{distribution:?} of element {offset}"), |device| {
                let [value] = filled(device, distribution, offset, 1)[..] else { panic!("one value") };
                assert!(value.abs() < 1e-3, "{value} has not cancelled");
                value.to_bits()
            });
        }
    });
}

#[test]
fn dropout_has_the_bits_of_the_cpu() {
    on_pair("dropout_has_the_bits_of_the_cpu", |pair| {
        let mask = Dropout::new(0.3, Key::new(5, "site"), 7, 3).unwrap().unwrap();
        for (rows, columns, offset, row_stride) in [(3, 33, 0, 0), (7, 56, 2, 56), (5, 64, 10, 129), (4, 21, 5, 50)] {
            let dropout = Dropout { offset, row_stride, ..mask };
            for (from, to) in FLOATS.into_iter().flat_map(|from| FLOATS.map(|to| (from, to))) {
                for (in_place, add) in [(false, false), (false, true), (true, false)] {
                    let what =
                        format!("{rows}x{columns} from {offset}, {from} to {to}, in place {in_place}, add {add}");
                    pair.same_bits(&what, |device| {
                        let x = tensor(device, from, &values(rows * columns, 1));
                        let mut y = tensor(device, to, &values(rows * columns, 2));
                        let x = (!in_place).then(|| x.view().unwrap());
                        let dest = Dest { view: y.view_mut().unwrap(), add };
                        device.launch(DropoutApply { dropout, rows, columns, x, y: dest }).unwrap();
                        bytes(&y)
                    });
                }
            }
        }
    });
}

/// Values over the whole range of f32, the smallest included.
fn wide(len: usize) -> Vec<f32> {
    let word = |i: u32| f32::from_bits(i.wrapping_mul(0x9e37_79b9) & 0xff7f_ffff);
    let finite = |x: f32| if x.is_finite() { x } else { f32::from_bits(1) };
    (0..len as u32).map(|i| finite(word(i))).collect()
}

#[test]
fn norms_of_gradients_have_the_bits_of_the_cpu() {
    on_pair("norms_of_gradients_have_the_bits_of_the_cpu", |pair| {
        let special = |at: usize, value: f32| {
            let mut values = values(1000, 3);
            values[at] = value;
            values
        };
        let gradients = [
            wide(70_001),
            wide(128),
            wide(15),
            wide(143),
            Vec::new(),
            vec![f32::MAX; 5000],
            vec![f32::from_bits(1); 300],
            special(999, f32::INFINITY),
            special(500, f32::NEG_INFINITY),
        ];
        let not_a_number = special(17, f32::NAN);
        for order in [NormOrder::Two, NormOrder::Infinity] {
            // The payload of what is not a number is not kept by conversions, so that its bits are compared in f32
            // alone.
            for (dtype, x) in FLOATS
                .into_iter()
                .flat_map(|dtype| gradients.iter().map(move |x| (dtype, x)))
                .chain([(DType::F32, &not_a_number)])
            {
                for start in [0, 1] {
                    let (start, len) = (start.min(x.len()), x.len().saturating_sub(start));
                    pair.same_bits(&format!("{order:?} of {len} in {dtype} from {start}"), |device| {
                        let x = tensor(device, dtype, x);
                        let mut words = Tensor::from_slice_in(device, [WORDS], &[9i64; WORDS], Segment::Data).unwrap();
                        let mut seen = Vec::new();
                        for add in [false, true, true] {
                            let view = x.view().unwrap().part(start, len).unwrap();
                            let out = Dest { view: words.view_mut().unwrap(), add };
                            device.launch(GradNorm { order, xs: vec![view], out }).unwrap();
                            seen.push(bytes(&words));
                        }
                        seen
                    });
                }
            }
        }
    });
}

#[test]
fn norms_of_many_ranges_have_the_bits_of_the_cpu() {
    on_pair("norms_of_many_ranges_have_the_bits_of_the_cpu", |pair| {
        for order in [NormOrder::Two, NormOrder::Infinity] {
            for dtype in FLOATS {
                pair.same_bits(&format!("{order:?} of ranges in {dtype}"), |device| {
                    let x = tensor(device, dtype, &wide(300_000));
                    let mut words = Tensor::from_slice_in(device, [WORDS], &[9i64; WORDS], Segment::Data).unwrap();
                    // More than a launch takes, some without elements, one far larger than the others.
                    let part = |i: usize| x.view().unwrap().part(i * 500, [i % 401, 130_000][usize::from(i == 77)]);
                    let xs = (0..300).map(|i| part(i).unwrap()).collect();
                    device.launch(GradNorm { order, xs, out: words.dest(true).unwrap() }).unwrap();
                    let some = bytes(&words);
                    device.launch(GradNorm { order, xs: Vec::new(), out: words.dest(false).unwrap() }).unwrap();
                    [some, bytes(&words)]
                });
            }
        }
    });
}

#[test]
fn sums_that_ranks_have_added_are_carried() {
    on_pair("sums_that_ranks_have_added_are_carried", |pair| {
        pair.same_bits("a sum of sums", |device| {
            let sum: [i64; WORDS] = std::array::from_fn(|i| ((i as i64 + 3) << 33) + 0xffff_fff1);
            let mut sum = Tensor::from_slice_in(device, [WORDS], &sum, Segment::Data).unwrap();
            let x = tensor(device, DType::F32, &wide(300));
            let out = Dest { view: sum.view_mut().unwrap(), add: true };
            device.launch(GradNorm { order: NormOrder::Two, xs: vec![x.view().unwrap()], out }).unwrap();
            bytes(&sum)
        });
    });
}

#[test]
fn clipping_factors_have_the_bits_of_the_cpu() {
    on_pair("clipping_factors_have_the_bits_of_the_cpu", |pair| {
        let of = |terms: &[f32]| {
            let mut sum = Sum::ZERO;
            terms.iter().for_each(|x| sum.add(f64::from(*x) * f64::from(*x)));
            sum.words()
        };
        let mut all: Vec<[i64; WORDS]> = wide(60).iter().map(|x| of(&[*x])).collect();
        all.extend((1..60).map(|n| of(&wide(n))));
        // Bits far apart, and carries that are still pending.
        all.extend([0, 1, 2, 31, 32, 33, 63].map(|bits| {
            let mut sum = of(&[1.5]);
            sum[0] = 1;
            sum[8] = 1 << bits;
            sum
        }));
        all.extend([of(&[f32::INFINITY]), of(&[f32::NAN, f32::INFINITY]), of(&[]), of(&values(1000, 4))]);
        for sum in all {
            for order in [NormOrder::Two, NormOrder::Infinity] {
                for (max_norm, scale) in [(1.0, 1.0), (3.7, 3.0), (f32::INFINITY, 65_536.0)] {
                    let sum = match order {
                        NormOrder::Two => sum,
                        NormOrder::Infinity => std::array::from_fn(|i| if i == 0 { sum[9] & 0x7fff_ffff } else { 0 }),
                    };
                    pair.same_bits(&format!("{order:?} of {sum:?} under {max_norm} and {scale}"), |device| {
                        let accumulated = Tensor::from_slice_in(device, [WORDS], &sum, Segment::Data).unwrap();
                        let [mut norm, mut factor] = [0.0, 0.0].map(|x| tensor(device, DType::F32, &[x]));
                        let (accumulated, norm_view) = (accumulated.view().unwrap(), norm.view_mut().unwrap());
                        let factor_view = factor.view_mut().unwrap();
                        let kernel =
                            ClipFactor { order, max_norm, scale, accumulated, norm: norm_view, factor: factor_view };
                        device.launch(kernel).unwrap();
                        let numbers = [&norm, &factor].map(|x| x.item().unwrap());
                        // One bit pattern for all that is not a number.
                        numbers.map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() })
                    });
                }
            }
        }
    });
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

#[test]
fn adam_has_the_bits_of_the_cpu() {
    if !(cfg!(target_arch = "x86_64") && fused_multiply_add()) {
        println!("the CPU backend rounds twice here, where a device rounds once");
        return;
    }
    on_pair("adam_has_the_bits_of_the_cpu", |pair| {
        for (parameter, grad) in FLOATS.into_iter().flat_map(|parameter| FLOATS.map(|grad| (parameter, grad))) {
            for (decoupled, maximize, step) in [(true, false, 1), (false, true, 7), (true, true, 100_000)] {
                for (factor, start) in [(0.25, 0), (f32::NAN, 0), (f32::INFINITY, 0), (0.7, 1)] {
                    let len = 3003 - start;
                    let what = format!("{parameter} with {grad}, step {step}, factor {factor}, from {start}");
                    pair.same_bits(&what, |device| {
                        let f32s = |values: &[f32]| tensor(device, DType::F32, values);
                        let positive: Vec<f32> = values(3003, 4).iter().map(|x| x.abs() * 0.1).collect();
                        let mut parameters = tensor(device, parameter, &values(3003, 1));
                        let mut masters = f32s(&values(3003, 1));
                        let (mut m, mut v) = (f32s(&values(3003, 3)), f32s(&positive));
                        let (grads, factor) = (tensor(device, grad, &values(3003, 2)), f32s(&[factor]));
                        let kernel = Adam {
                            runs: vec![AdamRun {
                                parameter: parameters.view_mut().unwrap().part(start, len).unwrap(),
                                master: (parameter != DType::F32)
                                    .then(|| masters.view_mut().unwrap().part(start, len).unwrap()),
                                m: m.view_mut().unwrap().part(start, len).unwrap(),
                                v: v.view_mut().unwrap().part(start, len).unwrap(),
                                grad: grads.view().unwrap().part(start, len).unwrap(),
                                settings: AdamSettings { decoupled, maximize, step, ..SETTINGS },
                            }],
                            factor: factor.view().unwrap(),
                        };
                        device.launch(kernel).unwrap();
                        [&parameters, &masters, &m, &v].map(bytes)
                    });
                }
            }
        }
    });
}

#[test]
fn adam_over_many_runs_has_the_bits_of_the_cpu() {
    if !(cfg!(target_arch = "x86_64") && fused_multiply_add()) {
        println!("the CPU backend rounds twice here, where a device rounds once");
        return;
    }
    /// More than twice what a launch takes; every run has numbers of its own.
    const RUNS: usize = 75;
    const ROOM: usize = 600;
    on_pair("adam_over_many_runs_has_the_bits_of_the_cpu", |pair| {
        for (parameter, grad) in [(DType::F32, DType::F32), (DType::BF16, DType::F32), (DType::F16, DType::F16)] {
            pair.same_bits(&format!("{parameter} with {grad}"), |device| {
                let len = RUNS * ROOM;
                let stored = |dtype: DType, values: Vec<f32>| {
                    let storage = Storage::zeros(device, len, dtype, Segment::Data).unwrap();
                    let out = Dest { view: storage.view_mut(0..len).unwrap(), add: false };
                    device.launch(Cast { x: tensor(device, DType::F32, &values).view().unwrap(), out }).unwrap();
                    storage
                };
                let parameters = stored(parameter, values(len, 1));
                let masters = stored(DType::F32, values(len, 1));
                let m = stored(DType::F32, values(len, 3));
                let v = stored(DType::F32, values(len, 4).iter().map(|x| x.abs() * 0.1).collect());
                let (grads, factor) = (stored(grad, values(len, 2)), tensor(device, DType::F32, &[0.5]));
                let run = |i: usize| {
                    let range = i * ROOM..i * ROOM + [0, 1, 7, 8, 257, 600][i % 6];
                    AdamRun {
                        parameter: parameters.view_mut(range.clone()).unwrap(),
                        master: (parameter != DType::F32).then(|| masters.view_mut(range.clone()).unwrap()),
                        m: m.view_mut(range.clone()).unwrap(),
                        v: v.view_mut(range.clone()).unwrap(),
                        grad: grads.view(range).unwrap(),
                        settings: AdamSettings {
                            lr: 0.01 * (i + 1) as f32,
                            decay: 0.1 * (i % 2) as f32,
                            decoupled: i > 30,
                            step: i as u64 + 1,
                            ..SETTINGS
                        },
                    }
                };
                let runs = (0..RUNS).map(run).collect();
                device.launch(Adam { runs, factor: factor.view().unwrap() }).unwrap();
                [&parameters, &masters, &m, &v].map(|storage| bytes(&storage.tensor(0, [len]).unwrap()))
            });
        }
    });
}

#[test]
fn adam_in_8_bits_has_the_codes_of_the_cpu() {
    if !(cfg!(target_arch = "x86_64") && fused_multiply_add()) {
        println!("the CPU backend rounds twice here, where a device rounds once");
        return;
    }
    const LEN: usize = 3003;
    on_pair("adam_in_8_bits_has_the_codes_of_the_cpu", |pair| {
        for (parameter, grad) in FLOATS.into_iter().flat_map(|parameter| FLOATS.map(|grad| (parameter, grad))) {
            for factor in [0.25, f32::NAN] {
                pair.same_bits(&format!("{parameter} with {grad}, factor {factor}"), |device| {
                    let f32s = |values: &[f32]| tensor(device, DType::F32, values);
                    let codes = |salt: usize| {
                        let codes: Vec<u8> = (0..LEN).map(|i| (i * salt % 256) as u8).collect();
                        Tensor::from_slice_in(device, [LEN], &codes, Segment::Data).unwrap()
                    };
                    let scales: Vec<f32> = values(LEN.div_ceil(STATE_BLOCK), 4).iter().map(|x| x.abs()).collect();
                    let mut parameters = tensor(device, parameter, &values(LEN, 1));
                    let (mut masters, mut m, mut v) = (f32s(&values(LEN, 1)), codes(7), codes(31));
                    let [mut m_scale, mut v_scale] = [f32s(&scales), f32s(&scales)];
                    let (grads, factor) = (tensor(device, grad, &values(LEN, 2)), f32s(&[factor]));
                    // Two steps: the second reads what the first has coded.
                    for step in 1..3 {
                        let kernel = Adam8bit {
                            parameter: parameters.view_mut().unwrap(),
                            master: (parameter != DType::F32).then(|| masters.view_mut().unwrap()),
                            m: m.view_mut().unwrap(),
                            v: v.view_mut().unwrap(),
                            m_scale: m_scale.view_mut().unwrap(),
                            v_scale: v_scale.view_mut().unwrap(),
                            grad: grads.view().unwrap(),
                            factor: factor.view().unwrap(),
                            settings: AdamSettings { step, ..SETTINGS },
                        };
                        device.launch(kernel).unwrap();
                    }
                    [&parameters, &masters, &m, &v, &m_scale, &v_scale].map(bytes)
                });
            }
        }
    });
}

#[test]
fn other_optimizers_have_the_bits_of_the_cpu() {
    if !(cfg!(target_arch = "x86_64") && fused_multiply_add()) {
        println!("the CPU backend rounds twice here, where a device rounds once");
        return;
    }
    let (rho, epsilon, beta1, beta2) = (0.9, 1e-3, 0.9, 0.999);
    let mut rules = vec![
        UpdateRule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false },
        UpdateRule::Sgd { momentum: 0.9, dampening: 0.1, nesterov: false },
        UpdateRule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true },
        UpdateRule::Adagrad { lr_decay: 0.1, epsilon },
        UpdateRule::Adadelta { rho, epsilon },
        UpdateRule::Adamax { beta1, beta2, epsilon },
        UpdateRule::NAdam { beta1, beta2, epsilon, momentum_decay: 4e-3 },
        UpdateRule::RAdam { beta1, beta2, epsilon },
        UpdateRule::Lion { beta1, beta2 },
    ];
    for (momentum, centered) in [(0.0, false), (0.5, false), (0.0, true), (0.5, true)] {
        rules.push(UpdateRule::RmsProp { rho, epsilon, momentum, centered });
    }
    on_pair("other_optimizers_have_the_bits_of_the_cpu", |pair| {
        for (number, rule) in rules.iter().enumerate() {
            let (parameter, grad) = (FLOATS[number % 3], FLOATS[number / 3 % 3]);
            for (decoupled, maximize, step, start) in [(true, false, 1, 0), (false, true, 70, 1)] {
                let (len, has) = (3003 - start, rule.states().map(|state| state.is_some()));
                let what = format!("{rule:?}, {parameter} with {grad}, step {step}, from {start}");
                pair.same_bits(&what, |device| {
                    let f32s = |values: &[f32]| tensor(device, DType::F32, values);
                    let positive: Vec<f32> = values(3003, 4).iter().map(|x| x.abs() * 0.1).collect();
                    let mut parameters = tensor(device, parameter, &values(3003, 1));
                    let mut masters = f32s(&values(3003, 1));
                    let [mut a, mut b, mut c] = [f32s(&values(3003, 3)), f32s(&positive), f32s(&positive)];
                    let (grads, factor) = (tensor(device, grad, &values(3003, 2)), f32s(&[0.7]));
                    let kernel = Update {
                        parameter: parameters.view_mut().unwrap().part(start, len).unwrap(),
                        master: (parameter != DType::F32)
                            .then(|| masters.view_mut().unwrap().part(start, len).unwrap()),
                        first: has[0].then(|| a.view_mut().unwrap().part(start, len).unwrap()),
                        second: has[1].then(|| b.view_mut().unwrap().part(start, len).unwrap()),
                        third: has[2].then(|| c.view_mut().unwrap().part(start, len).unwrap()),
                        grad: grads.view().unwrap().part(start, len).unwrap(),
                        factor: factor.view().unwrap(),
                        settings: UpdateSettings { rule: *rule, lr: 0.01, decay: 0.1, decoupled, maximize, step },
                    };
                    device.launch(kernel).unwrap();
                    [&parameters, &masters, &a, &b, &c].map(bytes)
                });
            }
        }
    });
}

fn fused_multiply_add() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
