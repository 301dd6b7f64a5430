//! Saving checkpoints during a run, and what happens where one cannot be saved.
//!
//! Defines [`Checkpointer`]. Called by a run between steps, on all ranks alike.

use super::finetune::RunConfig;
use super::resume::RunState;
use super::trainer::Trainer;
use crate::train::kept::{kept_checkpoints, saved_state};
use crate::{Error, Result};
use bmtrain_dist::ControlGroup;
use bmtrain_dist::checkpoint::{Facts, FailPoints, SaveEvent, Saver, Store};
use model_center_base::units::size;
use model_center_recipe::run::console;
use model_center_recipe::{Interval, OnSaveFailure, Resolved};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Saves checkpoints when the recipe asks for them, while training continues.
pub(super) struct Checkpointer {
    directory: PathBuf,
    fail_points: FailPoints,
    schedule: CheckpointSchedule,
    /// Checkpoints that are kept.
    keep: usize,
    optimizer_state: bool,
    stop_on_failure: bool,
    /// Whether this rank reports failures.
    is_first: bool,
    /// Made with the first save: a run without any leaves no empty directory.
    saver: Option<Saver>,
    last_save: Instant,
    /// The step of the last checkpoint that was begun or resumed from.
    last_step: Option<u64>,
    /// Why the last save failed, if it did.
    failed: Option<bmtrain_dist::Error>,
}

/// When checkpoints are due.
struct CheckpointSchedule {
    every: Option<u64>,
    every_time: Option<Duration>,
    at_end: bool,
}

impl Checkpointer {
    /// For checkpoints in `directory`.
    pub(super) fn new(config: &RunConfig, directory: &Path, is_first: bool) -> Result<Self> {
        let settings = config.resolved.checkpoint;
        let minutes = Some(settings.minutes).filter(|minutes| *minutes > 0.0);
        Ok(Checkpointer {
            directory: directory.to_owned(),
            fail_points: config.options.fail_points.clone(),
            schedule: CheckpointSchedule {
                every: settings.every.in_steps(config.setup.steps_per_epoch),
                every_time: minutes.and_then(|minutes| Duration::try_from_secs_f64(minutes * 60.0).ok()),
                at_end: settings.every != Interval::Never,
            },
            keep: settings.keep,
            optimizer_state: settings.optimizer_state,
            stop_on_failure: settings.on_failure == OnSaveFailure::Stop,
            is_first,
            saver: None,
            last_save: Instant::now(),
            last_step: None,
            failed: None,
        })
    }

    /// Whether a checkpoint is saved at the end of the run.
    pub(super) fn saves_at_end(&self) -> bool {
        self.schedule.at_end
    }

    /// Whether a checkpoint is due by this rank's clock; clocks differ, so the ranks use the first rank's.
    pub(super) fn is_due_by_time(&self) -> bool {
        self.schedule.every_time.is_some_and(|limit| self.last_save.elapsed() >= limit)
    }

    /// Whether a checkpoint is due after `step` steps; `by_time` is what the ranks agreed on.
    pub(super) fn is_due(&self, step: u64, by_time: bool) -> bool {
        let by_steps = step > 0 && self.schedule.every.is_some_and(|every| step.is_multiple_of(every));
        (by_steps || by_time) && !self.has(step)
    }

    /// Whether the last checkpoint is of this step.
    pub(super) fn has(&self, step: u64) -> bool {
        self.last_step == Some(step)
    }

    /// Record that the run was resumed from its own checkpoint of this step.
    pub(super) fn resumed_from(&mut self, step: u64) {
        self.last_step = Some(step);
    }

    /// Begin to save the present state, and keep the checkpoint of `best_step`, from which the best weights can be
    /// restored. After a failure of the save before, fail or continue as the recipe sets. Returns a line for the log.
    pub(super) fn begin(
        &mut self,
        config: &RunConfig,
        trainer: &Trainer,
        (state, layout): (RunState, Map<String, Value>),
        best_step: Option<u64>,
    ) -> Result<Option<String>> {
        let facts =
            Facts { recipe: config.resolved.recipe_hash(), layout, state: state.into_map()?, ..Facts::default() };
        if self.saver.is_none() {
            self.saver = Some(self.open(&trainer.ranks)?);
        }
        let Some(saver) = &mut self.saver else { return Ok(None) };
        saver.keep_step(best_step);
        let (step, params) = (trainer.steps(), trainer.model.parameters());
        let event = saver.begin(&trainer.device, step, facts, params, &trainer.optim)?;
        (self.last_save, self.last_step) = (Instant::now(), Some(step));
        self.handle(event)
    }

    /// Advance the save in progress without waiting. Returns a line for the log.
    pub(super) fn advance(&mut self) -> Result<Option<String>> {
        let event = self.saver.as_mut().map_or(Ok(None), Saver::advance)?;
        self.handle(event)
    }

    /// Wait for the save in progress. Returns a line for the log.
    pub(super) fn finish(&mut self) -> Result<Option<String>> {
        let event = self.saver.as_mut().map_or(Ok(None), Saver::finish)?;
        self.handle(event)
    }

    /// Wait for the save in progress, and fail unless the state of `step` is saved: the run ends on it.
    pub(super) fn finish_at(&mut self, step: u64) -> Result<Option<String>> {
        let note = self.finish()?;
        match self.failed.take() {
            Some(error) if !self.has(step) => Err(error.into()),
            _ => Ok(note),
        }
    }

    /// The first rank creates the directory and removes leftovers; the others open it after that.
    fn open(&self, ranks: &ControlGroup) -> Result<Saver> {
        if ranks.is_first() {
            Store::create(&self.directory)?.remove_leftovers()?;
        }
        ranks.gather(&[0.0])?;
        let store = Store::open(&self.directory)?.with_fail_points(self.fail_points.clone());
        Ok(Saver::new(store, ranks.clone(), self.keep)?.with_optimizer_state(self.optimizer_state))
    }

    fn handle(&mut self, event: Option<SaveEvent>) -> Result<Option<String>> {
        match event {
            None => Ok(None),
            Some(SaveEvent::Saved { step, committed }) => Ok(committed
                .map(|committed| format!("checkpoint of step {step}: {} ({})", committed.name, size(committed.bytes)))),
            Some(SaveEvent::Failed { error, .. }) if self.stop_on_failure => Err(error.into()),
            Some(SaveEvent::Failed { step, error }) => {
                self.last_step = self.last_step.filter(|last| *last != step);
                if self.is_first {
                    console::note(&format!(
                        "warning: the state of step {step} was not saved, and the run goes on without: {error}"
                    ));
                }
                self.failed = Some(error);
                Ok(None)
            }
        }
    }
}

/// See before the first step whether the disk has room for the checkpoints that the recipe asks for. A run that goes on
/// is only warned: it has checkpoints, and the recipe decides what happens when one more cannot be saved.
pub(super) fn check_disk(resolved: &Resolved, output: &Path, parameters: usize, is_new: bool) -> Result<()> {
    let settings = resolved.checkpoint;
    let is_asked_for = settings.every != Interval::Never;
    if !is_asked_for && settings.minutes == 0.0 {
        return Ok(());
    }
    let one = (parameters as f64 * (resolved.model.dtype.size() as f64 + saved_state(resolved).0)) as u64;
    let free = Store::open(output)?.free_bytes()?;
    if (free as f64) < 1.2 * one as f64 && is_asked_for && is_new {
        let source = std::io::Error::new(std::io::ErrorKind::StorageFull, disk_too_small(one, free));
        let fix =
            "make room, set output.dir to another disk, or checkpoint.every = \"never\" and checkpoint.minutes = 0";
        return Err(Error::file("save checkpoints in", output, source, fix));
    }
    // One more than is kept is there while it is being saved.
    let all = one.saturating_mul(kept_checkpoints(resolved) + 1);
    if free < all {
        let (all, free) = (size(all), size(free));
        console::note(&format!("warning: the checkpoints will take {all}, and {free} are free"));
    }
    Ok(())
}

fn disk_too_small(checkpoint: u64, free: u64) -> String {
    format!("a checkpoint has {}, and {} are free", size(checkpoint), size(free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_messages_have_a_unit_that_fits() {
        assert_eq!(disk_too_small(268_056, 4096), "a checkpoint has 261.8 KiB, and 4.0 KiB are free");
        assert_eq!(disk_too_small(700, 300), "a checkpoint has 0.7 KiB, and 0.3 KiB are free");
        assert_eq!(disk_too_small(90 << 20, 0), "a checkpoint has 90.0 MiB, and 0 are free");
    }
}
