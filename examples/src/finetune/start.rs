//! How a run begins: from nothing, from the weights of another one, or where it was cut off.

use super::course::{Judged, Run, unix_seconds};
use super::resume::{At, Choice, RunState, SavedJudged, SavedJudgement, choose, named};
use super::train::{Plan, Trainer};
use bmtrain_dist::ControlGroup;
use bmtrain_dist::checkpoint::Store;
use model_center::recipe::Resolved;
use model_center::run::{CHECKPOINT_DIRECTORY, Earlier, MODEL_DIRECTORY, RECIPE_FILE, ResumeRecord, StartRecord};
use model_center::{Error, Result};

/// What a failure of the run itself weighs, three of which in a row without a new checkpoint are too many; the loss of
/// another rank weighs 1.
pub(super) const OWN_FAILURE: u64 = 3;
const TOO_MANY_FAILURES: u64 = 9;

impl Run {
    /// Start, or go on from a checkpoint: what the run begins with, and its first record.
    ///
    /// # Errors
    /// A checkpoint that cannot be used; what the operating system refuses.
    pub(super) fn start(&mut self, plan: &Plan, trainer: &mut Trainer, threads: usize) -> Result<()> {
        let Plan { options, resolved, job, .. } = plan;
        compare_ranks(plan, &trainer.team)?;
        let own = self.checkpoints.clone();
        // Checking every byte takes longer than ranks wait for each other.
        let chosen = trainer.team.while_first(|| {
            if own.is_dir() {
                Store::open(&own)?.remove_leftovers()?;
            }
            Ok::<_, Error>(choose(&options.resume, &own)?.map(|choice| choice.marked(&own)))
        })?;
        let first = chosen.transpose()?.flatten();
        let text = trainer.team.first_text(&first.as_ref().map(Choice::to_text).unwrap_or_default())?;
        let choice = first.or(Choice::from_text(&text)?);
        self.begun_at = choice.as_ref().map_or(0, |choice| choice.name.step());
        self.check_progress(plan)?;
        if trainer.team.is_first() {
            trainer.progress.note(&job.summary(resolved));
        }
        let Some(choice) = choice else {
            if let Some(at) = &options.init_from {
                take_weights(trainer, at)?;
            }
            self.open_log(resolved, false)?;
            self.log_start(plan, trainer, threads)?;
            return trainer.look_around();
        };
        let state = choice.load(plan, trainer)?;
        // Nothing of the earlier run is touched before all ranks could use the checkpoint.
        trainer.team.gather(&[0.0])?;
        self.best.load_state(&state.best);
        self.check_best(plan, trainer, &choice)?;
        self.open_log(resolved, true)?;
        self.go_on(plan, trainer, &choice, state)?;
        trainer.look_around()
    }

    /// Take the directory for this run, on the first rank: as it is if the run goes on, else without what was in it.
    fn open_log(&mut self, resolved: &Resolved, goes_on: bool) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        if goes_on {
            files.output.take_over()?;
        } else if files.output.earlier() == Earlier::Finished {
            let place = resolved.output.dir.display().to_string();
            let reason = "the run in this directory is finished and left no checkpoint to go on from";
            return Err(Error::recipe(
                place,
                reason,
                "add --overwrite to replace it, or set output.dir to another directory",
            ));
        } else {
            files.output.begin_anew()?;
        }
        files.output.write(RECIPE_FILE, resolved.to_toml().as_bytes())?;
        files.output.subdirectory(CHECKPOINT_DIRECTORY)?;
        files.log = Some(files.output.metrics(&resolved.log.metrics)?);
        Ok(())
    }

    /// A scheduler that runs the same command again and again must be told when that is of no use.
    fn check_progress(&self, plan: &Plan) -> Result<()> {
        let failures = self.files.as_ref().map_or(0, |files| files.output.failures_from(self.begun_at));
        if failures < TOO_MANY_FAILURES || plan.options.accept_change {
            return Ok(());
        }
        Err(Error::NoProgress {
            place: plan.resolved.output.dir.display().to_string(),
            reason: format!("the run failed again and again after it had gone on from step {}", self.begun_at),
            fix: "mend what the records of its end name; then try again with --accept-change".to_owned(),
        })
    }

    fn go_on(&mut self, plan: &Plan, trainer: &mut Trainer, choice: &Choice, state: RunState) -> Result<()> {
        self.before = state.before.map(SavedJudgement::into_judgement).transpose()?;
        self.judged = match state.judged {
            None => None,
            Some(SavedJudged { step, counted, judgement }) => {
                Some(Judged { step, counted, judgement: judgement.into_judgement()? })
            }
        };
        if self.best_is_lost
            && let Some(files) = &mut self.files
        {
            // Another course's weights must not be taken for the best of this one because they are of the same step.
            files.output.forget_model(MODEL_DIRECTORY)?;
        }
        if choice.is_own {
            self.keeper.last_step = Some(trainer.step);
        }
        if !trainer.team.is_first() {
            return Ok(());
        }
        if self.checkpoints.is_dir() {
            // Those of later steps would be taken for the newest when the run is cut off again.
            Store::open(&self.checkpoints)?.remove_later_than(trainer.step)?;
        }
        choice.warn();
        trainer.progress.note(&format!("going on after step {}, from {}", trainer.step, choice.name));
        self.log(&ResumeRecord {
            step: trainer.step,
            checkpoint: choice.name.to_string(),
            passed_over: choice.passed_over.len() as u64,
            changed: plan.changes.clone(),
            unix_seconds: unix_seconds(),
            ranks: trainer.team.size() as u64,
        })
    }

    fn log_start(&mut self, plan: &Plan, trainer: &Trainer, threads: usize) -> Result<()> {
        let Plan { job, resolved, .. } = plan;
        let trainable = trainer.model.parameters().iter().filter(|param| param.is_trainable());
        let (eval_samples, eval_fingerprint) =
            job.eval.as_ref().map_or((0, String::new()), |eval| (eval.len() as u64, eval.fingerprint().to_owned()));
        self.log(&StartRecord {
            recipe_hash: resolved.recipe_hash(),
            version: env!("CARGO_PKG_VERSION").into(),
            parameters: job.parameters as u64,
            trainable: trainable.map(|param| param.spec().shape.elements() as u64).sum(),
            train_samples: job.train.len() as u64,
            train_fingerprint: job.train.fingerprint().into(),
            eval_samples,
            eval_fingerprint,
            steps_per_epoch: trainer.steps_per_epoch,
            unix_seconds: unix_seconds(),
            threads: threads as u64,
            ranks: trainer.team.size() as u64,
        })
    }
}

/// Ranks that train something else, or on other data, must not train together.
fn compare_ranks(plan: &Plan, team: &ControlGroup) -> Result<()> {
    let Plan { resolved, job, .. } = plan;
    let eval = job.eval.as_ref().map_or("none", |eval| eval.fingerprint());
    let own = format!("{}\n{}\n{eval}", resolved.shared_hash(), job.train.fingerprint());
    let all = team.gather_texts(&own)?;
    let Some((rank, other)) = all.iter().enumerate().find(|(_, other)| Some(*other) != all.first()) else {
        return Ok(());
    };
    let parts = all.first().map(|first| first.lines().zip(other.lines())).into_iter().flatten();
    let names = ["settings", "training data", "evaluation data"];
    let what: Vec<&str> = parts.zip(names).filter(|((a, b), _)| a != b).map(|(_, name)| name).collect();
    let reason = format!("it has other {} than rank 0", what.join(", "));
    Err(Error::recipe(format!("rank {rank}"), reason, "start all ranks by the same command on the same files"))
}

/// Begin with the weights of another run.
fn take_weights(trainer: &mut Trainer, at: &At) -> Result<()> {
    let found = trainer.team.while_first(|| named(at))?.transpose()?;
    let said = trainer.team.first_text(&found.as_ref().map(Choice::to_text).unwrap_or_default())?;
    let Some(choice) = found.or(Choice::from_text(&said)?) else {
        return Err(Error::recipe("--init-from", "the first rank found no checkpoint", "see its message"));
    };
    choice.load_weights(trainer)?;
    if trainer.team.is_first() {
        choice.warn();
        trainer.progress.note(&format!("weights of {} from {}", choice.name, at.path.display()));
    }
    Ok(())
}
