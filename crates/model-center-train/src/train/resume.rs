//! Resuming a run: which checkpoint it is resumed from, and the state of the run beside its tensors.
//!
//! Defines [`Resume`], the option, and [`RunState`], stored in the manifest of a checkpoint. Called by a run before its
//! first step.

use super::divergence::{DivergenceGuard, GuardState};
use super::evaluate::EvalResult;
use super::export::{MODEL, SavedModel};
use super::finetune::RunConfig;
use super::resume_rules::{self, Rules};
use super::run_data;
use super::trainer::{Trainer, TrainingProgress};
use crate::{Error, Result};
use bmtrain_dist::checkpoint::{Checkpoint, CheckpointName, MANIFEST_FILE, Newest, Store};
use bmtrain_dist::checkpoint::{TrainingState, load_parameters, restore, restore_without_optimizer_state};
use bmtrain_dist::optim::{Schedule, Scheduler};
use model_center_base::file::read_text;
use model_center_data::metrics::Metric;
use model_center_recipe::run::console;
use model_center_recipe::run::{BestState, CHECKPOINT_DIRECTORY, Exact, RECIPE_FILE};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// A recipe is a few kilobytes.
const MAX_RECIPE_BYTES: u64 = 1 << 20;

/// The member of the manifest's layout that holds the seconds trained: they depend on the clock, so they are no state.
const SECONDS: &str = "train_seconds";

/// The member of the manifest's layout that holds a hash of the best weights' files, which `run.json` records.
pub(super) const BEST_MODEL: &str = "best_model";
/// The member of the manifest's layout that holds the length of the metrics file.
pub(super) const METRICS_BYTES: &str = "metrics_bytes";
/// The member of the manifest's layout that holds the instruction set of a run on processors.
pub(super) const INSTRUCTION_SET: &str = "instruction_set";

/// Which checkpoint a run is resumed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The newest sound checkpoint of its output directory; the run starts anew if there is none.
    Auto,
    /// None: the output directory has to be new.
    Never,
    /// As `Auto`, and a missing checkpoint is an error.
    Must,
    /// A checkpoint of another directory, or an older one.
    From(CheckpointPath),
}

/// A checkpoint on the command line: `PATH` or `PATH@STEP`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointPath {
    /// A checkpoint, a directory of checkpoints, or the directory of a run.
    pub path: PathBuf,
    /// The newest of this step rather than the newest of all.
    pub step: Option<u64>,
}

impl FromStr for CheckpointPath {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text.is_empty() {
            return Err("give the path of a checkpoint or of a run".to_owned());
        }
        let split = text.rsplit_once('@').and_then(|(path, step)| Some((path, step.parse().ok()?)));
        Ok(match split {
            // A directory may have such a name.
            Some((path, step)) if !Path::new(text).exists() => CheckpointPath { path: path.into(), step: Some(step) },
            _ => CheckpointPath { path: text.into(), step: None },
        })
    }
}

impl FromStr for Resume {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Ok(match text {
            "auto" => Resume::Auto,
            "never" => Resume::Never,
            "must" => Resume::Must,
            _ => Resume::From(text.parse()?),
        })
    }
}

/// The state of a run beside its tensors, in the manifest of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunState {
    pub(super) training: TrainingState,
    samples: u64,
    tokens: u64,
    pub(super) best: BestState,
    #[serde(rename = "before")]
    pub(super) eval_before: Option<SavedEval>,
    #[serde(rename = "judged")]
    pub(super) last_eval: Option<SavedLastEval>,
    pub(super) train_data: String,
    pub(super) eval_data: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    guard: Option<GuardState>,
    /// Whether the run began with the weights of another one; earlier versions did not record it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) other_weights: bool,
    /// The learning rate's schedule in force; earlier versions recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) schedule: Option<Schedule>,
}

/// A [`EvalResult`] by names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedEval {
    samples: u64,
    loss: Exact,
    metrics: Vec<(String, Exact)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sets: Vec<(String, Exact)>,
}

/// The last evaluation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedLastEval {
    pub(super) step: u64,
    pub(super) counted: bool,
    #[serde(rename = "judgement")]
    pub(super) result: SavedEval,
}

impl SavedEval {
    pub(super) fn of(result: &EvalResult) -> Self {
        let metrics = result.metrics.iter().map(|(metric, value)| (metric.name().to_owned(), Exact(*value)));
        let sets = result.sets.iter().map(|(name, loss)| (name.clone(), Exact(*loss)));
        SavedEval {
            samples: result.samples,
            loss: Exact(result.loss),
            metrics: metrics.collect(),
            sets: sets.collect(),
        }
    }

    /// The result; `own` are the metrics of the task, a program's own ones among them.
    pub(super) fn into_result(self, own: &[Metric]) -> Result<EvalResult> {
        let of_name = |name: &str| {
            let found = own.iter().find(|metric| metric.name() == name).copied();
            found.map_or_else(|| Metric::parse(name), Ok)
        };
        let metrics = self.metrics.into_iter().map(|(name, value)| Ok((of_name(&name)?, value.0)));
        let sets = self.sets.into_iter().map(|(name, loss)| (name, loss.0)).collect();
        Ok(EvalResult { samples: self.samples, loss: self.loss.0, metrics: metrics.collect::<Result<_>>()?, sets })
    }
}

impl RunState {
    /// The present state.
    pub(super) fn of(
        config: &RunConfig,
        trainer: &Trainer,
        best: BestState,
        eval_before: Option<SavedEval>,
        last_eval: Option<SavedLastEval>,
    ) -> Result<Self> {
        let (train_data, eval_data) = data_of(config);
        let training = TrainingState::of(&trainer.optim, trainer.model.parameters())?;
        let schedule = trainer.optim.parts().find_map(|(_, scheduler)| scheduler).map(Scheduler::schedule).copied();
        Ok(RunState {
            training: match config.resolved.checkpoint.optimizer_state {
                true => training,
                false => training.without_optimizer_state(),
            },
            samples: trainer.progress().samples,
            tokens: trainer.progress().tokens,
            best,
            eval_before,
            last_eval,
            train_data,
            eval_data,
            guard: trainer.guard.as_ref().map(DivergenceGuard::state),
            other_weights: false,
            schedule,
        })
    }

    /// As a manifest holds it.
    pub(super) fn into_map(self) -> Result<Map<String, Value>> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(_) | Err(_) => Err(Error::model("checkpoint", "the state of the run is not valid JSON", "report this")),
        }
    }
}

/// Facts of a manifest that no state depends on: the program, the ZeRO level, the time, the model for an export.
pub(super) fn layout(config: &RunConfig, trainer: &Trainer) -> Map<String, Value> {
    let parallel = &config.resolved.parallel;
    let entries = [
        ("program", Value::from(concat!("finetune ", env!("CARGO_PKG_VERSION")))),
        ("zero", Value::from(parallel.zero as u64)),
        (SECONDS, Value::from(trainer.elapsed().as_secs_f64())),
        (MODEL, SavedModel::of(config).to_value()),
    ];
    let mut layout = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    resume_rules::describe(config, &mut layout);
    layout
}

pub(super) fn data_of(config: &RunConfig) -> (String, String) {
    (config.setup.train.fingerprint().to_owned(), run_data::fingerprint(&config.setup.eval))
}

/// A checkpoint that the first rank chose, which it sends to the others as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    directory: PathBuf,
    pub(super) name: CheckpointName,
    /// Newer ones that were damaged, each with its reason.
    pub(super) passed_over: Vec<String>,
    /// Whether it is one of this run's own, by the first rank's disk.
    pub(super) is_own: bool,
}

/// Choose the checkpoint that `resume` means for a run whose own checkpoints are in `own`. Every byte of it was
/// checked.
pub(super) fn choose(resume: &Resume, own: &Path) -> Result<Option<Choice>> {
    match resume {
        Resume::Never => Ok(None),
        Resume::Auto | Resume::Must => {
            let choice = if own.is_dir() { newest(own, None)? } else { None };
            if choice.is_none() && *resume == Resume::Must {
                let place = own.display().to_string();
                let fix =
                    "leave --resume out to start from the beginning, or set output.dir to the directory of the run";
                return Err(Error::recipe(place, "--resume must: there is no checkpoint to go on from", fix));
            }
            Ok(choice)
        }
        Resume::From(at) => named(at).map(Some),
    }
}

/// The checkpoint that a path on the command line means: itself, the newest in a directory of checkpoints, or of a run.
pub(super) fn named(at: &CheckpointPath) -> Result<Choice> {
    let (path, step) = (at.path.as_path(), at.step);
    if path.join(MANIFEST_FILE).is_file()
        && let Some((directory, name)) = path.parent().zip(path.file_name())
        && let Ok(name) = name.to_string_lossy().parse::<CheckpointName>()
        && step.is_none_or(|step| step == name.step())
    {
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory.to_owned() };
        Store::open(&directory)?.verify(&name)?;
        return Ok(Choice { directory, name, passed_over: Vec::new(), is_own: false });
    }
    let directory = store_directory(path);
    newest(&directory, step)?.ok_or_else(|| {
        let wanted = step.map_or_else(String::new, |step| format!(" of step {step}"));
        let reason = format!("there is no checkpoint{wanted} here");
        Error::recipe(directory.display().to_string(), reason, "look what is there with `bmtrain ckpt ls`")
    })
}

/// The directory of checkpoints that is meant by it or by the directory of a run.
pub fn store_directory(path: &Path) -> PathBuf {
    let inner = path.join(CHECKPOINT_DIRECTORY);
    if inner.is_dir() { inner } else { path.to_owned() }
}

/// The recipe that the run in this directory was begun with; `None` without a run.
pub fn recipe_of(dir: &Path) -> Option<String> {
    read_text(&dir.join(RECIPE_FILE), MAX_RECIPE_BYTES).ok()
}

/// The directory of the run that is meant by itself, by its checkpoints or by one of them.
pub(super) fn run_directory(path: &Path) -> PathBuf {
    let store = if path.join(MANIFEST_FILE).is_file() { path.parent().unwrap_or(path) } else { path };
    let is_inner = store.file_name().is_some_and(|name| name == CHECKPOINT_DIRECTORY);
    let run = if is_inner { store.parent() } else { None };
    run.unwrap_or(store).to_owned()
}

fn newest(directory: &Path, step: Option<u64>) -> Result<Option<Choice>> {
    let store = Store::open(directory)?;
    let (checkpoint, passed_over) = match step {
        None => {
            let Newest { checkpoint, passed_over } = store.newest_verified()?;
            let passed_over: Vec<String> = passed_over.iter().map(ToString::to_string).collect();
            (checkpoint.map(|checkpoint| checkpoint.name().clone()), passed_over)
        }
        Some(step) => {
            let name = store.list()?.into_iter().find(|name| name.step() == step);
            name.iter().try_for_each(|name| store.verify(name).map(drop))?;
            (name, Vec::new())
        }
    };
    match checkpoint {
        Some(name) => Ok(Some(Choice { directory: directory.to_owned(), name, passed_over, is_own: false })),
        None if passed_over.is_empty() => Ok(None),
        None => Err(bmtrain_dist::Error::checkpoint(
            bmtrain_dist::checkpoint::Fault::Damaged,
            directory.display().to_string(),
            format!("none of {} checkpoints can be used: {}", passed_over.len(), passed_over.join("; ")),
            "copy one again from where it is whole, or start from the beginning with --overwrite",
        )
        .into()),
    }
}

/// The warning for a newer checkpoint that is damaged, where an older one is taken.
pub fn passed_over_warning(passed: impl fmt::Display) -> String {
    format!("warning: a damaged checkpoint was passed over: {passed}")
}

impl Choice {
    /// Record whether it is one of the checkpoints in `own`.
    pub(super) fn marked(self, own: &Path) -> Self {
        let same = |a: &Path, b: &Path| Some(a.canonicalize().ok()? == b.canonicalize().ok()?);
        let is_own = same(&self.directory, own).unwrap_or(false);
        Choice { is_own, ..self }
    }

    /// As text for the other ranks.
    pub(super) fn to_text(&self) -> String {
        format!("{}\n{}\n{}", self.is_own, self.name, self.directory.display())
    }

    /// Choice of the first rank; `None` if it chose nothing.
    pub(super) fn from_text(text: &str) -> Result<Option<Self>> {
        let mut parts = text.splitn(3, '\n');
        let (Some(is_own), Some(name), Some(directory)) = (parts.next(), parts.next(), parts.next()) else {
            return Ok(None);
        };
        let name = name.parse().map_err(|_| Error::recipe("resume", "a rank sent no checkpoint", "report this"))?;
        Ok(Some(Choice { directory: directory.into(), name, passed_over: Vec::new(), is_own: is_own == "true" }))
    }

    /// Warn of newer checkpoints that cannot be used.
    pub(super) fn warn(&self) {
        for passed in &self.passed_over {
            console::note(&passed_over_warning(passed));
        }
    }

    fn open(&self) -> Result<Checkpoint> {
        Ok(Store::open(&self.directory)?.checkpoint(&self.name)?)
    }

    /// The directory of the run that saved it.
    pub(super) fn run_directory(&self) -> PathBuf {
        run_directory(&self.directory)
    }

    pub(super) fn place(&self) -> String {
        self.directory.join(self.name.to_string()).display().to_string()
    }

    /// The checkpoint, and the state of the run that saved it.
    pub(super) fn read(&self) -> Result<(Checkpoint, RunState)> {
        let checkpoint = self.open()?;
        let state = serde_json::from_value(Value::Object(checkpoint.manifest().facts.state.clone())).map_err(|e| {
            let reason = format!("this is not a checkpoint of a fine-tuning run: {e}");
            Error::recipe(self.place(), reason, "to start anew from its weights alone, use --init-from")
        })?;
        Ok((checkpoint, state))
    }

    /// Load parameters, optimizer state and progress of what [`Choice::read`] read into the trainer, as these rules
    /// state; returns the state of the run.
    pub(super) fn load(
        &self,
        trainer: &mut Trainer,
        (checkpoint, state): (Checkpoint, RunState),
        rules: &Rules,
    ) -> Result<RunState> {
        let manifest = checkpoint.manifest();
        let restored = if rules.optimizer_state { restore } else { restore_without_optimizer_state };
        restored(&checkpoint, &state.training, trainer.model.parameters(), &mut trainer.optim)?;
        if let Some(schedule) = rules.kept_schedule {
            trainer.optim.parts_mut().filter_map(|(_, scheduler)| scheduler).for_each(|own| own.follow(schedule));
        }
        let seconds = manifest.facts.layout.get(SECONDS).and_then(Value::as_f64).unwrap_or(0.0);
        let earlier = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        let RunState { samples, tokens, guard: watched, .. } = state;
        if let (Some(guard), Some(watched)) = (&mut trainer.guard, watched) {
            guard.load(watched);
        }
        trainer.resume(TrainingProgress { step: manifest.step, samples, tokens }, earlier);
        Ok(state)
    }

    /// Load the weights alone.
    pub(super) fn load_weights(&self, trainer: &mut Trainer) -> Result<()> {
        Ok(load_parameters(&self.open()?, trainer.model.parameters())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_a_keyword_or_a_path_with_a_step() {
        let from = |path: &str, step| Ok(Resume::From(CheckpointPath { path: path.into(), step }));
        assert_eq!("auto".parse(), Ok(Resume::Auto));
        assert_eq!("never".parse(), Ok(Resume::Never));
        assert_eq!("must".parse(), Ok(Resume::Must));
        assert_eq!("runs/first".parse(), from("runs/first", None));
        assert_eq!("runs/first@30".parse(), from("runs/first", Some(30)));
        assert_eq!("runs/a@b".parse(), from("runs/a@b", None));
        assert!("".parse::<Resume>().is_err());
    }

    #[test]
    fn a_choice_comes_back_from_its_text() {
        let choice = Choice {
            directory: "a b/c".into(),
            name: "step-3-00aa11bb".parse().expect("a name"),
            passed_over: Vec::new(),
            is_own: true,
        };
        assert_eq!(Choice::from_text(&choice.to_text()).expect("a text"), Some(choice));
        assert_eq!(Choice::from_text("").expect("a text"), None);
        assert!(Choice::from_text("true\nx\ny").is_err());
    }
}
