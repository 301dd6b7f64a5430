//! Host values: made from the names of row and input by Philox, rounded to a dtype, brought to a device and back.

use super::case::{Case, Input, Values};
use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::philox::{self, Key};
use crate::pool::Segment;
use crate::shape::Shape;
use crate::tensor::Tensor;
use half::{bf16, f16};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Host {
    Floats(Vec<f32>),
    Ids(Vec<i64>),
    Bytes(Vec<u8>),
}

impl Host {
    pub(super) fn floats(&self) -> Option<&[f32]> {
        match self {
            Host::Floats(values) => Some(values),
            Host::Ids(_) | Host::Bytes(_) => None,
        }
    }

    pub(super) fn numbers(&self) -> Vec<f64> {
        match self {
            Host::Floats(values) => values.iter().map(|&value| f64::from(value)).collect(),
            Host::Ids(values) => values.iter().map(|&value| value as f64).collect(),
            Host::Bytes(values) => values.iter().map(|&value| f64::from(value)).collect(),
        }
    }
}

/// The inputs of a case; floats are representable in `dtype`, or in the input's own type.
pub(super) fn inputs(case: &Case, dtype: DType) -> Vec<Host> {
    case.inputs.iter().map(|input| make(&case.name, input, input.dtype.unwrap_or(dtype))).collect()
}

fn make(case: &str, input: &Input, dtype: DType) -> Host {
    let key = Key::new(0, &format!("{case}#{}", input.name));
    let words = |i: usize| philox::block(key, [i as u32, (i as u64 >> 32) as u32, 0, 0]);
    let n = input.shape.elements();
    match input.values {
        Values::Normal(mean, deviation) => {
            Host::Floats((0..n).map(|i| dtype.rounded(mean + deviation * normal(words(i)))).collect())
        }
        Values::Uniform(low, high) => {
            Host::Floats((0..n).map(|i| dtype.rounded(low + (high - low) * philox::unit(words(i)[0]))).collect())
        }
        Values::Ids { bound, special } => {
            let id = |[value, choice, ..]: [u32; 4]| match special {
                Some(special) if choice % 5 == 0 => special,
                _ => i64::from(value) % bound.max(1),
            };
            Host::Ids((0..n).map(|i| id(words(i))).collect())
        }
        Values::Mask { open } => {
            let first = |i: usize| open > 0 && i.is_multiple_of(open);
            Host::Bytes((0..n).map(|i| u8::from(first(i) || !words(i)[0].is_multiple_of(3))).collect())
        }
    }
}

/// Unit normal numbers for a purpose: the directions and projections of a case.
pub(super) fn normals(case: &str, purpose: &str, n: usize, dtype: DType) -> Vec<f32> {
    let key = Key::new(1, &format!("{case}#{purpose}"));
    (0..n).map(|i| dtype.rounded(normal(philox::block(key, [i as u32, (i as u64 >> 32) as u32, 0, 0])))).collect()
}

/// Box and Muller (1958), from two random numbers.
fn normal([a, b, ..]: [u32; 4]) -> f32 {
    let (radius, angle) = ((-2.0 * philox::unit(a).ln()).sqrt(), std::f32::consts::TAU * philox::unit(b));
    radius * angle.cos()
}

pub(super) fn upload(device: &Device, shape: Shape, host: &Host, dtype: DType) -> Result<Tensor> {
    fn narrow<T: Float>(device: &Device, shape: Shape, values: &[f32]) -> Result<Tensor> {
        let values: Vec<T> = values.iter().map(|&value| T::from_f32(value)).collect();
        Tensor::from_slice_in(device, shape, &values, Segment::Data)
    }
    match (host, dtype) {
        (Host::Floats(values), DType::F32) => Tensor::from_slice_in(device, shape, values, Segment::Data),
        (Host::Floats(values), DType::F16) => narrow::<f16>(device, shape, values),
        (Host::Floats(values), DType::BF16) => narrow::<bf16>(device, shape, values),
        (Host::Floats(_), got) => {
            Err(Error::DType { op: "conformance", what: "input".into(), expected: "a floating-point type".into(), got })
        }
        (Host::Ids(values), _) => Tensor::from_slice_in(device, shape, values, Segment::Data),
        (Host::Bytes(values), _) => Tensor::from_slice_in(device, shape, values, Segment::Data),
    }
}

/// The values of a tensor of any type. Exact, except for integers beyond 2^24, which no case has.
pub(super) fn download(tensor: &Tensor) -> Result<Vec<f32>> {
    fn widen<T: Float>(tensor: &Tensor) -> Result<Vec<f32>> {
        Ok(tensor.to_vec::<T>()?.into_iter().map(Float::to_f32).collect())
    }
    match tensor.dtype() {
        DType::F32 => tensor.to_vec(),
        DType::F16 => widen::<f16>(tensor),
        DType::BF16 => widen::<bf16>(tensor),
        DType::I64 => Ok(tensor.to_vec::<i64>()?.into_iter().map(|value| value as f32).collect()),
        DType::I32 => Ok(tensor.to_vec::<i32>()?.into_iter().map(|value| value as f32).collect()),
        DType::U8 => Ok(tensor.to_vec::<u8>()?.into_iter().map(f32::from).collect()),
        got @ DType::Blocks(_) => Err(Error::DType {
            op: "conformance",
            what: "result".into(),
            expected: "a type of single elements".into(),
            got,
        }),
    }
}
