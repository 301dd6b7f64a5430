//! When a run saves its state, and what becomes of it when it cannot.
//!
//! Defines [`Keeper`]. Called by the course of a run between steps, on all ranks alike.

use super::resume::{RunState, layout};
use super::train::{Plan, Trainer};
use crate::plan::disk::kept_checkpoints;
use crate::plan::show::size;
use crate::terminal;
use bmtrain_core::DType;
use bmtrain_dist::checkpoint::{Facts, FailPoints, SaveEvent, Saver, Store};
use model_center::recipe::{Interval, OnSaveFailure, Resolved};
use model_center::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Saves checkpoints as the recipe says.
pub(super) struct Keeper {
    directory: PathBuf,
    fail_points: FailPoints,
    keep: usize,
    stops: bool,
    every: Option<u64>,
    at_end: bool,
    by_clock: Option<Duration>,
    /// Made with the first save: a run without any leaves no empty directory.
    saver: Option<Saver>,
    last: Instant,
    /// The step that was begun to be saved last, or gone on from.
    pub(super) last_step: Option<u64>,
    /// The step of the best weights: its checkpoint, if there is one, is kept to restore them from.
    pub(super) best_step: Option<u64>,
    /// Why the last save failed, if one did.
    failed: Option<bmtrain_dist::Error>,
}

impl Keeper {
    /// For checkpoints in `directory`.
    pub(super) fn new(plan: &Plan, directory: &Path, steps_per_epoch: u64) -> Result<Self> {
        let settings = plan.resolved.checkpoint;
        Ok(Keeper {
            directory: directory.to_owned(),
            fail_points: plan.options.fail_points()?,
            keep: settings.keep,
            stops: settings.on_failure == OnSaveFailure::Stop,
            every: settings.every.in_steps(steps_per_epoch),
            at_end: settings.every != Interval::Never,
            by_clock: Some(settings.minutes)
                .filter(|minutes| *minutes > 0.0)
                .and_then(|minutes| Duration::try_from_secs_f64(minutes * 60.0).ok()),
            saver: None,
            last: Instant::now(),
            last_step: None,
            best_step: None,
            failed: None,
        })
    }

    /// Whether the state is saved when the run has come to its end.
    pub(super) fn saves_at_end(&self) -> bool {
        self.at_end
    }

    /// Whether the clock says that it is time; clocks differ, so the ranks go by the first one's.
    pub(super) fn is_time(&self) -> bool {
        self.by_clock.is_some_and(|limit| self.last.elapsed() >= limit)
    }

    /// Whether to save after `step` steps; `by_clock` is what the ranks agreed on.
    pub(super) fn is_due(&self, step: u64, by_clock: bool) -> bool {
        let by_steps = step > 0 && self.every.is_some_and(|every| step.is_multiple_of(every));
        (by_steps || by_clock) && self.last_step != Some(step)
    }

    /// Begin to save the present state; after a failure of the save before, do as the recipe says.
    pub(super) fn begin(&mut self, plan: &Plan, trainer: &mut Trainer, state: RunState) -> Result<()> {
        let facts = Facts {
            recipe: plan.resolved.recipe_hash(),
            layout: layout(plan, trainer),
            state: state.into_map()?,
            ..Facts::default()
        };
        if self.saver.is_none() {
            self.saver = Some(self.open(trainer)?);
        }
        let Some(saver) = &mut self.saver else { return Ok(()) };
        saver.keep_step(self.best_step);
        let params = trainer.model.parameters();
        let event = saver.begin(&trainer.device, trainer.step, facts, params, &trainer.optim)?;
        (self.last, self.last_step) = (Instant::now(), Some(trainer.step));
        self.heed(trainer, event)
    }

    /// Move on with a save in hand, without waiting.
    pub(super) fn advance(&mut self, trainer: &mut Trainer) -> Result<()> {
        let event = self.saver.as_mut().map_or(Ok(None), Saver::advance)?;
        self.heed(trainer, event)
    }

    /// Wait for the save in hand.
    pub(super) fn finish(&mut self, trainer: &mut Trainer) -> Result<()> {
        let event = self.saver.as_mut().map_or(Ok(None), Saver::finish)?;
        self.heed(trainer, event)
    }

    /// Wait for the save in hand, and see to it that the present state is saved: the run ends on it.
    pub(super) fn finish_for_good(&mut self, trainer: &mut Trainer) -> Result<()> {
        self.finish(trainer)?;
        match self.failed.take() {
            Some(error) if self.last_step != Some(trainer.step) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The first rank makes the directory and tidies it; the others open it when that is done.
    fn open(&self, trainer: &Trainer) -> Result<Saver> {
        let team = &trainer.team;
        if team.is_first() {
            Store::create(&self.directory)?.remove_leftovers()?;
        }
        team.gather(&[0.0])?;
        let store = Store::open(&self.directory)?.with_fail_points(self.fail_points.clone());
        Ok(Saver::new(store, team.clone(), self.keep)?)
    }

    fn heed(&mut self, trainer: &mut Trainer, event: Option<SaveEvent>) -> Result<()> {
        match event {
            None => Ok(()),
            Some(SaveEvent::Saved { step, committed }) => {
                if let Some(committed) = committed {
                    let size = size(committed.bytes);
                    trainer.progress.note(&format!("checkpoint of step {step}: {} ({size})", committed.name));
                }
                Ok(())
            }
            Some(SaveEvent::Failed { error, .. }) if self.stops => Err(error.into()),
            Some(SaveEvent::Failed { step, error }) => {
                self.last_step = self.last_step.filter(|last| *last != step);
                if trainer.team.is_first() {
                    terminal::note(&format!(
                        "warning: the state of step {step} was not saved, and the run goes on without: {error}"
                    ));
                }
                self.failed = Some(error);
                Ok(())
            }
        }
    }
}

/// See before the first step whether the disk has room for the checkpoints that the recipe asks for. A run that goes on
/// is only warned: it has checkpoints, and what becomes of it when one more cannot be saved is for the recipe to say.
pub(super) fn check_room(resolved: &Resolved, output: &Path, parameters: usize, is_new: bool) -> Result<()> {
    let settings = resolved.checkpoint;
    let is_asked_for = settings.every != Interval::Never;
    if !is_asked_for && settings.minutes == 0.0 {
        return Ok(());
    }
    // Values, two moments, and a master beside 16-bit values.
    let each = resolved.model.dtype.size() + 8 + if resolved.model.dtype == DType::F32 { 0 } else { 4 };
    let one = (parameters * each) as u64;
    let free = Store::open(output)?.free_bytes()?;
    if (free as f64) < 1.2 * one as f64 && is_asked_for && is_new {
        let source = std::io::Error::new(std::io::ErrorKind::StorageFull, no_room(one, free));
        let fix =
            "make room, set output.dir to another disk, or checkpoint.every = \"never\" and checkpoint.minutes = 0";
        return Err(Error::file("save checkpoints in", output, source, fix));
    }
    // One more than is kept is there while it is being saved.
    let all = one.saturating_mul(kept_checkpoints(resolved) + 1);
    if free < all {
        let (all, free) = (size(all), size(free));
        terminal::note(&format!("warning: the checkpoints will take {all}, and {free} are free"));
    }
    Ok(())
}

fn no_room(checkpoint: u64, free: u64) -> String {
    format!("a checkpoint has {}, and {} are free", size(checkpoint), size(free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_messages_have_a_unit_that_fits() {
        assert_eq!(no_room(268_056, 4096), "a checkpoint has 261.8 KiB, and 4.0 KiB are free");
        assert_eq!(no_room(700, 300), "a checkpoint has 0.7 KiB, and 0.3 KiB are free");
        assert_eq!(no_room(90 << 20, 0), "a checkpoint has 90.0 MiB, and 0 are free");
    }
}
