//! The keys of the loss scale: its rule, and the numbers of that rule.
//!
//! Defines [`LossScale`], a part of the [`TrainSettings`](super::TrainSettings).

use super::MAX_STEPS;
use super::train::TrainSettings;
use crate::recipe::engine::kinds::Range;
use crate::recipe::engine::layers::Value;
use crate::recipe::engine::reader::{Otherwise, Reader, Spec};
use crate::recipe::engine::schema::Shape;
use crate::recipe::engine::table::settings;
use bmtrain_core::DType;
use bmtrain_dist::optim::ScalePolicy;

/// The largest power of two that a loss is multiplied by.
const MAX_POWER: u8 = 64;

/// The rule of the loss scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleRule {
    /// By the predecessor's rule for f16, not at all for types with the range of f32.
    Auto,
    /// Not at all.
    None,
    /// Always the same.
    Static,
    /// By the predecessor's rule.
    BmTrain,
    /// By Megatron's rule.
    Megatron,
    /// By DeepSpeed's rule.
    DeepSpeed,
}

/// Settings of loss scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossScale {
    /// The rule.
    pub rule: ScaleRule,
    /// The first scale is 2 to this power; `None` for the rule's own.
    pub start_power: Option<u8>,
    /// Steps without overflow before the scale grows; `None` for the rule's own.
    pub window: Option<u64>,
    /// The overflow that first lowers the scale; `None` for the rule's own.
    pub hysteresis: Option<u32>,
    /// The scale is not lowered below 2 to this power; `None` for the rule's own.
    pub floor_power: Option<u8>,
}

/// Initial power of the predecessor's programs and of DeepSpeed, and of a static scale without a start.
const START_POWER: u8 = 16;
/// The same of Megatron.
const MEGATRON_START_POWER: u8 = 32;

impl LossScale {
    /// The power of the first scale.
    fn start(self) -> u8 {
        let own = if self.rule == ScaleRule::Megatron { MEGATRON_START_POWER } else { START_POWER };
        self.start_power.unwrap_or(own)
    }

    /// The rule for parameters of this type.
    pub fn policy(self, dtype: DType) -> ScalePolicy {
        let start = 2_f32.powi(i32::from(self.start()));
        let floor = 2_f32.powi(i32::from(self.floor_power.unwrap_or(0)));
        let window = |own: u64| self.window.unwrap_or(own);
        match self.rule {
            ScaleRule::None => ScalePolicy::NONE,
            ScaleRule::Auto if dtype != DType::F16 => ScalePolicy::NONE,
            ScaleRule::Static => ScalePolicy::Static { scale: start },
            ScaleRule::Auto | ScaleRule::BmTrain => match ScalePolicy::bm_train(start) {
                ScalePolicy::BmTrain { start, factor, every, max, .. } => {
                    ScalePolicy::BmTrain { start, factor, every: window(every), min: floor, max }
                }
                other => other,
            },
            ScaleRule::Megatron => ScalePolicy::Megatron {
                start_power: self.start(),
                window: window(1000),
                hysteresis: self.hysteresis.unwrap_or(2),
                floor,
            },
            ScaleRule::DeepSpeed => ScalePolicy::DeepSpeed {
                start_power: self.start(),
                window: window(1000),
                hysteresis: self.hysteresis.unwrap_or(2),
                consecutive_hysteresis: false,
                floor,
            },
        }
    }
}

/// Default of the numbers that a rule of the scale has of its own.
const OWN: &str = "not set: as the rule has it";
const RULES: [(&str, ScaleRule); 6] = [
    ("auto", ScaleRule::Auto),
    ("none", ScaleRule::None),
    ("static", ScaleRule::Static),
    ("bmtrain", ScaleRule::BmTrain),
    ("megatron", ScaleRule::Megatron),
    ("deepspeed", ScaleRule::DeepSpeed),
];

settings! {
    #[derive(Debug)]
    pub(super) struct LossScaleKeys in "train" (r) {
        /// Rule of the loss scale; `auto` scales for `f16` alone.
        loss_scale: ScaleRule = choice(&RULES, ScaleRule::Auto), "0.1";
        /// The first loss scale, or the only one with `static`.
        loss_scale_start: Option<u8> = power("65536"), "0.2";
        /// Steps without overflow before the loss scale grows.
        loss_scale_window: Option<u64> = optional_integer(OWN, 1..=MAX_STEPS, 1000), "0.2";
        /// The overflow that first lowers the loss scale; earlier ones only skip a step.
        loss_scale_hysteresis: Option<u32> = optional_integer(OWN, 1..=1000, 2), "0.2";
        /// The loss scale is not lowered below this.
        loss_scale_floor: Option<u8> = power("1"), "0.2";
    }
}

pub(super) fn read(r: &mut Reader) -> LossScale {
    let LossScaleKeys {
        loss_scale: rule,
        loss_scale_start: start_power,
        loss_scale_window: window,
        loss_scale_hysteresis: hysteresis,
        loss_scale_floor: floor_power,
    } = LossScaleKeys::read(r);
    let own = (rule == ScaleRule::None).then_some("train.loss_scale = \"none\" does not scale");
    for key in ["train.loss_scale_start", "train.loss_scale_window", "train.loss_scale_floor"] {
        let is_constant = rule == ScaleRule::Static && key != "train.loss_scale_start";
        if let Some(why) = own.or(is_constant.then_some("train.loss_scale = \"static\" does not change")) {
            r.without_effect(key, "train.loss_scale", why, "remove it");
        }
    }
    if !matches!(rule, ScaleRule::Megatron | ScaleRule::DeepSpeed) {
        let why = "it is for train.loss_scale = \"megatron\" and \"deepspeed\"";
        r.without_effect("train.loss_scale_hysteresis", "train.loss_scale", why, "remove it");
    }
    LossScale { rule, start_power, window, hysteresis, floor_power }
}

/// Adds what has no effect beside the dtype of the model.
pub(crate) fn check(r: &mut Reader, train: &TrainSettings, dtype: DType) {
    if train.loss_scale.rule == ScaleRule::Auto && dtype != DType::F16 {
        for key in ["train.loss_scale_start", "train.loss_scale_window", "train.loss_scale_floor"] {
            let why = "train.loss_scale = \"auto\" scales for model.dtype = \"f16\" alone";
            r.without_effect(key, "model.dtype", why, "remove it");
        }
        return;
    }
    let (start, floor) = (train.loss_scale.start(), train.loss_scale.floor_power);
    let does_change = !matches!(train.loss_scale.rule, ScaleRule::None | ScaleRule::Static);
    if does_change && floor.is_some_and(|floor| floor > start) {
        let reason = format!("`train.loss_scale_floor` is above the first scale, 2^{start}");
        r.contradiction(&["train.loss_scale_floor", "train.loss_scale_start"], reason, "lower it");
    }
}

impl Reader {
    /// A power of two, as its exponent.
    fn power(&mut self, key: &'static str, example: &str) -> Option<u8> {
        self.shape(key, Shape::Number(Range::AtLeast(1.0)));
        self.read(Spec {
            key,
            textual: false,
            wanted: format!("a power of two from 1 to 2^{MAX_POWER}"),
            example: example.to_owned(),
            otherwise: Otherwise::Absent(OWN),
            read: &|value| {
                let number = match value {
                    Value::Integer(number) => *number as f64,
                    Value::Float(number) => *number,
                    _ => return None,
                };
                (0..=MAX_POWER).find(|power| 2_f64.powi(i32::from(*power)) == number)
            },
            render: &|power| match *power {
                power if power < 63 => (1_u64 << power).to_string(),
                power => format!("{:?}", 2_f64.powi(i32::from(power))),
            },
        })
    }
}
