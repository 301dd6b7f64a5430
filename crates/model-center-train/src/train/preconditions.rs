//! Options of a run, and the checks of its output directory before any weights are read.

use super::objective::OwnObjective;
use super::resume::{CheckpointPath, Resume, recipe_of, run_directory};
use super::save;
use crate::{Error, Result};
use bmtrain_dist::checkpoint::{FailPoints, Store};
use model_center_base::error::OutputFault;
use model_center_base::file::{open_regular, printable};
use model_center_formats::ModelCaches;
use model_center_recipe::run::{
    CHECKPOINT_DIRECTORY, Earlier, IfThere, MARKER, OutputDirectory, RECIPE_FILE, StopReason, console,
};
use model_center_recipe::{Resolved, SaveWhich, is_of_schedule};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

/// More than a record of an end has.
const MAX_RECORD_BYTES: u64 = 1 << 16;

/// Options of a run besides its recipe.
#[derive(Debug, Clone)]
pub struct FinetuneOptions {
    /// Which checkpoint to resume from.
    pub resume: Resume,
    /// Start with the weights of this checkpoint, and nothing else of it.
    pub init_from: Option<CheckpointPath>,
    /// Resume although settings that decide the results, or the data, have changed.
    pub accept_change: bool,
    /// Resume with the checkpoint's learning-rate schedule, although the recipe has another one or another length.
    pub keep_schedule: bool,
    /// Resume without the optimizer state of the checkpoint, whether it has one or not.
    pub fresh_optimizer: bool,
    /// Replace an earlier run with the same settings in the output directory; one with others is an error.
    pub overwrite: bool,
    /// Check everything that can be checked without reading weights, and stop.
    pub dry_run: bool,
    /// The option by which users of the program ask for a dry run, such as `--dry-run`, which errors then recommend;
    /// `None` where there is none.
    pub dry_run_option: Option<&'static str>,
    /// Save a checkpoint and stop after this many steps of this process.
    pub exit_after_steps: Option<u64>,
    /// The same after this many minutes since its first step.
    pub exit_after_minutes: Option<f64>,
    /// The same at this time by the clock of any rank.
    pub exit_at: Option<SystemTime>,
    /// Print at the end where the time of the training steps went.
    pub profile: bool,
    /// Failures to inject into saving; only the feature `testing` of `bmtrain-dist` can make any.
    pub fail_points: FailPoints,
    /// What the model is trained for, in place of the loss of the labels.
    pub objective: Option<OwnObjective>,
    /// Where models that are named as on the hub are looked for.
    pub places: ModelCaches,
    /// The command line of the program, for the run's log; empty where there is none.
    pub command: String,
}

impl Default for FinetuneOptions {
    fn default() -> Self {
        FinetuneOptions {
            resume: Resume::Auto,
            init_from: None,
            accept_change: false,
            keep_schedule: false,
            fresh_optimizer: false,
            overwrite: false,
            dry_run: false,
            dry_run_option: None,
            exit_after_steps: None,
            exit_after_minutes: None,
            exit_at: None,
            profile: false,
            fail_points: FailPoints::NONE,
            objective: None,
            places: ModelCaches::default(),
            command: String::new(),
        }
    }
}

impl FinetuneOptions {
    /// Treatment of an earlier run in the output directory.
    pub(super) fn if_there(&self) -> IfThere {
        match self.resume {
            _ if self.overwrite => IfThere::Replace,
            Resume::Never => IfThere::Refuse,
            // Which settings differ is checked key by key, and by the checkpoint.
            _ => IfThere::Continue { accept_change: self.accept_change || self.keep_schedule },
        }
    }
}

/// Check that the output directory is free for this run; settings that differ from the earlier run's are named.
pub(super) fn check_output(resolved: &Resolved, options: &FinetuneOptions, changes: &[String]) -> Result<()> {
    let is_other = |change: &&String| !change.split_once(':').is_some_and(|(key, _)| is_of_schedule(key));
    let others: Vec<&str> = changes.iter().filter(is_other).map(String::as_str).collect();
    if options.keep_schedule && !others.is_empty() {
        let reason =
            format!("--keep-schedule keeps the schedule alone, and other settings differ: {}", others.join(", "));
        let fix = "set them as they were, or write the checkpoint's schedule into the recipe and add --accept-change \
                   in place of --keep-schedule";
        return Err(Error::output(OutputFault::OtherRecipe, resolved.output.dir.display().to_string(), reason, fix));
    }
    let checked = OutputDirectory::check(&resolved.output.dir, &resolved.recipe_hash(), options.if_there());
    checked.map(drop).map_err(|error| match error {
        Error::Output { fault, place, reason, fix } if !changes.is_empty() => {
            // A changed setting may be a mistake, with which no run is to go on.
            let fix = match options.dry_run_option.filter(|_| !options.dry_run) {
                Some(option) => format!("{fix}; {option} checks the changed settings"),
                None => fix,
            };
            Error::Output { fault, place, reason: format!("{reason}: {}", changes.join(", ")), fix }
        }
        Error::Output { fault: OutputFault::OtherRecipe, place, reason, fix } if has_recipe(resolved) => {
            let reason = format!(
                "{reason}; but the settings in {RECIPE_FILE} there are the same: {MARKER} is damaged, or another \
                 version of the program wrote it"
            );
            Error::Output { fault: OutputFault::OtherRecipe, place, reason, fix }
        }
        other => other,
    })
}

/// Settings that decide the results and differ from the run in the output directory; none without a run.
pub(super) fn changes(resolved: &Resolved) -> Vec<String> {
    recipe_of(&resolved.output.dir).and_then(|text| resolved.changes(&text).ok()).unwrap_or_default()
}

/// The recipe with its micro-batch for this number of ranks: the resumed run's, if it resumes one.
pub fn on_ranks(resolved: Resolved, options: &FinetuneOptions, ranks: usize) -> Resolved {
    let begun = begun_recipe(&resolved, options);
    resolved.on_ranks(ranks, begun.as_deref())
}

/// The recipe of the run that is resumed, as it was in force; `None` where none is.
pub(super) fn begun_recipe(resolved: &Resolved, options: &FinetuneOptions) -> Option<String> {
    match &options.resume {
        _ if options.overwrite => None,
        Resume::From(at) => recipe_of(&run_directory(&at.path)),
        _ => recipe_of(&resolved.output.dir),
    }
}

/// Whether the output directory holds a recipe that can be compared with.
fn has_recipe(resolved: &Resolved) -> bool {
    recipe_of(&resolved.output.dir).is_some_and(|text| resolved.changes(&text).is_ok())
}

/// Why a run is not finished although its marker states it: no record of its end, or a checkpoint of a later step. A
/// program that finishes a run records how it ended; before it did, the last record of the metrics was of the end.
fn contradiction(resolved: &Resolved) -> Result<Option<String>> {
    let dir = &resolved.output.dir;
    let ended = match OutputDirectory::ended(dir)? {
        Some(ended) => ended.step,
        None => match last_record(&dir.join(&resolved.log.metrics)) {
            Some(LastRecord { kind, reason, step }) if kind == "end" && is_of_end(&reason) => step,
            Some(LastRecord { kind, reason, step }) if kind == "end" => {
                return Ok(Some(format!(
                    "by its metrics it ended after step {step} with \"{}\"",
                    printable(&reason, 60)
                )));
            }
            _ => return Ok(Some("neither it nor the metrics record an end".to_owned())),
        },
    };
    let checkpoints = dir.join(CHECKPOINT_DIRECTORY);
    let newest = if checkpoints.is_dir() { Store::open(&checkpoints)?.list()?.into_iter().next() } else { None };
    let later = newest.filter(|name| name.step() > ended);
    Ok(later.map(|name| format!("it ended after step {ended}, and {name} is later")))
}

/// Whether a run that ends for this reason is finished.
fn is_of_end(reason: &str) -> bool {
    StopReason::ALL.iter().any(|known| *known != StopReason::Request && known.name() == reason)
}

/// Fields of the last record of a metrics file that are read.
#[derive(Debug, serde::Deserialize)]
struct LastRecord {
    kind: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    step: u64,
}

/// The last record of a metrics file, if there is one.
fn last_record(path: &Path) -> Option<LastRecord> {
    let (mut file, length) = open_regular(path).ok()?;
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_RECORD_BYTES))).ok()?;
    let mut end = Vec::new();
    file.take(MAX_RECORD_BYTES).read_to_end(&mut end).ok()?;
    let line = end.trim_ascii_end().rsplit(|byte| *byte == b'\n').next()?;
    serde_json::from_slice(line).ok()
}

/// Whether the run in the output directory is finished and nothing is to be done. Every rank checks that its models are
/// undamaged, so that all end with the same exit code.
pub(super) fn is_finished(resolved: &Resolved, options: &FinetuneOptions, is_first: bool) -> Result<bool> {
    let IfThere::Continue { .. } = options.if_there() else { return Ok(false) };
    let (dir, asked) = (&resolved.output.dir, matches!(options.resume, Resume::From(_)));
    let earlier = OutputDirectory::check(dir, &resolved.recipe_hash(), options.if_there());
    let mut is_finished =
        !asked && changes(resolved).is_empty() && earlier.is_ok_and(|earlier| earlier == Earlier::Finished);
    if is_finished && let Some(reason) = contradiction(resolved)? {
        is_finished = false;
        if is_first {
            console::note(&format!("warning: {MARKER} states that the run is finished, but {reason}: it goes on"));
        }
    }
    if is_finished && !options.dry_run && resolved.save.which != SaveWhich::None {
        save::check_finished(dir, dir.join(CHECKPOINT_DIRECTORY).is_dir())?;
    }
    if is_finished && is_first {
        let text = "the run in this directory is finished; to train again add --overwrite, or set output.dir to \
                    another directory";
        console::note(&format!("{}: {text}", dir.display()));
    }
    Ok(is_finished)
}
