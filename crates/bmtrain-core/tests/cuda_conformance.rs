//! The conformance table on the CUDA backend, on an emulated driver: every row against the CPU in every number type.
//!
//! Everything here is emulated. It proves what kernels compute, and nothing about speed or a real device.
#![cfg(feature = "cuda")]
#![allow(missing_docs, clippy::unwrap_used)]

mod emulator;

use bmtrain_core::conformance::{self, Case, Outcome, Report};
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::{Backend, Device};
use emulator::declared::Declared;
use emulator::{Driver, TOLD, with_driver};
use std::sync::Arc;

/// Every row whose name starts with one of `stems`, against the CPU with one thread. BMTRAIN_ROWS narrows it to names that
/// contain its value.
fn rows_agree(test: &str, stems: &'static [&'static str]) {
    with_driver(test, Driver::Emulated, &[], move || {
        let options = CudaOptions { compiled: Some(emulator::compiled_kernels()), ..CudaOptions::default() };
        let backend = CudaBackend::open(0, &options).unwrap();
        assert!(backend.name().contains("emulated"), "{}", backend.name());
        let (reference, tested) = (Device::cpu(1).unwrap(), Device::new(Arc::new(Declared::new(Arc::new(backend)))));
        let wanted = std::env::var("BMTRAIN_ROWS").unwrap_or_default();
        let stem = |case: &Case| case.name.split('/').next().unwrap_or_default().to_owned();
        let cases: Vec<Case> = conformance::cases()
            .into_iter()
            .filter(|case| stems.contains(&stem(case).as_str()) && case.name.contains(&wanted))
            .collect();
        let mut report = Report::default();
        for case in &cases {
            for &dtype in &case.dtypes {
                let check = conformance::compare(&reference, &tested, case, dtype);
                report.note(case, format!("emulated {dtype}"), check);
            }
        }
        let passed = |entry: &conformance::Entry| matches!(&entry.outcome, Outcome::Compared(check) if check.passed());
        let failures: Vec<String> =
            report.entries.iter().filter(|entry| !passed(entry)).map(ToString::to_string).collect();
        assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), report.entries.len(), failures.join("\n"));
        assert!(!report.entries.is_empty(), "no row is called so");
        println!("{TOLD}{} checks of {} rows agree", report.entries.len(), cases.len());
    });
}

macro_rules! stems {
    ($($name:ident: [$($stem:literal),+];)*) => {
        $(#[test]
        fn $name() {
            rows_agree(stringify!($name), &[$($stem),+]);
        })*

        const STEMS: &[&str] = &[$($($stem),+),*];
    };
}

stems! {
    products_agree_with_the_cpu: ["gemm", "linear", "matmul", "feed_forward"];
    elementwise_kernels_agree_with_the_cpu: [
        "activation", "add", "add_scaled", "cast", "fan-out with an unused result", "fill", "gated", "mul", "multiply", "scale"
    ];
    attention_agrees_with_the_cpu: ["attention", "attention_fused"];
    norms_agree_with_the_cpu: ["norm", "residual_norm"];
    losses_agree_with_the_cpu: ["cross_entropy", "squared_error"];
    rows_agree_with_the_cpu: [
        "embedding", "embedding_backward", "add_embedding", "permute", "row_copy", "concat_last", "slice_last", "select_row"
    ];
    softmax_agrees_with_the_cpu: ["softmax", "log_softmax"];
    sums_agree_with_the_cpu: ["column_sum", "sum", "mean"];
    optimizer_steps_agree_with_the_cpu: ["grad_norm", "non_finite", "clip_factor", "adam"];
    random_values_agree_with_the_cpu: ["fill_random", "dropout"];
    divided_vocabularies_agree_with_the_cpu: ["vocabulary", "vocabulary_cross_entropy", "loss_totals", "scale_by"];
    heads_agree_with_the_cpu: ["linear_cross_entropy"];
}

#[test]
fn every_row_is_compared() {
    let stem = |case: &Case| case.name.split('/').next().unwrap_or_default().to_owned();
    let missing: Vec<String> =
        conformance::cases().iter().map(stem).filter(|stem| !STEMS.contains(&stem.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
