//! Attention on products of warpgroups, on an emulated driver, and what the emulator claims of these products, copies
//! and barriers.
//!
//! Everything here is emulated. It proves what the kernel computes and that it waits for what it reads, as the emulator
//! understands the instructions; a device may understand them differently.
#![cfg(feature = "cuda")]

use super::cuda_emulated::runs_well;
use bmtrain_core::conformance::{self, Case};
use bmtrain_core::cuda::{CudaBackend, CudaOptions};
use bmtrain_core::{DType, Device};
use cuda_emulator::declared::Declared;
use cuda_emulator::launches::launched_by;
use cuda_emulator::{Checker, Driver, TOLD, with_driver};
use std::path::PathBuf;
use std::sync::Arc;

fn open() -> Device {
    open_with(cuda_emulator::compiled_kernels())
}

/// With the kernels of a directory.
fn open_with(compiled: PathBuf) -> Device {
    let compiled = Some(compiled);
    let options = CudaOptions { compiled, warpgroup_attention: true, ..CudaOptions::default() };
    Device::new(Arc::new(Declared::new(Arc::new(CudaBackend::open(0, &options).unwrap()))))
}

/// Rows of attention whose heads have a size that the kernels serve.
fn rows() -> Vec<Case> {
    let serves = |case: &Case| {
        let is_attention = case.name.starts_with("attention");
        is_attention && ["head size 64", "head size 128"].iter().any(|size| case.name.contains(size))
    };
    conformance::cases().into_iter().filter(serves).collect()
}

#[test]
fn attention_on_warpgroup_products_agrees_with_the_cpu_and_repeats_its_bits() {
    let test = "attention_on_warpgroup_products_agrees_with_the_cpu_and_repeats_its_bits";
    with_driver(test, Driver::Emulated, &[], || {
        // Two of them, which the emulator's random order treats differently.
        let (reference, tested, again) = (Device::cpu(1).unwrap(), open(), open());
        let mut served = Vec::new();
        for case in &rows() {
            for dtype in [DType::F16, DType::BF16] {
                let (check, launches) = launched_by(|| conformance::compare(&reference, &tested, case, dtype).unwrap());
                assert!(check.passed(), "{} in {dtype}: {check:?}", case.name);
                if launches.iter().any(|launch| launch.kernel.starts_with("attention_wgmma_forward")) {
                    let bits = conformance::compare_bits(&tested, &again, case, dtype).unwrap();
                    assert!(bits.passed(), "{} in {dtype}: {bits:?}", case.name);
                    served.push(format!("{} in {dtype}", case.name));
                }
            }
        }
        // Each of the four kernels, and several tiles of keys.
        for wanted in ["64, 300 queries", "128, 290 queries", "128, 130 queries, 390 keys", "64, 63 queries, 17 keys"] {
            assert!(served.iter().filter(|name| name.contains(wanted)).count() >= 2, "{wanted}: {served:?}");
        }
        println!("{TOLD}{} checks on products of warpgroups agree", served.len());
    });
}

/// A row with one tile of keys and one with several, on a device whose accesses are watched.
fn is_clean(test: &str, checker: Checker) {
    with_driver(test, Driver::Checked(checker), &[], || {
        let (reference, tested) = (Device::cpu(1).unwrap(), open());
        for part in ["64, 63 queries, 17 keys", "128, 130 queries, 390 keys"] {
            let case = rows().into_iter().find(|case| case.name.contains(part)).unwrap();
            let (check, launches) = launched_by(|| conformance::compare(&reference, &tested, &case, DType::F16));
            assert!(check.unwrap().passed() && launches.iter().any(|one| one.kernel.contains("wgmma")), "{part}");
        }
    });
}

#[test]
fn accesses_of_warpgroups_are_inside_of_their_views() {
    is_clean("accesses_of_warpgroups_are_inside_of_their_views", Checker::Addresses);
}

#[test]
fn accesses_of_warpgroups_are_ordered() {
    is_clean("accesses_of_warpgroups_are_ordered", Checker::Races);
}

/// Attention is right, and computed by other kernels.
fn is_computed_by_others(tested: &Device) {
    let case = rows().into_iter().find(|case| case.name.contains("64, 63 queries")).unwrap();
    let reference = Device::cpu(1).unwrap();
    let (check, launches) = launched_by(|| conformance::compare(&reference, tested, &case, DType::F16).unwrap());
    assert!(check.passed() && launches.iter().all(|launch| !launch.kernel.contains("wgmma")), "{check:?}");
}

#[test]
fn other_devices_compute_attention_as_before() {
    let older = [("EMULATED_CUDA_CAPABILITY", "80")];
    with_driver("other_devices_compute_attention_as_before", Driver::Emulated, &older, || {
        is_computed_by_others(&open());
    });
}

#[test]
fn without_their_compiled_kernels_attention_is_computed_as_before() {
    let test = "without_their_compiled_kernels_attention_is_computed_as_before";
    with_driver(test, Driver::Emulated, &[], || {
        let directory = tempfile::tempdir().unwrap();
        for unit in bmtrain_kernels::UNITS.iter().filter(|unit| unit.only.is_none()) {
            std::fs::write(directory.path().join(format!("{}.cubin", unit.name)), "emulated").unwrap();
        }
        is_computed_by_others(&open_with(directory.path().into()));
    });
}

const UNIT: &str = "attention_wgmma_128_f16";
const PROGRAM: &str = "warpgroup_test.cpp";

#[test]
fn any_order_of_warps_copies_and_products_gives_the_results_of_the_formula() {
    let test = "any_order_of_warps_copies_and_products_gives_the_results_of_the_formula";
    runs_well(test, cuda_emulator::run_program_with(UNIT, PROGRAM));
}

/// Mistakes in the kernel, and what the program prints for each.
const MISTAKES: [(&str, &str, &str); 15] = [
    ("finish<1>(scores[0], work.keys_read + place);", "is_read(work.keys_read + place);", "from the formula"),
    ("finish<0>(out[0], work.values_read + last);", "is_read(work.values_read + last);", "from the formula"),
    (
        "finish<1>(scores[0], work.keys_read + place);",
        "is_read(work.keys_read + place); wait_products<1>(); hold(scores[0]);",
        "from the formula",
    ),
    ("            wait_for_phase(work.has_values + last, parity_of(tile - 1));\n", "", "from the formula"),
    ("wait_for_phase(work.has_queries, 0);", "", "from the formula"),
    (
        "finish<1>(scores[0], work.keys_read + place);",
        "wait_products<1>(); hold(scores[0]);",
        "a barrier in shared memory",
    ),
    ("parity_of(tile) ^ 1u", "parity_of(tile)", "a barrier in shared memory"),
    ("hold(scores);\n    begin_products();", "hold(scores);", "from the formula"),
    ("        show_barriers();\n    }", "    }", "a barrier that it cannot see"),
    ("announce(full, kTileRows * Head", "announce(full, kTileRows / 2 * Head", "more bytes"),
    (
        "16 * kOperandColumns, kTileRows * kOperandColumns * 2)",
        "16 * kOperandColumns, kTileRows * kOperandColumns)",
        "from the formula",
    ),
    ("kPlacesOf128Bytes = 1", "kPlacesOf128Bytes = 2", "a layout that the emulator does not have"),
    (
        "            if (soften<false>(a, scores, largest, sum, corrections)) {",
        "            const bool corrected = soften<false>(a, scores, largest, sum, corrections);\n            \
         round_scores<Number>(scores[0], probabilities);\n            if (corrected) {",
        "from the formula",
    ),
    (
        "kTileRows * kOperandColumns * 2));\n    }\n    end_products();",
        "kTileRows * kOperandColumns * 2));\n    }",
        "in no group",
    ),
    ("take_registers<240>", "take_registers<256>", "more registers than there are"),
];

#[test]
fn every_planted_mistake_of_a_warpgroup_is_found() {
    for (right, wrong, report) in MISTAKES {
        let Some((output, passed)) = cuda_emulator::run_program_changed(UNIT, (right, wrong), PROGRAM) else {
            return cuda_emulator::skipped("every_planted_mistake_of_a_warpgroup_is_found", "there is no g++");
        };
        // Success without output: left out, because nothing has changed.
        let is_found = !passed && output.contains(report);
        assert!(is_found || (passed && output.is_empty()), "{right:?} as {wrong:?}: {output}");
    }
}
