//! What the CUDA backend asks of the library of matrix products in training steps, on an emulated one: epilogues that
//! it has, and no algorithm twice.
#![cfg(feature = "cuda")]

use bmtrain_core::autograd::{GradSink, SinkTarget};
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::kernel::Activation;
use bmtrain_core::{Ctx, DType, Device, Result, Segment, Storage, Tensor, Var, ops};
use cuda_emulator::{Driver, with_driver};
use cudarc::cublaslt::sys::cublasLtEpilogue_t as Library;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const ROWS: usize = 6;
const WIDTH: usize = 16;
const INNER: usize = 24;

/// The emulated library's own counts.
struct Counts(libloading::Library);

impl Counts {
    fn open() -> Self {
        // SAFETY: the library that the backend has opened already.
        Counts(unsafe { libloading::Library::new("libcublasLt.so.13") }.unwrap())
    }

    fn queries(&self) -> u64 {
        // SAFETY: the type as in fake_blas.cpp.
        unsafe { self.0.get::<unsafe extern "C" fn() -> u64>(b"emulated_blas_queries\0").unwrap()() }
    }

    fn products(&self, epilogue: Library) -> u64 {
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

fn parameters(device: &Device, dtype: DType) -> Vec<Var> {
    [&[INNER, WIDTH][..], &[INNER], &[WIDTH, INNER], &[WIDTH], &[WIDTH, WIDTH], &[WIDTH]]
        .map(|shape| parameter(device, shape, dtype))
        .into()
}

fn step(device: &Device, p: &[Var], activation: Activation, dtype: DType) {
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
