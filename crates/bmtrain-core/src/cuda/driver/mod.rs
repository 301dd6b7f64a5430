//! The driver's objects with owners: context, streams and events, page-locked memory, graphs, modules and their
//! kernels.
//!
//! The one place that calls the driver, by the functions of `functions`. The safe layer of `cudarc` is not used: it
//! tracks the use of each allocation by events of its own, and order is what lanes and marks are for here. What is made
//! here is destroyed on drop, in the context it belongs to.
#![allow(unsafe_code)]

mod context;
mod event;
mod functions;
mod graphs;
mod machine;
mod module;
mod pinned;
mod stream;
mod tensor_map;

pub(in crate::cuda) use context::{Context, Properties};
pub(in crate::cuda) use event::Event;
pub use graphs::GraphCounts;
pub(in crate::cuda) use graphs::LibraryCall;
pub(in crate::cuda) use machine::{Described, cuda_version, devices};
pub(in crate::cuda) use module::{Function, Module};
pub(in crate::cuda) use pinned::Pinned;
pub(in crate::cuda) use stream::{Grid, Pattern, Stream};
pub(in crate::cuda) use tensor_map::{Tensor, TensorMap};

use crate::error::{Error, Result};
use functions::{Functions, answer, functions};

/// Heading of this backend's errors.
const BACKEND: &str = "cuda";

pub(in crate::cuda) fn failure(call: &'static str, reason: impl Into<String>) -> Error {
    Error::Device { backend: BACKEND.into(), call, reason: reason.into() }
}

/// Errors on drop are logged: no caller can take them.
pub(in crate::cuda) fn warn_of<T>(result: Result<T>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a driver object could not be returned");
    }
}

/// A driver object that lives in a context.
macro_rules! owned {
    (
        $(#[$doc:meta])* $name:ident($handle:ty) $({ $($field:ident: $type:ty),* })?,
        $call:literal, $destroy:ident
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(in crate::cuda) struct $name {
            pub(super) handle: $handle,
            context: Arc<Context>,
            $($($field: $type),*)?
        }

        // SAFETY: the driver's interface may be called from any thread, with the context bound; it guards its objects
        // itself.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                let destroy = || {
                    self.context.bind()?;
                    // SAFETY: made by this type's constructor and destroyed only here.
                    answer($call, unsafe { (self.context.driver.$destroy)(self.handle) })
                };
                warn_of(destroy());
            }
        }
    };
}

use owned;
