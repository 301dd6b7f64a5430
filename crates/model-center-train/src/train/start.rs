//! The start of a run: from the model directory's weights, from a checkpoint's, or resumed.

use super::beside::{BESIDE, BesideChange};
use super::finetune::RunConfig;
use super::peak::model_flops;
use super::preconditions::changes;
use super::resume::{
    BEST_MODEL, CheckpointPath, Choice, INSTRUCTION_SET, METRICS_BYTES, RunState, SavedLastEval, choose, named,
};
use super::resume_rules::Rules;
use super::run::{LastEval, Run, unix_seconds};
use super::run_data;
use super::trainer::Trainer;
use crate::{Error, Result};
use bmtrain_core::cpu::InstructionSet;
use bmtrain_dist::ControlGroup;
use bmtrain_dist::checkpoint::Store;
use model_center_base::error::OutputFault;
use model_center_recipe::run::{
    CHECKPOINT_DIRECTORY, COMMAND_PREFIX, Earlier, EventLog, MODEL_DIRECTORY, Machine, OTHER_OR_REMOVE, RECIPE_FILE,
    ResumeRecord, StartRecord, TENSORBOARD_DIRECTORY, commit_of,
};
use serde_json::{Map, Value};

/// The weight of a failure of the run itself: three without a new checkpoint are too many. Another rank's failure
/// weighs 1.
pub(super) const OWN_FAILURE: u64 = 3;
const TOO_MANY_FAILURES: u64 = 9;

impl Run<'_> {
    /// Start, or go on from a checkpoint: what the run begins with, and its first record.
    ///
    /// # Errors
    /// A checkpoint that cannot be used; what the operating system refuses.
    pub(super) fn start(&mut self, trainer: &mut Trainer, (threads, machine): (usize, Machine)) -> Result<()> {
        let RunConfig { options, resolved, setup, .. } = self.config;
        let own = self.checkpoints.clone();
        // Checking every byte takes longer than ranks wait for each other.
        let chosen = trainer.ranks.while_first(|| {
            if own.is_dir() {
                Store::open(&own)?.remove_leftovers()?;
            }
            Ok::<_, Error>(choose(&options.resume, &own)?.map(|choice| choice.marked(&own)))
        })?;
        let first = chosen.transpose()?.flatten();
        let text = trainer.ranks.first_text(&first.as_ref().map(Choice::to_text).unwrap_or_default())?;
        let choice = first.or(Choice::from_text(&text)?);
        self.start_step = choice.as_ref().map_or(0, |choice| choice.name.step());
        self.check_progress()?;
        if trainer.ranks.is_first() {
            let mut lines = vec![setup.summary(resolved)];
            if let Some(flops) = model_flops(self.config) {
                let formula = "3 x (2 x matrices of blocks and head + 4 N H S of the attention of each block)";
                lines.push(format!("model FLOPs of a token: {flops:.4e}, {formula}"));
            }
            lines.iter().for_each(|line| self.display.note(line));
            self.first_notes.extend(lines);
        }
        let Some(choice) = choice else {
            if let Some(at) = &options.init_from {
                self.load_weights(trainer, at)?;
            }
            self.other_weights = options.init_from.is_some();
            self.prepare_reference(trainer, (None, true))?;
            self.open_log(false)?;
            self.keep_reference(trainer)?;
            self.log_start(trainer, threads, machine)?;
            self.decision = trainer.agree()?;
            return Ok(());
        };
        let saved = choice.read()?;
        let rules = Rules::of(self.config, &choice.place(), saved.0.manifest(), &saved.1)?;
        let layout = saved.0.manifest().facts.layout.clone();
        let changed = self.compare_beside(&choice, &layout)?;
        self.other_weights = options.init_from.is_some() || saved.1.other_weights;
        let begins = choice.name.step() == 0;
        let writes_hashes = layout.contains_key(BESIDE);
        if !begins {
            self.prepare_reference(trainer, (Some(&choice), writes_hashes))?;
        }
        let state = choice.load(trainer, saved, &rules)?;
        // The weights of step 0 are those that training begins with, wherever they are from.
        if begins {
            self.prepare_reference(trainer, (Some(&choice), writes_hashes))?;
        }
        // Nothing of the earlier run is touched before all ranks could use the checkpoint.
        trainer.ranks.gather(&[0.0])?;
        self.best.load_state(&state.best);
        self.check_best(trainer, &choice, layout.get(BEST_MODEL).and_then(Value::as_str))?;
        let notes = [self.missing_metrics(&choice, &layout), self.other_instruction_set(&choice, &layout)];
        self.open_log(true)?;
        self.keep_reference(trainer)?;
        notes.into_iter().for_each(|note| self.note(note));
        self.resume(trainer, (&choice, &changed), state, &rules)?;
        self.decision = trainer.agree()?;
        Ok(())
    }

    /// Take the directory for this run, on the first rank: as it is if the run goes on, else without what was in it.
    fn open_log(&mut self, is_resumed: bool) -> Result<()> {
        let resolved = self.recipe;
        let Some(files) = &mut self.files else { return Ok(()) };
        if is_resumed {
            files.output.take_over()?;
        } else if files.output.earlier() == Earlier::Finished {
            let place = resolved.output.dir.display().to_string();
            let reason = "the run in this directory is finished and left no checkpoint to go on from";
            // Accepted changes do not let another recipe replace it.
            let fix = match changes(resolved).is_empty() {
                true => "add --overwrite to replace it, or set output.dir to another directory",
                false => OTHER_OR_REMOVE,
            };
            return Err(Error::output(OutputFault::InUse, place, reason, fix));
        } else {
            files.output.begin_anew()?;
        }
        files.output.write(RECIPE_FILE, resolved.to_toml().as_bytes())?;
        files.output.subdirectory(CHECKPOINT_DIRECTORY)?;
        files.log = Some(files.output.metrics(&resolved.log.metrics)?);
        if resolved.log.tensorboard {
            let directory = files.output.subdirectory(TENSORBOARD_DIRECTORY)?;
            files.events = Some(EventLog::create(&directory, unix_seconds(), &resolved.values(), &resolved.to_toml())?);
        }
        self.display.copy_to(files.output.text_log()?);
        if !self.config.options.command.is_empty() {
            self.display.log(&format!("{COMMAND_PREFIX}{}", self.config.options.command));
        }
        // They were shown before the directory was this run's.
        self.first_notes.iter().for_each(|line| self.display.log(line));
        Ok(())
    }

    /// Refuse a run that failed repeatedly from this step: a scheduler that restarts it would do so forever.
    fn check_progress(&self) -> Result<()> {
        let failures = self.files.as_ref().map_or(0, |files| files.output.failures_from(self.start_step));
        if failures < TOO_MANY_FAILURES || self.config.options.accept_change {
            return Ok(());
        }
        Err(Error::NoProgress {
            place: self.config.resolved.output.dir.display().to_string(),
            reason: format!("the run failed again and again after it had gone on from step {}", self.start_step),
            fix: "mend what the records of its end name; then try again with --accept-change".to_owned(),
        })
    }

    /// Show a line before the log of the run is open, and keep it for that.
    pub(super) fn note_first(&mut self, note: String) {
        if self.files.is_some() {
            self.display.note(&note);
            self.first_notes.push(note);
        }
    }

    /// Changes of what the run reads beside the checkpoint; a line for each, where that is accepted.
    ///
    /// # Errors
    /// A change that is not accepted.
    fn compare_beside(&mut self, choice: &Choice, layout: &Map<String, Value>) -> Result<Vec<String>> {
        let Some(changes) = self.beside.changes(layout) else {
            let note = "the checkpoint is of an earlier version, which recorded no hashes of the files beside it: \
                        whether model, tokenizer and test data are what they were is not known";
            self.note_first(note.to_owned());
            return Ok(Vec::new());
        };
        let fix = "bring it back as it was, or add --accept-change to go on with what is there now";
        match BesideChange::refusal(&changes, &choice.name.to_string(), fix) {
            Some(error) if !self.config.options.accept_change => Err(error),
            _ => Ok(changes.iter().map(BesideChange::line).collect()),
        }
    }

    /// A line where the metrics file lacks records that it had when the run's own checkpoint was saved.
    fn missing_metrics(&self, choice: &Choice, layout: &Map<String, Value>) -> Option<String> {
        let files = self.files.as_ref().filter(|_| choice.is_own)?;
        let then = layout.get(METRICS_BYTES)?.as_u64()?;
        let path = files.output.path().join(&self.config.resolved.log.metrics);
        let what = match std::fs::metadata(&path) {
            Ok(found) if found.len() >= then => return None,
            Ok(found) => format!("has {} bytes, and had {then}", found.len()),
            Err(_) => format!("is missing, and had {then} bytes"),
        };
        let (path, name) = (path.display(), &choice.name);
        Some(format!("warning: {path} {what} when {name} was saved: records of earlier steps are lost"))
    }

    /// A line where the checkpoint is of another instruction set, whose results have other last digits.
    fn other_instruction_set(&self, choice: &Choice, layout: &Map<String, Value>) -> Option<String> {
        let (then, now) = (layout.get(INSTRUCTION_SET)?.as_str()?, self.instruction_set.as_deref()?);
        (then != now).then(|| {
            format!(
                "warning: {} was computed with {then}, and this run computes with {now}: the last digits of sums \
                 differ; BMTRAIN_CPU={then} keeps them",
                choice.name
            )
        })
    }

    fn resume(
        &mut self,
        trainer: &Trainer,
        (choice, changed): (&Choice, &[String]),
        state: RunState,
        rules: &Rules,
    ) -> Result<()> {
        let own = self.config.resolved.data.source.task().metrics().unwrap_or_default();
        self.eval_before = state.eval_before.map(|saved| saved.into_result(own)).transpose()?;
        self.last_eval = match state.last_eval {
            None => None,
            Some(SavedLastEval { step, counted, result }) => {
                Some(LastEval { step, counted, result: result.into_result(own)? })
            }
        };
        if self.best_is_lost
            && let Some(files) = &mut self.files
        {
            // Weights of the same step of another course must not pass for the best of this one.
            files.output.forget_model(MODEL_DIRECTORY)?;
        }
        if choice.is_own {
            self.checkpointer.resumed_from(trainer.steps());
        }
        if !trainer.ranks.is_first() {
            return Ok(());
        }
        if self.checkpoints.is_dir() {
            // Checkpoints of later steps would count as the newest when the run is interrupted again.
            Store::open(&self.checkpoints)?.remove_later_than(trainer.steps())?;
        }
        choice.warn();
        self.display.note(&format!("going on after step {}, from {}", trainer.steps(), choice.name));
        rules.notes().iter().for_each(|note| self.display.note(note));
        changed.iter().for_each(|line| self.display.note(&format!("warning: another file than before: {line}")));
        self.log(&ResumeRecord {
            step: trainer.steps(),
            checkpoint: choice.name.to_string(),
            passed_over: choice.passed_over.len() as u64,
            changed: self.config.changes.iter().chain(changed).cloned().collect(),
            fresh_optimizer: !rules.optimizer_state,
            kept_schedule: rules.kept_schedule.is_some(),
            unix_seconds: unix_seconds(),
            ranks: trainer.ranks.size() as u64,
            instruction_set: self.instruction_set.clone(),
        })
    }

    fn log_start(&mut self, trainer: &Trainer, threads: usize, machine: Machine) -> Result<()> {
        let RunConfig { setup, resolved, .. } = self.config;
        let trainable = trainer.model.parameters().declared().iter().filter(|param| param.is_trainable());
        let (eval_samples, eval_fingerprint) = (run_data::samples(&setup.eval), run_data::fingerprint(&setup.eval));
        self.log(&StartRecord {
            recipe_hash: resolved.recipe_hash(),
            version: env!("CARGO_PKG_VERSION").into(),
            parameters: setup.parameters as u64,
            trainable: trainable.map(|param| param.spec().shape.elements() as u64).sum(),
            train_samples: setup.train.len(),
            train_fingerprint: setup.train.fingerprint().into(),
            eval_samples,
            eval_fingerprint,
            steps_per_epoch: setup.steps_per_epoch,
            unix_seconds: unix_seconds(),
            threads: threads as u64,
            ranks: trainer.ranks.size() as u64,
            machine,
            commit: commit_of(&resolved.output.dir),
        })
    }

    /// Load the weights of another run.
    fn load_weights(&mut self, trainer: &mut Trainer, at: &CheckpointPath) -> Result<()> {
        let found = trainer.ranks.while_first(|| named(at))?.transpose()?;
        let text = trainer.ranks.first_text(&found.as_ref().map(Choice::to_text).unwrap_or_default())?;
        let Some(choice) = found.or(Choice::from_text(&text)?) else {
            return Err(Error::recipe("--init-from", "the first rank found no checkpoint", "see its message"));
        };
        choice.load_weights(trainer)?;
        if trainer.ranks.is_first() {
            choice.warn();
            self.display.note(&format!("weights of {} from {}", choice.name, at.path.display()));
        }
        Ok(())
    }
}

/// Ranks that train something else, or on other data, must not train together. Called before they are divided into
/// groups, which ranks of other layouts would do in other ways.
pub(super) fn compare_ranks(config: &RunConfig, ranks: &ControlGroup) -> Result<()> {
    let RunConfig { resolved, setup, .. } = config;
    let eval = run_data::fingerprint(&setup.eval);
    // All ranks take part in the generation of samples.
    let samples =
        blake3::hash(format!("{:?}", (&resolved.log.samples, resolved.log.sample_tokens)).as_bytes()).to_hex();
    let own = format!("{}\n{}\n{eval}\n{samples}", resolved.shared_hash(), setup.train.fingerprint());
    let Some(Other { rank, text, all }) = other_than_first(ranks, &own)? else { return Ok(()) };
    let parts = all.first().map(|first| first.lines().zip(text.lines())).into_iter().flatten();
    let names = ["settings", "training data", "evaluation data", "prompts of log.samples"];
    let what: Vec<&str> = parts.zip(names).filter(|((a, b), _)| a != b).map(|(_, name)| name).collect();
    let reason = format!("it has other {} than rank 0", what.join(", "));
    Err(Error::recipe(format!("rank {rank}"), reason, "start all ranks by the same command on the same files"))
}

/// The first rank whose text is not rank 0's.
struct Other {
    rank: usize,
    text: String,
    /// The texts of all ranks.
    all: Vec<String>,
}

/// Compare a text of every rank, `None` if all are the same.
fn other_than_first(ranks: &ControlGroup, own: &str) -> Result<Option<Other>> {
    let all = ranks.gather_texts(own)?;
    let Some(rank) = all.iter().position(|text| Some(text) != all.first()) else { return Ok(None) };
    // A rank that ends stops the others, so that one which has not read all texts by then would report that instead.
    let _ = ranks.gather_texts("");
    Ok(Some(Other { rank, text: all[rank].clone(), all }))
}

/// Ranks that hold the same values must compute the same bits: refuses ranks on processors with several instruction
/// sets, `None` on a CUDA device.
pub(super) fn compare_instruction_sets(ranks: &ControlGroup, own: Option<InstructionSet>) -> Result<()> {
    let Some(Other { rank, text, all }) = other_than_first(ranks, own.map_or("", InstructionSet::name))? else {
        return Ok(());
    };
    // The sets of all ranks, the one that needs least first.
    let sets = InstructionSet::ALL.into_iter().map(InstructionSet::name).filter(|set| all.iter().any(|x| x == set));
    let sets: Vec<&str> = sets.collect();
    let first = all.first().map_or("", String::as_str);
    let shown = |set: &str| if set.is_empty() { "on a CUDA device".to_owned() } else { format!("with {set}") };
    let reason = format!(
        "it computes {} and rank 0 {}, whose results have other last digits: ranks would drift apart",
        shown(&text),
        shown(first)
    );
    let fix = format!("set BMTRAIN_CPU={} for all ranks", sets.first().copied().unwrap_or("portable"));
    Err(Error::recipe(format!("rank {rank}"), reason, fix))
}
