//! One or several runs as a report: from files alone, also of a run that crashed.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Report`]: what is read, and the three forms |
//! | `sections.rs` | the ten parts |
//! | `advice.rs` | hints by rules |
//! | `block.rs` | what a part is made of, as Markdown and as HTML |
//! | `html.rs` | the page around the parts, with its charts |

mod advice;
mod block;
mod html;
mod sections;

use super::curves::Curves;
use super::directory::{RunDirectory, RunRecipe, RunState};
use super::index::Index;
use super::repository::Run;
use super::summary::Summary;
use crate::Result;
use block::Section;
use bmtrain_dist::checkpoint::Store;
use model_center_base::file::open_regular;
use model_center_recipe::run::{CHECKPOINT_DIRECTORY, COMMAND_PREFIX, TEXT_LOG_FILE};
use serde_json::{Value, json};
use std::io::Read;

pub(crate) use html::CHART_SCRIPT;

/// The most of a text log that is read.
const MAX_LOG_BYTES: u64 = 4 << 20;

/// Buckets of the charts of a run, for up to three runs; of more, all have a share.
const CHART_BUCKETS: usize = 256;

/// A report of runs; the first is compared with the others.
#[derive(Debug)]
pub struct Report {
    runs: Vec<ReportedRun>,
    sections: Vec<Section>,
}

/// A run in a report.
#[derive(Debug)]
struct ReportedRun {
    name: String,
    path: String,
    recipe: std::sync::Arc<RunRecipe>,
    state: RunState,
    reason: String,
    summary: Summary,
    damaged_lines: u64,
    curves: Curves,
    /// The command of each process, of runs that have a text log.
    commands: Vec<String>,
    checkpoints: Vec<CheckpointRow>,
}

/// A checkpoint of a run.
#[derive(Debug)]
struct CheckpointRow {
    name: String,
    step: u64,
    bytes: Option<u64>,
    state: String,
}

impl Report {
    /// Reads the runs.
    ///
    /// # Errors
    /// As [`Index::update`].
    pub fn of(runs: &[RunDirectory]) -> Result<Report> {
        let buckets = CHART_BUCKETS / runs.len().max(3) * 3;
        let runs = runs.iter().map(|run| ReportedRun::read(run, buckets)).collect::<Result<Vec<_>>>()?;
        let sections = sections::all(&runs);
        Ok(Report { runs, sections })
    }

    /// Names of the runs, for a title.
    fn title(&self) -> String {
        let names: Vec<&str> = self.runs.iter().map(|run| run.name.as_str()).collect();
        names.join(" and ")
    }

    /// A self-contained page: without anything from elsewhere, and below 1 MB for up to three runs.
    pub fn html(&self) -> String {
        html::page(&self.title(), &self.runs, &self.sections)
    }

    /// Report as Markdown, without charts.
    pub fn markdown(&self) -> String {
        let mut out = format!("# Run report: {}\n", block::markdown_text(&self.title()));
        self.sections.iter().for_each(|section| section.markdown(&mut out));
        out
    }

    /// Report as JSON: the parts, and each run's records in short.
    pub fn json(&self) -> Value {
        let run = |run: &ReportedRun| {
            json!({
                "name": run.name, "path": run.path, "tags": run.recipe.tags, "state": run.state, "reason": run.reason,
                "settings": run.recipe.values, "summary": run.summary, "commands": run.commands,
            })
        };
        json!({
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
            "parts": self.sections.iter().map(Section::json).collect::<Vec<_>>(),
        })
    }
}

impl ReportedRun {
    fn read(directory: &RunDirectory, buckets: usize) -> Result<ReportedRun> {
        let index = Index::update(directory)?;
        let run = Run::read(directory.clone())?;
        Ok(ReportedRun {
            name: run.recipe.name.clone(),
            path: directory.path.display().to_string(),
            recipe: run.recipe,
            state: run.state,
            reason: run.reason,
            summary: index.records().clone(),
            damaged_lines: index.damaged_lines(),
            commands: commands(directory),
            checkpoints: checkpoints(directory),
            curves: index.curves.at_most(buckets),
        })
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.recipe.values.get(key).map(String::as_str)
    }
}

/// The commands in a text log.
fn commands(run: &RunDirectory) -> Vec<String> {
    let mut text = Vec::new();
    let Ok((file, _)) = open_regular(&run.path.join(TEXT_LOG_FILE)) else { return Vec::new() };
    if file.take(MAX_LOG_BYTES).read_to_end(&mut text).is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&text);
    let of_line = |line: &str| Some(line.split_once(' ')?.1.strip_prefix(COMMAND_PREFIX)?.to_owned());
    let mut commands: Vec<String> = text.lines().filter_map(of_line).collect();
    commands.dedup();
    commands
}

/// The checkpoints by their manifests; weights are not read.
fn checkpoints(run: &RunDirectory) -> Vec<CheckpointRow> {
    let path = run.path.join(CHECKPOINT_DIRECTORY);
    if !path.is_dir() {
        return Vec::new();
    }
    let reports = Store::open(&path).and_then(|store| store.reports(false)).unwrap_or_default();
    let row = |report: bmtrain_dist::checkpoint::Report| CheckpointRow {
        name: report.name.to_string(),
        step: report.name.step(),
        bytes: report.contents.as_ref().ok().map(|contents| contents.bytes),
        state: match &report.contents {
            Ok(_) => "manifest and sizes verified".to_owned(),
            Err(error) => format!("not usable: {error}"),
        },
    };
    reports.into_iter().map(row).collect()
}
