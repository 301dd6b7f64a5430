//! The table of all op cases, and what it is good for: [`cases`] drives finite differences, backend against backend for
//! each dtype, and a benchmark.
//!
//! A backend in a crate of its own proves itself with [`run_all`]; this crate's tests and `examples/conformance.rs` use
//! the same functions. A new kernel or op is one more row in `table`.
//!
//! * `case`: what a row is; `values`: its inputs, pure functions of the row's name; `execute`: one run on one device.
//! * `finite`: gradients against differences of the loss. `compare`: device against device, type against type, and
//!   against plain host arithmetic (`reference`). `bench`: time beside work. `report`: all of it over
//!   all rows.

mod bench;
mod case;
mod compare;
mod execute;
mod finite;
pub mod reference;
mod report;
mod table;
mod values;

pub use bench::{Measurement, bench};
pub use case::{Body, Case, HostBody, Input, KernelBody, OpBody, Role, Values};
pub use compare::{against_host, compare, compare_bits, compare_precision, tolerance};
pub use finite::run_finite_differences;
pub use report::{CaseResult, Outcome, Report, run_all, run_rows};
pub use table::cases;

/// The largest error of one comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Output or gradient with the largest error.
    pub part: String,
    /// Error, relative to the norm of the expected values.
    pub error: f64,
    /// Largest error allowed.
    pub tolerance: f64,
}

impl Check {
    /// Whether the worst part is good enough. An error that is not a number is not.
    pub fn passed(&self) -> bool {
        self.error <= self.tolerance
    }

    /// The worse of two, measured by their tolerances.
    fn worst(self, other: Check) -> Check {
        let strain = |check: &Check| {
            if check.passed() { check.error / check.tolerance.max(f64::MIN_POSITIVE) } else { f64::INFINITY }
        };
        if strain(&other) > strain(&self) || self.part.is_empty() { other } else { self }
    }

    /// The start of a search for the worst.
    fn none() -> Check {
        Check { part: String::new(), error: 0.0, tolerance: 0.0 }
    }
}
