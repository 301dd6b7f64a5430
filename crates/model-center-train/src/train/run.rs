//! Work of a run around the training step: evaluating, logging, saving checkpoints. Its loop is in `finetune.rs`.
//!
//! Defines [`Run`]; how it ends is in `finish.rs`, how it starts in `start.rs`, its model directories in `save.rs`.

use super::agree::Decision;
use super::beside::{BESIDE, Beside};
use super::checkpointer::{Checkpointer, check_disk};
use super::evaluate::{EvalResult, Evaluation};
use super::finetune::RunConfig;
use super::peak::PeakThroughput;
use super::resume::{BEST_MODEL, INSTRUCTION_SET, METRICS_BYTES, RunState, SavedEval, SavedLastEval, layout};
use super::run_times::RunTimes;
use super::save::{ModelContents, check_finite};
use super::trainer::{StepResult, Trainer, scales_loss};
use crate::Result;
use crate::train::stop::BestTracker;
use bmtrain_dist::inspect::process as memory;
use bmtrain_dist::optim::ScheduleKind;
use model_center_data::metrics::Metric;
use model_center_recipe::Resolved;
use model_center_recipe::run::{
    CHECKPOINT_DIRECTORY, Earlier, EvalRecord, EventLog, LR_RANGE_FILE, LrRange, MODEL_DIRECTORY, MetricsLog,
    OutputDirectory, Progress, Record, SampleRecord, Status, StepRecord, StopReason, TestRecord, Timing,
};
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The files, log and evaluations of a run.
pub(super) struct Run<'a> {
    pub(super) config: &'a RunConfig,
    /// The recipe of the configuration, with what was measured for it.
    pub(super) recipe: &'a Resolved,
    /// Present on the first rank, which writes.
    pub(super) files: Option<Files>,
    /// The directory of checkpoints, on all ranks.
    pub(super) checkpoints: PathBuf,
    pub(super) checkpointer: Checkpointer,
    /// Files that the run reads and that are in no checkpoint.
    pub(super) beside: Beside,
    pub(super) display: Progress,
    pub(super) evaluation: Option<Evaluation>,
    pub(super) best: BestTracker,
    pub(super) last_eval: Option<LastEval>,
    /// The evaluation before the first step.
    pub(super) eval_before: Option<EvalResult>,
    /// Whether the best weights are in no directory of this run: another course overwrote them, or they were given up.
    pub(super) best_is_lost: bool,
    /// The step whose sample texts were written.
    sampled: Option<u64>,
    /// Losses of a learning-rate range test.
    pub(super) lr_range: Option<LrRange>,
    /// Last decision of all ranks.
    pub(super) decision: Decision,
    /// Whether the run began with the weights of another one.
    pub(super) other_weights: bool,
    /// The step that this process started or resumed from.
    pub(super) start_step: u64,
    pub(super) times: RunTimes,
    /// Facts about model and data before the first step.
    pub(super) first_notes: Vec<String>,
    /// The instruction set of a run on processors.
    pub(super) instruction_set: Option<String>,
    peak: PeakThroughput,
}

/// Files that a run writes.
pub(super) struct Files {
    pub(super) output: OutputDirectory,
    /// Open once it is known whether the run starts anew or is resumed.
    pub(super) log: Option<MetricsLog>,
    /// The same scalars for TensorBoard, where the recipe asks for them.
    pub(super) events: Option<EventLog>,
}

/// The last evaluation. Weights are not evaluated twice.
pub(super) struct LastEval {
    pub(super) step: u64,
    pub(super) result: EvalResult,
    /// Whether it was considered for the best weights.
    pub(super) counted: bool,
}

impl<'a> Run<'a> {
    /// Take the output directory for a run of this recipe that began at `begin`; the first rank does, which writes.
    ///
    /// # Errors
    /// A directory that holds something else; a full disk.
    pub(super) fn create(
        (config, recipe): (&'a RunConfig, &'a Resolved),
        (begin, beside): (Instant, Beside),
        trainer: &Trainer,
        display: Progress,
    ) -> Result<Self> {
        let RunConfig { resolved, options, setup, .. } = config;
        let dir = &resolved.output.dir;
        let is_first = trainer.ranks.is_first();
        let files = if is_first {
            let output = OutputDirectory::create(dir, &resolved.recipe_hash(), options.if_there())?;
            check_disk(resolved, dir, setup.saved_values(), output.earlier() == Earlier::Nothing)?;
            Some(Files { output, log: None, events: None })
        } else {
            None
        };
        let checkpoints = dir.join(CHECKPOINT_DIRECTORY);
        Ok(Run {
            config,
            recipe,
            files,
            checkpointer: Checkpointer::new(config, &checkpoints, is_first)?,
            checkpoints,
            beside,
            display,
            evaluation: Evaluation::new(setup, resolved)?,
            best: BestTracker::new(resolved.eval.metric, resolved.train.early_stop),
            last_eval: None,
            eval_before: None,
            best_is_lost: false,
            sampled: None,
            lr_range: matches!(resolved.train.schedule, ScheduleKind::RangeTest { .. }).then(LrRange::default),
            decision: Decision::default(),
            other_weights: false,
            start_step: 0,
            times: RunTimes::new(begin),
            first_notes: Vec::new(),
            instruction_set: None,
            peak: PeakThroughput::new(0.0, trainer),
        })
    }

    /// Show throughput as a share of this peak, in floating-point operations per second.
    pub(super) fn set_peak(&mut self, flops: f64, trainer: &Trainer) {
        self.peak = PeakThroughput::new(flops, trainer).of_pretraining(self.config);
    }

    /// Begin to save a checkpoint.
    ///
    /// # Errors
    /// Weights that are not finite, but for a range test, which ends with such.
    pub(super) fn save_checkpoint(&mut self, trainer: &Trainer) -> Result<()> {
        let _save = tracing::debug_span!("save").entered();
        let start = Instant::now();
        if self.lr_range.is_none() {
            check_finite(trainer)?;
        }
        let last_eval = self.last_eval.as_ref().map(|last| SavedLastEval {
            step: last.step,
            counted: last.counted,
            result: SavedEval::of(&last.result),
        });
        let eval_before = self.eval_before.as_ref().map(SavedEval::of);
        let mut state = RunState::of(self.config, trainer, self.best.state(), eval_before, last_eval)?;
        state.other_weights = self.other_weights;
        // The log must be on disk at least as far as the checkpoint.
        let mut layout = layout(self.config, trainer);
        layout.insert(BESIDE.to_owned(), self.beside.to_value());
        if let Some(set) = &self.instruction_set {
            layout.insert(INSTRUCTION_SET.to_owned(), set.as_str().into());
        }
        if let Some(log) = self.files.as_mut().and_then(|files| files.log.as_mut()) {
            log.sync()?;
            layout.insert(METRICS_BYTES.to_owned(), log.bytes()?.into());
        }
        let best_step = self.best_step().filter(|_| !self.best_is_lost);
        let best = self.files.as_ref().and_then(|files| files.output.model(MODEL_DIRECTORY));
        if let Some(best) = best.filter(|_| best_step.is_some()) {
            layout.insert(BEST_MODEL.to_owned(), best.digest().into());
        }
        let note = self.checkpointer.begin(self.config, trainer, (state, layout), best_step)?;
        self.note(note);
        let seconds = start.elapsed().as_secs_f64();
        self.times.saved(seconds);
        self.display.log(&format!("checkpoint of step {}: training waited {seconds:.3} s", trainer.steps()));
        Ok(())
    }

    /// Show and log a step.
    pub(super) fn report(&mut self, trainer: &Trainer, result: &StepResult) -> Result<()> {
        let StepResult { info, metrics, .. } = result;
        if let Some(range) = &mut self.lr_range {
            range.add(info.lr, f64::from(metrics.loss));
        }
        let progress = trainer.progress();
        let is_log_step = progress.step.is_multiple_of(self.config.resolved.log.every) || progress.step == 1;
        let memory = memory::now();
        self.times.stepped(result.phases, memory.map_or(0, |memory| memory.rss_bytes));
        let tokens_per_s = metrics.tokens as f64 / result.seconds;
        let peak_share = self.peak.share(metrics.padded_tokens, result.seconds);
        let stop = trainer.stop_conditions();
        let named = |wanted: Metric| metrics.values.iter().find(|(name, _)| *name == wanted.name());
        let value = |wanted: Metric| named(wanted).map(|(_, value)| f64::from(*value));
        let status = Status {
            step: progress.step,
            total: stop.total_steps(),
            loss: f64::from(metrics.loss),
            pairs: value(Metric::RewardAccuracy).zip(value(Metric::RewardMargin)).map(<[f64; 2]>::from),
            grad_norm: f64::from(info.grad_norm),
            lr: info.lr,
            scale: scales_loss(&self.config.resolved).then_some(f64::from(info.scale)),
            tokens_per_s,
            peak_share,
            memory,
            eta: stop.eta(progress.step, trainer.elapsed()),
        };
        self.display.step(&status, is_log_step);
        if trainer.ranks.is_first() {
            result.inspection.iter().for_each(|tables| self.display.note(tables));
        }
        if !is_log_step {
            return Ok(());
        }
        let seconds = self.seconds();
        let phases = self.times.take_since_record();
        self.log(&StepRecord {
            step: progress.step,
            epoch: trainer.epoch(),
            loss: metrics.loss,
            grad_norm: info.grad_norm,
            lr: info.lr,
            samples: progress.samples,
            tokens: progress.tokens,
            batch: metrics.batch,
            values: metrics.values.clone(),
            skipped: info.skipped,
            time: Timing {
                seconds,
                tokens_per_s,
                peak_share,
                data_share: self.config.setup.train.records().is_none().then(|| result.data_seconds / result.seconds),
                rss_bytes: memory.map_or(0, |memory| memory.rss_bytes),
                peak_rss_bytes: memory.map_or(0, |memory| memory.peak_rss_bytes),
                phases,
            },
        })
    }

    /// Evaluate and log, unless these weights were evaluated already; save them if they are the best so far and
    /// `counts`. `None` without evaluation data, or where a rank is asked to stop meanwhile.
    pub(super) fn evaluate(&mut self, trainer: &Trainer, counts: bool) -> Result<Option<EvalResult>> {
        let step = trainer.steps();
        // A run that is resumed has the samples of its step already.
        let writes_samples = (counts || step == 0) && self.config.setup.texts.is_some() && self.sampled != Some(step);
        let known = self.last_eval.as_ref().filter(|last| last.step == step);
        let evaluates = self.evaluation.is_some() && known.is_none_or(|last| counts && !last.counted);
        let mut work = || {
            let result = self.evaluate_present(trainer, counts)?;
            if writes_samples {
                self.write_samples(trainer)?;
            }
            Ok(result)
        };
        match evaluates || writes_samples {
            true => trainer.with_averages(work),
            false => work(),
        }
    }

    /// Complete the recipe's prompts and log what comes out. On all ranks.
    fn write_samples(&mut self, trainer: &Trainer) -> Result<()> {
        let Some(samples) = self.config.setup.texts.as_ref() else { return Ok(()) };
        let step = trainer.steps();
        self.sampled = Some(step);
        let start = Instant::now();
        let texts = samples.generate(trainer.evaluated(&|| false))?;
        self.times.evaluated(start.elapsed().as_secs_f64());
        let seconds = self.seconds();
        for (prompt, text) in samples.prompts().iter().zip(texts) {
            self.log(&SampleRecord { step, prompt: prompt.clone(), text, seconds })?;
        }
        Ok(())
    }

    fn evaluate_present(&mut self, trainer: &Trainer, counts: bool) -> Result<Option<EvalResult>> {
        let Some(evaluation) = &mut self.evaluation else { return Ok(None) };
        let step = trainer.steps();
        let known = self.last_eval.take().filter(|last| last.step == step);
        let (mut last, eval_seconds) = match known {
            Some(last) => (last, None),
            None => {
                let start = Instant::now();
                let is_stopped = || trainer.stop_conditions().is_requested();
                let context = trainer.evaluated(&is_stopped);
                let Some(result) = evaluation.run(context)? else {
                    self.decision.stop = Some(StopReason::Request);
                    return Ok(None);
                };
                (LastEval { step, result, counted: false }, Some(start.elapsed().as_secs_f64()))
            }
        };
        let result = last.result.clone();
        let is_best = counts && !last.counted && self.best.observe(step, |metric| result.value(metric));
        last.counted |= counts;
        self.last_eval = Some(last);
        if let Some(eval_seconds) = eval_seconds {
            self.log_eval(trainer, &result, is_best, eval_seconds)?;
        }
        if is_best {
            self.best.keep_results(result.named());
        }
        if is_best && self.config.resolved.save.which.keeps_best() {
            self.save_present(trainer, MODEL_DIRECTORY, ModelContents::best(step))?;
            self.best_is_lost = false;
        }
        Ok(Some(result))
    }

    /// Write what a learning-rate range test found.
    pub(super) fn write_lr_range(&mut self) -> Result<()> {
        let (Some(range), Some(files)) = (&self.lr_range, &mut self.files) else { return Ok(()) };
        if range.is_empty() {
            return Ok(());
        }
        let path = files.output.write(LR_RANGE_FILE, range.svg().as_bytes())?;
        let found = range.largest().map_or_else(String::new, |lr| format!(": the lowest loss was at {lr:.2e}"));
        self.display.note(&format!("{}{found}", path.display()));
        Ok(())
    }

    /// Evaluate the test sets and log what comes out.
    pub(super) fn test(&mut self, trainer: &Trainer) -> Result<()> {
        let RunConfig { setup, resolved, .. } = self.config;
        let Some(mut evaluation) = Evaluation::of(&setup.test, setup, resolved)? else { return Ok(()) };
        let start = Instant::now();
        let is_stopped = || trainer.stop_conditions().is_requested();
        let evaluated = trainer.with_averages(|| evaluation.run(trainer.evaluated(&is_stopped)));
        let Some(result) = evaluated? else {
            self.decision.stop = Some(StopReason::Request);
            return Ok(());
        };
        let eval_seconds = start.elapsed().as_secs_f64();
        self.times.evaluated(eval_seconds);
        let seconds = self.seconds();
        self.log(&TestRecord(EvalRecord {
            step: trainer.steps(),
            epoch: trainer.epoch(),
            samples: result.samples,
            values: result.named(),
            is_best: false,
            seconds,
            eval_seconds,
        }))?;
        if trainer.ranks.is_first() {
            self.display.note(&format!("test: {} on {} samples", result.line(), result.samples));
        }
        Ok(())
    }

    fn log_eval(&mut self, trainer: &Trainer, result: &EvalResult, is_best: bool, eval_seconds: f64) -> Result<()> {
        self.times.evaluated(eval_seconds);
        let (step, seconds) = (trainer.steps(), self.seconds());
        self.log(&EvalRecord {
            step,
            epoch: trainer.epoch(),
            samples: result.samples,
            values: result.named(),
            is_best,
            seconds,
            eval_seconds,
        })?;
        let when = if step == 0 { "before training".to_owned() } else { format!("after step {step}") };
        if trainer.ranks.is_first() {
            self.display.note(&format!("{when}: {} on {} samples", result.line(), result.samples));
        }
        Ok(())
    }

    pub(super) fn log(&mut self, record: &impl Record) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        files.log.as_mut().map_or(Ok(()), |log| log.write(record))?;
        let Some(events) = &mut files.events else { return Ok(()) };
        match serde_json::from_str(&record.to_json()) {
            Ok(record) => events.record(unix_seconds(), &record),
            // It was written as JSON just now.
            Err(_) => Ok(()),
        }
    }

    /// Show a line, if there is one.
    pub(super) fn note(&mut self, line: Option<String>) {
        line.iter().for_each(|line| self.display.note(line));
    }

    /// Seconds since this process began.
    pub(super) fn seconds(&self) -> f64 {
        self.times.seconds()
    }
}

pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
