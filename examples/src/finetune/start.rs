//! How a run begins: from nothing, from the weights of another one, or where it was cut off.

use super::course::{Judged, Run, unix_seconds};
use super::resume::{Choice, SavedJudged, SavedJudgement, choose, named};
use super::train::{Plan, Trainer};
use crate::terminal;
use bmtrain_dist::checkpoint::Store;
use model_center::recipe::SaveWhich;
use model_center::run::{CHECKPOINT_FOLDER, RECIPE_FILE, ResumeRecord, StartRecord};
use model_center::{Error, Result};

/// Failures in a row without a new checkpoint after which nothing is tried any more.
const MOST_FAILURES: u64 = 3;

impl Run {
    /// Start, or go on from a checkpoint: what the run begins with, and its first record.
    ///
    /// # Errors
    /// A checkpoint that cannot be used; what the operating system refuses.
    pub(super) fn start(&mut self, plan: &Plan, trainer: &mut Trainer, threads: usize) -> Result<()> {
        let Plan { options, resolved, job, changes, .. } = plan;
        let own = self.checkpoints.clone();
        // Checking every byte takes longer than ranks wait for each other.
        let chosen = trainer.team.while_first(|| {
            if own.is_dir() {
                Store::open(&own)?.remove_leftovers()?;
            }
            choose(&options.resume, &own)
        })?;
        let first = chosen.transpose()?.flatten();
        let text = trainer.team.first_text(&first.as_ref().map(Choice::to_text).unwrap_or_default())?;
        let choice = first.or(Choice::from_text(&text)?);
        self.begun_at = choice.as_ref().map_or(0, |choice| choice.name.step());
        self.check_progress(plan)?;
        if let Some(files) = &mut self.files {
            if choice.is_none() {
                files.output.begin_anew()?;
            }
            files.output.write(RECIPE_FILE, resolved.to_toml().as_bytes())?;
            files.output.subfolder(CHECKPOINT_FOLDER)?;
            files.log = Some(files.output.metrics(&resolved.log.metrics)?);
        }
        if trainer.team.is_first() {
            trainer.progress.note(&job.summary(resolved));
        }
        match choice {
            Some(choice) => self.go_on(plan, trainer, &choice, changes)?,
            None => {
                if let Some(text) = &options.init_from {
                    self.take_weights(trainer, text)?;
                }
                self.log_start(plan, trainer, threads)?;
            }
        }
        trainer.look_around()
    }

    /// A scheduler that runs the same command again and again must be told when that is of no use.
    fn check_progress(&self, plan: &Plan) -> Result<()> {
        let failures = self.files.as_ref().map_or(0, |files| files.output.failures_from(self.begun_at));
        if failures < MOST_FAILURES || plan.options.accept_change {
            return Ok(());
        }
        Err(Error::NoProgress {
            place: plan.resolved.output.dir.display().to_string(),
            reason: format!("the run failed {failures} times after it had gone on from step {}", self.begun_at),
            fix: "mend what the records of its end name; then try again with --accept-change".to_owned(),
        })
    }

    fn go_on(&mut self, plan: &Plan, trainer: &mut Trainer, choice: &Choice, changes: &[String]) -> Result<()> {
        let state = choice.load(plan, trainer)?;
        self.best.load_state(&state.best);
        self.before = state.before.map(SavedJudgement::into_judgement).transpose()?;
        self.judged = match state.judged {
            None => None,
            Some(SavedJudged { step, counted, judgement }) => {
                Some(Judged { step, counted, judgement: judgement.into_judgement()? })
            }
        };
        let is_own = choice.is_in(&self.checkpoints);
        let there = self.files.as_ref().and_then(|files| files.output.best_step()).map_or(-1.0, |step| step as f32);
        let there = trainer.team.gather(&[there])?.first().and_then(|numbers| numbers.first().copied());
        let best = self.best.best().map(|(_, step)| step as f32);
        self.best_is_lost = plan.resolved.save.which != SaveWhich::Last && best.is_some() && (!is_own || there != best);
        if is_own {
            self.keeper.last_step = Some(trainer.step);
        }
        if !trainer.team.is_first() {
            return Ok(());
        }
        if is_own {
            // Those of later steps would be taken for the newest when the run is cut off again.
            Store::open(&self.checkpoints)?.remove_later_than(trainer.step)?;
        }
        for passed in &choice.passed_over {
            terminal::note(&format!("warning: a damaged checkpoint was passed over: {passed}"));
        }
        trainer.progress.note(&format!("going on after step {}, from {}", trainer.step, choice.name));
        self.log(&ResumeRecord {
            step: trainer.step,
            checkpoint: choice.name.to_string(),
            passed_over: choice.passed_over.len() as u64,
            changed: changes.to_vec(),
            unix_seconds: unix_seconds(),
            ranks: trainer.team.size() as u64,
        })
    }

    /// Begin with the weights of another run.
    fn take_weights(&mut self, trainer: &mut Trainer, text: &str) -> Result<()> {
        let (path, step) = match text.rsplit_once('@').and_then(|(path, step)| Some((path, step.parse().ok()?))) {
            Some((path, step)) => (path, Some(step)),
            None => (text, None),
        };
        let found = trainer.team.while_first(|| named(path.as_ref(), step))?.transpose()?;
        let said = trainer.team.first_text(&found.as_ref().map(Choice::to_text).unwrap_or_default())?;
        let Some(choice) = found.or(Choice::from_text(&said)?) else {
            return Err(Error::recipe("--init-from", "the first rank found no checkpoint", "see its message"));
        };
        choice.load_weights(trainer)?;
        if trainer.team.is_first() {
            trainer.progress.note(&format!("weights of {} from {path}", choice.name));
        }
        Ok(())
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
