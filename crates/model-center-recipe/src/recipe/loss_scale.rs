//! The keys of the loss scale: its rule, and the numbers of that rule.
//!
//! Defines [`LossScale`], a part of the [`TrainSettings`](super::TrainSettings).

use super::keys::MOST_STEPS;
use super::kinds::Range;
use super::layers::Value;
use super::reader::{Otherwise, Reader, Spec};
use super::schema::Shape;
use super::settings::Settings;
use bmtrain_core::DType;
use bmtrain_dist::optim::ScalePolicy;

/// The largest power of two that a loss is multiplied by.
const MOST_POWER: u8 = 64;

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

/// How losses are scaled.
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

/// What the predecessor's programs begin with, and a static scale without a start is.
const START_POWER: u8 = 16;

impl LossScale {
    /// The rule for parameters of this type.
    pub fn policy(self, dtype: DType) -> ScalePolicy {
        let start = |power: u8| 2_f32.powi(i32::from(self.start_power.unwrap_or(power)));
        let floor = 2_f32.powi(i32::from(self.floor_power.unwrap_or(0)));
        let window = |own: u64| self.window.unwrap_or(own);
        match self.rule {
            ScaleRule::None => ScalePolicy::NONE,
            ScaleRule::Auto if dtype != DType::F16 => ScalePolicy::NONE,
            ScaleRule::Static => ScalePolicy::Static { scale: start(START_POWER) },
            ScaleRule::Auto | ScaleRule::BmTrain => match ScalePolicy::bm_train(start(START_POWER)) {
                ScalePolicy::BmTrain { start, factor, every, max, .. } => {
                    ScalePolicy::BmTrain { start, factor, every: window(every), min: floor, max }
                }
                other => other,
            },
            ScaleRule::Megatron => ScalePolicy::Megatron {
                start_power: self.start_power.unwrap_or(32),
                window: window(1000),
                hysteresis: self.hysteresis.unwrap_or(2),
                floor,
            },
            ScaleRule::DeepSpeed => ScalePolicy::DeepSpeed {
                start_power: self.start_power.unwrap_or(16),
                window: window(1000),
                hysteresis: self.hysteresis.unwrap_or(2),
                consecutive_hysteresis: false,
                floor,
            },
        }
    }
}

pub(super) fn read(r: &mut Reader) -> LossScale {
    let rules = [
        ("auto", ScaleRule::Auto),
        ("none", ScaleRule::None),
        ("static", ScaleRule::Static),
        ("bmtrain", ScaleRule::BmTrain),
        ("megatron", ScaleRule::Megatron),
        ("deepspeed", ScaleRule::DeepSpeed),
    ];
    let rule = r.choice("train.loss_scale", &rules, ScaleRule::Auto);
    let start_power = power(r, "train.loss_scale_start", "65536");
    let window = r.optional_integer("train.loss_scale_window", OWN, 1..=MOST_STEPS, 1000);
    let hysteresis = r.optional_integer("train.loss_scale_hysteresis", OWN, 1..=1000, 2).map(|number| number as u32);
    let floor_power = power(r, "train.loss_scale_floor", "1");
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
    if let (Some(start), Some(floor)) = (start_power, floor_power)
        && floor > start
    {
        let keys = ["train.loss_scale_floor", "train.loss_scale_start"];
        r.contradiction(&keys, "`train.loss_scale_floor` is above the first scale", "lower it");
    }
    LossScale { rule, start_power, window, hysteresis, floor_power }
}

/// Adds what has no effect beside the dtype of the model.
pub(super) fn check(r: &mut Reader, s: &Settings) {
    if s.train.loss_scale.rule == ScaleRule::Auto && s.model.dtype != DType::F16 {
        for key in ["train.loss_scale_start", "train.loss_scale_window", "train.loss_scale_floor"] {
            let why = "train.loss_scale = \"auto\" scales for model.dtype = \"f16\" alone";
            r.without_effect(key, "model.dtype", why, "remove it");
        }
    }
}

/// What the rule of the scale has of its own.
const OWN: &str = "not set: as the rule has it";

/// A power of two, as its exponent.
fn power(r: &mut Reader, key: &'static str, example: &str) -> Option<u8> {
    r.shape(key, Shape::Number(Range::AtLeast(1.0)));
    r.read(Spec {
        key,
        textual: false,
        wanted: format!("a power of two from 1 to 2^{MOST_POWER}"),
        example: example.to_owned(),
        otherwise: Otherwise::Absent(OWN),
        read: &|value| {
            let number = match value {
                Value::Integer(number) => *number as f64,
                Value::Float(number) => *number,
                _ => return None,
            };
            (0..=MOST_POWER).find(|power| 2_f64.powi(i32::from(*power)) == number)
        },
        render: &|power| match *power {
            power if power < 63 => (1_u64 << power).to_string(),
            power => format!("{:?}", 2_f64.powi(i32::from(power))),
        },
    })
}
