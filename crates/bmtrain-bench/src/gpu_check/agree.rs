//! Whether the device computes what the CPU computes: every row of the conformance table, and tiny models in training.

use super::Place;
use super::report::Report;
use super::tiny::{self, Job};
use bmtrain_core::comm::Solo;
use bmtrain_core::conformance::{self, Case, Outcome, compare};
use bmtrain_core::cuda::Probed;
use bmtrain_core::{Backend, DType, Device};
use model_center_base::{Error, Result};
use serde_json::{Value, json};
use std::sync::Arc;

/// The rows of the table whose name contains a text, of one stem or all.
///
/// # Errors
/// There are none.
pub fn rows(wanted: &str, stem: Option<&str>) -> Result<Vec<Case>> {
    let is_wanted = |case: &Case| case.name.contains(wanted) && stem.is_none_or(|stem| case.stem() == stem);
    let cases: Vec<Case> = conformance::cases().into_iter().filter(is_wanted).collect();
    if cases.is_empty() {
        let (reason, fix) = ("no row of the conformance table contains it", "take a shorter text, such as softmax");
        return Err(Error::argument(format!("--rows {wanted}"), reason, fix));
    }
    Ok(cases)
}

/// Results of rows of the table.
#[derive(Debug, Default)]
pub struct Found {
    /// Rows that were to be run, and rows that were.
    pub rows: usize,
    pub rows_run: u64,
    /// Checks, a dtype of a row each.
    pub passed: u64,
    pub failed: u64,
    pub unsupported: u64,
    pub checks: Vec<Value>,
}

impl Found {
    /// Into the table and the JSON; `beside` ends the name of the line.
    pub fn tell(self, beside: &str, report: &mut Report) {
        let Found { rows, rows_run, passed, failed, unsupported, checks } = self;
        let run = if rows_run < rows as u64 { format!("{rows_run} of {rows}") } else { rows.to_string() };
        let figure = format!("{passed} passed, {failed} failed, {unsupported} unsupported");
        report.row(format!("conformance, {run} rows{beside}"), figure);
        let counts = json!({
            "rows": rows, "rows_run": rows_run, "passed": passed, "failed": failed, "unsupported": unsupported,
            "checks": checks,
        });
        report.part("conformance", counts);
    }
}

/// Every row of [`rows`], in every dtype of the row.
pub fn conformance(place: &Place, (wanted, stem): (&str, Option<&str>), report: &mut Report) -> Result<()> {
    let cases = rows(wanted, stem)?;
    let (reference, tested) = (Device::cpu(place.threads)?, place.device());
    let mut found = conformance::Report::default();
    let mut run = 0;
    'rows: for (index, case) in cases.iter().enumerate() {
        for &dtype in &case.dtypes {
            let compared = compare(&reference, &tested, case, dtype);
            let has_failed = compared.is_err();
            found.note(case, dtype.to_string(), compared);
            if has_failed {
                place.note_loss(&format!("the row {} {dtype}", case.name), report);
            }
            if report.is_lost() {
                break 'rows;
            }
        }
        run += 1;
        if (index + 1).is_multiple_of(50) {
            report.say(&format!("conformance: {} of {} rows", index + 1, cases.len()));
        }
    }
    let failed: Vec<String> = found.failures().map(ToString::to_string).collect();
    let unsupported = found.entries.iter().filter(|entry| matches!(entry.outcome, Outcome::Unsupported(_))).count();
    let passed = found.entries.len() - failed.len() - unsupported;
    for line in &failed {
        report.fail(format!("conformance: {line}"));
    }
    let entry = |entry: &conformance::CaseResult| match &entry.outcome {
        Outcome::Compared(check) => json!({
            "row": entry.case, "dtype": entry.check, "passed": check.passed(), "error": check.error,
            "tolerance": check.tolerance, "part": check.part,
        }),
        Outcome::Unsupported(reason) => json!({ "row": entry.case, "dtype": entry.check, "unsupported": reason }),
        Outcome::Failed(reason) => {
            json!({ "row": entry.case, "dtype": entry.check, "passed": false, "reason": reason })
        }
    };
    let checks = found.entries.iter().map(entry).collect();
    let [passed, failed, unsupported] = [passed, failed.len(), unsupported].map(|count| count as u64);
    Found { rows: cases.len(), rows_run: run, passed, failed, unsupported, checks }.tell("", report);
    Ok(())
}

/// Every instruction that the kernels write as inline assembly.
pub fn intrinsics(place: &Place, report: &mut Report) -> Result<()> {
    let probed = place.backend.probe()?;
    let wrong: Vec<_> = probed.iter().filter_map(|one| Some((one.instruction, one.wrong.as_ref()?))).collect();
    for (instruction, what) in &wrong {
        report.fail(format!("intrinsics: {instruction}: {what}"));
    }
    report.row("intrinsics", format!("{} of {} as the host computes them", probed.len() - wrong.len(), probed.len()));
    let entry = |one: &Probed| json!({ "instruction": one.instruction, "wrong": one.wrong });
    report.part("intrinsics", json!({ "instructions": probed.iter().map(entry).collect::<Vec<_>>() }));
    Ok(())
}

/// Tiny models trained on the device, twice, once more with graphs, and on the CPU.
pub fn training(place: &Place, report: &mut Report) -> Result<()> {
    let steps = place.scale.training_steps;
    let mut runs = Vec::new();
    for (gpt2, dtype) in [(false, DType::F32), (false, DType::BF16), (true, DType::F32), (true, DType::BF16)] {
        let job = Job::plain(gpt2, dtype, steps);
        let name = format!("training, {}", job.name());
        let expected = tiny::train(job, &Device::cpu(1)?, Arc::new(Solo))?;
        let got = tiny::train(job, &place.device(), Arc::new(Solo))?;
        let is_repeated = tiny::train(job, &place.device(), Arc::new(Solo))? == got;
        let with_graphs = Device::new(place.with_graphs()? as Arc<dyn Backend>);
        let is_replayed = tiny::train(job, &with_graphs, Arc::new(Solo))? == got;
        let (apart, most) = (tiny::distance(&got, &expected), tiny::tolerance(dtype));
        // Not a number is above every bound.
        let agrees = apart <= most;
        let learns = tiny::learns(std::slice::from_ref(&got));
        if !agrees || !learns {
            let why = if agrees { "nothing is learned" } else { "the losses are not the CPU's" };
            let steps = tiny::distances(&got, &expected);
            let apart: Vec<String> = steps.iter().map(|apart| format!("{apart:.0e}")).collect();
            let (apart, losses) = (apart.join(" "), &got.losses);
            report.fail(format!("{name}: {why}: by step {apart} apart; {losses:?}, on the CPU {:?}", expected.losses));
        }
        if !is_repeated {
            report.fail(format!("{name}: a second run does not have the bits of the first"));
        }
        if !is_replayed {
            report.fail(format!("{name}: a run with replayed graphs does not have the bits of one without"));
        }
        let bits = |is_same| if is_same { "the same bits" } else { "other bits" };
        let (again, replayed) = (bits(is_repeated), bits(is_replayed));
        let figure = format!(
            "{steps} steps, losses {apart:.1e} of {most:.0e} apart from the CPU's, {again} again, {replayed} with \
             graphs"
        );
        report.row(&name, figure);
        runs.push(json!({
            "model": name, "dtype": dtype.to_string(), "steps": steps,
            "passed": agrees && learns && is_repeated && is_replayed,
            "same_bits": is_repeated, "same_bits_with_graphs": is_replayed, "apart": apart,
            "apart_by_step": tiny::distances(&got, &expected), "tolerance": most, "losses": got.losses,
            "cpu_losses": expected.losses,
        }));
    }
    report.part("training", json!({ "runs": runs }));
    Ok(())
}
