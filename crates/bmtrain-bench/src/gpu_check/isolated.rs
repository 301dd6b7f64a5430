//! The conformance table with a process for each stem, so that a kernel that takes the device with it, or never ends,
//! costs the rows of its stem alone and is named.

use super::agree::{Found, rows};
use super::report::Report;
use super::{Options, Part};
use bmtrain_core::conformance::Case;
use model_center_base::Result;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Every stem of the rows that are wanted, one after the other.
pub fn conformance(options: &Options, report: &mut Report) -> Result<()> {
    let cases = rows(&options.rows, options.stem.as_deref())?;
    let stems: BTreeSet<&str> = cases.iter().map(Case::stem).collect();
    // Beside the file of the whole run.
    let path = options.json.as_deref().unwrap_or(Path::new("found.json")).with_extension("stem.json");
    let mut all = Found { rows: cases.len(), ..Found::default() };
    for stem in &stems {
        report.say(&format!("conformance: {stem}"));
        let found = match of_stem(options, stem, &path) {
            Ok(found) => found,
            Err(reason) => {
                report.fail(format!("conformance: the process for {stem} left no result: {reason}"));
                continue;
            }
        };
        for failure in found["failures"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            report.fail(format!("{stem}: {failure}"));
        }
        let part = &found["parts"]["conformance"];
        let Some(checks) = part["checks"].as_array() else {
            report.fail(format!("conformance: the process for {stem} did not get through its rows"));
            continue;
        };
        let count = |key: &str| part[key].as_u64().unwrap_or(0);
        all.rows_run += count("rows_run");
        all.passed += count("passed");
        all.failed += count("failed");
        all.unsupported += count("unsupported");
        all.checks.extend(checks.iter().cloned());
    }
    let _ = std::fs::remove_file(&path);
    all.tell(&format!(" in {} processes", stems.len()), report);
    Ok(())
}

/// Results of a process for one stem, as its JSON has them; how it ended, if it left none.
fn of_stem(options: &Options, stem: &str, path: &Path) -> std::result::Result<Value, String> {
    let _ = std::fs::remove_file(path);
    let mut command = options.process_for(Part::Conformance).map_err(|error| error.to_string())?;
    command.args(["--stem", stem, "--rows", &options.rows, "--json"]).arg(path);
    let output = command.output().map_err(|error| error.to_string())?;
    let text = std::fs::read_to_string(path).map_err(|error| {
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        format!("{}, {error}; its last line: {last}", output.status)
    })?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}
