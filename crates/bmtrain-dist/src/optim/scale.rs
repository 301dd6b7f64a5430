//! Loss scaling: keeps small gradients from underflowing in f16.
//!
//! [`LossScaler`] is a state machine on the host: it is told after every step whether a gradient was not finite and
//! reports whether the step was applied, what the next scale is, and when to stop trying. [`ScalePolicy`] names the
//! rules of three systems. The caller sees to it that every rank is told the same. Called by the `OptimManager`.

use crate::error::{Error, Result};

/// Policy of the loss scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalePolicy {
    /// Always the same scale; 1 for dtypes with the range of f32.
    Static {
        /// The scale.
        scale: f32,
    },
    /// The predecessor's rule. An overflow divides the scale by `factor` if it is above `min`; `every` applied steps
    /// after the last change it is multiplied by `factor` if it is below `max`. Bounds are looked at before a change,
    /// so the scale passes each of them by less than one factor.
    BmTrain {
        /// Scale of the first step.
        start: f32,
        /// Factor by which it is multiplied or divided; below 1 its reciprocal is meant.
        factor: f32,
        /// Applied steps between two changes upwards.
        every: u64,
        /// At or below this it is not lowered.
        min: f32,
        /// At or above this it is not raised.
        max: f32,
    },
    /// Megatron's rule. The first `hysteresis - 1` overflows leave the scale as it is, each further one halves it, not
    /// below `floor`. After every `window` steps in a row without overflow it doubles, and only then the overflows that
    /// are forgiven are counted anew.
    Megatron {
        /// The first step's scale is 2 to this power.
        start_power: u8,
        /// Steps without overflow between two changes upwards.
        window: u64,
        /// The overflow that first lowers the scale, from 1.
        hysteresis: u32,
        /// The scale is not lowered below this.
        floor: f32,
    },
    /// DeepSpeed's rule: Megatron's, but an overflow at the floor ends the run, and on request every step without
    /// overflow counts the forgiven ones anew.
    DeepSpeed {
        /// The first step's scale is 2 to this power.
        start_power: u8,
        /// Steps without overflow between two changes upwards.
        window: u64,
        /// The overflow that first lowers the scale, from 1.
        hysteresis: u32,
        /// Count forgiven overflows anew after every step without one, not only when the scale doubles.
        consecutive_hysteresis: bool,
        /// The scale is not lowered below this.
        floor: f32,
    },
}

impl ScalePolicy {
    /// No scaling.
    pub const NONE: ScalePolicy = ScalePolicy::Static { scale: 1.0 };

    /// Megatron's defaults: from 2^32, window 1000, hysteresis 2, floor 1.
    pub const MEGATRON: ScalePolicy =
        ScalePolicy::Megatron { start_power: 32, window: 1000, hysteresis: 2, floor: 1.0 };

    /// DeepSpeed's defaults: from 2^16, window 1000, hysteresis 2, floor 1.
    pub const DEEP_SPEED: ScalePolicy = ScalePolicy::DeepSpeed {
        start_power: 16,
        window: 1000,
        hysteresis: 2,
        consecutive_hysteresis: false,
        floor: 1.0,
    };

    /// The predecessor's defaults from a scale: factor 2, every 1024 steps, not below 1, no upper bound.
    pub const fn bm_train(start: f32) -> Self {
        ScalePolicy::BmTrain { start, factor: 2.0, every: 1024, min: 1.0, max: f32::INFINITY }
    }

    /// The scale of the first step.
    pub fn start(&self) -> f32 {
        self.bounds().start
    }

    fn bounds(&self) -> Bounds {
        let (start, floor, hysteresis, window) = match *self {
            ScalePolicy::Static { scale } => (scale, scale, 1, 1),
            ScalePolicy::BmTrain { start, min, every, .. } => (start, min, 1, every),
            ScalePolicy::Megatron { start_power, window, hysteresis, floor }
            | ScalePolicy::DeepSpeed { start_power, window, hysteresis, floor, .. } => {
                (2_f32.powi(i32::from(start_power)), floor, hysteresis, window)
            }
        };
        Bounds { start, floor, hysteresis, window }
    }

    /// The policy with `factor` at or above 1, if its values make sense.
    fn checked(mut self) -> Result<Self> {
        let refuse = |reason: String| Err(Error::setting("loss scale", reason));
        if let ScalePolicy::BmTrain { factor, max, min, start, .. } = &mut self {
            if !(*factor > 0.0 && factor.is_finite()) {
                return refuse(format!("factor {factor} is not a finite number above 0; 2 is usual"));
            }
            if *factor < 1.0 {
                *factor = 1.0 / *factor;
            }
            if *factor == 1.0 || !factor.is_finite() {
                return refuse("factor 1 changes nothing; use the static policy for a constant scale".to_owned());
            }
            if max.is_nan() || *max < *start || *min > *start {
                return refuse(format!("the first scale {start} is outside its bounds {min} to {max}"));
            }
        }
        let Bounds { start, floor, hysteresis, window } = self.bounds();
        if !(start > 0.0 && start <= CEILING) {
            return refuse(format!("the first scale {start} is not above 0 and at most 2^126; 2^16 is usual for f16"));
        }
        if !(floor > 0.0 && floor <= start) {
            return refuse(format!("the floor {floor} is not above 0 and at most the first scale {start}"));
        }
        if window == 0 {
            return refuse("a window of 0 steps; 1000 is usual".to_owned());
        }
        if hysteresis == 0 {
            return refuse("a hysteresis of 0; 1 lowers the scale at once".to_owned());
        }
        Ok(self)
    }
}

/// Bounds that every policy has.
struct Bounds {
    /// The scale of the first step.
    start: f32,
    /// The scale at or below which it is not lowered.
    floor: f32,
    /// The overflow that first lowers the scale.
    hysteresis: u32,
    /// Steps between two changes upwards.
    window: u64,
}

/// No scale grows beyond 2^126: its reciprocal is still a normal number. Two of the systems have no upper bound.
const CEILING: f32 = f32::from_bits((126 + 127) << 23);

/// Outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Every gradient was finite: the step was applied.
    Applied {
        /// Scale of the next step.
        scale: f32,
    },
    /// A gradient was not finite: the step must not have changed anything.
    Skipped {
        /// Scale of the next step.
        scale: f32,
        /// The policy will not lower it any further.
        at_floor: bool,
        /// Steps skipped in a row, this one included.
        consecutive: u32,
    },
    /// The step was skipped, and there is no point in going on.
    GiveUp {
        /// The scale as it is now.
        scale: f32,
        /// The policy will not lower it any further.
        at_floor: bool,
        /// Steps skipped in a row, this one included.
        consecutive: u32,
    },
}

impl Outcome {
    /// Scale of the next step.
    pub fn scale(&self) -> f32 {
        match *self {
            Outcome::Applied { scale } | Outcome::Skipped { scale, .. } | Outcome::GiveUp { scale, .. } => scale,
        }
    }

    /// Whether the step was applied.
    pub fn is_applied(&self) -> bool {
        matches!(self, Outcome::Applied { .. })
    }
}

/// All a scaler remembers, to be kept with a checkpoint.
#[derive(serde::Serialize, serde::Deserialize, Debug, Clone, Copy, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ScaleState {
    /// Scale of the next step.
    pub scale: f32,
    /// Applied steps since the last change (the predecessor's rule) or the last overflow (the other two).
    pub clean_steps: u64,
    /// Overflows up to and including the one that lowers the scale.
    pub hysteresis: u32,
    /// Steps skipped in a row.
    pub consecutive: u32,
    /// Number of them that count towards the limit.
    pub counted: u32,
    /// No step has been applied yet: the first scale is still on its way down.
    pub searching: bool,
}

/// A policy and its state.
///
/// After `limit` skipped steps in a row it gives up. Until the first step is applied, skips that lowered the scale do
/// not count: a first scale chosen too high on purpose (2^32) needs some sixteen of them to come down to what f16 can
/// bear. The floor bounds their number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaler {
    policy: ScalePolicy,
    limit: u32,
    state: ScaleState,
}

impl LossScaler {
    /// Skipped steps in a row after which a scaler gives up, unless it is told otherwise.
    pub const MAX_SKIPS: u32 = 8;

    /// A scaler before its first step.
    pub fn new(policy: ScalePolicy, limit: u32) -> Result<Self> {
        let policy = policy.checked()?;
        if limit == 0 {
            let reason = "a limit of 0 skipped steps in a row stops before the first; 8 is usual";
            return Err(Error::setting("loss scale", reason));
        }
        let state = ScaleState {
            scale: policy.start(),
            clean_steps: 0,
            hysteresis: policy.bounds().hysteresis,
            consecutive: 0,
            counted: 0,
            searching: true,
        };
        Ok(LossScaler { policy, limit, state })
    }

    /// The rule.
    pub fn policy(&self) -> &ScalePolicy {
        &self.policy
    }

    /// Loss scale of the coming step.
    pub fn scale(&self) -> f32 {
        self.state.scale
    }

    /// State of the scaler.
    pub fn state(&self) -> ScaleState {
        self.state
    }

    /// Continue from what another scaler of this policy remembered.
    pub fn load_state(&mut self, state: ScaleState) -> Result<()> {
        let scale_fits = state.scale > 0.0 && state.scale <= CEILING;
        let constant = matches!(self.policy, ScalePolicy::Static { scale } if scale != state.scale);
        if !scale_fits || constant || !(1..=self.policy.bounds().hysteresis).contains(&state.hysteresis) {
            let reason =
                format!("{state:?} is not a state of {:?}; resume with the policy it was saved under", self.policy);
            return Err(Error::setting("loss scale", reason));
        }
        self.state = state;
        Ok(())
    }

    /// Move on after a step, told whether any gradient of any rank was not finite.
    pub fn update(&mut self, overflowed: bool) -> Outcome {
        if !overflowed {
            self.clean_step();
            self.state.consecutive = 0;
            self.state.counted = 0;
            self.state.searching = false;
            return Outcome::Applied { scale: self.state.scale };
        }
        let hopeless = matches!(self.policy, ScalePolicy::DeepSpeed { floor, .. }
            if self.state.hysteresis == 1 && self.state.scale <= floor);
        let lowered = self.overflow();
        self.state.consecutive = self.state.consecutive.saturating_add(1);
        if !(self.state.searching && lowered) {
            self.state.counted = self.state.counted.saturating_add(1);
        }
        let ScaleState { scale, consecutive, counted, .. } = self.state;
        let at_floor = scale <= self.policy.bounds().floor;
        if hopeless || counted >= self.limit {
            Outcome::GiveUp { scale, at_floor, consecutive }
        } else {
            Outcome::Skipped { scale, at_floor, consecutive }
        }
    }

    fn clean_step(&mut self) {
        let state = &mut self.state;
        state.clean_steps += 1;
        match self.policy {
            ScalePolicy::Static { .. } => {}
            ScalePolicy::BmTrain { factor, every, max, .. } => {
                if state.clean_steps >= every && state.scale < max && state.grow(factor) {
                    state.clean_steps = 0;
                }
            }
            ScalePolicy::Megatron { window, hysteresis, .. } | ScalePolicy::DeepSpeed { window, hysteresis, .. } => {
                let grows = state.clean_steps.is_multiple_of(window);
                if grows || matches!(self.policy, ScalePolicy::DeepSpeed { consecutive_hysteresis: true, .. }) {
                    state.hysteresis = hysteresis;
                }
                if grows {
                    state.grow(2.0);
                }
            }
        }
    }

    /// Whether the scale came down.
    fn overflow(&mut self) -> bool {
        let state = &mut self.state;
        let before = state.scale;
        match self.policy {
            ScalePolicy::Static { .. } => {}
            ScalePolicy::BmTrain { factor, min, .. } => {
                // At the floor nothing changes, not even the count of applied steps: so it was, and so it stays.
                if state.scale > min {
                    state.scale /= factor;
                    state.clean_steps = 0;
                }
            }
            ScalePolicy::Megatron { floor, .. } | ScalePolicy::DeepSpeed { floor, .. } => {
                state.clean_steps = 0;
                if state.hysteresis > 1 {
                    state.hysteresis -= 1;
                } else {
                    state.scale = (state.scale / 2.0).max(floor);
                }
            }
        }
        state.scale < before
    }
}

impl ScaleState {
    fn grow(&mut self, factor: f32) -> bool {
        let next = self.scale * factor;
        let fits = next <= CEILING;
        if fits {
            self.scale = next;
        }
        fits
    }
}
