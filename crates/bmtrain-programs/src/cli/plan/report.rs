//! A plan as tables and as JSON.

use crate::{Error, Result};
use bmtrain_core::Segment;
use bmtrain_dist::shard::GradientSum;
use model_center_base::units::size;
use model_center_train::Setup;
use model_center_train::plan::{
    Plan, Planned, TIMED_PARTITION,
    count::{Batches, Rows},
    recompute_name,
    verdict::{Change, MemoryNeed, Verdict},
};
use serde_json::{Value, json};

/// Tables.
pub fn text(setup: &Setup, plan: &Plan) -> String {
    let Plan { planned, at_limit, verdict, levels } = plan;
    let mut lines = vec![headline(setup, planned), batches(&planned.counted.batches)];
    lines.extend(planned.resolved.parallel.is_timed().then(|| TIMED_PARTITION.to_owned()));
    lines.extend(at_limit.as_ref().map(|at_limit| limit_line(planned, at_limit)));
    lines.push(String::new());
    lines.push(format!("{:<46} {:>12} {:>12}", "memory of each rank", "at the peak", "own peak"));
    let memory = &planned.counted.needs.memory;
    for (segment, usage) in memory.segments.iter().filter(|(segment, _)| *segment != Segment::Offload) {
        let at_peak = planned.counted.at_peak(*segment);
        lines.push(format!("  {:<44} {:>12} {:>12}", describe(*segment), size(at_peak), size(usage.peak as u64)));
    }
    let row = |name: &str, bytes: u64| format!("  {name:<44} {:>12}", size(bytes));
    lines.push(row("all of the pool", memory.total.peak as u64));
    lines.push(row("with gaps between tensors", planned.counted.touched));
    if let Some(device) = &planned.device {
        lines.extend([String::new(), "memory of the device that each rank takes, estimated".to_owned()]);
        lines.push(row("slabs of the pool, counted", device.pool));
        lines.push(row("CUDA context, kernels and libraries", device.context));
        lines.push(row("workspace of the lanes", device.workspace));
        lines.push(row("buffers of NCCL", device.communication));
    }
    let outside = &planned.outside;
    lines.extend([String::new(), "host memory outside of the pool, estimated".to_owned()]);
    lines.push(row(&format!("program, tokenizer, data ({})", size(outside.data)), outside.process));
    lines.push(row("a parameter on its way to a file", outside.files));
    lines.push(row("offloaded to the host's memory, counted", outside.offload));
    lines.push(row("copy of a checkpoint while it is saved", outside.snapshot));
    lines.push(row("scratch and stacks of threads", outside.threads));
    lines.push(row("batches before they are the device's", outside.batches));
    lines.push(row("shared with other ranks", outside.exchange));
    let process = planned.process();
    let ranks = if process.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", process.ranks) };
    lines.extend([String::new(), format!("peak of the first process, which has {ranks}")]);
    lines.push(row("anonymous memory", process.anonymous));
    lines.push(row("shared memory, apart", process.shared));
    lines.push(row("mapped files, apart", process.mapped));
    let disk = &planned.disk;
    lines.extend([String::new(), "disk, estimated".to_owned()]);
    lines.push(row("a saved model", disk.model));
    lines.push(row("a checkpoint", disk.checkpoint));
    let kept = format!("most at once: {} models, {} checkpoints", disk.most_models(), disk.most_checkpoints());
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
pub fn json(plan: &Plan) -> Result<String> {
    let Plan { planned, at_limit, verdict, levels } = plan;
    let mut all = plan_json(planned);
    let change = |change: &Change| {
        let Change { text, needed, device_needed } = change;
        json!({"change": text, "needed_bytes": needed, "device_needed_bytes": device_needed})
    };
    let side =
        |side: MemoryNeed| json!({"needed_bytes": side.needed, "available_bytes": side.available, "fits": side.fits()});
    all["verdict"] = json!({
        "needed_bytes": verdict.host.needed,
        "available_bytes": verdict.host.available,
        "fits": verdict.fits(),
        "device": verdict.device.map(side),
        "changes": verdict.changes.iter().map(change).collect::<Vec<Value>>(),
    });
    all["at_max_length"] = at_limit.as_ref().map(plan_json).unwrap_or_default();
    if !levels.is_empty() {
        all["levels"] = levels.iter().map(plan_json).collect();
    }
    serde_json::to_string(&all).map_err(|e| Error::model("plan", e.to_string(), "report this as a defect"))
}

fn plan_json(planned: &Planned) -> Value {
    let Planned { resolved, layout, counted, outside, device, disk } = planned;
    let memory = &counted.needs.memory;
    let process = planned.process();
    let device = device.map(|device| {
        json!({
            "ranks": device.ranks,
            "needed_bytes": device.total(),
            "pool_bytes": device.pool,
            "context_bytes": device.context,
            "workspace_bytes": device.workspace,
            "communication_bytes": device.communication,
        })
    });
    let by_name = |of: &dyn Fn(usize) -> u64| -> Value {
        Value::Object(
            Segment::ALL.iter().enumerate().map(|(at, segment)| (segment.name().into(), of(at).into())).collect(),
        )
    };
    let cost = counted.needs.cost();
    json!({
        "ranks": layout.ranks,
        "local_ranks": layout.local_ranks,
        "tensor": resolved.parallel.tensor,
        "pipeline": resolved.parallel.pipeline,
        "data_ranks": resolved.parallel.data_ranks(layout.ranks),
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
            "touched_bytes": counted.touched,
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
        "process": {
            "ranks": process.ranks,
            "peak_anonymous_bytes": process.anonymous,
            "shared_bytes": process.shared,
            "mapped_bytes": process.mapped,
        },
        "machine_bytes": planned.machine_bytes(),
        "device": device,
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

fn headline(setup: &Setup, planned: &Planned) -> String {
    let (resolved, layout) = (&planned.resolved, planned.layout);
    let ranks = match (layout.ranks, layout.local_ranks) {
        (1, _) => "one rank".to_owned(),
        (all, here) => {
            let (level, tensor) = (resolved.parallel.zero.number(), resolved.parallel.tensor);
            let tensor = if tensor == 1 { String::new() } else { format!(", {tensor} tensor-parallel") };
            let stages = match resolved.parallel.pipeline {
                1 => String::new(),
                stages => format!(", {stages} pipeline stages"),
            };
            format!("{all} ranks{tensor}{stages}, {here} on each machine, ZeRO-{level}")
        }
    };
    format!(
        "{} from {}: {:.1} million parameters in {}, {ranks}, gradient sums {}, recompute {}",
        setup.family,
        setup.start.directory.display(),
        planned.counted.parameters.values as f64 / 1e6,
        resolved.model.dtype.name(),
        sum_name(resolved.train.gradient_sum),
        recompute_name(resolved.train.recompute),
    )
}

/// The data's longest sequence, and what sequences as long as the recipe allows would take.
fn limit_line(planned: &Planned, at_limit: &Planned) -> String {
    let Rows { length, target, .. } = planned.counted.batches.train;
    let limit = at_limit.counted.batches.train;
    let targets = |length: Option<usize>| length.map_or(String::new(), |length| format!(" and targets of {length}"));
    let pool = size(at_limit.counted.needs.memory.total.peak as u64);
    let needed = match &at_limit.device {
        Some(device) => format!("a device {}", size(device.total())),
        None => format!("a machine {}", size(at_limit.machine_bytes())),
    };
    format!(
        "the longest sequence of the training data has {length} tokens{}; with {}{}, the most that the recipe allows \
         (--length {}), the pool would hold {pool} and {needed} would be needed",
        targets(target),
        limit.length,
        targets(limit.target),
        limit.length,
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
    let needs = match planned.layout.local_ranks {
        1 => "this run needs".to_owned(),
        ranks => format!("{ranks} ranks of a machine need"),
    };
    let mut lines = Vec::new();
    if let (Some(side), Some(device)) = (verdict.device, planned.device) {
        let of = match device.ranks {
            1 => "each device needs".to_owned(),
            ranks => format!("the device that {ranks} ranks share needs"),
        };
        lines.push(side_line(side, &of, "the memory of the device is unknown: give --device-memory"));
        lines.push(side_line(verdict.host, &format!("of the host's memory, {needs}"), UNKNOWN_HOST));
    } else {
        lines.push(side_line(verdict.host, &needs, UNKNOWN_HOST));
    }
    if verdict.fits() != Some(false) {
        return lines;
    }
    for (number, change) in verdict.changes.iter().enumerate() {
        let outcome = match (number, verdict.fits_with(change)) {
            (0, true) => "fits with",
            (0, false) => "most helpful, and not enough",
            (_, true) => "fits too with",
            (_, false) => "not enough",
        };
        lines.push(format!("  {outcome}: {} ({})", change.text, size(verdict.scarce(change))));
    }
    if verdict.changes.is_empty() {
        lines.push("  nothing in the recipe would make it smaller: use more machines or a smaller model".to_owned());
    }
    lines
}

const UNKNOWN_HOST: &str = "the memory of this system is unknown: give --memory";

/// Whether memory of one kind suffices.
fn side_line(side: MemoryNeed, of: &str, unknown: &str) -> String {
    let needed = size(side.needed);
    match side.available {
        None => format!("{of} {needed}; {unknown}"),
        Some(available) if side.needed <= available => format!("fits: {of} {needed} of {}", size(available)),
        Some(available) => {
            let missing = size(side.needed - available);
            format!("does not fit: {of} {needed}, {missing} more than the {} there are", size(available))
        }
    }
}
