//! Layouts in three dimensions as text: what the ranks of one hold and send, counted.

use bmtrain_core::Segment;
use bmtrain_dist::block::Recompute;
use model_center_base::units::size;
use model_center_recipe::Parallel;
use model_center_train::plan::layout::{LayoutCount, LayoutRun, RankCount, SentBytes};
use model_center_train::plan::{TIMED_PARTITION, recompute_name};
use serde_json::{Value, json};
use std::ops::Range;

/// The columns of memory in tables.
const CLASSES: [Segment; 6] = [
    Segment::Parameters,
    Segment::Gathered,
    Segment::Gradients,
    Segment::Optimizer,
    Segment::Activations,
    Segment::Offload,
];

/// Lines for a terminal.
pub fn text(layout: &LayoutCount) -> String {
    let LayoutCount { run, ranks, bubble, parameters } = layout;
    let LayoutRun { micro_batches, micro_batch, length, .. } = run;
    let is_used = |class: &&Segment| ranks.iter().any(|rank| own_peak(rank, **class) > 0);
    let classes: Vec<Segment> = CLASSES.iter().filter(is_used).copied().collect();
    let row = |stage: &str, blocks: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:>12}")).collect();
        format!("{stage:>5} {blocks:<12}{cells}")
    };
    let mut lines = vec![
        format!("{:.1} million parameters on {}", *parameters as f64 / 1e6, run_name(run)),
        format!("{micro_batches} micro-batches of {micro_batch} x {length} tokens on each data-parallel rank"),
        String::new(),
        "memory of the first rank of each stage, counted: the peak of each class, and of all together".to_owned(),
    ];
    lines.extend(run.parallel.is_timed().then(|| TIMED_PARTITION.to_owned()));
    let names = classes.iter().map(|class| class.name().to_owned()).chain(["peak".to_owned()]);
    lines.push(row("stage", "blocks", &names.collect::<Vec<_>>()));
    for rank in ranks {
        let peaks = classes.iter().map(|class| size(own_peak(rank, *class)));
        let cells: Vec<String> = peaks.chain([size(rank.memory.total.peak as u64)]).collect();
        lines.push(row(&rank.stage.to_string(), &blocks_text(rank), &cells));
    }
    lines.extend([String::new(), "bytes that it sends in a step, by dimension; collectives as rings".to_owned()]);
    lines.push(row("stage", "", &["tensor", "pipeline", "data"].map(str::to_owned)));
    for rank in ranks {
        let SentBytes { tensor, pipeline, data } = rank.sent;
        lines.push(row(&rank.stage.to_string(), "", &[tensor, pipeline, data].map(size)));
    }
    lines.push(String::new());
    lines.push(format!("bubble of the pipeline, with chunks of equal time: {:.1} %", 100.0 * bubble));
    lines.join("\n")
}

/// One JSON object, sizes in bytes.
pub fn json(layout: &LayoutCount) -> Value {
    let LayoutCount { run, ranks, bubble, parameters } = layout;
    let Parallel { tensor, sequence, pipeline, virtual_stages, schedule, zero, .. } = &run.parallel;
    json!({
        "layout": {
            "tensor": tensor,
            "sequence": sequence,
            "pipeline": pipeline,
            "data": run.data,
            "zero": zero.number(),
            "schedule": schedule.name(),
            "chunks": virtual_stages,
            "length": run.length,
            "micro_batch": run.micro_batch,
            "micro_batches": run.micro_batches,
            "recompute": recompute_name(run.recompute),
        },
        "parameters": parameters,
        "ranks": ranks.iter().map(rank_json).collect::<Vec<_>>(),
        "bubble": bubble,
    })
}

/// The most that a rank's pool holds of a class.
fn own_peak(rank: &RankCount, class: Segment) -> u64 {
    rank.memory.segments.iter().find(|(known, _)| *known == class).map_or(0, |(_, usage)| usage.peak as u64)
}

/// The blocks of a rank's chunks, first and last, counted from 0; nothing where it has all.
fn blocks_text(rank: &RankCount) -> String {
    let chunk = |blocks: &Range<usize>| match blocks.len() {
        0 => "none".to_owned(),
        1 => blocks.start.to_string(),
        _ => format!("{}-{}", blocks.start, blocks.end - 1),
    };
    if rank.blocks.is_empty() { "all".to_owned() } else { rank.blocks.iter().map(chunk).collect::<Vec<_>>().join(",") }
}

fn rank_json(rank: &RankCount) -> Value {
    let SentBytes { tensor, pipeline, data } = rank.sent;
    let peaks: serde_json::Map<String, Value> =
        CLASSES.iter().map(|class| (class.name().to_owned(), own_peak(rank, *class).into())).collect();
    json!({
        "rank": rank.rank,
        "stage": rank.stage,
        "blocks": rank.blocks.iter().map(|blocks| [blocks.start, blocks.end]).collect::<Vec<_>>(),
        "peak_bytes": rank.memory.total.peak,
        "own_peaks": peaks,
        "sent_bytes": { "tensor": tensor, "pipeline": pipeline, "data": data },
        "flops": rank.flops,
    })
}

/// A run by its layout.
fn run_name(run: &LayoutRun) -> String {
    let Parallel { tensor, sequence, pipeline, virtual_stages, schedule, zero, .. } = &run.parallel;
    let sharded = if *sequence { " with sequence sharding" } else { "" };
    let schedule = match (pipeline, virtual_stages) {
        (1, _) => String::new(),
        (_, 1) => format!(", {schedule}"),
        (_, chunks) => format!(", {schedule} of {chunks} chunks"),
    };
    let recompute = match run.recompute {
        Recompute::Keep => String::new(),
        other => format!(", recomputation: {}", recompute_name(other)),
    };
    let (data, zero) = (run.data, zero.number());
    format!("{tensor} tensor{sharded} x {pipeline} pipeline x {data} data, ZeRO-{zero}{schedule}{recompute}")
}
