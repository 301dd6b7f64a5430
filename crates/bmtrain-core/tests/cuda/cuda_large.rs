//! Kernels at the end of tensors beyond 2^32 elements, on the emulator.
//!
//! Everything here is emulated: the memory is reserved and not backed, and only the last blocks of a grid run.
#![cfg(all(feature = "cuda", target_pointer_width = "64"))]

/// Run `large_UNIT.cpp` appended to the source of a unit.
fn end_is_reached(test: &str, unit: &str) {
    match cuda_emulator::run_program_with(unit, &format!("large_{unit}.cpp")) {
        Some((output, passed)) => assert!(passed, "{output}"),
        None => cuda_emulator::skipped(test, "there is no g++ to build the CUDA emulator with"),
    }
}

#[test]
fn casts_reach_the_end_of_large_tensors() {
    end_is_reached("casts_reach_the_end_of_large_tensors", "elementwise");
}

#[test]
fn embeddings_reach_the_last_row_of_large_tensors() {
    end_is_reached("embeddings_reach_the_last_row_of_large_tensors", "embedding");
}

#[test]
fn losses_reach_the_last_row_of_large_tensors() {
    end_is_reached("losses_reach_the_last_row_of_large_tensors", "cross_entropy");
}

#[test]
fn norms_reach_the_last_row_of_large_tensors() {
    end_is_reached("norms_reach_the_last_row_of_large_tensors", "norm");
}

#[test]
fn copies_and_transpositions_reach_the_end_of_large_tensors() {
    end_is_reached("copies_and_transpositions_reach_the_end_of_large_tensors", "rows");
}
