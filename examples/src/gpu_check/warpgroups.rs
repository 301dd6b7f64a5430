//! Attention on products of warpgroups, which is used on request alone: whether it computes what the CPU computes, and
//! how fast it is beside the kernels that are used otherwise.

use super::Place;
use super::kernels::Ceilings;
use super::report::Report;
use bmtrain_core::conformance::{self, Sizes, Wanted, compare, speed};
use bmtrain_core::cuda::CudaBackend;
use bmtrain_core::{Backend, DType, Device};
use model_center::Result;
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
    let checks = agreement(place, wanted, report)?;
    let mut times = Vec::new();
    if let Some(ceilings) = ceilings.filter(|_| !report.is_lost()) {
        for head_size in [64, 128] {
            let lengths: &[usize] = if report.emulated { &[place.scale.sizes.length] } else { &LENGTHS };
            for &length in lengths {
                times.push(time(place, (head_size, length), (ceilings, budget), report)?);
            }
        }
    }
    report.part("warpgroups", json!({ "checks": checks, "times": times }));
    Ok(())
}

/// The device with these kernels.
fn device(place: &Place) -> Result<Device> {
    let backend = Arc::new(CudaBackend::open(place.number, &place.with_warpgroup_attention())?);
    Ok(Device::new(backend as Arc<dyn Backend>))
}

/// Rows of the conformance table that have heads of a size that there are kernels for.
fn agreement(place: &Place, wanted: &str, report: &mut Report) -> Result<Vec<Value>> {
    let is_served =
        |name: &str| name.starts_with("attention") && (name.contains("head size 64") || name.contains("head size 128"));
    let cases = conformance::cases();
    let cases: Vec<_> = cases.iter().filter(|case| is_served(&case.name) && case.name.contains(wanted)).collect();
    let (reference, tested) = (Device::cpu(place.threads)?, device(place)?);
    let mut checks = Vec::new();
    let mut failed = 0;
    'rows: for case in cases {
        for dtype in [DType::F16, DType::BF16] {
            let compared = compare(&reference, &tested, case, dtype);
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
    let (warpgroups, others) = (rate(&device(place)?)?, rate(&place.device())?);
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
