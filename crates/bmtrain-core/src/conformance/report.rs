//! All checks over all rows: what a backend runs to prove itself.

use super::{Case, Check, against_host, cases, compare, run_finite_differences};
use crate::device::Device;
use crate::error::{Error, Result};
use std::fmt;

/// Outcome of one check of one row.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Compared; [`Check::passed`] tells.
    Compared(Check),
    /// The backend does not have the kernel, which is legal.
    Unsupported(String),
    /// The device failed, or refused what it should take.
    Failed(String),
}

/// One check of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseResult {
    /// Name of the row.
    pub case: String,
    /// Name of the check.
    pub check: String,
    /// Outcome of the check.
    pub outcome: Outcome,
}

impl CaseResult {
    /// Whether this is a fault of the backend.
    pub fn is_failure(&self) -> bool {
        match &self.outcome {
            Outcome::Compared(check) => !check.passed(),
            Outcome::Unsupported(_) => false,
            Outcome::Failed(_) => true,
        }
    }
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<52} {:<20} ", self.case, self.check)?;
        match &self.outcome {
            Outcome::Compared(Check { part, error, tolerance }) => {
                let verdict = if self.is_failure() { "FAILED" } else { "ok" };
                write!(f, "{verdict:<6} {error:.1e} of {tolerance:.1e} at {part}")
            }
            Outcome::Unsupported(reason) => write!(f, "-      {reason}"),
            Outcome::Failed(reason) => write!(f, "FAILED {reason}"),
        }
    }
}

/// Results of the checks so far.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// All checks, in the order of the table.
    pub entries: Vec<CaseResult>,
}

impl Report {
    /// The checks that show a fault.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.entries.iter().filter(|entry| entry.is_failure())
    }

    /// Note the result of a check.
    pub fn note(&mut self, case: &Case, check: impl Into<String>, result: Result<Check>) {
        let outcome = match result {
            Ok(check) => Outcome::Compared(check),
            Err(error @ Error::Unsupported { .. }) => Outcome::Unsupported(error.to_string()),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        self.entries.push(CaseResult { case: case.name.clone(), check: check.into(), outcome });
    }
}

/// Every row on a device, see [`run_rows`].
pub fn run_all(make_device: &dyn Fn() -> Result<Device>, report: &mut Report) -> Result<()> {
    run_rows(make_device, &cases(), report)
}

/// Rows on a device: finite differences in f32; host arithmetic, and the CPU with one thread as the reference, in each
/// dtype of the row.
pub fn run_rows(make_device: &dyn Fn() -> Result<Device>, cases: &[Case], report: &mut Report) -> Result<()> {
    let (reference, tested) = (Device::cpu(1)?, make_device()?);
    cases.iter().for_each(|case| run_case(&reference, &tested, case, report));
    Ok(())
}

fn run_case(reference: &Device, tested: &Device, case: &Case, report: &mut Report) {
    if case.is_differentiable() {
        report.note(case, "finite differences", run_finite_differences(tested, case));
    }
    for &dtype in &case.dtypes {
        if let Some(result) = against_host(tested, case, dtype).transpose() {
            report.note(case, format!("host {dtype}"), result);
        }
        report.note(case, format!("reference {dtype}"), compare(reference, tested, case, dtype));
    }
}
