//! The conformance table on the CUDA backend, on an emulated driver: every row against the CPU in every dtype.
//!
//! Everything here is emulated. It proves what kernels compute, and nothing about speed or a real device.
#![cfg(feature = "cuda")]

use bmtrain_core::conformance::{self, Case, Outcome, Report};
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::{Backend, DType, Device};
use cuda_emulator::declared::Declared;
use cuda_emulator::launches::launched_by;
use cuda_emulator::with_stems;
use cuda_emulator::{Driver, TOLD, with_driver};
use std::sync::Arc;

/// Every row whose name starts with one of `stems`, against the CPU with one thread. BMTRAIN_ROWS narrows it to names
/// that contain its value.
fn rows_agree(test: &str, stems: &'static [&'static str]) {
    with_driver(test, Driver::Emulated, &[], move || {
        let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
        let backend = CudaBackend::open(0, &options).unwrap();
        assert!(backend.name().contains("emulated"), "{}", backend.name());
        let (reference, tested) = (Device::cpu(1).unwrap(), Device::new(Arc::new(Declared::new(Arc::new(backend)))));
        let wanted = std::env::var("BMTRAIN_ROWS").unwrap_or_default();
        let cases: Vec<Case> = conformance::cases()
            .into_iter()
            .filter(|case| stems.contains(&case.stem()) && case.name.contains(&wanted))
            .collect();
        let mut report = Report::default();
        for case in &cases {
            for &dtype in &case.dtypes {
                let check = conformance::compare(&reference, &tested, case, dtype);
                report.note(case, format!("emulated {dtype}"), check);
            }
        }
        let passed =
            |entry: &conformance::CaseResult| matches!(&entry.outcome, Outcome::Compared(check) if check.passed());
        let failures: Vec<String> =
            report.entries.iter().filter(|entry| !passed(entry)).map(ToString::to_string).collect();
        assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), report.entries.len(), failures.join("\n"));
        assert!(!report.entries.is_empty(), "no row is called so");
        println!("{TOLD}{} checks of {} rows agree", report.entries.len(), cases.len());
    });
}

macro_rules! stems {
    ($($name:ident: [$($stem:literal),+];)*) => {
        $(mod $name {
            #[test]
            fn agree_with_the_cpu() {
                super::rows_agree(concat!(stringify!($name), "::agree_with_the_cpu"), &[$($stem),+]);
            }
        })*

        const STEMS: &[&str] = &[$($($stem),+),*];
    };
}

with_stems!(stems);

/// Kernels that CUDA does not have yet.
const UNSUPPORTED: &[&str] = &["quantised_linear", "quantised_input_gradient", "quantised_rows", "quantised_row_norms"];

/// Here and, because the groups are the same, under the sanitizers.
#[test]
fn every_row_is_compared() {
    let cases = conformance::cases();
    let is_known = |stem: &&str| STEMS.contains(stem) || UNSUPPORTED.contains(stem);
    let missing: Vec<&str> = cases.iter().map(Case::stem).filter(|stem| !is_known(stem)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// With 32 rows for a warp the order of every sum is the same, and so are the bits, in every row of attention that has
/// heads of 64.
#[test]
fn wide_attention_has_the_bits_of_the_ordinary_kernels() {
    with_driver("wide_attention_has_the_bits_of_the_ordinary_kernels", Driver::Emulated, &[], || {
        let open = |wide_queries, wide_keys| {
            let compiled = Some(cuda_emulator::compiled_kernels());
            let options = CudaOptions { compiled, wide_queries, wide_keys, ..CudaOptions::default() };
            Device::new(Arc::new(Declared::new(Arc::new(CudaBackend::open(0, &options).unwrap()))))
        };
        let (ordinary, wide) = (open(false, false), [open(true, false), open(false, true)]);
        let served = |case: &Case| case.name.starts_with("attention") && case.name.contains("head size 64");
        let (mut queries, mut keys) = (0, 0);
        for case in conformance::cases().iter().filter(|case| served(case)) {
            for dtype in [DType::F16, DType::BF16] {
                for device in &wide {
                    let (check, launches) =
                        launched_by(|| conformance::compare_bits(&ordinary, device, case, dtype).unwrap());
                    assert!(check.passed(), "{} in {dtype}: {check:?}", case.name);
                    let launched = |stem: &str| launches.iter().filter(|one| one.kernel.starts_with(stem)).count();
                    queries += launched("attention_mma_wide_queries");
                    keys += launched("attention_mma_wide_keys");
                }
            }
        }
        assert!(queries > 8 && queries == keys, "{queries} and {keys} launches");
        println!("{TOLD}{queries} wide launches have the bits of the others");
    });
}

#[test]
fn matrices_in_quantised_blocks_are_refused_with_what_to_do() {
    with_driver("matrices_in_quantised_blocks_are_refused_with_what_to_do", Driver::Emulated, &[], || {
        let options = CudaOptions { compiled: Some(cuda_emulator::compiled_kernels()), ..CudaOptions::default() };
        let tested = Device::new(Arc::new(CudaBackend::open(0, &options).unwrap()));
        let reference = Device::cpu(1).unwrap();
        let mut count = 0;
        for case in conformance::cases().iter().filter(|case| UNSUPPORTED.contains(&case.stem())) {
            for &dtype in &case.dtypes {
                let outcome = conformance::compare(&reference, &tested, case, dtype);
                assert!(format!("{outcome:?}").contains("dequantise"), "{}: {outcome:?}", case.name);
                count += 1;
            }
        }
        assert!(count > 0, "no row is called so");
    });
}
