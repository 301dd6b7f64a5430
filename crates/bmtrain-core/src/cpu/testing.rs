//! What the tests of the kernels share: values, tensors of every type, comparison against loops in doubles.

use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::error::Result;
use crate::kernel::Activation;
use crate::philox::{self, Key};
use crate::pool::Segment;
use crate::tensor::Tensor;
use half::{bf16, f16};

pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

pub(super) fn device(threads: usize) -> Device {
    Device::cpu(threads).unwrap()
}

/// Numbers in (-2, 2) that differ for each seed.
pub(super) fn values(len: usize, seed: u32) -> Vec<f32> {
    let word = |i: usize| philox::block(Key([seed, 77]), [i as u32, 0, 0, 0])[0];
    (0..len).map(|i| 4.0 * philox::unit(word(i)) - 2.0).collect()
}

/// As [`values`], in a tensor.
pub(super) fn sampled(device: &Device, dtype: DType, len: usize, seed: u32) -> Tensor {
    tensor(device, dtype, &values(len, seed))
}

/// One number everywhere.
pub(super) fn filled(device: &Device, dtype: DType, len: usize, value: f32) -> Tensor {
    Tensor::full_in(device, [len], dtype, value, Segment::Activations).unwrap()
}

/// A tensor of one dimension with these values, rounded to a type.
pub(super) fn tensor(device: &Device, dtype: DType, values: &[f32]) -> Tensor {
    fn of<T: Float>(device: &Device, values: &[f32]) -> Tensor {
        let values: Vec<T> = values.iter().map(|x| T::from_f32(*x)).collect();
        Tensor::from_slice_in(device, [values.len()], &values, Segment::Activations).unwrap()
    }
    match dtype {
        DType::F16 => of::<f16>(device, values),
        DType::BF16 => of::<bf16>(device, values),
        _ => of::<f32>(device, values),
    }
}

pub(super) fn integers(device: &Device, values: &[i64]) -> Tensor {
    Tensor::from_slice_in(device, [values.len()], values, Segment::Activations).unwrap()
}

pub(super) fn numbers(tensor: &Tensor) -> Vec<f64> {
    fn of<T: Float>(tensor: &Tensor) -> Vec<f64> {
        tensor.to_vec::<T>().unwrap().into_iter().map(|x| f64::from(x.to_f32())).collect()
    }
    match tensor.dtype() {
        DType::F16 => of::<f16>(tensor),
        DType::BF16 => of::<bf16>(tensor),
        _ => of::<f32>(tensor),
    }
}

/// What one rounding to a type may change, relative to the value, and a little for arithmetic in f32.
pub(super) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 2048.0 + 1e-5,
        DType::BF16 => 1.0 / 256.0 + 1e-5,
        _ => 2e-6,
    }
}

/// Every number is within `tolerance * (1 + |expected|)`.
#[track_caller]
pub(super) fn assert_close(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let fits = (got - expected).abs() <= tolerance * (1.0 + expected.abs()) || (got.is_nan() && expected.is_nan());
        assert!(fits, "{what}: element {i}: got {got}, expected {expected}, tolerance {tolerance:e}");
    }
}

/// `work` gives the same bits with one, two and three threads; returns them.
#[track_caller]
pub(super) fn with_any_threads<const N: usize>(work: impl Fn(&Device) -> Result<[Tensor; N]>) -> [Vec<f64>; N] {
    let bits = |results: &[Vec<f64>]| results.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    let on = |threads| work(&device(threads)).unwrap().map(|tensor| numbers(&tensor));
    let alone = on(1);
    for threads in [2, 3] {
        assert_eq!(bits(&on(threads)), bits(&alone), "with {threads} threads");
    }
    alone
}

/// The distribution function of the standard normal, from its power series.
pub(super) fn normal_cdf(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut n) = (x, x, 3.0);
    while term.abs() > 1e-18 * sum.abs() {
        term *= x * x / n;
        sum += term;
        n += 2.0;
    }
    0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}

/// An activation and its derivative.
pub(super) fn activation(activation: Activation, x: f64) -> (f64, f64) {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Gelu => {
            let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
            (x * normal_cdf(x), normal_cdf(x) + x * density)
        }
        Activation::GeluTanh => {
            let scale = (2.0 / std::f64::consts::PI).sqrt();
            let tanh = (scale * (x + 0.044715 * x.powi(3))).tanh();
            let inner = scale * (1.0 + 3.0 * 0.044715 * x * x);
            (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner)
        }
        Activation::Relu => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        Activation::Silu => (x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))),
        Activation::Tanh => (x.tanh(), 1.0 - x.tanh().powi(2)),
        Activation::QuickGelu => {
            let sigmoid = 1.0 / (1.0 + (-1.702 * x).exp());
            (x * sigmoid, sigmoid * (1.0 + 1.702 * x * (1.0 - sigmoid)))
        }
    }
}
