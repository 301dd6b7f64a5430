//! The output of results: figures, one a line, or JSON; log-likelihoods as lines.

use crate::cli::terminal;
use crate::{Error, Result};
use model_center_base::file::write_atomic;
use model_center_train::evaluate::{Detokenizer, PerplexityResult};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Figures of a text and its windows.
pub(super) struct WindowFigures {
    pub(super) count: u64,
    pub(super) length: usize,
    pub(super) overlap: usize,
    pub(super) batch: usize,
}

/// Print the figures of a result by their names.
pub(super) fn figures(result: &impl Serialize, json: bool) -> Result<()> {
    let failed = |error: serde_json::Error| Error::model("result", error.to_string(), "report this");
    let value = serde_json::to_value(result).map_err(failed)?;
    if json {
        return terminal::print(&value.to_string());
    }
    let fields = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let line = |(name, value): (&String, &Value)| {
        let value = match value.as_f64().filter(|_| value.is_f64()) {
            Some(number) => format!("{number:.6}"),
            None => value.to_string().replace('"', ""),
        };
        format!("{:<24} {value}", name.replace('_', " "))
    };
    terminal::print(&fields.map(line).collect::<Vec<_>>().join("\n"))
}

/// Print a perplexity. Counts that differ from the published ones are a warning on standard error too.
pub(super) fn perplexity(
    result: &PerplexityResult,
    windows: &WindowFigures,
    detokenizer: Detokenizer,
    json: bool,
) -> Result<()> {
    if let (Some(reference), Some(false)) = (result.reference, result.agrees_with_reference) {
        terminal::note(&format!(
            "warning: {} has {} tokens in published evaluations, and {} here: figures are not comparable",
            reference.name, reference.tokens, result.tokens
        ));
    }
    let mut value = serde_json::to_value(result).unwrap_or_default();
    let WindowFigures { count, length, overlap, batch } = windows;
    value["windows"] = json!({"count": count, "length": length, "overlap": overlap, "batch": batch});
    value["detokenizer"] = detokenizer.name().into();
    figures(&value, json)
}

/// Write the requests with their results, or print them. Without JSON a summary is printed.
pub(super) fn likelihood(results: Vec<Map<String, Value>>, output: Option<&Path>, json: bool) -> Result<()> {
    let sum: f64 = results.iter().filter_map(|fields| fields["log_likelihood"].as_f64()).sum();
    let greedy = results.iter().filter(|fields| fields["is_greedy"] == true).count();
    let count = results.len();
    let lines: String = results.into_iter().map(|fields| Value::Object(fields).to_string() + "\n").collect();
    match output {
        Some(path) => write_atomic(path, lines.as_bytes())?,
        None => return terminal::print_bytes(lines.as_bytes()).map(drop),
    }
    figures(&json!({"requests": count, "greedy": greedy, "log_likelihood": sum}), json)
}
