//! Attention on products of warpgroups, which is used on request alone: whether it computes what the CPU computes, and
//! how fast it is beside the kernels that are used otherwise.

use super::Place;
use super::kernels::Ceilings;
use super::report::Report;
use crate::speed::{Sizes, Wanted, speed};
use bmtrain_core::conformance::{self, Case, compare, compare_bits};
use bmtrain_core::cuda::CudaBackend;
use bmtrain_core::ops::{self, AttentionOptions};
use bmtrain_core::{Backend, DType, Device};
use model_center_base::Result;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Lengths that are timed, with as many sequences as make the same number of tokens.
const LENGTHS: [usize; 5] = [512, 1024, 2048, 4096, 8192];
const TOKENS: usize = 16_384;

/// All of it. Nothing is timed without `ceilings`.
pub fn warpgroups(
    place: &Place,
    wanted: &str,
    ceilings: Option<Ceilings>,
    budget: Duration,
    report: &mut Report,
) -> Result<()> {
    if place.backend.capability() != (9, 0) {
        report.row("warpgroup attention", "left out: it is for compute capability 9.0 alone");
        return Ok(());
    }
    let backend = place.with_warpgroup_attention()?;
    let device = Device::new(Arc::clone(&backend) as Arc<dyn Backend>);
    let tested = Tested { device, backend, others: place.ordinary()? };
    let mut checks = agreement(place, &tested, wanted, report)?;
    if !report.is_lost() {
        checks.extend(long(place, &tested, report));
    }
    let mut times = Vec::new();
    if let Some(ceilings) = ceilings.filter(|_| !report.is_lost()) {
        for head_size in [64, 128] {
            let lengths: &[usize] = if report.emulated { &[place.scale.sizes.length] } else { &LENGTHS };
            for &length in lengths {
                times.push(time(place, &tested, (head_size, length), (ceilings, budget), report)?);
            }
        }
    }
    report.part("warpgroups", json!({ "checks": checks, "times": times }));
    Ok(())
}

/// The device with these kernels.
struct Tested {
    backend: Arc<CudaBackend>,
    device: Device,
    /// With the kernels that are used otherwise.
    others: Device,
}

impl Tested {
    /// Whether a kernel for such heads was launched; a failure where not: other kernels were used then.
    fn is_used(&self, head_size: usize, dtype: DType, report: &mut Report) -> bool {
        let unit = format!("attention_wgmma_{head_size}_{dtype}");
        let is_used = self.backend.loaded_units().contains(&&unit[..]);
        if !is_used {
            report.fail(format!("warpgroups: {unit} was not used: this driver or these kernels lack what it needs"));
        }
        is_used
    }
}

/// Many tiles of keys and more blocks than a device has multiprocessors, heads that share keys, projections in one
/// tensor: against the other kernels, and again for the same bits.
fn long(place: &Place, tested: &Tested, report: &mut Report) -> Vec<Value> {
    let (batch, length, times) = if report.emulated { (1, 140, 1) } else { (2, 4096, 20) };
    let others = &tested.others;
    let mut checks = Vec::new();
    for (head_size, window) in [(64, None), (64, Some(length / 3)), (128, None)] {
        let (heads, kv_heads) = if report.emulated { (2, 1) } else { (8, 2) };
        let options =
            move || AttentionOptions { causal: true, kv_heads, window, ..AttentionOptions::new(heads, head_size) };
        let name = format!("{length} tokens, heads of {head_size}{}", if window.is_some() { ", window" } else { "" });
        let case = Case::one(name, move |cx, v| ops::attention_fused(cx, &v[0], &options()));
        let case = case.constant("qkv", [batch, length, (heads + 2 * kv_heads) * head_size]);
        for dtype in [DType::F16, DType::BF16] {
            let compared = compare(others, &tested.device, &case, dtype);
            let agrees = compared.as_ref().is_ok_and(|check| check.passed());
            let repeats = (0..times).all(|_| {
                agrees && compare_bits(&tested.device, &tested.device, &case, dtype).is_ok_and(|check| check.passed())
            });
            if !agrees {
                report.fail(format!("warpgroups: {} {dtype} beside the other kernels: {compared:?}", case.name));
            } else if !repeats {
                report.fail(format!("warpgroups: {} {dtype}: other bits in another run", case.name));
            }
            checks.push(json!({
                "row": case.name, "dtype": dtype.to_string(), "repeats": repeats,
                "passed": agrees && repeats && tested.is_used(head_size, dtype, report),
                "error": compared.as_ref().ok().map(|check| check.error),
            }));
            if compared.is_err() {
                place.note_loss(&format!("{} {dtype} with warpgroup attention", case.name), report);
            }
            if report.is_lost() {
                return checks;
            }
        }
    }
    let passed = checks.iter().filter(|check| check["passed"] == true).count();
    report.row("  long sequences", format!("{passed} of {} as the other kernels, with the same bits", checks.len()));
    checks
}

/// Rows of the conformance table that have heads of a size that there are kernels for.
fn agreement(place: &Place, tested: &Tested, wanted: &str, report: &mut Report) -> Result<Vec<Value>> {
    let is_served =
        |name: &str| name.starts_with("attention") && (name.contains("head size 64") || name.contains("head size 128"));
    let cases = conformance::cases();
    let cases: Vec<_> = cases.iter().filter(|case| is_served(&case.name) && case.name.contains(wanted)).collect();
    let reference = Device::cpu(place.threads)?;
    let mut checks = Vec::new();
    let mut failed = 0;
    'rows: for case in cases {
        for dtype in [DType::F16, DType::BF16] {
            let compared = compare(&reference, &tested.device, case, dtype);
            let passed = compared.as_ref().is_ok_and(|check| check.passed());
            if !passed {
                failed += 1;
                report.fail(format!("warpgroups: {} {dtype}: {compared:?}", case.name));
            }
            let error = compared.as_ref().ok().map(|check| check.error);
            checks.push(json!({ "row": case.name, "dtype": dtype.to_string(), "passed": passed, "error": error }));
            if compared.is_err() {
                place.note_loss(&format!("the row {} {dtype} with warpgroup attention", case.name), report);
            }
            if report.is_lost() {
                break 'rows;
            }
        }
    }
    report.row("warpgroup attention", format!("{} checks passed, {failed} failed", checks.len() - failed));
    Ok(checks)
}

/// The forward pass, causal, in bf16: with these kernels and with those that are used otherwise.
fn time(
    place: &Place,
    tested: &Tested,
    (head_size, length): (usize, usize),
    (ceilings, budget): (Ceilings, Duration),
    report: &mut Report,
) -> Result<Value> {
    const NAME: &str = "attention causal";
    let tokens = if report.emulated { length } else { TOKENS };
    let hidden = if report.emulated { head_size } else { 2048 };
    let sizes = Sizes { batch: tokens / length, length, hidden, head_size, ..place.scale.sizes };
    let rate = |device: &Device| -> Result<f64> {
        let wanted = Wanted { sizes, dtypes: vec![DType::BF16], part_of_name: NAME.into(), budget };
        let mut rate = 0.0;
        speed(device, &wanted, &mut |figure| {
            if figure.name == NAME {
                rate = figure.rate();
            }
        })?;
        Ok(rate)
    };
    let (warpgroups, others) = (rate(&tested.device)?, rate(&tested.others)?);
    tested.is_used(head_size, DType::BF16, report);
    report.row(
        format!("  heads of {head_size}, {} x {length} tokens", sizes.batch),
        format!(
            "{:.1} TFLOP/s, {:.0} % of the bf16 product, {:.2} times the others",
            warpgroups / 1e12,
            100.0 * warpgroups / ceilings.products,
            warpgroups / others
        ),
    );
    Ok(json!({
        "head_size": head_size, "length": length, "batch": sizes.batch, "flops_per_s": warpgroups,
        "flops_per_s_of_others": others,
    }))
}
