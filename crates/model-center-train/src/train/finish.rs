//! The end of a run: the last model, its model card and the last record; or a checkpoint, where it is asked to stop.

use super::evaluate::{EvalResult, line};
use super::finetune::RunConfig;
use super::resume::Resume;
use super::run::Run;
use super::save::ModelContents;
use super::start::OWN_FAILURE;
use super::trainer::Trainer;
use super::{pool_usage, run_data};
use crate::{Error, Result};
use bmtrain_dist::inspect::process as memory;
use bmtrain_dist::optim::ScalePolicy;
use model_center_base::batch::LabelSpace;
use model_center_base::error::{ExitStatus, layout_error};
use model_center_base::file::write_atomic;
use model_center_formats::directory::hub_name;
use model_center_recipe::SaveWhich;
use model_center_recipe::run::{
    CARD_FILE, CardData, EndRecord, LAST_MODEL_DIRECTORY, MODEL_DIRECTORY, MetricsLog, ModelCard, StopReason, console,
};
use std::time::SystemTime;

impl Run<'_> {
    /// Save a checkpoint and end, because a rank was asked to stop.
    pub(super) fn stop_early(&mut self, trainer: &Trainer) -> Result<ExitStatus> {
        if !self.checkpointer.has(trainer.steps()) {
            self.save_checkpoint(trainer)?;
        }
        let note = self.checkpointer.finish_at(trainer.steps())?;
        self.note(note);
        self.end(trainer, StopReason::Request.name(), true)?;
        self.display.finish();
        if trainer.ranks.is_first() {
            let options = &self.config.options;
            let without = match options.resume {
                _ if options.overwrite => " without --overwrite",
                Resume::From(_) | Resume::Never => " without --resume",
                Resume::Auto | Resume::Must => "",
            };
            let is_late = options.exit_at.is_some_and(|until| SystemTime::now() >= until);
            let later = if is_late { " with a later --exit-at" } else { "" };
            let fresh = match self.config.resolved.checkpoint.optimizer_state || options.fresh_optimizer {
                true => "",
                false => " with --fresh-optimizer",
            };
            let text = format!(
                "stopped after step {}; the same command{without}{fresh}{later} goes on from there",
                trainer.steps()
            );
            console::print(&text)?;
        }
        Ok(ExitStatus::Stopped)
    }

    /// Save the model with its card, and report.
    pub(super) fn finish(&mut self, trainer: &Trainer, reason: StopReason, after: Option<EvalResult>) -> Result<()> {
        let before = self.eval_before.take();
        let named = |result: &Option<EvalResult>| result.as_ref().map(EvalResult::named).unwrap_or_default();
        let card = card(self.config, trainer, named(&before), named(&after));
        // Without evaluation there are no best weights but the last.
        let best_step = self.best_step();
        let has_best = best_step.is_some();
        let best_is_kept = has_best && !self.best_is_lost;
        if has_best && !best_is_kept && trainer.ranks.is_first() {
            console::note(
                "warning: the best weights are not in the directory of this run, because it resumed a checkpoint of \
                 another one or they were given up: the model holds the last weights",
            );
        }
        match (self.config.resolved.save.which, best_is_kept) {
            (SaveWhich::Both, true) => self.save(trainer, LAST_MODEL_DIRECTORY, ModelContents::with(&card))?,
            (SaveWhich::None, _) | (_, true) => {}
            (_, false) => self.save(trainer, MODEL_DIRECTORY, ModelContents::with(&card))?,
        }
        if best_is_kept {
            self.recheck_best(trainer)?;
        }
        // A range test goes on until it diverges.
        let warns = trainer.ranks.is_first() && self.lr_range.is_none();
        if let Some(text) = skipped_at_end(trainer).filter(|_| warns) {
            console::note(&text);
            self.display.log(&text);
        }
        if let Some(files) = self.files.as_ref().filter(|_| best_is_kept) {
            let path = files.output.path().join(MODEL_DIRECTORY).join(CARD_FILE);
            let metric = self.config.resolved.eval.metric.name();
            let best = best_step.map(|step| (metric.to_owned(), step));
            let card = ModelCard { results: self.best.results(), best, ..card };
            write_atomic(&path, card.render().as_bytes())?;
        }
        self.end(trainer, reason.name(), true)?;
        self.display.finish();
        let Some(files) = &mut self.files else { return Ok(()) };
        files.output.finish(trainer.steps(), reason)?;
        let mut lines = Vec::new();
        if let (Some(before), Some(after)) = (&before, &after) {
            lines.extend([format!("before: {}", before.line()), format!("after:  {}", after.line())]);
        }
        let earlier = best_step.filter(|step| best_is_kept && *step != trainer.steps());
        lines.extend(earlier.map(|step| format!("best:   {} (after step {step})", line(&self.best.results()))));
        let (place, what) = match self.config.resolved.save.which {
            SaveWhich::None => (files.output.path().to_owned(), "metrics"),
            _ if earlier.is_some() => (files.output.path().join(MODEL_DIRECTORY), "best model"),
            _ => (files.output.path().join(MODEL_DIRECTORY), "model"),
        };
        lines.push(format!(
            "trained {} steps in {:.1} s ({}), {what} in {}",
            trainer.steps(),
            trainer.train_time().as_secs_f64(),
            reason.name(),
            place.display()
        ));
        console::print(&lines.join("\n"))
    }

    /// Record in the run's log and directory that it ends in an error. Failed writes are not reported as well.
    pub(super) fn fail(&mut self, trainer: &Trainer, error: &Error) {
        let status = ExitStatus::from(error);
        self.display.log(&layout_error(error));
        let _ = self.end(trainer, status.name(), false);
        let weight = if status == ExitStatus::Peer { 1 } else { OWN_FAILURE };
        // A run that did not begin made no attempt that counts.
        if let Some(files) = self.files.as_mut().filter(|files| files.log.is_some()) {
            let _ = files.output.note_failure(self.start_step, weight);
        }
    }

    /// Write the last record of the log. Other ranks take part if `all_are_well`; after a failure they may be blocked.
    fn end(&mut self, trainer: &Trainer, reason: &str, all_are_well: bool) -> Result<()> {
        let state = match all_are_well || trainer.ranks.size() == 1 {
            true => trainer.optim.fingerprint().ok(),
            false => None,
        };
        let pool = pool_usage::of_fullest_rank(&trainer.device, &trainer.ranks, all_are_well)?;
        let (seconds, best) = (self.seconds(), self.best.best());
        self.display.log(&self.times.table(seconds));
        self.display.log(&format!("ended after step {}: {reason}", trainer.steps()));
        let progress = trainer.progress();
        self.log(&EndRecord {
            step: progress.step,
            epoch: trainer.epoch(),
            reason: reason.into(),
            best: best.map(|(value, step)| (self.config.resolved.eval.metric.name().to_owned(), value, step)),
            state,
            skipped_at_end: u64::from(trainer.optim.scaler().state().consecutive),
            samples: progress.samples,
            tokens: progress.tokens,
            seconds,
            train_seconds: trainer.train_time().as_secs_f64(),
            eval_seconds: self.times.eval_seconds,
            save_seconds: self.times.save_seconds,
            peak_rss_bytes: memory::peak_resident_bytes().unwrap_or(0),
            peak_anonymous_bytes: memory::resident().map(|resident| resident.peak_anonymous_bytes),
            pool,
        })?;
        self.files.as_mut().and_then(|files| files.log.as_mut()).map_or(Ok(()), MetricsLog::sync)
    }
}

/// The warning where the last steps changed nothing.
fn skipped_at_end(trainer: &Trainer) -> Option<String> {
    let skipped = trainer.optim.scaler().state().consecutive;
    let first = trainer.optim.broken_gradient().map(|name| format!(", {name} first")).unwrap_or_default();
    // A dynamic scale begins too large, and is lowered where gradients overflow.
    let advice = match trainer.optim.scaler().policy() {
        ScalePolicy::Static { .. } => "lower train.lr, or look for bad samples",
        _ => "the loss scale was lowered",
    };
    (skipped > 0).then(|| {
        format!(
            "warning: the last {skipped} of {} steps were skipped, because their gradients were not finite{first}: \
             they changed no weight; {advice}",
            trainer.steps()
        )
    })
}

fn card(
    RunConfig { setup, resolved, .. }: &RunConfig,
    trainer: &Trainer,
    results_before: Vec<(String, f64)>,
    results: Vec<(String, f64)>,
) -> ModelCard {
    let task = resolved.data.source.task().name();
    // PEFT's cards name the model, wherever it is.
    let is_adapter = setup.adapter.is_some() && !resolved.save.merged;
    ModelCard {
        name: format!("{}-{}", setup.family, task.to_lowercase()),
        base_model: hub_name(&setup.start.directory).or_else(|| is_adapter.then(|| resolved.model.path.clone())),
        license: None,
        languages: Vec::new(),
        task: task.into(),
        pipeline_tag: resolved.data.source.task().pipeline_tag(trainer.model.info().generates_targets).into(),
        data: CardData {
            name: task.into(),
            train_samples: setup.train.len(),
            train_fingerprint: setup.train.fingerprint().into(),
            eval_samples: run_data::samples(&setup.eval),
            eval_fingerprint: run_data::fingerprint(&setup.eval),
            classes: match setup.train.labels() {
                LabelSpace::Classes(names) | LabelSpace::TokenClasses(names) | LabelSpace::LabelSets(names) => {
                    names.clone()
                }
                _ => Vec::new(),
            },
        },
        results,
        results_before,
        steps: trainer.steps(),
        best: None,
        epochs: trainer.epoch(),
        recipe: resolved.hashed_toml(),
        recipe_hash: resolved.recipe_hash(),
        made_by: format!("finetune {}", env!("CARGO_PKG_VERSION")),
        is_adapter,
    }
}
