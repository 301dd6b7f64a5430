//! The conformance table with a process for each stem, so that a kernel that takes the device with it, or never ends,
//! costs the rows of its stem alone and is named.

use super::Options;
use super::agree::{rows, stem_of};
use super::report::Report;
use model_center::{Error, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Every stem of the rows that are wanted, one after the other.
pub fn conformance(options: &Options, report: &mut Report) -> Result<()> {
    let cases = rows(&options.rows, options.stem.as_deref());
    let stems: BTreeSet<&str> = cases.iter().map(stem_of).collect();
    if stems.is_empty() {
        let (reason, fix) = ("no row of the conformance table contains it", "take a shorter text, such as softmax");
        return Err(Error::argument(format!("--rows {}", options.rows), reason, fix));
    }
    // Beside the file of the whole run.
    let path = options.json.as_deref().unwrap_or(Path::new("found.json")).with_extension("stem.json");
    let mut checks = Vec::new();
    let [mut run, mut passed, mut failed, mut unsupported, mut ended] = [0; 5];
    for stem in &stems {
        report.say(&format!("conformance: {stem}"));
        let found = of_stem(options, stem, &path);
        let part = found.as_ref().ok().map(|found| &found["parts"]["conformance"]).filter(|part| part.is_object());
        let failures = found.as_ref().ok().and_then(|found| found["failures"].as_array());
        for failure in failures.into_iter().flatten().filter_map(Value::as_str) {
            report.fail(format!("{stem}: {failure}"));
        }
        let Some(part) = part else {
            ended += 1;
            let reason = found.as_ref().err().cloned().unwrap_or_else(|| "no result".into());
            report.fail(format!("conformance: the process for {stem} ended without a result: {reason}"));
            continue;
        };
        let count = |key: &str| part[key].as_u64().unwrap_or(0);
        run += count("rows_run");
        passed += count("passed");
        failed += count("failed");
        unsupported += count("unsupported");
        checks.extend(part["checks"].as_array().into_iter().flatten().cloned());
    }
    let _ = std::fs::remove_file(&path);
    let mut figure = format!("{passed} passed, {failed} failed, {unsupported} unsupported");
    if ended > 0 {
        figure += &format!(", {ended} of {} processes without a result", stems.len());
    }
    report.row(format!("conformance, {run} rows in {} processes", stems.len()), figure);
    let counts = json!({
        "rows": cases.len(), "rows_run": run, "passed": passed, "failed": failed, "unsupported": unsupported,
        "processes": stems.len(), "processes_without_result": ended, "checks": checks,
    });
    report.part("conformance", counts);
    Ok(())
}

/// What a process for one stem found, as its JSON has it; how it ended, if it left none.
fn of_stem(options: &Options, stem: &str, path: &Path) -> std::result::Result<Value, String> {
    let _ = std::fs::remove_file(path);
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["--only", "conformance", "--stem", stem, "--rows", &options.rows]);
    command.args(["--device", &options.device.to_string(), "--json"]).arg(path);
    if let Some(limit) = options.part_limit {
        command.args(["--part-limit", &limit.to_string()]);
    }
    let output = command.output().map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(path).map_err(|error| {
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        format!("{}, {error}; its last line: {last}", output.status)
    })?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}
