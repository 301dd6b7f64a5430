//! Checks of the emulator itself: programs in C++.
#![cfg(feature = "cuda")]

use cuda_emulator::DRIVER;

#[test]
fn the_emulator_reports_planted_mistakes_and_runs_right_kernels() {
    let test = "the_emulator_reports_planted_mistakes_and_runs_right_kernels";
    runs_well(test, cuda_emulator::run_program(&["self_test.cpp", "cuda_emulator.cpp", "fiber.cpp", "numbers.cpp"]));
}

#[test]
fn emulated_tensor_cores_put_every_number_of_a_fragment_in_its_place() {
    // Appended to a unit for the functions of mma.cuh; its kernels are not used.
    let test = "emulated_tensor_cores_put_every_number_of_a_fragment_in_its_place";
    runs_well(test, cuda_emulator::run_program_with("attention_mma_32_f16", "tensor_core_test.cpp"));
}

#[test]
fn the_emulator_converts_numbers_bit_for_bit() {
    runs_well(
        "the_emulator_converts_numbers_bit_for_bit",
        cuda_emulator::run_program(&["numbers_test.cpp", "numbers.cpp"]),
    );
}

#[test]
fn the_emulated_driver_reports_freed_and_undeclared_memory() {
    let files = [&["driver_test.cpp"][..], &DRIVER].concat();
    runs_well("the_emulated_driver_reports_freed_and_undeclared_memory", cuda_emulator::run_program(&files));
}

#[test]
fn emulated_matrix_products_are_right_and_refuse_what_they_must() {
    let files = ["blas_test.cpp", "fake_blas.cpp", "fake_blas_checks.cpp", "fake_blas_product.cpp"];
    let test = "emulated_matrix_products_are_right_and_refuse_what_they_must";
    runs_well(test, cuda_emulator::run_program(&[&files[..], &DRIVER].concat()));
}

/// A program that checks itself: what it printed, and whether it reported success.
pub fn runs_well(test: &str, ended: Option<(String, bool)>) {
    match ended {
        Some((output, passed)) => assert!(passed, "{output}"),
        None => cuda_emulator::skipped(test, "there is no g++ to build the CUDA emulator with"),
    }
}
