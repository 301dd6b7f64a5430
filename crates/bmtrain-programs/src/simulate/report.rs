//! Simulated steps as tables and as JSON.

use crate::cluster::{Published, Run, Scenario, StepReport, fit_report};
use model_center_base::units::size;
use model_center_base::{Error, Result};
use model_center_train::formula::{ParallelLayout, RankMemory};
use serde_json::json;
use std::path::Path;

/// Simulate the runs of a file, or one of them in full, and on other numbers of data-parallel ranks.
///
/// # Errors
/// A file that is none, a name that it does not have, runs that cannot be.
pub fn run(file: &Path, name: Option<&str>, data: &[usize], as_json: bool) -> Result<String> {
    let mut scenario = Scenario::read(file)?;
    let first = match scenario.runs.first() {
        Some(run) => scenario.simulate(run)?,
        None => return Ok(String::new()),
    };
    if let Some(name) = name {
        let names: Vec<String> = scenario.runs.iter().map(|run| run.name.clone()).collect();
        scenario.runs.retain(|run| run.name == name);
        if scenario.runs.is_empty() {
            let reason = format!("the file has no run \"{name}\"");
            return Err(Error::argument("--name", reason, format!("give one of {}", names.join(", "))));
        }
    }
    if let ([run], false) = (&scenario.runs[..], data.is_empty()) {
        scenario.runs = data.iter().map(|&data| with_data_ranks(run, data)).collect();
    }
    let reports = scenario.runs.iter().map(|run| scenario.simulate(run)).collect::<Result<Vec<_>>>()?;
    let runs: Vec<(&Run, &StepReport)> = scenario.runs.iter().zip(&reports).collect();
    Ok(match (as_json, &runs[..]) {
        (true, _) => runs.iter().map(|(run, report)| object(run, report, &first)).collect::<Vec<_>>().join("\n"),
        (false, [(run, report)]) if name.is_some() => in_full(&scenario, run, report, &first)?,
        (false, _) => table(&scenario, &runs, (&first, !data.is_empty())),
    })
}

/// Run on another number of data-parallel ranks.
fn with_data_ranks(run: &Run, data: usize) -> Run {
    let layout = ParallelLayout { data, ..run.layout };
    Run { name: format!("{} x {data}", run.name), layout, published: None, ..run.clone() }
}

fn table(scenario: &Scenario, runs: &[(&Run, &StepReport)], (first, is_scaling): (&StepReport, bool)) -> String {
    let machine = &scenario.machine;
    let mut lines = vec![
        format!(
            "{}: {:.0} TFLOP/s a rank at {:.0} %, {} ranks a host",
            machine.name,
            machine.flops / 1e12,
            100.0 * machine.efficiency,
            machine.ranks_per_host
        ),
        String::new(),
        format!(
            "{:<20} {:>6} {:>16} {:>9} {:>7} {:>24} {:>11} {:>8} {:>6}  {}",
            "run",
            "ranks",
            "tensor/pipe/data",
            "step",
            "bubble",
            "exposed: tensor/pipe/data",
            "tokens/s",
            "TFLOP/s",
            "MFU",
            if is_scaling { "of the smallest" } else { "published beside simulated" },
        ),
    ];
    for (run, report) in runs {
        let last = match (is_scaling, run.published) {
            (true, _) => {
                let smallest = runs.first().map_or(report.model_flops, |(_, report)| report.model_flops);
                format!("{:.1} %", 100.0 * report.model_flops / smallest)
            }
            (false, published) => published.map_or(String::new(), |published| beside(published, report, first)),
        };
        lines.push(row(run, report, &last));
    }
    lines.join("\n")
}

fn row(run: &Run, report: &StepReport, last: &str) -> String {
    let ParallelLayout { tensor, pipeline, data, .. } = run.layout;
    let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / report.step);
    let exposed = [report.exposed.tensor, report.exposed.pipeline, report.exposed.data].map(share).join(" / ");
    format!(
        "{:<20} {:>6} {:>16} {:>7.2} s {:>5.1} % {exposed:>25} {:>11.0} {:>8.1} {:>4.0} %  {last}",
        run.name,
        run.layout.ranks(),
        format!("{tensor} x {pipeline} x {data}"),
        report.step,
        100.0 * report.bubble,
        report.tokens_per_second,
        report.model_flops / 1e12,
        100.0 * report.utilisation,
    )
}

/// A published figure beside the simulated one.
fn beside(published: Published, report: &StepReport, first: &StepReport) -> String {
    let simulated = published.of.of(report, first);
    let difference = 100.0 * (simulated / published.value - 1.0);
    format!("{} beside {simulated:.2} {} ({difference:+.0} %)", published.value, published.of.name())
}

fn in_full(scenario: &Scenario, run: &Run, report: &StepReport, first: &StepReport) -> Result<String> {
    let schedule = run.layout.schedule(&run.sizes, &run.name)?;
    let memory = RankMemory::of(&run.sizes, &run.layout, &schedule);
    let line = |name: &str, value: String| format!("  {name:<44} {value:>14}");
    let seconds = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    let bytes = |bytes: f64| size(bytes as u64);
    let sent = &report.communication;
    let mut lines = vec![
        format!("{} on {}", run.name, scenario.machine.name),
        format!("{:.1} million parameters on {}", run.sizes.parameters() / 1e6, fit_report::name(&run.layout)),
        format!(
            "{} sequences of {} tokens a step, in micro-batches of {}",
            run.layout.batch(),
            run.layout.length,
            run.layout.micro_batch
        ),
        String::new(),
        line("step", seconds(report.step)),
        line("optimizer", seconds(report.optimizer)),
        line("bubble of the pipeline", format!("{:.1} %", 100.0 * report.bubble)),
        line("exposed: tensor-parallel all-reduces", seconds(report.exposed.tensor)),
        line("exposed: pipeline messages", seconds(report.exposed.pipeline)),
        line("exposed: data-parallel communication", seconds(report.exposed.data)),
        line("sent by a rank: tensor", bytes(sent.tensor)),
        line("sent by a rank: pipeline", bytes(sent.pipeline)),
        line("sent by a rank: data", bytes(sent.data)),
        line("memory of the fullest rank, by formula", bytes(memory.total())),
        line("tokens/s", format!("{:.0}", report.tokens_per_second)),
        line("sequences/s", format!("{:.2}", report.sequences_per_second)),
        line("TFLOP/s a rank", format!("{:.1}", report.model_flops / 1e12)),
        line("TFLOP/s a rank, with recomputation", format!("{:.1}", report.hardware_flops / 1e12)),
        line("model FLOP/s utilisation", format!("{:.1} %", 100.0 * report.utilisation)),
    ];
    lines.extend(run.published.map(|published| format!("\npublished: {}", beside(published, report, first))));
    Ok(lines.join("\n"))
}

fn object(run: &Run, report: &StepReport, first: &StepReport) -> String {
    json!({
        "name": run.name,
        "ranks": run.layout.ranks(),
        "layout": fit_report::layout_json(&run.layout),
        "step_seconds": report.step,
        "optimizer_seconds": report.optimizer,
        "bubble": report.bubble,
        "exposed_seconds": {
            "tensor": report.exposed.tensor, "pipeline": report.exposed.pipeline, "data": report.exposed.data,
        },
        "sent_bytes": {
            "tensor": report.communication.tensor,
            "pipeline": report.communication.pipeline,
            "data": report.communication.data,
        },
        "tokens_per_s": report.tokens_per_second,
        "sequences_per_s": report.sequences_per_second,
        "model_flops_per_s": report.model_flops,
        "hardware_flops_per_s": report.hardware_flops,
        "utilisation": report.utilisation,
        "published": run.published.map(|published| json!({
            "of": published.of.name(), "published": published.value, "simulated": published.of.of(report, first),
        })),
    })
    .to_string()
}
