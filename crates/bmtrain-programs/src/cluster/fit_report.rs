//! The layouts that fit a machine as text and as JSON.

use super::Machine;
use super::fit::{Fit, FitRequest, Fitting};
use model_center_base::units::size;
use model_center_train::formula::{ParallelLayout, RankMemory};
use serde_json::{Value, json};

/// Most layouts that a table lists.
const MAX_LISTED: usize = 10;

/// A layout by name: its three dimensions and what else decides.
pub fn name(layout: &ParallelLayout) -> String {
    let ParallelLayout { tensor, pipeline, data, zero, schedule, chunks, .. } = layout;
    let schedule = match (pipeline, chunks) {
        (1, _) => String::new(),
        (_, 1) => format!(", {schedule}"),
        (_, chunks) => format!(", {schedule} of {chunks} chunks"),
    };
    let recompute = if layout.recompute { ", blocks recomputed" } else { "" };
    format!("{tensor} tensor x {pipeline} pipeline x {data} data, ZeRO-{}{schedule}{recompute}", zero.number())
}

/// The layouts that fit, as a table.
pub fn fit_text(request: &FitRequest, fit: &Fit) -> String {
    let Fit { fitting, tried, smallest } = fit;
    let memory = size(request.memory as u64);
    let mut lines = vec![format!(
        "{:.1} million parameters, {} sequences of {} tokens a step, {} ranks of {memory}",
        request.sizes.parameters() / 1e6,
        request.batch,
        request.length,
        request.ranks,
    )];
    if let Some((layout, least)) = smallest {
        lines.push(format!("none of {tried} layouts fits; the smallest needs {}:", size(least.total() as u64)));
        lines.push(format!("  {}", name(layout)));
        return lines.join("\n");
    }
    let Machine { name: machine, .. } = &request.machine;
    lines.push(format!("{tried} layouts were sized by formula; the fastest that fit, on {machine}:"));
    lines.push(String::new());
    lines.push(format!(
        "{:>6} {:>8} {:>4} {:>4} {:<14} {:>9} {:>5} {:>9} {:>8} {:>7} {:>5}",
        "tensor", "pipeline", "data", "ZeRO", "schedule", "recompute", "B", "memory", "step", "bubble", "MFU"
    ));
    lines.extend(fitting.iter().take(MAX_LISTED).map(fit_row));
    lines.join("\n")
}

fn fit_row(Fitting { layout, memory, report }: &Fitting) -> String {
    let ParallelLayout { tensor, pipeline, data, zero, schedule, chunks, micro_batch, recompute, .. } = layout;
    let schedule = match (pipeline, chunks) {
        (1, _) => "-".to_owned(),
        (_, 1) => schedule.to_string(),
        (_, chunks) => format!("{schedule} {chunks}"),
    };
    format!(
        "{tensor:>6} {pipeline:>8} {data:>4} {:>4} {schedule:<14} {:>9} {micro_batch:>5} {:>9} {:>6.2} s {:>5.1} % \
         {:>3.0} %",
        zero.number(),
        if *recompute { "blocks" } else { "none" },
        format!("{:.1} GiB", memory.total() / (1u64 << 30) as f64),
        report.step,
        100.0 * report.bubble,
        100.0 * report.utilisation,
    )
}

/// The layouts that fit, as one JSON object.
pub fn fit_json(fit: &Fit) -> Value {
    let fitting = |fitting: &Fitting| {
        json!({
            "layout": layout_json(&fitting.layout),
            "memory": memory_json(&fitting.memory),
            "step_seconds": fitting.report.step,
            "bubble": fitting.report.bubble,
            "utilisation": fitting.report.utilisation,
        })
    };
    json!({
        "tried": fit.tried,
        "fitting": fit.fitting.iter().take(MAX_LISTED).map(fitting).collect::<Vec<_>>(),
        "smallest": fit.smallest.map(|(layout, memory)| {
            json!({ "layout": layout_json(&layout), "memory": memory_json(&memory) })
        }),
    })
}

/// The settings of a layout.
pub fn layout_json(layout: &ParallelLayout) -> Value {
    json!({
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "zero": layout.zero.number(),
        "schedule": layout.schedule.name(),
        "chunks": layout.chunks,
        "length": layout.length,
        "micro_batch": layout.micro_batch,
        "micro_batches": layout.micro_batches,
        "recompute": layout.recompute,
    })
}

fn memory_json(memory: &RankMemory) -> Value {
    json!({
        "parameters": memory.parameters,
        "gathered": memory.gathered,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "total": memory.total(),
    })
}
