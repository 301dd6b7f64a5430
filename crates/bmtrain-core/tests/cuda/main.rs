//! Tests of the CUDA backend and NCCL on an emulated device, see docs/emulator.md.
#![cfg(feature = "cuda")]
#![allow(missing_docs, unsafe_code, clippy::unwrap_used, clippy::expect_used)]

#[path = "../ranks/mod.rs"]
mod ranks;

mod cuda_algorithms;
mod cuda_bits;
mod cuda_choice;
mod cuda_conformance;
mod cuda_edges;
mod cuda_emulated;
mod cuda_gradients;
mod cuda_graphs;
mod cuda_lanes;
mod cuda_large;
mod cuda_probe;
mod cuda_products;
mod cuda_sanitized;
mod cuda_trace;
mod cuda_vocabulary;
mod cuda_warpgroups;
mod nccl;
mod nccl_library;
