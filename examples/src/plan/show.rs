//! A plan in words and as JSON.

use super::count::{Batches, Rows};
use super::verdict::Verdict;
use super::{Planned, Subject, recompute_name};
use bmtrain_core::Segment;
use bmtrain_dist::shard::GradientSum;
use model_center::{Error, Result};
use serde_json::{Value, json};

const MIB: f64 = (1u64 << 20) as f64;

/// Tables for people.
pub fn text(subject: &Subject<'_>, planned: &Planned, verdict: &Verdict, levels: &[Planned]) -> String {
    let mut lines = vec![headline(subject, planned), batches(&planned.counted.batches), String::new()];
    lines.push(format!("{:<46} {:>12} {:>12}", "memory of each rank", "at the peak", "own peak"));
    let memory = &planned.counted.needs.memory;
    for (segment, usage) in memory.segments.iter().filter(|(segment, _)| *segment != Segment::Offload) {
        let at_peak = planned.counted.at_peak(*segment);
        lines.push(format!("  {:<44} {:>12} {:>12}", describe(*segment), size(at_peak), size(usage.peak as u64)));
    }
    let row = |name: &str, bytes: u64| format!("  {name:<44} {:>12}", size(bytes));
    lines.push(row("all of the pool", memory.total.peak as u64));
    lines.push(row("with gaps between tensors", memory.touched.peak as u64));
    let outside = &planned.outside;
    lines.extend([String::new(), "outside of the pool, estimated".to_owned()]);
    lines.push(row(&format!("program, tokenizer, data ({})", size(outside.data)), outside.process));
    lines.push(row("parameters on their way from and to files", outside.files));
    lines.push(row("optimizer in the host's memory, counted", outside.offload));
    lines.push(row("copy of a checkpoint while it is saved", outside.snapshot));
    lines.push(row("scratch of threads", outside.threads));
    lines.push(row("exchange with other ranks", outside.exchange));
    lines.push(row("batches before they are the device's", outside.batches));
    let disk = &planned.disk;
    lines.extend([String::new(), "disk, estimated".to_owned()]);
    lines.push(row("a saved model", disk.model));
    lines.push(row("a checkpoint", disk.checkpoint));
    let checkpoints = if disk.kept == 0 { 0 } else { disk.kept + 1 };
    let kept = format!("most at once: {} models, {checkpoints} checkpoints", disk.models + 1);
    lines.push(row(&kept, disk.most()));
    if !levels.is_empty() {
        lines.push(String::new());
        lines.extend(level_table(levels));
    }
    lines.push(String::new());
    lines.extend(verdict_lines(planned, verdict));
    lines.join("\n")
}

/// One object on one line, sizes in bytes.
///
/// # Errors
/// Numbers that JSON has no words for, of which there are none.
pub fn json(planned: &Planned, verdict: &Verdict, levels: &[Planned]) -> Result<String> {
    let mut all = plan_json(planned);
    let changes: Vec<Value> =
        verdict.changes.iter().map(|change| json!({"change": change.text, "needed_bytes": change.needed})).collect();
    all["verdict"] = json!({
        "needed_bytes": verdict.needed,
        "available_bytes": verdict.available,
        "fits": verdict.fits(),
        "changes": changes,
    });
    if !levels.is_empty() {
        all["levels"] = levels.iter().map(plan_json).collect();
    }
    serde_json::to_string(&all).map_err(|e| Error::model("plan", e.to_string(), "report this as a defect"))
}

fn plan_json(planned: &Planned) -> Value {
    let Planned { resolved, layout, counted, outside, disk } = planned;
    let memory = &counted.needs.memory;
    let by_name = |of: &dyn Fn(usize) -> u64| -> Value {
        Value::Object(
            Segment::ALL.iter().enumerate().map(|(at, segment)| (segment.name().into(), of(at).into())).collect(),
        )
    };
    let cost = counted.needs.cost();
    json!({
        "ranks": layout.ranks,
        "local_ranks": layout.local_ranks,
        "zero": resolved.parallel.zero.number(),
        "gradient_sum": sum_name(resolved.train.gradient_sum),
        "recompute": recompute_name(resolved.train.recompute),
        "dtype": resolved.model.dtype.name(),
        "parameters": counted.parameters.values,
        "rows": counted.batches.train.count,
        "length": counted.batches.train.length,
        "target_length": counted.batches.train.target,
        "micro_batches": counted.batches.micro_batches,
        "pool": {
            "peak_bytes": memory.total.peak,
            "touched_bytes": memory.touched.peak,
            "at_peak": by_name(&|at| counted.at_peak(Segment::ALL[at])),
            "own_peaks": by_name(&|at| memory.segments[at].1.peak as u64),
        },
        "outside": {
            "process_bytes": outside.process,
            "data_bytes": outside.data,
            "files_bytes": outside.files,
            "offload_bytes": outside.offload,
            "snapshot_bytes": outside.snapshot,
            "threads_bytes": outside.threads,
            "exchange_bytes": outside.exchange,
            "batches_bytes": outside.batches,
        },
        "disk": {
            "model_bytes": disk.model,
            "models": disk.models,
            "checkpoint_bytes": disk.checkpoint,
            "kept": disk.kept,
            "most_bytes": disk.most(),
        },
        "counted": { "flops": cost.flops, "bytes": cost.bytes },
    })
}

fn headline(subject: &Subject<'_>, planned: &Planned) -> String {
    let (resolved, layout) = (&planned.resolved, planned.layout);
    let ranks = match (layout.ranks, layout.local_ranks) {
        (1, _) => "one rank".to_owned(),
        (all, here) => {
            let level = resolved.parallel.zero.number();
            format!("{all} ranks, {here} on each machine, ZeRO-{level}")
        }
    };
    format!(
        "{} from {}: {:.1} million parameters in {}, {ranks}, gradient sums {}, recompute {}",
        subject.job.family,
        subject.job.folder.display(),
        planned.counted.parameters.values as f64 / 1e6,
        resolved.model.dtype.name(),
        sum_name(resolved.train.gradient_sum),
        recompute_name(resolved.train.recompute),
    )
}

fn batches(batches: &Batches) -> String {
    let Batches { train, micro_batches, eval } = batches;
    let eval = eval.map_or(String::new(), |eval| format!("; evaluation: {}", rows(&eval)));
    format!("largest micro-batch: {}, {micro_batches} of a rank in a step{eval}", rows(train))
}

fn rows(Rows { count, length, target }: &Rows) -> String {
    let targets = target.map_or(String::new(), |target| format!(", targets: {count} rows of {target}"));
    format!("{count} rows of {length} tokens{targets}")
}

fn describe(segment: Segment) -> &'static str {
    match segment {
        Segment::Parameters => "parameters",
        Segment::Gathered => "parameters of other ranks at work",
        Segment::Gradients => "gradients",
        Segment::Optimizer => "optimizer",
        Segment::Offload => "optimizer, on the host",
        Segment::Activations => "activations",
        Segment::Workspace => "workspace",
        Segment::Data => "batches",
    }
}

fn sum_name(sum: GradientSum) -> &'static str {
    match sum {
        GradientSum::Fast => "fast",
        GradientSum::Elastic => "elastic",
    }
}

fn level_table(levels: &[Planned]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<6} {:<10} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
        "ZeRO", "recompute", "parameters", "gathered", "gradients", "optimizer", "activations", "pool"
    )];
    for planned in levels {
        let at = |segment| size(planned.counted.at_peak(segment));
        lines.push(format!(
            "{:<6} {:<10} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11}",
            planned.resolved.parallel.zero.number(),
            recompute_name(planned.resolved.train.recompute),
            at(Segment::Parameters),
            at(Segment::Gathered),
            at(Segment::Gradients),
            size(planned.counted.at_peak(Segment::Optimizer) + planned.counted.at_peak(Segment::Offload)),
            at(Segment::Activations),
            size(planned.counted.needs.memory.total.peak as u64),
        ));
    }
    if levels.iter().all(|planned| planned.layout.ranks == 1) {
        lines.push("(on one rank nothing is cut, and the levels are alike)".to_owned());
    }
    lines
}

fn verdict_lines(planned: &Planned, verdict: &Verdict) -> Vec<String> {
    let needed = size(verdict.needed);
    let of = match planned.layout.local_ranks {
        1 => "this run needs".to_owned(),
        ranks => format!("{ranks} ranks of a machine need"),
    };
    let Some(available) = verdict.available else {
        return vec![format!("{of} {needed}; this system does not say what it has: give --memory")];
    };
    let has = size(available);
    if verdict.needed <= available {
        return vec![format!("fits: {of} {needed} of {has}")];
    }
    let missing = size(verdict.needed - available);
    let mut lines = vec![format!("does not fit: {of} {needed}, {missing} more than the {has} there are")];
    for (number, change) in verdict.changes.iter().enumerate() {
        let word = match (number, change.needed <= available) {
            (0, true) => "fits with",
            (0, false) => "most helpful, and not enough",
            (_, true) => "fits too with",
            (_, false) => "not enough",
        };
        lines.push(format!("  {word}: {} ({})", change.text, size(change.needed)));
    }
    if verdict.changes.is_empty() {
        lines.push("  nothing in the recipe would make it smaller: use more machines or a smaller model".to_owned());
    }
    lines
}

/// A number of bytes in the unit that fits.
pub(crate) fn size(bytes: u64) -> String {
    let mib = bytes as f64 / MIB;
    match mib {
        0.0 => "0".to_owned(),
        mib if mib < 1.0 => format!("{:.1} KiB", mib * 1024.0),
        mib if mib < 10_000.0 => format!("{mib:.1} MiB"),
        mib => format!("{:.1} GiB", mib / 1024.0),
    }
}
