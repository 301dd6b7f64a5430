//! The ckpt program: list, verify, digest, reshard and export the checkpoints of a run.

use crate::cli::opened::Stored;
use crate::cli::{program, terminal};
use crate::convert::Layout;
use bmtrain_dist::checkpoint::{Checkpoint, CheckpointName, Fault, MANIFEST_FILE, Store, reshard};
use clap::{Parser, Subcommand};
use model_center_base::file::printable;
use model_center_base::{Error, Result};
use model_center_models::Registry;
use model_center_recipe::run::ExitStatus;
use model_center_train::{CheckpointPath, ExportOptions, export, passed_over_warning, store_directory};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prefix of the id of a reshard, before the number of its process.
const RESHARD: &str = "reshard-";

/// Look at the checkpoints of a run, and export them.
///
/// DIR is the directory of a run, a directory of checkpoints, or one checkpoint; DIR@STEP names one of many.
///
/// Example: bmtrain ckpt ls runs/first
#[derive(Debug, Parser)]
#[command(name = "ckpt", version)]
pub struct Options {
    /// Task of the program.
    #[command(subcommand)]
    pub task: Task,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to do with checkpoints.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// List them, newest first; manifests and sizes are checked.
    Ls {
        /// Where they are.
        dir: String,
    },
    /// Check every byte of each, or of one; exit 4 if any is damaged.
    Verify {
        /// Where they are.
        dir: String,
    },
    /// Print one hash of all tensors and state, which does not depend on how many ranks saved them; of the newest or of
    /// one.
    Digest {
        /// Where it is.
        dir: String,
        /// Also a line for tensors and state each.
        #[arg(long)]
        parts: bool,
    },
    /// Write a checkpoint again as the files of another number of ranks. Resuming needs no such thing: any number of
    /// ranks, with any numbers of data-parallel and tensor-parallel ranks among them and at any ZeRO level, reads any
    /// checkpoint. It is for storage where few or many files are better.
    Reshard {
        /// The newest here, or one.
        from: String,
        /// The directory of checkpoints to write to; made if it is not there.
        to: PathBuf,
        /// Number of files.
        #[arg(long, value_name = "N")]
        ranks: usize,
    },
    /// Write a checkpoint as a complete model directory, which transformers and the other programs here open: what the
    /// run would write if it ended there. Whichever ranks saved it, one process exports it, one parameter at a time.
    Export {
        /// The newest here, or one.
        from: String,
        /// The directory to write. It must be empty or not exist yet.
        to: PathBuf,
        /// The directory of the model that the run began with, if it is no longer where it was: the configuration and
        /// the tokenizer come from it.
        #[arg(long, value_name = "DIR")]
        model: Option<PathBuf>,
        /// Dtype of the weights; by default the one of the run, save.dtype.
        #[arg(long, value_enum, value_name = "TYPE")]
        dtype: Option<Stored>,
        /// Whose files are written.
        #[arg(long, value_enum, default_value = "hugging-face")]
        layout: Layout,
    },
}

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, |options, registry| run(options, registry))
}

/// Run the program.
pub fn run(options: &Options, registry: Registry<'_>) -> Result<ExitStatus> {
    match &options.task {
        Task::Ls { dir } => list(dir, false, options.json),
        Task::Verify { dir } => list(dir, true, options.json),
        Task::Digest { dir, parts } => digest(dir, *parts, options.json),
        Task::Reshard { from, to, ranks } => {
            let checkpoint = one(from)?;
            let store = Store::create(to)?;
            store.remove_leftovers_of(is_of_ended_process)?;
            let committed = reshard(&checkpoint, &store, *ranks, &format!("{RESHARD}{}", std::process::id()))?;
            let path = to.join(committed.name.to_string()).display().to_string();
            let record = json!({"checkpoint": path, "files": ranks, "bytes": committed.bytes});
            show(options.json, &record, &format!("{path}: {ranks} files, {:.1} MiB", mib(committed.bytes)))
        }
        Task::Export { from, to, model, dtype, layout } => {
            let checkpoint = one(from)?;
            let asked = ExportOptions {
                model: model.as_deref(),
                dtype: dtype.map(Stored::dtype),
                layout: layout.directory_layout(),
            };
            let written = export(&checkpoint, to, asked, registry)?;
            let (name, path) = (checkpoint.name().to_string(), written.directory.display().to_string());
            let record = json!({
                "checkpoint": name,
                "step": checkpoint.manifest().step,
                "model": path,
                "parameters": written.parameters,
                "values": written.values,
                "dtype": written.dtype.name(),
            });
            for field in &written.left_out {
                terminal::note(&format!("warning: config.json has no place for {}", printable(field, 200)));
            }
            let (parameters, values) = (written.parameters, written.values);
            let text = format!("{path}: {parameters} parameters of {values} values as {}, of {name}", written.dtype);
            show(options.json, &record, &text)
        }
    }
}

fn list(dir: &str, verify: bool, as_json: bool) -> Result<ExitStatus> {
    let (store, wanted) = find(dir)?;
    let mut reports = store.reports(verify && wanted.is_none())?;
    if let Some(wanted) = &wanted {
        reports.retain(|report| report.name == *wanted);
        if verify {
            store.verify(wanted)?;
            reports.iter_mut().for_each(|report| report.verified = true);
        }
    }
    if reports.is_empty() {
        return Err(nothing(dir));
    }
    let mut lines = Vec::new();
    let mut records = Vec::new();
    let mut damaged = None;
    for report in reports {
        lines.push(report.to_string());
        let mut record = json!({"checkpoint": report.name.to_string(), "step": report.name.step()});
        match report.contents {
            Ok(contents) => {
                record["files"] = json!(contents.files);
                record["tensors"] = json!(contents.tensors);
                record["bytes"] = json!(contents.bytes);
                record["verified"] = json!(report.verified);
            }
            Err(error) => {
                record["error"] = json!(error.to_string());
                damaged = damaged.or(Some(error));
            }
        }
        records.push(record);
    }
    show(as_json, &Value::Array(records), &lines.join("\n"))?;
    // Only --verify reports damage by the exit code.
    damaged.filter(|_| verify).map_or(Ok(ExitStatus::Done), |error| Err(error.into()))
}

fn digest(dir: &str, parts: bool, as_json: bool) -> Result<ExitStatus> {
    let checkpoint = one(dir)?;
    let digest = checkpoint.digest()?;
    let mut text = format!("{digest}  {}", checkpoint.name());
    if parts {
        text += &format!("\n{}  tensors\n{}  state", digest.tensors, digest.state);
    }
    let record = json!({
        "checkpoint": checkpoint.name().to_string(),
        "digest": digest.to_string(),
        "tensors": digest.tensors.to_string(),
        "state": digest.state.to_string(),
    });
    show(as_json, &record, &text)
}

/// The checkpoint that is meant: the one that is named, or the newest that verifies.
fn one(dir: &str) -> Result<Checkpoint> {
    let (store, wanted) = find(dir)?;
    if let Some(name) = wanted {
        return Ok(store.checkpoint(&name)?);
    }
    let newest = store.newest_verified()?;
    if newest.checkpoint.is_some() {
        newest.passed_over.iter().for_each(|passed| terminal::note(&passed_over_warning(passed)));
    }
    match (newest.checkpoint, newest.passed_over.into_iter().next()) {
        (Some(checkpoint), _) => Ok(checkpoint),
        (None, Some(passed)) => Err(passed.reason.into()),
        (None, None) => Err(nothing(dir)),
    }
}

/// The directory of checkpoints, and the one in it that is named.
fn find(text: &str) -> Result<(Store, Option<CheckpointName>)> {
    let CheckpointPath { path, step } =
        text.parse().map_err(|reason: String| Error::argument("DIR", reason, "see bmtrain ckpt --help"))?;
    let path = path.as_path();
    let name = path.file_name().and_then(|name| name.to_string_lossy().parse::<CheckpointName>().ok());
    if let Some(name) = name.filter(|_| step.is_none() && path.join(MANIFEST_FILE).exists()) {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return Ok((Store::open(directory)?, Some(name)));
    }
    let store = Store::open(&store_directory(path))?;
    let Some(step) = step else { return Ok((store, None)) };
    match store.list()?.into_iter().find(|name| name.step() == step) {
        Some(name) => Ok((store, Some(name))),
        None => Err(nothing(text)),
    }
}

/// Whether an id is of a call of this program whose process has ended, on this host.
fn is_of_ended_process(id: &str) -> bool {
    let process = id.strip_prefix(RESHARD).and_then(|process| process.parse::<u32>().ok());
    process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists())
}

fn nothing(dir: &str) -> Error {
    let fix = "give the directory of a run, of its checkpoints, or of one of them";
    bmtrain_dist::Error::checkpoint(Fault::Missing, dir, "there is no checkpoint here", fix).into()
}

fn show(as_json: bool, record: &Value, text: &str) -> Result<ExitStatus> {
    terminal::print(&if as_json { record.to_string() } else { text.to_owned() })?;
    Ok(ExitStatus::Done)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
