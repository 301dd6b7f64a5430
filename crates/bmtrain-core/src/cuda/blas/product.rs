//! A product as the library is asked for it: with its plan and all addresses.
#![allow(unsafe_code)]

use super::lt::{Call, GemmPlan, Lt};
use super::plan_cache::{Fused, FusedAddresses, set_addresses, set_scales};
use crate::cuda::driver::LibraryCall;
use crate::error::Result;
use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone)]
pub(super) struct Product {
    // Before the library, which its descriptors belong to.
    pub(super) plan: Arc<Mutex<GemmPlan>>,
    pub(super) lt: Arc<Lt>,
    pub(super) fused: Fused,
    pub(super) beside: FusedAddresses,
    /// Scales of a product of codes, for each factor.
    pub(super) scales: Option<[u64; 2]>,
    pub(super) call: Call,
}

impl Product {
    pub(super) fn plan(&self) -> MutexGuard<'_, GemmPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set the addresses beside the matrices in its description.
    pub(super) fn describe(&self, plan: &GemmPlan) -> Result<()> {
        set_addresses(&self.lt, plan, self.fused, self.beside)?;
        self.scales.map_or(Ok(()), |scales| set_scales(&self.lt, &plan.product, scales))
    }
}

impl LibraryCall for Product {
    unsafe fn queue(&self, stream: *mut c_void) -> Result<bool> {
        // Its description is shared, and holds addresses until the product is queued.
        let plan = self.plan();
        self.describe(&plan)?;
        // SAFETY: promised by the caller.
        unsafe { self.lt.multiply(&plan, &plan.algorithm, &self.call, stream) }
    }

    fn kind(&self) -> u64 {
        // Addresses are multiples of powers of two; plans are at others.
        let Call { a, b, d, .. } = self.call;
        (Arc::as_ptr(&self.plan).addr() as u64) ^ a ^ b.rotate_left(16) ^ d.rotate_left(32)
    }

    fn equals(&self, other: &dyn LibraryCall) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<Self>().is_some_and(|other| {
            // Bit by bit: zeros of two signs differ.
            let numbers = |call: &Call| (call.alpha.to_bits(), call.beta.to_bits());
            let addresses = |call: &Call| [call.a, call.b, call.c, call.d, call.workspace];
            Arc::ptr_eq(&self.plan, &other.plan)
                && (numbers(&self.call), addresses(&self.call)) == (numbers(&other.call), addresses(&other.call))
                && (self.beside, self.scales) == (other.beside, other.scales)
        })
    }

    fn to_owned(&self) -> Box<dyn LibraryCall> {
        Box::new(self.clone())
    }
}
