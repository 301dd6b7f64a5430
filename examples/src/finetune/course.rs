//! The course of a run around the training step: when to judge, what to log and save, how it ends.

use super::evaluate::{Judge, Judgement};
use super::keep::{Keeper, check_room};
use super::models::Written;
use super::resume::{Resume, RunState, SavedJudged, SavedJudgement};
use super::setup::Job;
use super::start::OWN_FAILURE;
use super::train::{Plan, StepResult, Trainer};
use super::{pool, profile};
use crate::terminal;
use bmtrain_core::wrap::Profiled;
use model_center::file::write_atomic;
use model_center::formats::directory::hub_name;
use model_center::recipe::{Resolved, SaveWhich};
use model_center::run::{
    BestTracker, CARD_FILE, CHECKPOINT_DIRECTORY, CardData, Earlier, EndRecord, EvalRecord, ExitStatus,
    LAST_MODEL_DIRECTORY, MODEL_DIRECTORY, MetricsLog, ModelCard, OutputDirectory, Record, Status, StepRecord,
    StopReason, Timing, memory,
};
use model_center::{Error, Result};
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Files and clocks of a run.
pub(super) struct Run {
    /// Present on the first rank.
    pub(super) files: Option<Files>,
    /// Where checkpoints are, on all ranks.
    pub(super) checkpoints: PathBuf,
    pub(super) keeper: Keeper,
    pub(super) best: BestTracker,
    pub(super) judged: Option<Judged>,
    /// What was found before the first step.
    pub(super) before: Option<Judgement>,
    /// The weights that judged best are in no directory of this run: another course that was given up wrote over them.
    pub(super) best_is_lost: bool,
    pub(super) save_seconds: f64,
    eval_seconds: f64,
    begin: Instant,
    /// Steps that were done when this process took the run up.
    pub(super) begun_at: u64,
}

/// What a run writes.
pub(super) struct Files {
    pub(super) output: OutputDirectory,
    /// Open once it is known whether the run goes on or starts.
    pub(super) log: Option<MetricsLog>,
}

/// The last evaluation. Weights that were judged are not judged again.
pub(super) struct Judged {
    pub(super) step: u64,
    pub(super) judgement: Judgement,
    /// Whether it took part in the choice of the best weights.
    pub(super) counted: bool,
}

impl Run {
    /// Take the output directory for a run that began at `begin`; the first rank does, which writes.
    ///
    /// # Errors
    /// A directory that holds something else; what the operating system refuses.
    pub(super) fn create(plan: &Plan, begin: Instant, trainer: &Trainer) -> Result<Self> {
        let Plan { resolved, options, job, .. } = plan;
        let dir = &resolved.output.dir;
        let files = if trainer.team.is_first() {
            let output = OutputDirectory::create(dir, &resolved.recipe_hash(), options.if_there())?;
            check_room(resolved, dir, job.parameters, output.earlier() == Earlier::Nothing)?;
            Some(Files { output, log: None })
        } else {
            None
        };
        let checkpoints = dir.join(CHECKPOINT_DIRECTORY);
        let keeper = Keeper::new(plan, &checkpoints, trainer.steps_per_epoch)?;
        let best = BestTracker::new(resolved.eval.metric, resolved.train.early_stop);
        let (save_seconds, eval_seconds) = (0.0, 0.0);
        Ok(Run {
            files,
            checkpoints,
            keeper,
            best,
            judged: None,
            before: None,
            best_is_lost: false,
            save_seconds,
            eval_seconds,
            begin,
            begun_at: 0,
        })
    }

    pub(super) fn log(&mut self, record: &impl Record) -> Result<()> {
        self.files.as_mut().and_then(|files| files.log.as_mut()).map_or(Ok(()), |log| log.write(record))
    }

    fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Judge, train, judge again, save.
    ///
    /// # Errors
    /// A failing device or disk, numbers that are not finite, a lost rank.
    pub(super) fn follow(
        &mut self,
        plan: &Plan,
        trainer: &mut Trainer,
        profiled: Option<&Profiled>,
    ) -> Result<ExitStatus> {
        if self.before.is_none() && trainer.stop() != Some(StopReason::Request) {
            self.before = self.judge(trainer, &plan.resolved, false)?;
        }
        let reason = self.epochs(plan, trainer, profiled)?;
        let after = match reason {
            StopReason::Request => None,
            _ => self.judge(trainer, &plan.resolved, true)?,
        };
        if trainer.stop() == Some(StopReason::Request) {
            return self.leave(plan, trainer);
        }
        if self.keeper.saves_at_end() {
            self.save_state(plan, trainer)?;
        }
        self.keeper.finish(trainer)?;
        self.finish(&plan.job, &plan.resolved, trainer, reason, after)?;
        Ok(ExitStatus::Done)
    }

    /// Step until something says stop.
    fn epochs(&mut self, plan: &Plan, trainer: &mut Trainer, profiled: Option<&Profiled>) -> Result<StopReason> {
        let resolved = &plan.resolved;
        let every = resolved.eval.every.in_steps(trainer.steps_per_epoch);
        if let Some(profiled) = profiled {
            profiled.reset();
        }
        let reason = loop {
            // Judged here, whether these weights were just made or read from a checkpoint. The last evaluation is made
            // behind the loop, whatever ends it.
            let is_due = trainer.step > 0 && every.is_some_and(|every| trainer.step.is_multiple_of(every));
            if is_due && trainer.stop().is_none() {
                self.judge(trainer, resolved, true)?;
            }
            if let Some(reason) = trainer.stop() {
                break reason;
            }
            if self.best.has_lost_patience() {
                break StopReason::NoImprovement;
            }
            if self.keeper.is_due(trainer.step, trainer.agreed_to_save) {
                self.save_state(plan, trainer)?;
            }
            trainer.time_to_save = self.keeper.is_time();
            let result = trainer.step()?;
            self.report(trainer, resolved, &result)?;
            self.keeper.advance(trainer)?;
        };
        if let Some(profiled) = profiled {
            trainer.progress.finish();
            profile::print(profiled, trainer.train_time.as_secs_f64());
        }
        Ok(reason)
    }

    /// Begin to save what the run has come to.
    fn save_state(&mut self, plan: &Plan, trainer: &mut Trainer) -> Result<()> {
        let start = Instant::now();
        let judged = self.judged.as_ref().map(|judged| SavedJudged {
            step: judged.step,
            counted: judged.counted,
            judgement: SavedJudgement::of(&judged.judgement),
        });
        let before = self.before.as_ref().map(SavedJudgement::of);
        let state = RunState::of(plan, trainer, self.best.state(), before, judged)?;
        // What the log says up to here must not be lost where the checkpoint is not.
        if let Some(log) = self.files.as_mut().and_then(|files| files.log.as_mut()) {
            log.sync()?;
        }
        self.keeper.best_step = self.best_step(&plan.resolved).filter(|_| !self.best_is_lost);
        self.keeper.begin(plan, trainer, state)?;
        self.save_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Save the state and go, as somebody asked for.
    fn leave(&mut self, plan: &Plan, trainer: &mut Trainer) -> Result<ExitStatus> {
        if self.keeper.last_step != Some(trainer.step) {
            self.save_state(plan, trainer)?;
        }
        self.keeper.finish_for_good(trainer)?;
        self.end(trainer, &plan.resolved, StopReason::Request.name(), true)?;
        trainer.progress.finish();
        if trainer.team.is_first() {
            let options = &plan.options;
            let without = match options.resume {
                _ if options.overwrite => " without --overwrite",
                Resume::From(_) | Resume::Never => " without --resume",
                Resume::Auto | Resume::Must => "",
            };
            let text = format!("stopped after step {}; the same command{without} goes on from there", trainer.step);
            terminal::print(&text)?;
        }
        Ok(ExitStatus::Stopped)
    }

    fn report(&mut self, trainer: &mut Trainer, resolved: &Resolved, result: &StepResult) -> Result<()> {
        let is_log_step = trainer.step.is_multiple_of(resolved.log.every) || trainer.step == 1;
        let memory = memory::now();
        let tokens_per_s = result.tokens as f64 / result.seconds;
        let work = trainer.flops_per_token * result.padded_tokens as f64;
        let peak_share = (trainer.peak > 0.0).then(|| work / result.seconds / trainer.peak);
        let status = Status {
            step: trainer.step,
            total: trainer.stop.total_steps(),
            loss: f64::from(result.loss),
            grad_norm: f64::from(result.info.grad_norm),
            lr: result.info.lr,
            scale: trainer.scales_loss.then_some(f64::from(result.info.scale)),
            tokens_per_s,
            peak_share,
            memory,
            eta: trainer.stop.eta(trainer.step, trainer.elapsed()),
        };
        trainer.progress.step(&status, is_log_step);
        if !is_log_step {
            return Ok(());
        }
        let seconds = self.seconds();
        self.log(&StepRecord {
            step: trainer.step,
            epoch: trainer.epoch(),
            loss: result.loss,
            grad_norm: result.info.grad_norm,
            lr: result.info.lr,
            samples: trainer.samples,
            tokens: trainer.tokens,
            batch: result.batch,
            skipped: result.info.skipped,
            time: Timing {
                seconds,
                tokens_per_s,
                peak_share,
                rss_bytes: memory.map_or(0, |memory| memory.rss_bytes),
                peak_rss_bytes: memory.map_or(0, |memory| memory.peak_rss_bytes),
            },
        })
    }

    /// Evaluate and log, unless these weights were judged already; keep them if they are the best so far and `counts`.
    /// Nothing where there are no data for it, or somebody asks for an end meanwhile.
    fn judge(&mut self, trainer: &mut Trainer, resolved: &Resolved, counts: bool) -> Result<Option<Judgement>> {
        let Some(loader) = &mut trainer.eval else { return Ok(None) };
        let known = self.judged.take().filter(|judged| judged.step == trainer.step);
        let (mut judged, eval_seconds) = match known {
            Some(judged) => (judged, None),
            None => {
                let start = Instant::now();
                let is_stopped = || trainer.stop.is_requested();
                let judge = Judge {
                    model: &*trainer.model,
                    wanted: &trainer.metrics,
                    written: trainer.written.as_ref(),
                    device: &trainer.device,
                    team: &trainer.team,
                    is_stopped: &is_stopped,
                };
                let found = judge.evaluate(loader)?;
                let Some(judgement) = found else {
                    trainer.ask_to_stop();
                    return Ok(None);
                };
                (Judged { step: trainer.step, judgement, counted: false }, Some(start.elapsed().as_secs_f64()))
            }
        };
        let judgement = judged.judgement.clone();
        let is_best = counts && !judged.counted && self.best.observe(trainer.step, |metric| judgement.value(metric));
        judged.counted |= counts;
        self.judged = Some(judged);
        if let Some(eval_seconds) = eval_seconds {
            self.eval_seconds += eval_seconds;
            let seconds = self.seconds();
            self.log(&EvalRecord {
                step: trainer.step,
                epoch: trainer.epoch(),
                samples: judgement.samples,
                values: judgement.named(),
                is_best,
                seconds,
                eval_seconds,
            })?;
            let when =
                if trainer.step == 0 { "before training".to_owned() } else { format!("after step {}", trainer.step) };
            if trainer.team.is_first() {
                trainer.progress.note(&format!("{when}: {} on {} samples", judgement.line(), judgement.samples));
            }
        }
        if is_best && resolved.save.which != SaveWhich::Last {
            self.save(trainer, resolved, MODEL_DIRECTORY, Written::best(trainer.step))?;
            self.best_is_lost = false;
        }
        Ok(Some(judgement))
    }

    fn finish(
        &mut self,
        job: &Job,
        resolved: &Resolved,
        trainer: &mut Trainer,
        reason: StopReason,
        after: Option<Judgement>,
    ) -> Result<()> {
        let before = self.before.take();
        let named = |judgement: &Option<Judgement>| judgement.as_ref().map(Judgement::named).unwrap_or_default();
        let card = card(job, resolved, trainer, named(&before), named(&after));
        // Without evaluation there is no best: the last weights are all there is.
        let has_best = self.best_step(resolved).is_some();
        let best_is_kept = has_best && !self.best_is_lost;
        if has_best && !best_is_kept && trainer.team.is_first() {
            let text = "warning: the best weights are not in the directory of this run, because it went on from a checkpoint of \
                        another one or they were given up: the model holds the last weights";
            terminal::note(text);
        }
        match (resolved.save.which, best_is_kept) {
            (SaveWhich::Both, true) => self.save(trainer, resolved, LAST_MODEL_DIRECTORY, Written::with(&card))?,
            (_, false) => self.save(trainer, resolved, MODEL_DIRECTORY, Written::with(&card))?,
            (_, true) => {}
        }
        if best_is_kept {
            self.recheck_best(trainer)?;
        }
        if let Some(files) = self.files.as_ref().filter(|_| best_is_kept) {
            let path = files.output.path().join(MODEL_DIRECTORY).join(CARD_FILE);
            write_atomic(&path, card.render().as_bytes())?;
        }
        self.end(trainer, resolved, reason.name(), true)?;
        trainer.progress.finish();
        let Some(files) = &mut self.files else { return Ok(()) };
        files.output.finish()?;
        let mut lines = Vec::new();
        if let (Some(before), Some(after)) = (&before, &after) {
            lines.extend([format!("before: {}", before.line()), format!("after:  {}", after.line())]);
        }
        lines.push(format!(
            "trained {} steps in {:.1} s ({}), model in {}",
            trainer.step,
            trainer.train_time.as_secs_f64(),
            reason.name(),
            files.output.path().join(MODEL_DIRECTORY).display()
        ));
        terminal::print(&lines.join("\n"))
    }

    /// The run ends in an error. The log says how a run ended, whatever ended it; one that cannot be written to is no
    /// news beside that error.
    pub(super) fn fail(&mut self, trainer: &Trainer, resolved: &Resolved, error: &Error) {
        let status = ExitStatus::from(error);
        let _ = self.end(trainer, resolved, status.name(), false);
        let weight = if status == ExitStatus::Peer { 1 } else { OWN_FAILURE };
        // What was not even begun is the user's to mend.
        if let Some(files) = self.files.as_mut().filter(|files| files.log.is_some()) {
            let _ = files.output.note_failure(self.begun_at, weight);
        }
    }

    /// The last record of the log. The state is gathered from all ranks if `all_are_well`; after a failure they may be
    /// busy with something else.
    pub(super) fn end(
        &mut self,
        trainer: &Trainer,
        resolved: &Resolved,
        reason: &str,
        all_are_well: bool,
    ) -> Result<()> {
        let state = match all_are_well || trainer.team.size() == 1 {
            true => trainer.optim.fingerprint().ok(),
            false => None,
        };
        let pool = pool::figures(&trainer.device, &trainer.team, all_are_well)?;
        let (seconds, best) = (self.seconds(), self.best.best());
        let (eval_seconds, save_seconds) = (self.eval_seconds, self.save_seconds);
        self.log(&EndRecord {
            step: trainer.step,
            epoch: trainer.epoch(),
            reason: reason.into(),
            best: best.map(|(value, step)| (resolved.eval.metric.name().to_owned(), value, step)),
            state,
            samples: trainer.samples,
            tokens: trainer.tokens,
            seconds,
            train_seconds: trainer.train_time.as_secs_f64(),
            eval_seconds,
            save_seconds,
            peak_rss_bytes: memory::peak_resident_bytes().unwrap_or(0),
            peak_anonymous_bytes: memory::resident().map(|resident| resident.peak_anonymous_bytes),
            pool,
        })?;
        self.files.as_mut().and_then(|files| files.log.as_mut()).map_or(Ok(()), MetricsLog::sync)
    }
}

pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn card(
    job: &Job,
    resolved: &Resolved,
    trainer: &Trainer,
    results_before: Vec<(String, f64)>,
    results: Vec<(String, f64)>,
) -> ModelCard {
    let task = resolved.data.source.task_name();
    ModelCard {
        name: format!("{}-{}", job.family, task.to_lowercase()),
        base_model: hub_name(&job.directory),
        license: None,
        languages: Vec::new(),
        task: task.into(),
        pipeline_tag: resolved.data.source.pipeline_tag(trainer.model.info().generates_targets).into(),
        data: CardData {
            name: task.into(),
            train_samples: job.train.len() as u64,
            train_fingerprint: job.train.fingerprint().into(),
            eval_samples: job.eval.as_ref().map_or(0, |eval| eval.len() as u64),
            eval_fingerprint: job.eval.as_ref().map(|eval| eval.fingerprint().to_owned()).unwrap_or_default(),
        },
        results,
        results_before,
        steps: trainer.step,
        epochs: trainer.epoch(),
        recipe: resolved.hashed_toml(),
        recipe_hash: resolved.recipe_hash(),
        made_by: format!("finetune {}", env!("CARGO_PKG_VERSION")),
    }
}
