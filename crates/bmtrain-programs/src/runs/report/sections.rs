//! The ten parts of a report.

use super::block::{Block, Section};
use super::{ReportedRun, advice};
use crate::runs::RunState;
use crate::runs::summary::{EvalSummary, SampleText};
use serde_json::Value;
use std::collections::BTreeSet;

/// The contents of a part of a report.
type Part = fn(&ReportedRun) -> Vec<Block>;

pub(super) fn all(runs: &[ReportedRun]) -> Vec<Section> {
    let parts: [(&'static str, Part); 7] = [
        ("Where time went", time),
        ("Memory", memory),
        ("Data", data),
        ("Events", events),
        ("Quality", quality),
        ("Checkpoints", checkpoints),
        ("Advice", |run| vec![table(&["what", "why", "where to read on"], advice::of(run))]),
    ];
    let mut sections = vec![
        Section { title: "Verdict", blocks: runs.iter().map(verdict).collect() },
        Section { title: "Curves", blocks: curves(runs) },
    ];
    for (title, part) in parts {
        let mut blocks = Vec::new();
        for run in runs {
            if runs.len() > 1 {
                blocks.push(Block::Text(format!("Run {}:", run.name)));
            }
            let own = part(run);
            let is_empty = |block: &Block| matches!(block, Block::Table { rows, .. } if rows.is_empty());
            match own.iter().all(is_empty) {
                true => blocks.push(Block::Text(format!("The run has nothing for this part: {}.", reason(title)))),
                false => blocks.extend(own.into_iter().filter(|block| !is_empty(block))),
            }
        }
        sections.push(Section { title, blocks });
    }
    // Hashes and every setting: the longest part, which few readers begin with.
    sections.push(Section { title: "Reproduce", blocks: reproduce(runs) });
    sections
}

/// Why a part may be empty.
fn reason(title: &str) -> &'static str {
    match title {
        "Where time went" => "no record of a step has times by phase, which this version writes",
        "Memory" | "Data" => "its metrics have no first record",
        "Events" => "its metrics have no record",
        "Quality" => "it was not evaluated and has no sample texts",
        "Checkpoints" => "there is no checkpoint in its directory",
        _ => "no rule found anything",
    }
}

fn table(head: &[&str], rows: Vec<Vec<String>>) -> Block {
    Block::Table { head: head.iter().map(|name| (*name).to_owned()).collect(), rows }
}

fn pairs(rows: Vec<(&str, Option<String>)>) -> Block {
    let rows = rows.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?]));
    table(&["", ""], rows.collect())
}

fn verdict(run: &ReportedRun) -> Block {
    let summary = &run.summary;
    let mut parts = vec![format!("{}: {} steps", run.name, summary.step)];
    match run.state {
        RunState::Running => {}
        RunState::Crashed => parts.push(format!("crashed ({})", run.reason)),
        RunState::Finished | RunState::Stopped => parts.push(format!("ended by {}", run.reason)),
    }
    parts.extend(summary.loss.map(|loss| format!("training loss {loss:.4}")));
    let eval = |name: &str, eval: &Option<EvalSummary>| {
        eval.as_ref().map(|eval| format!("{name} evaluation after step {}: {}", eval.step, eval.text()))
    };
    parts.extend(eval("best", &summary.best_eval).or_else(|| eval("last", &summary.last_eval)));
    parts.push(format!("{} of wall time", duration(summary.seconds)));
    let steps = summary.phases.get("step").copied().unwrap_or(0.0);
    if steps > 0.0 && summary.seconds > 0.0 {
        parts.push(format!("{:.1} % of it in steps", 100.0 * steps / summary.seconds));
    }
    let ranks = started_time(run, "ranks").unwrap_or(1.0);
    parts.push(format!("{} rank hours", decimal(ranks * summary.seconds / 3600.0)));
    parts.push(format!("{} tokens", summary.tokens));
    if summary.skipped > 0 {
        parts.push(format!("{} skipped steps", summary.skipped));
    }
    let spikes = summary.events.iter().filter(|event| event.kind == "spike").count();
    if spikes > 0 {
        parts.push(format!("{spikes} spikes of the loss"));
    }
    Block::Verdict { state: run.state.name(), text: parts.join("; ") }
}

fn reproduce(runs: &[ReportedRun]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for run in runs {
        let text = |name: &str| run.summary.started(name).and_then(Value::as_str).map(str::to_owned);
        let count = |name: &str| run.summary.started(name).and_then(Value::as_u64).map(|count| count.to_string());
        let whole = |name: &str| started_time(run, name).map(|count| format!("{count:.0}"));
        blocks.push(Block::Text(format!("Run {} in {}.", run.name, run.path)));
        match run.commands.is_empty() {
            true => blocks.push(Block::Text("The command is not recorded; recipe.toml has every setting.".to_owned())),
            false => blocks.push(Block::Code(run.commands.join("\n"))),
        }
        blocks.push(pairs(vec![
            ("version", text("version")),
            ("commit of the directory's repository", started_text(run, "commit")),
            ("processor", started_text(run, "processor")),
            ("instruction set", started_text(run, "instruction_set")),
            ("physical cores", whole("cores")),
            ("memory", started_time(run, "memory_bytes").map(|count| bytes(count as u64))),
            ("CUDA device", started_text(run, "cuda")),
            ("recipe hash", text("recipe_hash")),
            ("seed", run.value("train.seed").map(str::to_owned)),
            ("order of gradient sums", run.value("train.gradient_sum").map(str::to_owned)),
            ("parameters", count("parameters")),
            ("trained parameters", count("trainable")),
            ("ranks", whole("ranks")),
            ("threads of a rank", whole("threads")),
            ("training data", text("train_fingerprint")),
            ("evaluation data", text("eval_fingerprint").filter(|text| !text.is_empty())),
        ]));
    }
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.recipe.values.keys()).collect();
    let values =
        |key: &str| -> Vec<String> { runs.iter().map(|run| run.value(key).unwrap_or("not set").to_owned()).collect() };
    let rows = |only_other: bool| -> Vec<Vec<String>> {
        let all = keys.iter().map(|key| (key.as_str(), values(key)));
        let other = |values: &[String]| values.iter().any(|value| Some(value) != values.first());
        let kept = all.filter(|(_, values)| !only_other || other(values));
        kept.map(|(key, values)| [vec![key.to_owned()], values].concat()).collect()
    };
    let head: Vec<&str> = ["setting"].into_iter().chain(names).collect();
    if runs.len() > 1 {
        blocks.push(Block::Text("Settings that differ:".to_owned()));
        blocks.push(table(&head, rows(true)));
    }
    match keys.is_empty() {
        true => blocks.push(Block::Text("There is no readable recipe.toml.".to_owned())),
        false => {
            let text = "Every setting; bmtrain finetune --print-config shows where each comes from:";
            blocks.push(Block::Text(text.to_owned()));
            blocks.push(table(&head, rows(false)));
        }
    }
    blocks
}

fn curves(runs: &[ReportedRun]) -> Vec<Block> {
    let mut rows = Vec::new();
    for run in runs {
        for (tag, series) in run.curves.streams.values().flat_map(|stream| &stream.series) {
            let all = || series.min.iter().chain(&series.max).flatten().copied();
            let shown = |value: Option<f32>| value.map(|value| decimal(f64::from(value))).unwrap_or_default();
            let last = series.last.iter().rev().find_map(|value| *value);
            let first = series.last.iter().find_map(|value| *value);
            let (least, most) = (all().reduce(f32::min), all().reduce(f32::max));
            let values = [first, last, least, most].map(shown);
            rows.push([vec![run.name.clone(), tag.clone()], values.to_vec()].concat());
        }
    }
    if rows.is_empty() {
        return vec![Block::Text("The run has nothing for this part: no step was logged.".to_owned())];
    }
    vec![Block::Charts, table(&["run", "scalar", "first", "last", "least", "most"], rows)]
}

fn time(run: &ReportedRun) -> Vec<Block> {
    let summary = &run.summary;
    let of = |name: &str| summary.phases.get(name).copied().unwrap_or(0.0);
    let step = of("step");
    if step <= 0.0 {
        return Vec::new();
    }
    let known = ["data", "forward", "backward", "pipeline", "optimizer"];
    let mut parts: Vec<(String, f64)> =
        known.iter().map(|name| ((*name).to_owned(), of(name))).filter(|(_, seconds)| *seconds > 0.0).collect();
    let within: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    parts.push(("other in steps".to_owned(), (step - within).max(0.0)));
    parts.push(("saving".to_owned(), of("save")));
    parts.push(("evaluation".to_owned(), summary.eval_seconds));
    let rest = summary.seconds - step - of("save") - summary.eval_seconds;
    parts.push(("start, end and unrecorded".to_owned(), rest.max(0.0)));
    let share =
        summary.peak_share.map(|share| format!("Share of the measured peak at the end: {:.1} %.", 100.0 * share));
    let note = "Seconds as the host sees them. Collectives count where they are waited for; a CUDA device's work \
                counts to the optimizer, where the host waits for it.";
    let shares = Block::Shares { name: "phase".to_owned(), parts };
    [Some(shares), share.map(Block::Text), Some(Block::Text(note.to_owned()))].into_iter().flatten().collect()
}

fn memory(run: &ReportedRun) -> Vec<Block> {
    let summary = &run.summary;
    let mut rows = Vec::new();
    if summary.peak_rss_bytes > 0 {
        rows.push(vec!["peak resident memory of the process".to_owned(), bytes(summary.peak_rss_bytes)]);
    }
    let time = summary.end.as_ref().and_then(|end| end.get("time")).and_then(Value::as_object);
    for (name, value) in time.into_iter().flatten() {
        let name = match name.as_str() {
            "peak_anonymous_bytes" => "the same without mapped files and shared memory".to_owned(),
            name => match name.strip_prefix("pool_").and_then(|name| name.strip_suffix("_bytes")) {
                Some(name) => format!("memory pool: {name}"),
                None => continue,
            },
        };
        rows.extend(value.as_u64().map(|value| vec![name, bytes(value)]));
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let planned = "The planned memory is not recorded: plan with the recipe of the run predicts it.".to_owned();
    vec![table(&["measured", ""], rows), Block::Text(planned)]
}

fn data(run: &ReportedRun) -> Vec<Block> {
    let summary = &run.summary;
    if summary.start.is_none() {
        return Vec::new();
    }
    let count = |name: &str| summary.started(name).and_then(Value::as_u64).map(|count| count.to_string());
    let per_sample = (summary.samples > 0).then(|| summary.tokens as f64 / summary.samples as f64);
    let files: Vec<Vec<String>> = run
        .recipe
        .values
        .iter()
        .filter(|(key, _)| key.starts_with("data."))
        .map(|(key, value)| vec![key.clone(), value.clone()])
        .collect();
    let unknown = "Lengths, truncation and bad records are printed at the start of a run; log.txt has the lines.";
    vec![
        pairs(vec![
            ("training samples", count("train_samples")),
            ("evaluation samples", count("eval_samples").filter(|count| count != "0")),
            ("steps of a pass over the data", count("steps_per_epoch")),
            ("passes done", Some(format!("{:.3}", summary.epoch))),
            ("samples seen", Some(summary.samples.to_string())),
            ("tokens seen, padding not counted", Some(summary.tokens.to_string())),
            ("tokens of a sample in the mean", per_sample.map(|tokens| format!("{tokens:.1}"))),
        ]),
        table(&["setting", "value"], files),
        Block::Text(unknown.to_owned()),
    ]
}

fn events(run: &ReportedRun) -> Vec<Block> {
    let summary = &run.summary;
    let row = |event: &crate::runs::Event| {
        let at = event
            .unix_seconds
            .map(|seconds| model_center_recipe::run::utc(seconds.max(0.0) as u64))
            .unwrap_or_default();
        vec![event.kind.clone(), event.step.to_string(), duration(event.seconds), at, event.text.clone()]
    };
    let mut blocks = vec![table(&["event", "step", "after", "at", ""], summary.events.iter().map(row).collect())];
    if summary.more_events > 0 {
        blocks.push(Block::Text(format!("{} later events are left out.", summary.more_events)));
    }
    if run.damaged_lines > 0 {
        blocks.push(Block::Text(format!("{} lines of the metrics file are no records.", run.damaged_lines)));
    }
    blocks
}

fn quality(run: &ReportedRun) -> Vec<Block> {
    let summary = &run.summary;
    let columns = [
        ("before training", &summary.first_eval),
        ("best", &summary.best_eval),
        ("last", &summary.last_eval),
        ("test sets", &summary.test),
    ];
    let columns: Vec<(String, &EvalSummary)> = columns
        .into_iter()
        .filter_map(|(name, eval)| eval.as_ref().map(|eval| (format!("{name}, step {}", eval.step), eval)))
        .collect();
    let names: BTreeSet<&String> = columns.iter().flat_map(|(_, eval)| eval.metrics.keys()).collect();
    let value =
        |eval: &EvalSummary, name: &str| eval.metrics.get(name).map(|value| decimal(*value)).unwrap_or_default();
    let rows = names.iter().map(|name| {
        let values = columns.iter().map(|(_, eval)| value(eval, name));
        std::iter::once((*name).clone()).chain(values).collect()
    });
    let head: Vec<&str> = ["metric"].into_iter().chain(columns.iter().map(|(name, _)| name.as_str())).collect();
    vec![table(&head, rows.collect()), samples(run)]
}

/// The first and the last completion of each prompt.
fn samples(run: &ReportedRun) -> Block {
    let all = &run.summary.texts;
    let prompts: BTreeSet<&String> = all.iter().map(|sample| &sample.prompt).collect();
    let shown = |sample: &SampleText| format!("after step {}: {}", sample.step, sample.text);
    let row = |prompt: &String| {
        let mut own = all.iter().filter(|sample| sample.prompt == *prompt);
        let first = own.next().map(shown).unwrap_or_default();
        vec![prompt.clone(), first, own.next_back().map(shown).unwrap_or_default()]
    };
    table(&["prompt", "first sample text", "last sample text"], prompts.into_iter().map(row).collect())
}

fn checkpoints(run: &ReportedRun) -> Vec<Block> {
    let rows = run.checkpoints.iter().map(|checkpoint| {
        let size = checkpoint.bytes.map(bytes).unwrap_or_default();
        vec![checkpoint.name.clone(), checkpoint.step.to_string(), size, checkpoint.state.clone()]
    });
    vec![table(&["checkpoint", "step", "size", "state"], rows.collect())]
}

/// A text of the time of the first record.
fn started_text(run: &ReportedRun, name: &str) -> Option<String> {
    run.summary.started("time")?.get(name)?.as_str().map(str::to_owned)
}

/// A number of the time of the first record.
fn started_time(run: &ReportedRun, name: &str) -> Option<f64> {
    run.summary.started("time")?.get(name)?.as_f64()
}

/// Four significant digits.
pub(super) fn decimal(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value == 0.0 => "0".to_owned(),
        _ if !(1e-3..1e7).contains(&size) => format!("{value:.3e}"),
        _ => {
            let digits = (3 - size.log10().floor() as i32).max(0) as usize;
            format!("{value:.digits$}")
        }
    }
}

pub(super) fn bytes(count: u64) -> String {
    let mib = count as f64 / f64::from(1 << 20);
    if mib >= 1024.0 { format!("{:.2} GiB", mib / 1024.0) } else { format!("{mib:.1} MiB") }
}

pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}
