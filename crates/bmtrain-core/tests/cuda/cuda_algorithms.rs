//! Choice of the library's algorithm for a product, on an emulated library that has several; and products whose
//! epilogues are left to kernels.
#![cfg(feature = "cuda")]

use super::cuda_products::{Counts, assert_near, made, numbers, parameters, products, step, with_residuals};
use bmtrain_core::conformance;
use bmtrain_core::cuda::{CudaBackend, CudaOptions, ProductChoices};
use bmtrain_core::kernel::{Activation, Gemm, Matrix};
use bmtrain_core::{DType, Device};
use cuda_emulator::{Driver, with_driver};
use cudarc::cublaslt::sys::cublasLtEpilogue_t as Library;
use std::path::Path;
use std::sync::Arc;

const SEVERAL: (&str, &str) = ("EMULATED_BLAS_ALGORITHMS", "4");
const FASTEST: (&str, &str) = ("EMULATED_BLAS_FASTEST", "2");

fn open(options: CudaOptions) -> (Arc<CudaBackend>, Device) {
    let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..options };
    let backend = Arc::new(CudaBackend::open(0, &options).unwrap());
    (Arc::clone(&backend), Device::new(backend))
}

fn timed(cache: Option<&Path>) -> CudaOptions {
    CudaOptions { timed_products: true, cache: cache.map(Path::to_owned), ..CudaOptions::default() }
}

/// A product that is added to what is there, twice; with sums of 80 terms, for which algorithms want a workspace.
fn added(device: &Device) -> Vec<f32> {
    let [m, n, k] = [9, 16, 80];
    let (a, b) = (numbers(device, DType::BF16, m * k, 1), numbers(device, DType::BF16, k * n, 2));
    let mut c = numbers(device, DType::F32, m * n, 3);
    for _ in 0..2 {
        let (left, right) = (Matrix::plain(a.view().unwrap(), k), Matrix::plain(b.view().unwrap(), n));
        device.launch(Gemm::single([m, n, k], left, right, c.dest(true).unwrap())).unwrap();
    }
    c.to_vec().unwrap()
}

/// Products with and without epilogues, residuals and old content.
fn results(device: &Device) -> Vec<u32> {
    let all = [products(device, 0), products(device, 1), with_residuals(device)].concat();
    all.into_iter().flatten().flatten().chain(added(device)).map(f32::to_bits).collect()
}

#[test]
fn the_fastest_algorithm_is_used_and_found_again() {
    with_driver("the_fastest_algorithm_is_used_and_found_again", Driver::Emulated, &[SEVERAL, FASTEST], || {
        let cache = tempfile::tempdir().unwrap();
        let (backend, device) = open(CudaOptions::default());
        let expected = results(&device);
        assert_eq!(backend.product_choices(), None);

        let (backend, device) = open(timed(Some(cache.path())));
        assert_eq!(results(&device), expected);
        let first = backend.product_choices().unwrap();
        let ProductChoices { timed: count, found, changed, first_seconds, chosen_seconds } = first;
        assert!(count >= 8 && found == 0 && changed == count, "{first:?}");
        assert!(chosen_seconds < 0.7 * first_seconds, "{first:?}");
        assert_eq!(results(&device), expected);
        assert_eq!(backend.product_choices().unwrap(), first, "each is chosen once");

        let (backend, device) = open(timed(Some(cache.path())));
        assert_eq!(results(&device), expected);
        let again = backend.product_choices().unwrap();
        assert_eq!(again, ProductChoices { found: count, changed: count, ..ProductChoices::default() });

        // Without a cache, the same anew.
        let (backend, device) = open(timed(None));
        assert_eq!(results(&device), expected);
        assert_eq!(backend.product_choices().unwrap().timed, count);
    });
}

/// Batches, factors in 8 bits and every epilogue, timed.
#[test]
fn timed_products_agree_with_the_cpu() {
    with_driver("timed_products_agree_with_the_cpu", Driver::Emulated, &[SEVERAL], || {
        let (reference, (backend, device)) = (Device::cpu(1).unwrap(), open(timed(None)));
        let mut count = 0;
        for case in conformance::cases().iter().filter(|case| case.stem() == "gemm") {
            for &dtype in &case.dtypes {
                let check = conformance::compare(&reference, &device, case, dtype).unwrap();
                assert!(check.passed(), "{} in {dtype}: {check:?}", case.name);
                count += 1;
            }
        }
        let choices = backend.product_choices().unwrap();
        assert!(count > 100 && choices.timed > 100, "{count} checks, {choices:?}");
    });
}

#[test]
fn the_librarys_first_algorithm_stays_where_no_other_is_faster() {
    let test = "the_librarys_first_algorithm_stays_where_no_other_is_faster";
    with_driver(test, Driver::Emulated, &[SEVERAL, ("EMULATED_BLAS_FASTEST", "0")], || {
        let (backend, device) = open(timed(None));
        let _ = added(&device);
        let choices = backend.product_choices().unwrap();
        assert_eq!((choices.timed, choices.changed), (1, 0));
        assert_eq!(choices.first_seconds.to_bits(), choices.chosen_seconds.to_bits());
    });
}

#[test]
fn an_algorithm_that_is_refused_is_not_chosen() {
    let refused = ("EMULATED_BLAS_REFUSED_ALGORITHM", "0");
    with_driver("an_algorithm_that_is_refused_is_not_chosen", Driver::Emulated, &[SEVERAL, refused], || {
        let (backend, device) = open(timed(None));
        let expected = added(&Device::cpu(1).unwrap());
        assert!(added(&device).iter().zip(&expected).all(|(got, expected)| (got - expected).abs() < 1e-4));
        let choices = backend.product_choices().unwrap();
        assert_eq!((choices.timed, choices.changed), (1, 1));
        let counts = Counts::open();
        let refusals = counts.refusals();
        added(&device);
        assert_eq!((counts.refusals(), refusals), (refusals, 1));
    });
}

#[test]
fn kernels_do_what_the_library_is_not_asked_for() {
    with_driver("kernels_do_what_the_library_is_not_asked_for", Driver::Emulated, &[], || {
        let (backend, device) = open(CudaOptions { kernel_epilogues: true, ..CudaOptions::default() });
        assert_near(&products(&device, 0), &products(&Device::cpu(1).unwrap(), 0));
        let parameters = parameters(&device, DType::BF16);
        step(&device, &parameters, Activation::GeluTanh, DType::BF16);
        let counts = Counts::open();
        for epilogue in [
            Library::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Library::CUBLASLT_EPILOGUE_DGELU,
            Library::CUBLASLT_EPILOGUE_BGRADB,
        ] {
            assert_eq!(counts.products(epilogue), 0, "{epilogue:?}");
        }
        // Biases are still the library's.
        assert!(counts.products(Library::CUBLASLT_EPILOGUE_BIAS) > 0);
        assert_eq!(made(&backend, "by cuBLASLt into f32 scratch memory, then a kernel"), 0);
    });
}
