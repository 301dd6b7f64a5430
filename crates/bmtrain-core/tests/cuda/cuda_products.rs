//! Calls of the CUDA backend to the library of matrix products in training steps, on an emulated one: epilogues that it
//! has, and no algorithm twice.
#![cfg(feature = "cuda")]

use bmtrain_core::autograd::{GradSink, SinkTarget};
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::fp8::Fp8Factors;
use bmtrain_core::kernel::{Activation, Epilogue, Gemm, Matrix};
use bmtrain_core::{Backend, Ctx, DType, Device, Result, Segment, Storage, Tensor, Var, ops};
use cuda_emulator::{Driver, with_driver};
use cudarc::cublaslt::sys::cublasLtEpilogue_t as Library;
use half::bf16;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const ROWS: usize = 6;
const WIDTH: usize = 16;
const INNER: usize = 24;

/// The emulated library's own counts.
pub(super) struct Counts(libloading::Library);

impl Counts {
    pub(super) fn open() -> Self {
        // SAFETY: the library that the backend has opened already.
        Counts(unsafe { libloading::Library::new("libcublasLt.so.13") }.unwrap())
    }

    fn queries(&self) -> u64 {
        // SAFETY: the type as in fake_blas.cpp.
        unsafe { self.0.get::<unsafe extern "C" fn() -> u64>(b"emulated_blas_queries\0").unwrap()() }
    }

    pub(super) fn refusals(&self) -> u64 {
        // SAFETY: the type as in fake_blas.cpp.
        unsafe { self.0.get::<unsafe extern "C" fn() -> u64>(b"emulated_blas_refusals\0").unwrap()() }
    }

    pub(super) fn products(&self, epilogue: Library) -> u64 {
        // SAFETY: the type as in fake_blas.cpp.
        unsafe { self.0.get::<unsafe extern "C" fn(u32) -> u64>(b"emulated_blas_products\0").unwrap()(epilogue as u32) }
    }
}

/// The gradient of a parameter, in f32, summed over all steps.
#[derive(Debug)]
struct Sum {
    storage: Storage,
    holds: Cell<bool>,
}

impl GradSink for Sum {
    fn target(&self) -> Result<SinkTarget> {
        let (storage, len) = (self.storage.clone(), self.storage.len());
        Ok(SinkTarget { storage, start: 0, len, add: self.holds.replace(true) })
    }
}

fn parameter(device: &Device, shape: &[usize], dtype: DType) -> Var {
    let len = shape.iter().product();
    let value = Tensor::full_in(device, [len], dtype, 0.125, Segment::Parameters).unwrap();
    let storage = Storage::zeros(device, len, DType::F32, Segment::Gradients).unwrap();
    let value = value.reshape(bmtrain_core::Shape::new(shape).unwrap()).unwrap();
    Var::leaf(value, Rc::new(Sum { storage, holds: Cell::new(false) }))
}

pub(super) fn parameters(device: &Device, dtype: DType) -> Vec<Var> {
    [&[INNER, WIDTH][..], &[INNER], &[WIDTH, INNER], &[WIDTH], &[WIDTH, WIDTH], &[WIDTH]]
        .map(|shape| parameter(device, shape, dtype))
        .into()
}

pub(super) fn step(device: &Device, p: &[Var], activation: Activation, dtype: DType) {
    let mut cx = Ctx::gradients(device);
    let full = |value| Tensor::full_in(device, [ROWS, WIDTH], dtype, value, Segment::Activations).unwrap();
    let x = cx.tape().unwrap().input(full(0.5));
    let hidden = ops::feed_forward(&cx, &x, &p[0], Some(&p[1]), activation, &p[2], Some(&p[3])).unwrap();
    let y = ops::linear(&cx, &hidden, &p[4], Some(&p[5]), None).unwrap();
    drop(hidden);
    let tape = cx.take_tape().unwrap();
    tape.backward(device, vec![(y, full(1.0))], &[&x]).unwrap();
    device.sync().unwrap();
}

#[test]
fn steps_after_the_first_look_for_no_algorithm() {
    with_driver("steps_after_the_first_look_for_no_algorithm", Driver::Emulated, &[], || {
        let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
        let device = Device::new(Arc::new(CudaBackend::open(0, &options).unwrap()));
        let counts = Counts::open();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for activation in [Activation::GeluTanh, Activation::Gelu] {
                let parameters = parameters(&device, dtype);
                let before = counts.queries();
                step(&device, &parameters, activation, dtype);
                let known = counts.queries();
                // Another type is another product; another activation differs in the feed-forward layer alone.
                assert!(
                    known > before || (dtype == DType::F32 && activation == Activation::Gelu),
                    "{dtype} {activation:?}"
                );
                for _ in 0..4 {
                    step(&device, &parameters, activation, dtype);
                }
                assert_eq!(counts.queries(), known, "{dtype} {activation:?}");
            }
        }
    });
}

#[test]
fn the_library_does_the_work_of_gradients_beside_products() {
    with_driver("the_library_does_the_work_of_gradients_beside_products", Driver::Emulated, &[], || {
        let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
        let device = Device::new(Arc::new(CudaBackend::open(0, &options).unwrap()));
        let counts = Counts::open();
        let (derivative, sums) = (Library::CUBLASLT_EPILOGUE_DGELU, Library::CUBLASLT_EPILOGUE_BGRADB);
        let mut seen = [0, 0];
        for (dtype, activation, expected) in [
            (DType::F32, Activation::GeluTanh, [0, 0]),
            (DType::BF16, Activation::GeluTanh, [1, 3]),
            (DType::F16, Activation::GeluTanh, [1, 3]),
            (DType::BF16, Activation::Silu, [0, 3]),
        ] {
            let parameters = parameters(&device, dtype);
            for _ in 0..2 {
                step(&device, &parameters, activation, dtype);
                let now = [derivative, sums].map(|epilogue| counts.products(epilogue));
                assert_eq!([now[0] - seen[0], now[1] - seen[1]], expected, "{dtype} {activation:?}");
                seen = now;
            }
        }
    });
}

fn open() -> (Arc<CudaBackend>, Device) {
    let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
    let backend = Arc::new(CudaBackend::open(0, &options).unwrap());
    (Arc::clone(&backend), Device::new(backend))
}

/// A tensor of small numbers, which bf16 has exactly.
pub(super) fn numbers(device: &Device, dtype: DType, len: usize, seed: usize) -> Tensor {
    let value = |i: usize| ((i * 7 + seed * 5) % 13) as f32 / 8.0 - 0.75;
    match dtype {
        DType::BF16 => {
            let values: Vec<bf16> = (0..len).map(|i| bf16::from_f32(value(i))).collect();
            Tensor::from_slice_in(device, [len], &values, Segment::Activations).unwrap()
        }
        _ => {
            let values: Vec<f32> = (0..len).map(value).collect();
            Tensor::from_slice_in(device, [len], &values, Segment::Activations).unwrap()
        }
    }
}

/// `activation(a b + bias)` in a type, and the argument of the activation where there is one. The bias begins `skip`
/// elements after the start of its memory.
fn product(device: &Device, dtype: DType, skip: usize, activation: Option<Activation>) -> [Vec<f32>; 2] {
    let (m, n, k) = (ROWS, WIDTH, INNER);
    let (a, b) = (numbers(device, dtype, m * k, 1), numbers(device, dtype, k * n, 2));
    let bias = numbers(device, dtype, n + skip, 3);
    let [mut c, mut copy] = [4, 5].map(|seed| numbers(device, dtype, m * n, seed));
    let epilogue = Epilogue {
        bias: Some(bias.view().unwrap().part(skip, n).unwrap()),
        activation,
        pre_activation: activation.map(|_| copy.view_mut().unwrap()),
        ..Epilogue::default()
    };
    let (left, right) = (Matrix::plain(a.view().unwrap(), k), Matrix::plain(b.view().unwrap(), n));
    let gemm = Gemm::single([m, n, k], left, right, c.dest(false).unwrap());
    device.launch(Gemm { epilogue, ..gemm }).unwrap();
    [c, copy].map(|tensor| match dtype {
        DType::BF16 => tensor.to_vec::<bf16>().unwrap().into_iter().map(bf16::to_f32).collect(),
        _ => tensor.to_vec::<f32>().unwrap(),
    })
}

/// Products in both types, without an activation, with one that the library knows and with another.
pub(super) fn products(device: &Device, skip: usize) -> Vec<[Vec<f32>; 2]> {
    let functions = [None, Some(Activation::GeluTanh), Some(Activation::Silu)];
    let of = |dtype| functions.map(|function| product(device, dtype, skip, function));
    [DType::F32, DType::BF16].into_iter().flat_map(of).collect()
}

#[track_caller]
pub(super) fn assert_near(got: &[[Vec<f32>; 2]], expected: &[[Vec<f32>; 2]]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().flatten().flatten().zip(expected.iter().flatten().flatten()) {
        // One rounding to bf16 more or less.
        assert!((got - expected).abs() <= (1.0 + expected.abs()) / 128.0, "{got} for {expected}");
    }
}

pub(super) fn made(backend: &CudaBackend, way: &str) -> u64 {
    backend.products().into_iter().find(|(name, _)| *name == way).unwrap().1
}

const LIBRARY: &str = "by cuBLASLt alone";
const IN_PLACE: &str = "by cuBLASLt, then a kernel on the result";
const WIDENED: &str = "of factors widened to f32";
const SCRATCH: &str = "by cuBLASLt into f32 scratch memory, then a kernel";

/// Epilogues with a bias are refused, by no algorithm or only when a product is queued: results stay what they were,
/// no f32 copy is made, and the library is not asked again.
fn products_without_bias(test: &str, variable: &str) {
    let bias = (Library::CUBLASLT_EPILOGUE_BIAS as u32).to_string();
    with_driver(test, Driver::Emulated, &[(variable, &bias)], || {
        let (backend, device) = open();
        let counts = Counts::open();
        let expected = products(&Device::cpu(1).unwrap(), 0);
        assert_near(&products(&device, 0), &expected);
        let (queries, refusals) = (counts.queries(), counts.refusals());
        assert_eq!(refusals, if variable == "EMULATED_BLAS_REFUSED" { 2 } else { 0 });
        assert_near(&products(&device, 0), &expected);
        assert_eq!((counts.queries(), counts.refusals()), (queries, refusals));
        // The library applies its own activation with its own bias, in 16 bits; a kernel does the rest.
        assert_eq!([LIBRARY, IN_PLACE, SCRATCH].map(|way| made(&backend, way)), [2, 10, 0]);
    });
}

#[test]
fn a_bias_that_has_no_algorithm_is_added_in_place() {
    products_without_bias("a_bias_that_has_no_algorithm_is_added_in_place", "EMULATED_BLAS_UNKNOWN");
}

#[test]
fn a_bias_that_is_refused_late_is_added_in_place() {
    products_without_bias("a_bias_that_is_refused_late_is_added_in_place", "EMULATED_BLAS_REFUSED");
}

#[test]
fn the_library_gets_a_bias_at_an_address_it_can_read() {
    with_driver("the_library_gets_a_bias_at_an_address_it_can_read", Driver::Emulated, &[], || {
        let (backend, device) = open();
        for skip in [0, 1, 3, 4, 7, 8] {
            assert_near(&products(&device, skip), &products(&Device::cpu(1).unwrap(), skip));
        }
        // Without an activation, and with the one that it knows in 16 bits, also where the bias has to be moved first.
        assert_eq!([LIBRARY, IN_PLACE, SCRATCH].map(|way| made(&backend, way)), [18, 18, 0]);
    });
}

/// `a b + bias + residual` in a type, and the residual, which must be what it was.
fn with_residual(device: &Device, dtype: DType, has_bias: bool) -> [Vec<f32>; 2] {
    let (m, n, k) = (ROWS, WIDTH, INNER);
    let (a, b) = (numbers(device, dtype, m * k, 1), numbers(device, dtype, k * n, 2));
    let (bias, residual) = (numbers(device, dtype, n, 3), numbers(device, dtype, m * n, 4));
    let mut c = numbers(device, dtype, m * n, 5);
    let epilogue = Epilogue {
        bias: has_bias.then(|| bias.view().unwrap()),
        residual: Some(residual.view().unwrap()),
        ..Epilogue::default()
    };
    let (left, right) = (Matrix::plain(a.view().unwrap(), k), Matrix::plain(b.view().unwrap(), n));
    device.launch(Gemm { epilogue, ..Gemm::single([m, n, k], left, right, c.dest(false).unwrap()) }).unwrap();
    [c, residual].map(|tensor| match dtype {
        DType::BF16 => tensor.to_vec::<bf16>().unwrap().into_iter().map(bf16::to_f32).collect(),
        _ => tensor.to_vec::<f32>().unwrap(),
    })
}

pub(super) fn with_residuals(device: &Device) -> Vec<[Vec<f32>; 2]> {
    let of = |dtype| [false, true].map(|has_bias| with_residual(device, dtype, has_bias));
    [DType::F32, DType::BF16].into_iter().flat_map(of).collect()
}

#[test]
fn the_library_adds_a_residual_that_is_not_the_old_content() {
    with_driver("the_library_adds_a_residual_that_is_not_the_old_content", Driver::Emulated, &[], || {
        let (backend, device) = open();
        assert_near(&with_residuals(&device), &with_residuals(&Device::cpu(1).unwrap()));
        assert_eq!([LIBRARY, IN_PLACE, SCRATCH].map(|way| made(&backend, way)), [4, 0, 0]);
    });
}

#[test]
fn a_residual_is_copied_where_the_library_refuses_the_product() {
    let bias = (Library::CUBLASLT_EPILOGUE_BIAS as u32).to_string();
    let test = "a_residual_is_copied_where_the_library_refuses_the_product";
    with_driver(test, Driver::Emulated, &[("EMULATED_BLAS_REFUSED", &bias)], || {
        let (backend, device) = open();
        let expected = with_residuals(&Device::cpu(1).unwrap());
        for _ in 0..2 {
            assert_near(&with_residuals(&device), &expected);
        }
        assert_eq!([LIBRARY, IN_PLACE, SCRATCH].map(|way| made(&backend, way)), [4, 4, 0]);
    });
}

/// A forward product, and the two of a backward pass, of 8-bit factors; the last has sums of odd length.
fn in_8_bits(device: &Device) -> Vec<Vec<f32>> {
    let (m, n, k) = (INNER + 9, 2 * WIDTH, 3 * WIDTH);
    let [x, weight, dy] = [m * k, n * k, m * n].map(|len| numbers(device, DType::BF16, len, len));
    let run = |[m, n, k]: [usize; 3], a: Matrix<'_>, b: Matrix<'_>, fp8| {
        let mut c = Tensor::empty_in(device, [m, n], DType::F32, Segment::Activations).unwrap();
        device.launch(Gemm { fp8: Some(fp8), ..Gemm::single([m, n, k], a, b, c.dest(false).unwrap()) }).unwrap();
        c.to_vec().unwrap()
    };
    let [x, weight, dy] = [&x, &weight, &dy].map(|tensor| tensor.view().unwrap());
    vec![
        run([m, n, k], Matrix::plain(x, k), Matrix::transposed(weight, k), Fp8Factors::FORWARD),
        run([m, k, n], Matrix::plain(dy, n), Matrix::plain(weight, k), Fp8Factors::BACKWARD),
        run([n, k, m], Matrix::transposed(dy, n), Matrix::plain(x, k), Fp8Factors::BACKWARD),
    ]
}

/// Each result near the CPU's; `made_so` is how many products were made by the library alone, and of widened factors.
fn products_in_8_bits(test: &str, capability: &str, made_so: [u64; 2]) {
    with_driver(test, Driver::Emulated, &[("EMULATED_CUDA_CAPABILITY", capability)], || {
        let (backend, device) = open();
        assert_eq!(backend.multiplies_fp8(), made_so[0] > 0);
        let expected = in_8_bits(&Device::cpu(1).unwrap());
        for (got, expected) in in_8_bits(&device).iter().flatten().zip(expected.iter().flatten()) {
            assert!((got - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{got} for {expected}");
        }
        assert_eq!([LIBRARY, WIDENED].map(|way| made(&backend, way)), made_so);
    });
}

#[test]
fn the_library_multiplies_factors_in_8_bits_as_codes() {
    products_in_8_bits("the_library_multiplies_factors_in_8_bits_as_codes", "89", [3, 0]);
}

#[test]
fn factors_in_8_bits_are_widened_before_compute_capability_8_9() {
    products_in_8_bits("factors_in_8_bits_are_widened_before_compute_capability_8_9", "86", [0, 3]);
}
