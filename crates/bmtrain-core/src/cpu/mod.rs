//! The CPU backend.
pub mod gemm;
