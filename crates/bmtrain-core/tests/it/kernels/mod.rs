//! Kernels as the CPU runs them, against plain loops in doubles; here what these tests share.

mod elementwise;
mod gemm;
mod loss;
mod norm;
mod optimizer;
mod random;
mod reduce;
mod rows;

use bmtrain_core::device::Device;
use bmtrain_core::dtype::{DType, Float};
use bmtrain_core::error::Result;
use bmtrain_core::kernel::Dropout;
use bmtrain_core::philox::{self, Key};
use bmtrain_core::pool::Segment;
use bmtrain_core::tensor::Tensor;
use half::{bf16, f16};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn device(threads: usize) -> Device {
    Device::cpu(threads).unwrap()
}

/// Numbers in (-2, 2) that differ for each seed.
fn values(len: usize, seed: u32) -> Vec<f32> {
    let word = |i: usize| philox::block(Key([seed, 77]), [i as u32, 0, 0, 0])[0];
    (0..len).map(|i| 4.0 * philox::unit(word(i)) - 2.0).collect()
}

/// As [`values`], in a tensor.
fn sampled(device: &Device, dtype: DType, len: usize, seed: u32) -> Tensor {
    tensor(device, dtype, &values(len, seed))
}

/// One number everywhere.
fn filled(device: &Device, dtype: DType, len: usize, value: f32) -> Tensor {
    Tensor::full_in(device, [len], dtype, value, Segment::Activations).unwrap()
}

/// A tensor of one dimension with these values, rounded to a type.
fn tensor(device: &Device, dtype: DType, values: &[f32]) -> Tensor {
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

fn integers(device: &Device, values: &[i64]) -> Tensor {
    Tensor::from_slice_in(device, [values.len()], values, Segment::Activations).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    fn of<T: Float>(tensor: &Tensor) -> Vec<f64> {
        tensor.to_vec::<T>().unwrap().into_iter().map(|x| f64::from(x.to_f32())).collect()
    }
    match tensor.dtype() {
        DType::F16 => of::<f16>(tensor),
        DType::BF16 => of::<bf16>(tensor),
        _ => of::<f32>(tensor),
    }
}

/// Largest change by one rounding to a type, relative to the value, with a margin for arithmetic in f32.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 2048.0 + 1e-5,
        DType::BF16 => 1.0 / 256.0 + 1e-5,
        _ => 2e-6,
    }
}

/// Every number is within `tolerance * (1 + |expected|)`.
#[track_caller]
fn assert_close(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let fits = (got - expected).abs() <= tolerance * (1.0 + expected.abs()) || (got.is_nan() && expected.is_nan());
        assert!(fits, "{what}: element {i}: got {got}, expected {expected}, tolerance {tolerance:e}");
    }
}

/// `work` gives the same bits with one, two and three threads; returns them.
#[track_caller]
fn with_any_threads<const N: usize>(work: impl Fn(&Device) -> Result<[Tensor; N]>) -> [Vec<f64>; N] {
    let bits = |results: &[Vec<f64>]| results.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    let on = |threads| work(&device(threads)).unwrap().map(|tensor| numbers(&tensor));
    let alone = on(1);
    for threads in [2, 3] {
        assert_eq!(bits(&on(threads)), bits(&alone), "with {threads} threads");
    }
    alone
}

/// Factor of an element of the unsharded tensor under a dropout, from the generator itself.
fn multiplier(dropout: &Dropout, element: u64) -> f32 {
    let block = element / 4;
    let counter = [block as u32, (block >> 32) as u32, dropout.step, dropout.micro_batch];
    let word = philox::block(dropout.key, counter)[(element % 4) as usize];
    if word < dropout.threshold { 0.0 } else { dropout.scale }
}
