//! The training loop. The step itself is [`Trainer::step`]: batch, forward, backward, optimizer.

use super::evaluate::{self, Judgement, evaluate};
use super::setup::{Job, open_options};
use super::{Options, profile};
use crate::terminal;
use bmtrain_core::autograd::Randomness;
use bmtrain_core::cpu::CpuBackend;
use bmtrain_core::cpu::gemm::measure_peak;
use bmtrain_core::wrap::Profiled;
use bmtrain_core::{Backend, Ctx, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::optim::{Adam, AdamOptions, ParamGroup, Schedule, Scheduler, StepInfo};
use model_center::data::{Loader, LoaderOptions, Order, Position};
use model_center::metrics::Metric;
use model_center::model::{Registry, SaveOptions, TextBatch, TextModel};
use model_center::recipe::{EvalMetric, Resolved, SaveWhich};
use model_center::run::{
    BestTracker, CardData, EndRecord, EvalRecord, ExitStatus, MetricsLog, ModelCard, OutputFolder, Progress,
    ProgressMode, StartRecord, Status, StepRecord, StopConditions, StopFlag, StopReason, Timing, memory,
};
use model_center::{Error, Result};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Windows of this many batches are sorted by length when batches are grouped by length.
const LENGTH_WINDOW: usize = 50;

/// A run stops after this many steps in a row whose gradients were not finite.
const MAX_SKIPS: u32 = 8;

/// Run a prepared job to its end.
///
/// # Errors
/// A failing device or disk; numbers that are not finite.
pub fn run(job: Job, resolved: &Resolved, options: &Options, registry: Registry<'_>) -> Result<ExitStatus> {
    let begin = Instant::now();
    let threads = resolved.device.threads.count();
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(threads)?);
    let profiled = options.profile.then(|| Arc::new(Profiled::new(Arc::clone(&backend))));
    let device = Device::new(match &profiled {
        Some(profiled) => Arc::clone(profiled) as Arc<dyn Backend>,
        None => backend,
    });
    let opened = registry.open(&resolved.model.path, &open_options(resolved, job.train.labels(), &device))?;
    let progress_mode = ProgressMode::choose(
        resolved.log.quiet,
        std::io::stderr().is_terminal(),
        std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
    );
    let mut trainer = Trainer::new(&job, resolved, &device, opened.model, progress_mode)?;
    // Only now, when nothing can be wrong with the input any more, the output folder is touched.
    let mut output = OutputFolder::create(&resolved.output.dir, &resolved.recipe_hash(), options.overwrite)?;
    output.write("recipe.toml", resolved.to_toml().as_bytes())?;
    let log = output.metrics(&resolved.log.metrics)?;
    trainer.peak = measure_peak(threads);
    let mut run = Run {
        output,
        log,
        best: BestTracker::new(resolved.eval.metric, resolved.train.early_stop),
        save_seconds: 0.0,
        eval_seconds: 0.0,
        begin,
    };
    run.start(&job, resolved, &trainer, threads)?;
    trainer.progress.note(&job.summary(resolved));

    let before = run.judge(&mut trainer, resolved, false)?;
    let reason = run.epochs(&mut trainer, resolved, profiled.as_deref())?;
    let after = run.last_judgement(&mut trainer, resolved)?;
    run.finish(&job, resolved, trainer, reason, (before, after))?;
    Ok(ExitStatus::Done)
}

/// The model with its optimizer and data.
struct Trainer {
    device: Device,
    model: Box<dyn TextModel>,
    optim: OptimManager,
    loader: Loader,
    eval: Option<Loader>,
    metrics: Vec<Metric>,
    stop: StopConditions,
    progress: Progress,
    /// Micro-batches of one optimizer step.
    micro_batches: u64,
    steps_per_epoch: u64,
    label_smoothing: f32,
    seed: u64,
    /// Floating-point operations per second this machine can do.
    peak: f64,
    flops_per_token: f64,
    step: u64,
    skips: u32,
    samples: u64,
    tokens: u64,
    train_time: Duration,
}

/// One optimizer step, for the log.
struct StepResult {
    loss: f32,
    info: StepInfo,
    tokens: u64,
    padded_tokens: u64,
    seconds: f64,
}

impl Trainer {
    fn new(
        job: &Job,
        resolved: &Resolved,
        device: &Device,
        model: Box<dyn TextModel>,
        mode: ProgressMode,
    ) -> Result<Self> {
        let train = &resolved.train;
        let order = match resolved.data.length_grouped {
            true => Order::LengthGrouped { window: LENGTH_WINDOW },
            false => Order::Shuffled,
        };
        let loader = LoaderOptions { order, ..LoaderOptions::training(train.micro_batch_size, train.seed) };
        let loader = Loader::new(Arc::clone(&job.train), loader)?;
        let micro_batches = (train.batch_size / train.micro_batch_size) as u64;
        let steps_per_epoch = (loader.batches_per_epoch() / micro_batches).max(1);
        let stop = StopConditions::new(train, steps_per_epoch, StopFlag::default());
        let total = stop.total_steps();
        // A run limited by time alone has no known end; its schedule falls over one pass of the data.
        let schedule = Schedule::new(
            train.schedule,
            train.lr,
            train.warmup,
            total.unwrap_or(steps_per_epoch),
            train.final_lr_ratio,
        )?;
        let groups = match train.decay_norms_and_biases {
            true => ParamGroup::all(model.parameters(), train.weight_decay),
            false => ParamGroup::by_decay(model.parameters(), train.weight_decay),
        };
        let adam = AdamOptions {
            beta1: train.beta1,
            beta2: train.beta2,
            epsilon: train.eps,
            decay_form: train.decay_form,
            ..AdamOptions::default()
        };
        let mut optim = OptimManager::new(device, train.clip)?;
        optim.add_scheduled(Box::new(Adam::new(groups, adam)?), Scheduler::new(schedule));
        let eval = job.eval.as_ref().map(|data| evaluate::loader(data, resolved.eval.batch_size)).transpose()?;
        // Six operations for each parameter and token; looking up an embedding row is none.
        let looked_up = model.parameters().iter().filter(|param| param.name().ends_with("_embedding.weight"));
        let looked_up: usize = looked_up.map(|param| param.spec().shape.elements()).sum();
        let flops_per_token = 6.0 * (job.parameters - looked_up.min(job.parameters)) as f64;
        Ok(Trainer {
            device: device.clone(),
            metrics: Metric::defaults(job.train.labels()).to_vec(),
            model,
            optim,
            loader,
            eval,
            progress: Progress::new(mode, total),
            stop,
            micro_batches,
            steps_per_epoch,
            label_smoothing: train.label_smoothing,
            seed: train.seed,
            peak: 0.0,
            flops_per_token,
            step: 0,
            skips: 0,
            samples: 0,
            tokens: 0,
            train_time: Duration::ZERO,
        })
    }

    /// One optimizer step: for each micro-batch load, forward, backward; then clip and update.
    fn step(&mut self) -> Result<StepResult> {
        let start = Instant::now();
        let epoch = self.step / self.steps_per_epoch;
        let first = self.step % self.steps_per_epoch * self.micro_batches;
        let weight = 1.0 / self.micro_batches as f32;
        let (mut losses, mut tokens, mut padded) = (Vec::new(), 0, 0);
        for micro_batch in 0..self.micro_batches {
            let batch = self.loader.batch(Position { epoch, index: first + micro_batch })?;
            tokens += batch.tokens as u64;
            padded += batch.input_ids.len() as u64;
            self.samples += batch.samples.len() as u64;
            let batch = TextBatch::of(batch, self.label_smoothing);
            let address = Randomness { seed: self.seed, step: self.step as u32, micro_batch: micro_batch as u32 };
            let mut cx = Ctx::training(&self.device, address);
            let loss = self.model.score(&batch, None, &mut cx)?.loss.ok_or_else(|| {
                Error::model("training", "the model made no loss", "open it with a head for these labels")
            })?;
            self.optim.backward(&loss, weight, &mut cx)?;
            losses.push(loss);
        }
        let info = self.optim.step()?;
        let mut loss = 0.0;
        for micro_batch in losses {
            loss += weight * micro_batch.value().item()?;
        }
        self.step += 1;
        self.tokens += tokens;
        self.guard(&info, loss)?;
        let elapsed = start.elapsed();
        self.train_time += elapsed;
        Ok(StepResult { loss, info, tokens, padded_tokens: padded, seconds: elapsed.as_secs_f64() })
    }

    /// A step that is not finite changed nothing; too many in a row end the run.
    fn guard(&mut self, info: &StepInfo, loss: f32) -> Result<()> {
        self.skips = if info.skipped { self.skips + 1 } else { 0 };
        if self.skips < MAX_SKIPS {
            return Ok(());
        }
        let reason = format!(
            "{MAX_SKIPS} steps in a row up to step {} had gradients that are not finite, loss {loss}",
            self.step
        );
        Err(Error::Diverged {
            reason,
            fix: "lower train.lr, or look for bad samples; the weights were not changed by these steps".into(),
        })
    }

    fn epoch(&self) -> f64 {
        self.step as f64 / self.steps_per_epoch as f64
    }
}

/// Files and clocks of a run.
struct Run {
    output: OutputFolder,
    log: MetricsLog,
    best: BestTracker,
    save_seconds: f64,
    eval_seconds: f64,
    begin: Instant,
}

impl Run {
    fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn start(&mut self, job: &Job, resolved: &Resolved, trainer: &Trainer, threads: usize) -> Result<()> {
        let trainable = trainer.model.parameters().iter().filter(|param| param.is_trainable());
        let (eval_samples, eval_fingerprint) =
            job.eval.as_ref().map_or((0, String::new()), |eval| (eval.len() as u64, eval.fingerprint().to_owned()));
        self.log.write(&StartRecord {
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
        })
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
            if let Some(reason) = trainer.stop.check(trainer.step, self.begin.elapsed()) {
                break reason;
            }
            let result = trainer.step()?;
            self.report(trainer, resolved, &result)?;
            // The last evaluation is made behind the loop, whatever ends it.
            let is_last = trainer.stop.check(trainer.step, self.begin.elapsed()).is_some();
            if every.is_some_and(|every| trainer.step.is_multiple_of(every)) && !is_last {
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
            scale: None,
            tokens_per_s,
            peak_share,
            memory,
            eta: trainer.stop.eta(trainer.step, self.begin.elapsed()),
        };
        trainer.progress.step(&status, is_log_step);
        if !is_log_step {
            return Ok(());
        }
        self.log.write(&StepRecord {
            step: trainer.step,
            epoch: trainer.epoch(),
            loss: result.loss,
            grad_norm: result.info.grad_norm,
            lr: result.info.lr,
            samples: trainer.samples,
            tokens: trainer.tokens,
            skipped: result.info.skipped,
            time: Timing {
                seconds: self.seconds(),
                tokens_per_s,
                peak_share,
                rss_bytes: memory.map_or(0, |memory| memory.rss_bytes),
                peak_rss_bytes: memory.map_or(0, |memory| memory.peak_rss_bytes),
            },
        })
    }

    /// Evaluate, log, and keep the weights if they are the best so far and `counts`.
    fn judge(&mut self, trainer: &mut Trainer, resolved: &Resolved, counts: bool) -> Result<Option<Judgement>> {
        let Some(loader) = &mut trainer.eval else { return Ok(None) };
        let start = Instant::now();
        let mut wanted = trainer.metrics.clone();
        if let EvalMetric::Metric(metric) = resolved.eval.metric
            && !wanted.contains(&metric)
        {
            wanted.push(metric);
        }
        let judgement = evaluate(&*trainer.model, loader, &wanted, &trainer.device)?;
        let eval_seconds = start.elapsed().as_secs_f64();
        self.eval_seconds += eval_seconds;
        let is_best = counts && self.best.observe(trainer.step, |metric| judgement.value(metric));
        self.log.write(&EvalRecord {
            step: trainer.step,
            epoch: trainer.epoch(),
            samples: judgement.samples,
            values: judgement.named(),
            is_best,
            seconds: self.seconds(),
            eval_seconds,
        })?;
        let when =
            if trainer.step == 0 { "before training".to_owned() } else { format!("after step {}", trainer.step) };
        trainer.progress.note(&format!("{when}: {} on {} samples", judgement.line(), judgement.samples));
        if is_best && resolved.save.which != SaveWhich::Last {
            self.save(trainer, resolved, "model", None)?;
        }
        Ok(Some(judgement))
    }

    fn last_judgement(&mut self, trainer: &mut Trainer, resolved: &Resolved) -> Result<Option<Judgement>> {
        self.judge(trainer, resolved, true)
    }

    fn save(&mut self, trainer: &Trainer, resolved: &Resolved, name: &str, card: Option<&ModelCard>) -> Result<()> {
        let start = Instant::now();
        let staged = self.output.stage(name)?;
        let options = SaveOptions { dtype: resolved.save.dtype, companions: Some(&resolved.model.path) };
        trainer.model.save(staged.path(), &options)?;
        if let Some(card) = card {
            model_center::run::write_atomic(&staged.path().join("README.md"), card.render().as_bytes())?;
        }
        staged.commit()?;
        self.save_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn finish(
        &mut self,
        job: &Job,
        resolved: &Resolved,
        mut trainer: Trainer,
        reason: StopReason,
        (before, after): (Option<Judgement>, Option<Judgement>),
    ) -> Result<()> {
        let named = |judgement: &Option<Judgement>| judgement.as_ref().map(Judgement::named).unwrap_or_default();
        let card = card(job, resolved, &trainer, named(&before), named(&after));
        // Without evaluation there is no best: the last weights are all there is.
        let best_is_kept = resolved.save.which != SaveWhich::Last && self.best.best().is_some();
        match (resolved.save.which, best_is_kept) {
            (SaveWhich::Both, true) => self.save(&trainer, resolved, "model-last", Some(&card))?,
            (_, false) => self.save(&trainer, resolved, "model", Some(&card))?,
            (_, true) => {}
        }
        if best_is_kept {
            let path = self.output.path().join("model").join("README.md");
            model_center::run::write_atomic(&path, card.render().as_bytes())?;
        }
        self.log.write(&EndRecord {
            step: trainer.step,
            epoch: trainer.epoch(),
            reason: reason.name().into(),
            best: self.best.best().map(|(value, step)| (resolved.eval.metric.name().to_owned(), value, step)),
            samples: trainer.samples,
            tokens: trainer.tokens,
            seconds: self.seconds(),
            train_seconds: trainer.train_time.as_secs_f64(),
            eval_seconds: self.eval_seconds,
            save_seconds: self.save_seconds,
            peak_rss_bytes: memory::peak_resident_bytes().unwrap_or(0),
        })?;
        self.log.sync()?;
        trainer.progress.finish();
        let mut lines = Vec::new();
        if let (Some(before), Some(after)) = (&before, &after) {
            lines.extend([format!("before: {}", before.line()), format!("after:  {}", after.line())]);
        }
        lines.push(format!(
            "trained {} steps in {:.1} s ({}), model in {}",
            trainer.step,
            trainer.train_time.as_secs_f64(),
            reason.name(),
            self.output.path().join("model").display()
        ));
        terminal::print(&lines.join("\n"))
    }
}

fn card(
    job: &Job,
    resolved: &Resolved,
    trainer: &Trainer,
    results_before: Vec<(String, f64)>,
    results: Vec<(String, f64)>,
) -> ModelCard {
    let name = |path: &std::path::Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    ModelCard {
        name: name(&resolved.output.dir).unwrap_or_else(|| "model".into()),
        base_model: name(&resolved.model.path),
        license: None,
        languages: Vec::new(),
        task: resolved.data.source.task_name().into(),
        pipeline_tag: "text-classification".into(),
        data: CardData {
            name: resolved.data.source.task_name().into(),
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
