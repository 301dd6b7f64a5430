//! The course of a run around the training step: when to judge, what to log and save, how it ends.

use super::evaluate::{Judgement, evaluate};
use super::setup::{Job, save_options};
use super::train::{StepResult, Trainer};
use super::{pool, profile};
use crate::terminal;
use bmtrain_core::wrap::Profiled;
use bmtrain_dist::param::WholeReader;
use model_center::file::write_atomic;
use model_center::hf::folder::hub_name;
use model_center::recipe::{Resolved, SaveWhich};
use model_center::run::{
    BestTracker, CardData, EndRecord, EvalRecord, LAST_MODEL_FOLDER, MODEL_FOLDER, MetricsLog, ModelCard, OutputFolder,
    RECIPE_FILE, Record, StartRecord, Status, StepRecord, StopReason, Timing, memory,
};
use model_center::{Error, Result};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Files and clocks of a run.
pub(super) struct Run {
    /// Present on the first rank.
    files: Option<Files>,
    best: BestTracker,
    judged: Option<Judged>,
    save_seconds: f64,
    eval_seconds: f64,
    begin: Instant,
}

/// What a run writes.
struct Files {
    output: OutputFolder,
    log: MetricsLog,
}

/// The last evaluation. Weights that were judged are not judged again.
struct Judged {
    step: u64,
    judgement: Judgement,
    /// Whether it took part in the choice of the best weights.
    counted: bool,
}

impl Run {
    /// Open the files of a run that began at `begin`, where this rank `writes` them.
    ///
    /// # Errors
    /// A folder that holds something else; what the operating system refuses.
    pub(super) fn create(resolved: &Resolved, overwrite: bool, begin: Instant, writes: bool) -> Result<Self> {
        let open = || {
            let mut output = OutputFolder::create(&resolved.output.dir, &resolved.recipe_hash(), overwrite)?;
            output.write(RECIPE_FILE, resolved.to_toml().as_bytes())?;
            let log = output.metrics(&resolved.log.metrics)?;
            Ok::<_, Error>(Files { output, log })
        };
        let files = if writes { Some(open()?) } else { None };
        let best = BestTracker::new(resolved.eval.metric, resolved.train.early_stop);
        Ok(Run { files, best, judged: None, save_seconds: 0.0, eval_seconds: 0.0, begin })
    }

    fn log(&mut self, record: &impl Record) -> Result<()> {
        self.files.as_mut().map_or(Ok(()), |files| files.log.write(record))
    }

    fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    pub(super) fn start(&mut self, job: &Job, resolved: &Resolved, trainer: &Trainer, threads: usize) -> Result<()> {
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
            unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            threads: threads as u64,
            ranks: trainer.team.size() as u64,
        })
    }

    /// Judge, train, judge again, save.
    pub(super) fn follow(
        &mut self,
        job: &Job,
        resolved: &Resolved,
        trainer: &mut Trainer,
        profiled: Option<&Profiled>,
    ) -> Result<()> {
        let before = self.judge(trainer, resolved, false)?;
        let reason = self.epochs(trainer, resolved, profiled)?;
        let after = self.judge(trainer, resolved, true)?;
        self.finish(job, resolved, trainer, reason, (before, after))
    }

    /// Step until something says stop.
    fn epochs(
        &mut self,
        trainer: &mut Trainer,
        resolved: &Resolved,
        profiled: Option<&Profiled>,
    ) -> Result<StopReason> {
        let every = resolved.eval.every.in_steps(trainer.steps_per_epoch);
        if let Some(profiled) = profiled {
            profiled.reset();
        }
        let reason = loop {
            if let Some(reason) = trainer.stop() {
                break reason;
            }
            let result = trainer.step()?;
            self.report(trainer, resolved, &result)?;
            // The last evaluation is made behind the loop, whatever ends it.
            if every.is_some_and(|every| trainer.step.is_multiple_of(every)) && trainer.stop().is_none() {
                self.judge(trainer, resolved, true)?;
                if self.best.has_lost_patience() {
                    break StopReason::NoImprovement;
                }
            }
        };
        if let Some(profiled) = profiled {
            trainer.progress.finish();
            profile::print(profiled, trainer.train_time.as_secs_f64());
        }
        Ok(reason)
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
    fn judge(&mut self, trainer: &mut Trainer, resolved: &Resolved, counts: bool) -> Result<Option<Judgement>> {
        let Some(loader) = &mut trainer.eval else { return Ok(None) };
        let known = self.judged.take().filter(|judged| judged.step == trainer.step);
        let (mut judged, eval_seconds) = match known {
            Some(judged) => (judged, None),
            None => {
                let start = Instant::now();
                let judgement = evaluate(&*trainer.model, loader, &trainer.metrics, &trainer.device, &trainer.team)?;
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
            self.save(trainer, resolved, MODEL_FOLDER, None)?;
        }
        Ok(Some(judgement))
    }

    fn save(&mut self, trainer: &Trainer, resolved: &Resolved, name: &str, card: Option<&ModelCard>) -> Result<()> {
        let start = Instant::now();
        let Some(files) = &mut self.files else {
            let mut reader = WholeReader::default();
            return Ok(trainer.model.parameters().iter().try_for_each(|param| reader.pass(param))?);
        };
        let staged = files.output.stage(name)?;
        trainer.model.save(staged.path(), &save_options(resolved))?;
        if let Some(card) = card {
            write_atomic(&staged.path().join("README.md"), card.render().as_bytes())?;
        }
        staged.commit()?;
        self.save_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn finish(
        &mut self,
        job: &Job,
        resolved: &Resolved,
        trainer: &mut Trainer,
        reason: StopReason,
        (before, after): (Option<Judgement>, Option<Judgement>),
    ) -> Result<()> {
        let named = |judgement: &Option<Judgement>| judgement.as_ref().map(Judgement::named).unwrap_or_default();
        let card = card(job, resolved, trainer, named(&before), named(&after));
        // Without evaluation there is no best: the last weights are all there is.
        let best_is_kept = resolved.save.which != SaveWhich::Last && self.best.best().is_some();
        match (resolved.save.which, best_is_kept) {
            (SaveWhich::Both, true) => self.save(trainer, resolved, LAST_MODEL_FOLDER, Some(&card))?,
            (_, false) => self.save(trainer, resolved, MODEL_FOLDER, Some(&card))?,
            (_, true) => {}
        }
        if let Some(files) = self.files.as_ref().filter(|_| best_is_kept) {
            let path = files.output.path().join(MODEL_FOLDER).join("README.md");
            write_atomic(&path, card.render().as_bytes())?;
        }
        self.end(trainer, resolved, reason.name(), true)?;
        trainer.progress.finish();
        let Some(files) = &self.files else { return Ok(()) };
        let mut lines = Vec::new();
        if let (Some(before), Some(after)) = (&before, &after) {
            lines.extend([format!("before: {}", before.line()), format!("after:  {}", after.line())]);
        }
        lines.push(format!(
            "trained {} steps in {:.1} s ({}), model in {}",
            trainer.step,
            trainer.train_time.as_secs_f64(),
            reason.name(),
            files.output.path().join(MODEL_FOLDER).display()
        ));
        terminal::print(&lines.join("\n"))
    }

    /// The last record of the log. The state is gathered from all ranks if `all_are_well`; after a failure they may be busy
    /// with something else.
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
            pool,
        })?;
        self.files.as_mut().map_or(Ok(()), |files| files.log.sync())
    }
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
        base_model: hub_name(&resolved.model.path),
        license: None,
        languages: Vec::new(),
        task: task.into(),
        pipeline_tag: "text-classification".into(),
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
