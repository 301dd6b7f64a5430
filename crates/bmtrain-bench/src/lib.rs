//! Programs that measure and check a build, for those who develop it: no other crate depends on this one.
//!
//! * [`gpu_check`]: the CUDA backend of a real device against the CPU, and its speed (`gpu-check`).
//! * [`step_bench`]: training steps of models of known size (`step_bench`), which [`step`] makes.
//! * [`speed`]: the kernels of a device at the sizes of a real model (`gpu-check`).
//! * `cpu_bench`, in `src/bin`: matrix products, attention and an optimizer's step on the CPU.
//!
//! What users measure with is a subcommand of `bmtrain`: `bench` and `decode-bench`.
#![forbid(unsafe_code)]

pub mod gpu_check;
pub mod speed;
pub mod step;
pub mod step_bench;
