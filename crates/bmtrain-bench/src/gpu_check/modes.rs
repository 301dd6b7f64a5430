//! Training in other ways than on one rank with all state on the device: offload, a checkpoint, ranks that share the
//! device.

use super::report::Report;
use super::tiny::{self, Job, Offload, Seen};
use super::{Options, Part, Place};
use bmtrain_core::comm::Solo;
use bmtrain_core::comm::host::{HostOptions, HostRank};
use bmtrain_core::{DType, Device};
use bmtrain_dist::shard::ZeroLevel;
use model_center_base::file::write_atomic;
use model_center_base::{Error, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

const STEPS: u32 = 8;
const RANKS: usize = 2;

/// The models: GPT-2 in f32, BERT in bf16.
const JOBS: [Job; 2] = [Job::plain(true, DType::F32, STEPS), Job::plain(false, DType::BF16, STEPS)];

/// All of it. A way that fails does not keep the others from being tried.
pub fn modes(place: &Place, options: &Options, report: &mut Report) -> Result<()> {
    let mut all = Vec::new();
    let ways: [(&str, Way); 2] = [("checkpoint", resumed), ("offload", offloaded)];
    'jobs: for job in JOBS {
        for (way, run) in ways {
            tell(format!("{}, {way}", job.name()), run(place, job), &mut all, report);
            place.note_loss(way, report);
            if report.is_lost() {
                break 'jobs;
            }
        }
    }
    if !report.is_lost() {
        match on_ranks(options) {
            Ok(ranks) => {
                for (job, done) in JOBS.into_iter().zip(ranks) {
                    tell(format!("{}, ZeRO-3 on {RANKS} ranks", job.name()), done, &mut all, report);
                }
            }
            Err(error) => report.fail(format!("modes: {RANKS} ranks on one device: {error}")),
        }
    }
    report.part("modes", json!({ "ways": all }));
    Ok(())
}

/// A figure, or what is wrong.
type Found = Result<std::result::Result<String, String>>;

/// How a model is trained.
type Way = fn(&Place, Job) -> Found;

fn tell(what: String, found: Found, all: &mut Vec<Value>, report: &mut Report) {
    let found = found.unwrap_or_else(|error| Err(error.to_string()));
    all.push(json!({ "way": what, "passed": found.is_ok() }));
    match found {
        Ok(figure) => report.row(what, figure),
        Err(wrong) => report.fail(format!("modes: {what}: {wrong}")),
    }
}

/// A run that goes on from a checkpoint has the bits of one that was not interrupted.
fn resumed(place: &Place, job: Job) -> Found {
    let directory = Directory::new("checkpoint")?;
    let whole = tiny::train(job, &place.device(), Arc::new(Solo))?;
    let resumed = tiny::train_resumed(job, &place.device(), Arc::new(Solo), directory.path())?;
    Ok(if resumed == whole {
        Ok(format!("resumed after {} of {STEPS} steps with the same bits", STEPS / 2))
    } else {
        Err(format!("resumed after {} steps: {resumed:?}; without: {whole:?}", STEPS / 2))
    })
}

/// Optimizer state in the host's memory, then everything there: as on the CPU, and with the same bits.
fn offloaded(place: &Place, job: Job) -> Found {
    let job = Job { level: ZeroLevel::Three, offload: Offload::Optimizer, ..job };
    let expected = tiny::train(job, &Device::cpu(1)?, Arc::new(Solo))?;
    let got = tiny::train(job, &place.device(), Arc::new(Solo))?;
    let everything = tiny::train(Job { offload: Offload::Everything, ..job }, &place.device(), Arc::new(Solo))? == got;
    let (apart, most) = (tiny::distance(&got, &expected), tiny::tolerance(job.dtype));
    Ok(if apart <= most && everything {
        Ok(format!("losses {apart:.1e} of {most:.0e} apart from the CPU's, the same bits with everything offloaded"))
    } else {
        let by_step = tiny::distances(&got, &expected);
        Err(format!("{by_step:?} apart from the CPU's by step; with everything offloaded the same bits: {everything}"))
    })
}

/// ZeRO-3 on ranks that share the device, each a process; they communicate through the host's memory.
fn on_ranks(options: &Options) -> Result<Vec<Found>> {
    let meeting = Directory::new("ranks")?;
    let seen = processes(options, meeting.path())?;
    let mut all = Vec::new();
    for (number, job) in JOBS.into_iter().enumerate() {
        let expected = tiny::train_on_the_cpu(Job { level: ZeroLevel::Three, ..job }, RANKS)?;
        let most = tiny::tolerance(job.dtype);
        let apart = seen
            .iter()
            .zip(&expected)
            .map(|(rank, expected)| rank.get(number).map_or(f32::INFINITY, |seen| tiny::distance(seen, expected)));
        let apart: Vec<f32> = apart.collect();
        all.push(Ok(if apart.iter().all(|apart| *apart <= most) {
            let apart = apart.iter().fold(0.0f32, |worst, apart| worst.max(*apart));
            Ok(format!("losses {apart:.1e} of {most:.0e} apart from the CPU's"))
        } else {
            Err(format!("{apart:?} apart from the CPU's, by rank"))
        }));
    }
    Ok(all)
}

/// Start a process for each rank, and wait for what they saw.
fn processes(options: &Options, meeting: &Path) -> Result<Vec<Vec<Seen>>> {
    const FIX: &str = "run gpu-check --only modes again, and look at the lines of the ranks";
    let failed = |reason: String| Error::data("a rank of gpu-check", reason, FIX);
    let start = |rank: usize| {
        let mut command = options.process_for(Part::Modes).map_err(|error| failed(error.to_string()))?;
        command.args(["--rank", &rank.to_string(), "--meeting"]).arg(meeting).stdout(Stdio::null());
        command.spawn().map_err(|error| failed(error.to_string()))
    };
    let started: Vec<Result<Child>> = (0..RANKS).map(start).collect();
    // Each is waited for, whatever the others did.
    let ended: Vec<Result<()>> = started
        .into_iter()
        .map(|child| {
            let status = child?.wait().map_err(|error| failed(error.to_string()))?;
            if status.success() { Ok(()) } else { Err(failed(status.to_string())) }
        })
        .collect();
    ended.into_iter().collect::<Result<()>>()?;
    let read = |rank| {
        let text = std::fs::read_to_string(file_of(meeting, rank)).map_err(|error| failed(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    };
    (0..RANKS).map(read).collect()
}

/// Work of a process for a rank: train the models, and leave the results in `meeting`.
pub fn rank(place: &Place, rank: usize, meeting: &Path) -> Result<()> {
    let of_job = |(number, job): (usize, &Job)| {
        let ranks =
            HostRank::join(meeting.join(format!("job{number}")).as_path(), rank, RANKS, HostOptions::default())?;
        tiny::train(Job { level: ZeroLevel::Three, ..*job }, &place.device(), Arc::new(ranks))
    };
    let seen = JOBS.iter().enumerate().map(of_job).collect::<Result<Vec<Seen>>>()?;
    write_atomic(&file_of(meeting, rank), json!(seen).to_string().as_bytes())
}

fn file_of(meeting: &Path, rank: usize) -> PathBuf {
    meeting.join(format!("rank{rank}.json"))
}

/// A directory that is removed again.
struct Directory(PathBuf);

impl Directory {
    fn new(what: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("gpu-check-{what}-{}", std::process::id()));
        let fix = "set TMPDIR to a directory that can be written to";
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).map_err(|error| Error::file("create", &path, error, fix))?;
        Ok(Directory(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
