//! When a run ends: limits of steps, epochs and minutes, a request from outside, no more improvement.
//!
//! Defines [`StopConditions`] and [`BestTracker`]. Called by the training loop after each
//! step and each evaluation.

use model_center_base::stop_flag::StopFlag;
use model_center_recipe::run::{BestState, EarlyState, Exact, StopReason};
use model_center_recipe::{EarlyStopSettings, EvalMetric, TrainSettings};
use std::path::PathBuf;
use std::time::Duration;

/// The limits of a run; the first one reached ends it.
#[derive(Debug, Clone)]
pub struct StopConditions {
    steps: Option<(u64, StopReason)>,
    time: Option<Duration>,
    flag: StopFlag,
    file: Option<PathBuf>,
}

impl StopConditions {
    /// The limits of a recipe, for data of `steps_per_epoch` optimizer steps per pass.
    ///
    /// Epochs are turned into whole steps, rounded up, at least one; the smaller of the two limits in steps holds.
    pub fn new(train: &TrainSettings, steps_per_epoch: u64, flag: StopFlag) -> Self {
        let of_epochs = |epochs: f64| ((epochs * steps_per_epoch as f64).ceil() as u64).max(1);
        let by_epochs = train.epochs.map(|epochs| (of_epochs(epochs), StopReason::Epochs));
        let by_steps = train.steps.map(|steps| (steps, StopReason::Steps));
        let steps = by_epochs.into_iter().chain(by_steps).min_by_key(|(steps, _)| *steps);
        // More than a century does not limit a run and would overflow a Duration.
        let time = train.minutes.filter(|m| *m < 5e7).map(|m| Duration::from_secs_f64(m.max(0.0) * 60.0));
        StopConditions { steps, time, flag, file: None }
    }

    /// Also stop on request when there is a file of this name.
    pub fn or_file(self, file: PathBuf) -> Self {
        StopConditions { file: Some(file), ..self }
    }

    /// Whether a stop is requested, by the flag or by the file; the file is then removed.
    pub fn is_requested(&self) -> bool {
        if let Some(file) = &self.file
            && file.symlink_metadata().is_ok()
        {
            // A file that cannot be removed would stop the next run too; that is better than not stopping this one.
            let _ = std::fs::remove_file(file);
            self.flag.request();
        }
        self.flag.is_requested()
    }

    /// Steps of the whole run as far as they are known: what schedules end at; `None` with a time limit alone.
    pub fn total_steps(&self) -> Option<u64> {
        self.steps.map(|(steps, _)| steps)
    }

    /// Whether to stop after `step` steps and `elapsed` time of training.
    pub fn check(&self, step: u64, elapsed: Duration) -> Option<StopReason> {
        if let Some((limit, reason)) = self.steps
            && step >= limit
        {
            return Some(reason);
        }
        if self.is_requested() {
            return Some(StopReason::Request);
        }
        self.time.filter(|limit| elapsed >= *limit).map(|_| StopReason::Minutes)
    }

    /// The time left, judged by the time so far; `None` before the first step.
    pub fn eta(&self, step: u64, elapsed: Duration) -> Option<Duration> {
        let by_time = self.time.map(|limit| limit.saturating_sub(elapsed));
        let by_steps = self.steps.filter(|_| step > 0).and_then(|(limit, _)| {
            let left = limit.saturating_sub(step) as f64 / step as f64;
            Duration::try_from_secs_f64(elapsed.as_secs_f64() * left).ok()
        });
        by_steps.into_iter().chain(by_time).min()
    }
}

/// Tracks the best evaluation and decides on early stopping.
#[derive(Debug, Clone, PartialEq)]
pub struct BestTracker {
    best: MetricTracker,
    early: Option<(MetricTracker, u64)>,
    /// Names and values of all metrics of the best evaluation.
    results: Vec<(String, f64)>,
}

/// The best value of one metric so far.
#[derive(Debug, Clone, PartialEq)]
struct MetricTracker {
    metric: EvalMetric,
    best: Option<(f64, u64)>,
    /// Evaluations since then.
    without: u64,
}

impl MetricTracker {
    fn new(metric: EvalMetric) -> Self {
        MetricTracker { metric, best: None, without: 0 }
    }

    /// Whether `value` is a new best. Equal is not better, so the earliest of equals stays; NaN never is.
    fn observe(&mut self, step: u64, value: f64) -> bool {
        let better = match self.best {
            _ if value.is_nan() => false,
            None => true,
            Some((best, _)) if self.metric.larger_is_better() => value > best,
            Some((best, _)) => value < best,
        };
        if better {
            self.best = Some((value, step));
            self.without = 0;
        } else {
            self.without += 1;
        }
        better
    }

    fn state(&self) -> EarlyState {
        let best = self.best.map(|(value, step)| (Exact(value), step));
        EarlyState { metric: self.metric.name().to_owned(), best, without: self.without }
    }

    fn load(&mut self, metric: &str, best: Option<(Exact, u64)>, without: u64) {
        if self.metric.name() == metric {
            (self.best, self.without) = (best.map(|(value, step)| (value.0, step)), without);
        }
    }
}

impl BestTracker {
    /// `metric` picks the best weights; `early` sets early stopping.
    pub fn new(metric: EvalMetric, early: Option<EarlyStopSettings>) -> Self {
        BestTracker {
            best: MetricTracker::new(metric),
            early: early.map(|e| (MetricTracker::new(e.metric), e.patience)),
            results: Vec::new(),
        }
    }

    /// Notes an evaluation after `step` steps; `value` gives the value of a metric. Returns whether it is the best so
    /// far.
    pub fn observe(&mut self, step: u64, value: impl Fn(EvalMetric) -> f64) -> bool {
        if let Some((tracker, _)) = &mut self.early {
            let value = value(tracker.metric);
            tracker.observe(step, value);
        }
        let value = value(self.best.metric);
        self.best.observe(step, value)
    }

    /// Whether `patience` consecutive evaluations brought no improvement.
    pub fn has_lost_patience(&self) -> bool {
        self.early.as_ref().is_some_and(|(tracker, patience)| tracker.without >= *patience)
    }

    /// The state for a checkpoint.
    pub fn state(&self) -> BestState {
        let EarlyState { metric, best, without } = self.best.state();
        let results = self.results.iter().map(|(name, value)| (name.clone(), Exact(*value))).collect();
        BestState { metric, best, without, early: self.early.as_ref().map(|(tracker, _)| tracker.state()), results }
    }

    /// Load a tracker's state. Values of another metric are ignored.
    pub fn load_state(&mut self, state: &BestState) {
        self.best.load(&state.metric, state.best, state.without);
        if self.best.metric.name() == state.metric {
            self.results = state.results.iter().map(|(name, value)| (name.clone(), value.0)).collect();
        }
        if let (Some((tracker, _)), Some(early)) = (&mut self.early, &state.early) {
            tracker.load(&early.metric, early.best, early.without);
        }
    }

    /// Notes all metrics of the evaluation that [`BestTracker::observe`] called the best.
    pub fn keep_results(&mut self, results: Vec<(String, f64)>) {
        self.results = results;
    }

    /// Names and values of the metrics of the best evaluation: of one that a checkpoint of an earlier version recorded
    /// only the metric that picks the best weights.
    pub fn results(&self) -> Vec<(String, f64)> {
        match self.best.best {
            Some((value, _)) if self.results.is_empty() => vec![(self.best.metric.name().to_owned(), value)],
            _ => self.results.clone(),
        }
    }

    /// Value and step of the best evaluation.
    pub fn best(&self) -> Option<(f64, u64)> {
        self.best.best
    }
}
