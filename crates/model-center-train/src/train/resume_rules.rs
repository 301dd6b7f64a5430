//! Rules on which a checkpoint and the run that resumes it have to agree, and what is in force where they may differ.
//!
//! Defines [`Rules`], which [`Choice::load`](super::resume::Choice::load) follows.

use super::finetune::RunConfig;
use super::resume::{RunState, data_of};
use crate::{Error, Result};
use bmtrain_dist::checkpoint::Manifest;
use bmtrain_dist::optim::{Schedule, Warmup};
use serde_json::{Map, Value};

/// The member of the manifest's layout that tells whether two recipes differ in their schedules alone.
const REST: &str = "recipe_without_schedule";

/// State that a resumed run takes of a checkpoint besides parameters and progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rules {
    /// Moments, master weights and step counts; else the optimizer begins with fresh state.
    pub(super) optimizer_state: bool,
    /// The schedule of the checkpoint, which stays in force although the recipe has another one.
    pub(super) kept_schedule: Option<Schedule>,
    /// Whether the checkpoint has the state of the optimizer.
    has_optimizer_state: bool,
}

/// Adds what [`Rules::of`] compares to the layout of a manifest.
pub(super) fn describe(config: &RunConfig, layout: &mut Map<String, Value>) {
    layout.insert(REST.to_owned(), Value::from(config.resolved.hash_without_schedule()));
}

impl Rules {
    /// For the checkpoint at `place`.
    ///
    /// # Errors
    /// Another recipe, other data, another schedule or no optimizer state, unless an option accepts it.
    pub(super) fn of(config: &RunConfig, place: &str, manifest: &Manifest, state: &RunState) -> Result<Self> {
        let options = &config.options;
        check_recipe(config, place, manifest)?;
        check_data(config, place, state)?;
        let has_optimizer_state = state.training.has_optimizer_state;
        if !has_optimizer_state && !options.fresh_optimizer {
            let reason = "it was saved without optimizer state (checkpoint.optimizer_state = false), so the run cannot \
                          resume with the same bits";
            let fix = "add --fresh-optimizer to resume with new moments, or --resume a checkpoint that has them";
            return Err(Error::recipe(place, reason, fix));
        }
        Ok(Rules {
            optimizer_state: !options.fresh_optimizer,
            kept_schedule: kept_schedule(config, place, state)?,
            has_optimizer_state,
        })
    }

    /// A line for each of them that is not what a resumed run has by default.
    pub(super) fn notes(&self) -> Vec<String> {
        let fresh = (!self.optimizer_state).then(|| {
            let why = if self.has_optimizer_state { "--fresh-optimizer" } else { "the checkpoint has none" };
            format!("the optimizer begins with fresh state: {why}")
        });
        let kept = self.kept_schedule.map(|schedule| format!("the checkpoint's schedule stays in force: {schedule}"));
        fresh.into_iter().chain(kept).collect()
    }
}

fn check_recipe(config: &RunConfig, place: &str, manifest: &Manifest) -> Result<()> {
    let (options, resolved) = (&config.options, &config.resolved);
    if manifest.facts.recipe == resolved.recipe_hash() || options.accept_change {
        return Ok(());
    }
    let reason = "the checkpoint was saved by a run of another recipe";
    if !options.keep_schedule {
        return Err(Error::recipe(place, reason, "add --accept-change to go on with the changed settings"));
    }
    let rest = manifest.facts.layout.get(REST).and_then(Value::as_str);
    if rest == Some(resolved.hash_without_schedule().as_str()) {
        return Ok(());
    }
    let (reason, fix) = match rest {
        Some(_) => (
            format!("{reason}, which differs in more than schedule and length"),
            "set the other settings as they were, or write the checkpoint's schedule into the recipe and add \
             --accept-change in place of --keep-schedule",
        ),
        None => (
            "the checkpoint is of an earlier version, which recorded no schedule".to_owned(),
            "set the keys of the schedule as they were",
        ),
    };
    Err(Error::recipe(place, reason, fix))
}

fn check_data(config: &RunConfig, place: &str, state: &RunState) -> Result<()> {
    let (train, eval) = data_of(config);
    for (now, then, key) in [(&train, &state.train_data, "data.train"), (&eval, &state.eval_data, "data.eval")] {
        if now != then && !config.options.accept_change {
            let reason = format!("the data of {key} are not those the run was begun with");
            let fix = "bring the files back as they were, or add --accept-change to go on with these";
            return Err(Error::data(place, reason, fix));
        }
    }
    Ok(())
}

/// The schedule of the checkpoint where it is not the recipe's and stays in force.
fn kept_schedule(config: &RunConfig, place: &str, state: &RunState) -> Result<Option<Schedule>> {
    let (options, now) = (&config.options, config.setup.schedule);
    let Some(then) = state.schedule.filter(|then| *then != now && !options.accept_change) else { return Ok(None) };
    // Earlier versions rounded a fraction of the steps to the nearest step, and not up.
    let is_rounded = matches!(config.resolved.train.warmup, Warmup::Fraction(_))
        && then.warmup + 1 == now.warmup
        && Schedule { warmup: now.warmup, ..then } == now;
    if options.keep_schedule || is_rounded {
        return Ok(Some(then.checked()?));
    }
    // The recipes are the same: an earlier resume kept a schedule that this recipe never had.
    let reason = format!("the run follows a schedule that was kept, {then}, and the recipe has another, {now}");
    let fix = "add --keep-schedule to follow it further, or --accept-change to follow the recipe's";
    Err(Error::recipe(place, reason, fix))
}
