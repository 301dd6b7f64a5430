//! The conformance table on the CPU, and that the table can fail.

use bmtrain_core::autograd::{Backward, BackwardCtx, Ctx, Grads, Var};
use bmtrain_core::conformance::{
    self, Case, Check, Report, against_host, bench, compare_bits, compare_precision, run_finite_differences,
};
use bmtrain_core::kernel::{Dest, Kernel, Multiply};
use bmtrain_core::wrap::{Counting, Deferred};
use bmtrain_core::{DType, Device, Result, Segment, Tensor};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Run a check over rows and types, and say all that failed at once.
fn all_pass(
    what: &str,
    cases: &[Case],
    dtypes: impl Fn(&Case) -> Vec<DType>,
    check: impl Fn(&Case, DType) -> Result<Check>,
) {
    let mut report = Report::default();
    for case in cases {
        for dtype in dtypes(case) {
            report.note(case, format!("{what} {dtype}"), check(case, dtype));
        }
    }
    let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), report.entries.len(), failures.join("\n"));
    assert!(report.entries.len() > 50, "only {} checks ran", report.entries.len());
}

#[test]
fn names_of_rows_are_unique() {
    let cases = conformance::cases();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len());
}

#[test]
fn every_kernel_has_a_row() {
    let counting = Arc::new(Counting::new(1 << 20));
    let device = Device::new(counting.clone());
    for case in conformance::cases() {
        bench(&device, &case, case.dtypes[0], Duration::ZERO).unwrap();
    }
    let launched = counting.kernels();
    let missing: Vec<_> = Kernel::NAMES.iter().filter(|name| !launched.contains_key(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_gradient_agrees_with_finite_differences() {
    let device = Device::cpu(2).unwrap();
    let cases: Vec<Case> = conformance::cases().into_iter().filter(Case::is_differentiable).collect();
    all_pass("finite differences", &cases, |_| vec![DType::F32], |case, _| run_finite_differences(&device, case));
}

#[test]
fn kernels_agree_with_plain_host_arithmetic() {
    let device = Device::cpu(2).unwrap();
    let cases: Vec<Case> = conformance::cases().into_iter().filter(|case| case.host.is_some()).collect();
    all_pass(
        "host",
        &cases,
        |case| case.dtypes.clone(),
        |case, dtype| Ok(against_host(&device, case, dtype)?.unwrap()),
    );
}

#[test]
fn two_threads_give_the_bits_of_one() {
    let (one, two) = (Device::cpu(1).unwrap(), Device::cpu(2).unwrap());
    let cases = conformance::cases();
    all_pass("bits", &cases, |case| case.dtypes.clone(), |case, dtype| compare_bits(&one, &two, case, dtype));
}

#[test]
fn late_execution_gives_the_same_bits() {
    let at_once = Device::cpu(1).unwrap();
    let late = Device::new(Arc::new(Deferred::new(Arc::new(bmtrain_core::cpu::CpuBackend::new(1).unwrap()), 5)));
    let cases: Vec<Case> = conformance::cases().into_iter().filter(|case| !case.large).collect();
    all_pass("late", &cases, |_| vec![DType::F32], |case, dtype| compare_bits(&at_once, &late, case, dtype));
}

#[test]
fn sixteen_bit_types_stay_close_to_f32() {
    let device = Device::cpu(2).unwrap();
    let cases = conformance::cases();
    let dtypes = |case: &Case| case.dtypes.iter().copied().filter(|dtype| *dtype != DType::F32).collect();
    all_pass("against f32", &cases, dtypes, |case, dtype| compare_precision(&device, case, dtype));
}

/// Gradient of `x * x`, wrong in a chosen way.
#[derive(Debug)]
struct WrongSquare {
    x: Tensor,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Half of the gradient is missing.
    Half,
    /// One element of 400 is off by half.
    OneElement,
    /// Overwrites a partial sum.
    Overwrites,
    /// Reads a destination that holds nothing.
    ReadsFirst,
}

impl Backward for WrongSquare {
    fn backward(self: Box<Self>, dy: Grads, cx: &mut BackwardCtx<'_>) -> Result<()> {
        let dy = dy.into_iter().flatten().next().unwrap();
        let fault = self.fault;
        let mut x = self.x.to_vec::<f32>()?;
        if fault == Fault::OneElement {
            x[123] *= 0.5;
        }
        let x = Tensor::from_slice(cx.device(), self.x.shape(), &x, Segment::Workspace)?;
        for _ in 0..if fault == Fault::Half { 1 } else { 2 } {
            cx.write(0, x.shape(), DType::F32, |device, Dest { view, add }| {
                let add = match fault {
                    Fault::Overwrites => false,
                    Fault::ReadsFirst => true,
                    _ => add,
                };
                device.launch(Multiply { a: dy.view()?, b: Some(x.view()?), out: Dest { view, add } })
            })?;
        }
        Ok(())
    }
}

fn wrong_square(fault: Fault) -> Case {
    let body = move |cx: &Ctx, v: &[Var]| {
        let y = bmtrain_core::ops::mul(cx, &v[0].detach(), &v[0].detach())?;
        let x = v[0].value().clone();
        Ok(vec![cx.record(y.into_value(), &[&v[0]], || Box::new(WrongSquare { x, fault }))])
    };
    Case::op(format!("wrong square {fault:?}"), body).leaf("x", [400])
}

#[test]
fn finite_differences_catch_wrong_gradients() {
    let device = Device::cpu(1).unwrap();
    let check = |fault| run_finite_differences(&device, &wrong_square(fault)).unwrap();
    assert!(check(Fault::None).passed(), "{:?}", check(Fault::None));
    for fault in [Fault::Half, Fault::OneElement, Fault::Overwrites, Fault::ReadsFirst] {
        assert!(!check(fault).passed(), "{fault:?} was not caught: {:?}", check(fault));
    }
}

#[test]
fn a_difference_between_devices_is_caught() {
    let (cpu, counting) = (Device::cpu(1).unwrap(), Device::new(Arc::new(Counting::new(1 << 20))));
    for case in conformance::cases().iter().filter(|case| !case.large && case.name.starts_with("linear")) {
        // The counting device answers zeros.
        assert!(!conformance::compare(&cpu, &counting, case, DType::F32).unwrap().passed(), "{}", case.name);
        assert!(!compare_bits(&cpu, &counting, case, DType::F32).unwrap().passed(), "{}", case.name);
    }
}
