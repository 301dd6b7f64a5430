//! The conformance table on the CPU, and that the table can fail.

use bmtrain_core::autograd::{Backward, BackwardCtx, Ctx, Grads, Var};
use bmtrain_core::conformance::{
    self, Case, Check, Outcome, Report, against_host, bench, compare_bits, compare_precision, run_finite_differences,
};
use bmtrain_core::cpu::{CpuBackend, CpuOptions, InstructionSet};
use bmtrain_core::kernel::{Dest, Kernel, Multiply};
use bmtrain_core::ops::{self, ProductWeight};
use bmtrain_core::wrap::{Counting, Deferred};
use bmtrain_core::{Backend, DType, Device, Error, Kernels, Lane, Result, Segment, Tensor};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Run a check over rows and types, and report all failures at once.
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

fn device(threads: usize, instruction_set: InstructionSet) -> Device {
    Device::cpu_with(CpuOptions { instruction_set, ..CpuOptions::new(threads) }).unwrap()
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
    let cases: Vec<Case> = conformance::cases().into_iter().filter(Case::is_differentiable).collect();
    for instruction_set in InstructionSet::available() {
        let (device, what) = (device(2, instruction_set), format!("finite differences, {instruction_set}"));
        all_pass(&what, &cases, |_| vec![DType::F32], |case, _| run_finite_differences(&device, case));
    }
}

#[test]
fn kernels_agree_with_plain_host_arithmetic() {
    let cases: Vec<Case> = conformance::cases().into_iter().filter(|case| case.host.is_some()).collect();
    for instruction_set in InstructionSet::available().chain([InstructionSet::AmxModel]) {
        let device = device(2, instruction_set);
        all_pass(
            &format!("host, {instruction_set}"),
            &cases,
            |case| dtypes(case, instruction_set),
            |case, dtype| Ok(against_host(&device, case, dtype)?.unwrap()),
        );
    }
}

#[test]
fn two_threads_give_the_bits_of_one() {
    let cases = conformance::cases();
    for set in InstructionSet::available().chain([InstructionSet::AmxModel]) {
        let (one, two) = (device(1, set), device(2, set));
        let what = format!("bits, {set}");
        all_pass(&what, &cases, |case| dtypes(case, set), |case, dtype| compare_bits(&one, &two, case, dtype));
    }
}

#[test]
fn processor_and_models_of_products_of_bf16_give_the_same_bits() {
    let cases = conformance::cases();
    for (set, model) in InstructionSet::MODELS {
        if !set.is_available() {
            continue;
        }
        let (processor, software) = (device(2, set), device(2, model));
        let dtypes = |case: &Case| dtypes(case, InstructionSet::AmxModel);
        all_pass(set.name(), &cases, dtypes, |case, dtype| compare_bits(&processor, &software, case, dtype));
    }
}

/// The dtypes of a case that differ with an instruction set: the model of tiles computes bf16 its own way, everything
/// else as another set.
fn dtypes(case: &Case, set: InstructionSet) -> Vec<DType> {
    let all = case.dtypes.iter().copied();
    all.filter(|dtype| set != InstructionSet::AmxModel || *dtype == DType::BF16).collect()
}

#[test]
fn a_residual_has_the_bits_of_an_addition_after_the_product() {
    // Several stretches of the sum with every instruction set, by every way in which rows are multiplied.
    const K: usize = 1700;
    let values = |count: usize, step: usize| (0..count).map(|i| (i * step % 2003) as f32 / 1001.5 - 1.0).collect();
    let variable = |device: &Device, shape: [usize; 2], step: usize| {
        let values: Vec<f32> = values(shape[0] * shape[1], step);
        Var::constant(Tensor::from_slice(device, shape, &values).unwrap())
    };
    for (set, rows) in InstructionSet::available().flat_map(|set| [1, 9, 40, 200].map(|rows| (set, rows))) {
        let device = device(2, set);
        let (x, weight) = (variable(&device, [rows, K], 7919), variable(&device, [80, K], 104_729));
        let residual = variable(&device, [rows, 80], 1_299_709);
        let bias = Var::constant(Tensor::from_slice(&device, [80], &values(80, 31)).unwrap());
        let cx = Ctx::inference(&device);
        let together = ops::linear(&cx, &x, ProductWeight::from(&weight).plus(&residual), Some(&bias), None).unwrap();
        let product = ops::linear(&cx, &x, &weight, Some(&bias), None).unwrap();
        let apart = ops::add(&cx, &product, &residual).unwrap();
        let bits = |x: &Var| x.value().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(&together), bits(&apart), "{set}, {rows} rows");
    }
}

#[test]
fn late_execution_gives_the_same_bits() {
    let at_once = Device::cpu(1).unwrap();
    let late = Device::new(Arc::new(Deferred::new(Arc::new(CpuBackend::new(1).unwrap()), 5)));
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
        let x = Tensor::from_slice_in(cx.device(), self.x.shape(), &x, Segment::Workspace)?;
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

/// A backend of another crate: the CPU without one kernel.
#[derive(Debug)]
struct Without {
    inner: CpuBackend,
    missing: &'static str,
}

impl Kernels for Without {
    fn launch(&self, kernel: Kernel<'_>, on: Lane) -> Result<()> {
        if kernel.name() == self.missing {
            let (backend, kernel) = (self.name(), self.missing);
            return Err(Error::Unsupported { backend, kernel, detail: String::new() });
        }
        self.inner.launch(kernel, on)
    }
}

impl Backend for Without {
    bmtrain_core::forward_to_inner!(id memory upload download copy mark wait sync);

    fn name(&self) -> String {
        format!("{} without {}", self.inner.name(), self.missing)
    }
}

#[test]
fn a_partial_backend_from_outside_is_legal_and_shown() {
    let make = || {
        let inner = CpuBackend::new(1)?;
        Ok(Device::new(Arc::new(Without { inner, missing: "softmax_backward" })))
    };
    let cases: Vec<Case> = conformance::cases().into_iter().filter(|case| case.name.starts_with("softmax/")).collect();
    let mut report = Report::default();
    conformance::run_rows(&make, &cases, &mut report).unwrap();
    assert!(!report.entries.is_empty());
    assert_eq!(report.failures().count(), 0);
    assert!(
        report.entries.iter().all(|entry| matches!(entry.outcome, Outcome::Unsupported(_))),
        "{:?}",
        report.entries
    );
    assert!(report.entries[0].to_string().contains("without softmax_backward has no kernel softmax_backward"));
}

#[test]
fn a_backend_that_computes_nothing_fails_nearly_everywhere() {
    let make = || Ok(Device::new(Arc::new(Counting::new(1 << 20))));
    let cases: Vec<Case> = conformance::cases().into_iter().filter(|case| !case.large).collect();
    let mut report = Report::default();
    conformance::run_rows(&make, &cases, &mut report).unwrap();
    let passed: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    let failed: BTreeSet<&str> = report.failures().map(|entry| entry.case.as_str()).collect();
    let missed: Vec<_> = passed.difference(&failed).collect();
    // Where the right answer is zero.
    let zero =
        |name: &str| ["non_finite/finite", "column_sum/0x5"].contains(&name) || name.contains("empty sums/4x128x0");
    assert!(missed.iter().all(|name| zero(name)), "{missed:?}");
}
