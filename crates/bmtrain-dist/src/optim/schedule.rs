//! Learning-rate schedules: the formulas of the predecessor, transformers and PyTorch, with warm-up as steps or a
//! fraction and a final floor.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Decay of the learning rate after the warm-up. With L the start rate, W the warm-up, E the end and n the iteration:
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleKind {
    /// Warm-up `L n / W`, then `L`.
    NoDecay,
    /// Warm-up `L n / W^1.5`, then `L / sqrt(n)`; the peak is `L / sqrt(W)` (Vaswani et al., 2017).
    Noam,
    /// Warm-up `L n / W`, then `L (E - n) / (E - W)`, not below 0.
    Linear,
    /// Warm-up `L n / W`, then `L (1 + cos(pi (n - W) / (E - W))) / 2`; past the end it stays at its end, where the
    /// predecessor's rises again.
    Cosine,
    /// Warm-up `L n / W`, then `F + (L - F) (E - n) / (E - W)` to `F`, the floor times `L`, and `F` from `E` on:
    /// Megatron-LM's from version 2 on.
    LinearWithMin,
    /// Warm-up `L n / W`, then `F + (L - F) (1 + cos(pi (n - W) / (E - W))) / 2` to `F`, the floor times `L`, and `F`
    /// from `E` on. transformers' `get_cosine_with_min_lr_schedule_with_warmup`.
    CosineWithMin,
    /// Warm-up `L n / W`, then `L gamma^(n - W)`.
    Exponential {
        /// Factor of one iteration.
        gamma: f64,
    },
    /// `L (last / L)^(n / (E - 1))`: grows by the same factor at each iteration, to find the largest useful one.
    RangeTest {
        /// The learning rate of the last iteration.
        last: f64,
    },
    /// Warm-up `L n / W`, then `cycles` times a cosine from `L` to 0, of one length: with
    /// `s = cycles (n - W) / (E - W)`, `L (1 + cos(pi (s - floor(s)))) / 2`, and 0 from `E` on. transformers'
    /// `get_cosine_with_hard_restarts_schedule_with_warmup`.
    CosineRestarts {
        /// Number of cosines.
        cycles: u64,
    },
    /// Warm-up `L n / W`, then `F + (L - F) (1 - (n - W) / (E - W))^power` to `F`, the floor times `L`, and `F` from
    /// `E` on. transformers' `get_polynomial_decay_schedule_with_warmup`.
    Polynomial {
        /// The power.
        power: f64,
    },
    /// Warm-up, stable, decay: warm-up `L n / W`, then `L`, and over the last `share` of all iterations, rounded to
    /// whole ones, from `L` to `F`, the floor times `L`. transformers' `get_wsd_schedule`, where a floor lifts the
    /// warm-up as well.
    Wsd {
        /// Share of all iterations that the decay takes.
        share: f64,
        /// Its form.
        shape: DecayShape,
    },
    /// Warm-up `L n / W`, then `min(L, 1 / sqrt(n + 1))`: with an `L` of 0.01 transformers' `relative_step` of
    /// Adafactor, and with a warm-up of 10000 iterations its `warmup_init`.
    RelativeStep,
    /// From `start L` along a cosine to `L` at iteration `W - 1`, and along another one to the floor times `L` at
    /// iteration `E - 1`. PyTorch's `OneCycleLR` of two phases, without its cycle of momentum: `start` is
    /// `1 / div_factor`, and the floor `1 / (div_factor final_div_factor)`.
    OneCycle {
        /// The first learning rate, as a share of `L`.
        start: f64,
    },
}

/// Decay of the learning rate at the end of [`ScheduleKind::Wsd`], with p from 0 to 1:
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayShape {
    /// `(1 + cos(pi p)) / 2`.
    Cosine,
    /// `1 - p`.
    Linear,
    /// `1 - sqrt(p)`.
    Root,
}

impl DecayShape {
    fn at(self, progress: f64) -> f64 {
        match self {
            DecayShape::Cosine => falling_cosine(progress),
            DecayShape::Linear => 1.0 - progress,
            DecayShape::Root => 1.0 - progress.sqrt(),
        }
    }
}

/// `from` at a share of 0, `to` at 1.
fn between(from: f64, to: f64, share: f64) -> f64 {
    from + (to - from) * share
}

/// Half a cosine from 1 to 0.
fn falling_cosine(progress: f64) -> f64 {
    0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
}

/// Length of the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warmup {
    /// Iterations.
    Steps(u64),
    /// Share of all iterations, rounded up as by transformers' `Trainer`.
    Fraction(f64),
}

impl Warmup {
    /// In iterations of a run of `end`.
    pub fn steps(self, end: u64) -> Result<u64> {
        match self {
            Warmup::Steps(steps) => Ok(steps),
            Warmup::Fraction(share) if (0.0..=1.0).contains(&share) => Ok((share * end as f64).ceil() as u64),
            Warmup::Fraction(share) => {
                Err(Error::setting("schedule", format!("warm-up fraction {share} is outside [0, 1]")))
            }
        }
    }
}

/// Span of a linear or cosine decay. With W the warm-up, E the end and n the iteration:
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecaySpan {
    /// The iterations after the warm-up, `(n - W) / (E - W)`: the decay is complete at E.
    #[default]
    AfterWarmup,
    /// All iterations, `(n - W) / E`, as in Megatron-LM of 2019: at E the learning rate is what the decay has W
    /// iterations before its own end.
    All,
}

/// A learning rate as a pure function of the iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The formula.
    pub kind: ScheduleKind,
    /// L.
    pub start_lr: f64,
    /// W, iterations.
    pub warmup: u64,
    /// E, iterations.
    pub end: u64,
    /// After the warm-up the learning rate does not decay below this share of L.
    pub floor: f64,
    /// Span of linear and cosine decay.
    pub span: DecaySpan,
}

impl Schedule {
    /// A schedule for a run of `end` iterations.
    pub fn new(kind: ScheduleKind, start_lr: f64, warmup: Warmup, end: u64, floor: f64) -> Result<Self> {
        let warmup = warmup.steps(end)?;
        if !(start_lr >= 0.0 && start_lr.is_finite()) {
            return Err(Error::setting("schedule", format!("learning rate {start_lr} is not a number at or above 0")));
        }
        if !(0.0..=1.0).contains(&floor) {
            return Err(Error::setting("schedule", format!("final floor {floor} is outside [0, 1]")));
        }
        if warmup > end {
            return Err(Error::setting("schedule", format!("a warm-up of {warmup} steps in a run of {end}")));
        }
        kind.check(warmup, end)?;
        Ok(Schedule { kind, start_lr, warmup, end, floor, span: DecaySpan::AfterWarmup })
    }

    /// A schedule that was read from a file, if [`Schedule::new`] would make it.
    pub fn checked(self) -> Result<Self> {
        let Schedule { kind, start_lr, warmup, end, floor, span } = self;
        Ok(Schedule::new(kind, start_lr, Warmup::Steps(warmup), end, floor)?.over(span))
    }

    /// This schedule with another span of the decay.
    #[must_use]
    pub fn over(self, span: DecaySpan) -> Self {
        Schedule { span, ..self }
    }

    /// Iterations over which linear and cosine decay run.
    fn decay_iterations(&self) -> f64 {
        match self.span {
            DecaySpan::AfterWarmup => self.end as f64 - self.warmup as f64,
            DecaySpan::All => self.end as f64,
        }
    }

    /// The learning rate of iteration `n`, counted from 0: with a warm-up the first step has 0.
    pub fn lr(&self, n: u64) -> f64 {
        let (l, w, e, i) = (self.start_lr, self.warmup as f64, self.end as f64, n as f64);
        if let ScheduleKind::OneCycle { start } = self.kind {
            return l * self.one_cycle(start, n);
        }
        if n < self.warmup {
            return match self.kind {
                ScheduleKind::Noam => l * i / w.powf(1.5),
                _ => l * i / w,
            };
        }
        let decayed = match self.kind {
            ScheduleKind::NoDecay => l,
            // Iteration 0 without warm-up has no reciprocal root; the learning rate of iteration 1 is the largest there
            // is.
            ScheduleKind::Noam => l / i.max(1.0).sqrt(),
            ScheduleKind::RelativeStep => l.min(1.0 / (i + 1.0).sqrt()),
            ScheduleKind::Linear if self.end <= self.warmup => l,
            ScheduleKind::Linear if self.span == DecaySpan::All => (l * (e - (i - w)) / e).max(0.0),
            ScheduleKind::Linear => (l * (e - i) / (e - w)).max(0.0),
            ScheduleKind::Cosine => {
                let progress = ((i - w) / self.decay_iterations().max(1.0)).min(1.0);
                (l * falling_cosine(progress)).max(0.0)
            }
            ScheduleKind::LinearWithMin => between(l * self.floor, l, 1.0 - self.progress(n)),
            ScheduleKind::CosineWithMin => between(l * self.floor, l, falling_cosine(self.progress(n))),
            ScheduleKind::Exponential { gamma } => (l * gamma.powf(i - w)).max(0.0),
            ScheduleKind::RangeTest { last } if l > 0.0 => l * (last / l).powf(i / (e - 1.0).max(1.0)),
            ScheduleKind::RangeTest { .. } | ScheduleKind::OneCycle { .. } => l,
            ScheduleKind::CosineRestarts { .. } if n >= self.end => 0.0,
            ScheduleKind::CosineRestarts { cycles } => {
                (l * falling_cosine((cycles as f64 * (i - w) / (e - w)).fract())).max(0.0)
            }
            ScheduleKind::Polynomial { .. } if n >= self.end => 0.0,
            ScheduleKind::Polynomial { power } => {
                let last = l * self.floor;
                last + (l - last) * (1.0 - (i - w) / (e - w)).powf(power)
            }
            ScheduleKind::Wsd { share, shape } => {
                let (decay, last) = (decay_steps(share, self.end) as f64, l * self.floor);
                let progress = ((i - (e - decay)) / decay.max(1.0)).clamp(0.0, 1.0);
                last + (l - last) * shape.at(progress).max(0.0)
            }
        };
        decayed.max(l * self.floor)
    }

    /// The share of the iterations after the warm-up that are done at iteration `n`, at most 1.
    fn progress(&self, n: u64) -> f64 {
        let (done, all) = (n.saturating_sub(self.warmup), self.end.saturating_sub(self.warmup));
        (done as f64 / all.max(1) as f64).min(1.0)
    }

    /// The share of L at iteration `n` of [`ScheduleKind::OneCycle`].
    fn one_cycle(&self, start: f64, n: u64) -> f64 {
        let (peak, last) = (self.warmup.saturating_sub(1), self.end.saturating_sub(1));
        let along = |from: f64, to: f64, begin: u64, end: u64| {
            let progress = (n.min(end) - begin) as f64 / (end - begin).max(1) as f64;
            to + (from - to) * falling_cosine(progress)
        };
        if n <= peak { along(start, 1.0, 0, peak) } else { along(1.0, self.floor, peak, last.max(peak)) }
    }
}

/// Iterations of the decay of [`ScheduleKind::Wsd`].
fn decay_steps(share: f64, end: u64) -> u64 {
    (share * end as f64).round() as u64
}

impl ScheduleKind {
    /// Whether its numbers fit a warm-up and an end.
    fn check(self, warmup: u64, end: u64) -> Result<()> {
        let reason = match self {
            ScheduleKind::CosineRestarts { cycles: 0 } => "a cosine with restarts of 0 cycles".to_owned(),
            ScheduleKind::Polynomial { power } if !(power > 0.0 && power.is_finite()) => {
                format!("power {power} of a polynomial decay is not above 0")
            }
            ScheduleKind::Wsd { share, .. } if !(0.0..=1.0).contains(&share) => {
                format!("share {share} of the decay is outside [0, 1]")
            }
            ScheduleKind::Wsd { share, .. } if warmup + decay_steps(share, end) > end => {
                let decay = decay_steps(share, end);
                format!("a warm-up of {warmup} steps and a decay of {decay} in a run of {end}")
            }
            ScheduleKind::OneCycle { start } if !(0.0..=1.0).contains(&start) => {
                format!("first rate {start} is outside [0, 1]")
            }
            ScheduleKind::OneCycle { .. } if warmup == 0 => "one cycle without the steps to its peak".to_owned(),
            _ => return Ok(()),
        };
        Err(Error::setting("schedule", reason))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ScheduleKind::NoDecay => "constant".to_owned(),
            ScheduleKind::Noam => "noam".to_owned(),
            ScheduleKind::RelativeStep => "relative step".to_owned(),
            ScheduleKind::Linear => "linear".to_owned(),
            ScheduleKind::Cosine => "cosine".to_owned(),
            ScheduleKind::LinearWithMin => "linear to a minimum".to_owned(),
            ScheduleKind::CosineWithMin => "cosine to a minimum".to_owned(),
            ScheduleKind::Exponential { gamma } => format!("exponential by {gamma}"),
            ScheduleKind::RangeTest { last } => format!("range test up to {last:e}"),
            ScheduleKind::CosineRestarts { cycles } => format!("{cycles} cosines"),
            ScheduleKind::Polynomial { power } => format!("polynomial of power {power}"),
            ScheduleKind::Wsd { share, .. } => format!("stable, then decay over {share} of the steps,"),
            ScheduleKind::OneCycle { start } => format!("one cycle from {start} of the peak,"),
        };
        let Schedule { start_lr, warmup, end, floor, .. } = self;
        write!(f, "{kind} from {start_lr:e} over {end} steps, {warmup} of warm-up")?;
        if *floor > 0.0 { write!(f, ", floor {floor}") } else { Ok(()) }
    }
}

/// A schedule and its current iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scheduler {
    schedule: Schedule,
    iteration: u64,
}

impl Scheduler {
    /// At iteration 0.
    pub fn new(schedule: Schedule) -> Self {
        Scheduler { schedule, iteration: 0 }
    }

    /// The formula.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Iterations done.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// The learning rate of the next step.
    pub fn current_lr(&self) -> f64 {
        self.schedule.lr(self.iteration)
    }

    /// One iteration on.
    pub fn step(&mut self) {
        self.iteration += 1;
    }

    /// Continue with another formula at the same iteration.
    pub fn follow(&mut self, schedule: Schedule) {
        self.schedule = schedule;
    }

    /// Continue at an iteration.
    pub fn seek(&mut self, iteration: u64) {
        self.iteration = iteration;
    }
}
