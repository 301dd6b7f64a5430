//! Products.
pub(super) use super::simple::gemm;
