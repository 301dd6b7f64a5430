//! The course of the learning rate: its keys, and what they must agree on.

use super::MAX_STEPS;
use super::train::TrainSettings;
use crate::recipe::engine::kinds::Range::{Above, Below, Within};
use crate::recipe::engine::kinds::{as_float, as_integer, name_of, quoted};
use crate::recipe::engine::layers::Value;
use crate::recipe::engine::reader::{Otherwise, Reader, Spec};
use crate::recipe::engine::schema::Shape;
use crate::recipe::engine::table::settings;
use bmtrain_dist::optim::{DecayShape, ScheduleKind, Warmup};

/// Factor of BMTrain's exponential schedule at each step.
const DEFAULT_GAMMA: f64 = 0.95;
/// Learning rate at which a range test ends.
const LAST_LR: f64 = 1.0;
/// The share of the steps over which "wsd" decays.
const DECAY_SHARE: f64 = 0.1;
/// The first rate of one cycle: PyTorch's `div_factor` is 25.
const START_RATIO: f64 = 0.04;

const KINDS: [(&str, ScheduleKind); 13] = [
    ("linear", ScheduleKind::Linear),
    ("cosine", ScheduleKind::Cosine),
    ("linear-with-min-lr", ScheduleKind::LinearWithMin),
    ("cosine-with-min-lr", ScheduleKind::CosineWithMin),
    ("noam", ScheduleKind::Noam),
    ("exponential", ScheduleKind::Exponential { gamma: DEFAULT_GAMMA }),
    ("constant", ScheduleKind::NoDecay),
    ("range-test", ScheduleKind::RangeTest { last: LAST_LR }),
    ("cosine-restarts", ScheduleKind::CosineRestarts { cycles: 1 }),
    ("polynomial", ScheduleKind::Polynomial { power: 1.0 }),
    ("wsd", ScheduleKind::Wsd { share: DECAY_SHARE, shape: DecayShape::Cosine }),
    ("one-cycle", ScheduleKind::OneCycle { start: START_RATIO }),
    ("relative-step", ScheduleKind::RelativeStep),
];
const SHAPES: [(&str, DecayShape); 3] =
    [("cosine", DecayShape::Cosine), ("linear", DecayShape::Linear), ("root", DecayShape::Root)];

settings! {
    #[derive(Debug)]
    pub(super) struct ScheduleKeys in "train" (r) {
        /// Course of the learning rate after the warm-up.
        schedule: ScheduleKind = choice(&KINDS, ScheduleKind::Linear), "0.1", schedule();
        /// Factor of each step, for `train.schedule = "exponential"`.
        gamma: f64 = float(DEFAULT_GAMMA, Within(0.0, 1.0)), "0.1", uses(&["exponential"]), schedule();
        /// Learning rate of the last step of a range test, which grows from `train.lr` by the same factor at each step
        /// and writes the picture `lr_range.svg`.
        range_test_lr: f64 = float(LAST_LR, Above(0.0)), "0.2", uses(&["range-test"]), schedule();
        /// Cosines of `train.schedule = "cosine-restarts"`, of one length.
        cycles: u64 = integer(1, 1..=MAX_STEPS), "0.2", uses(&["cosine-restarts"]), schedule();
        /// Power of `train.schedule = "polynomial"`, which ends at `train.final_lr_ratio`.
        power: f64 = float(1.0, Above(0.0)), "0.2", uses(&["polynomial"]), schedule();
        /// Share of all steps over which `train.schedule = "wsd"` (warm-up, stable, decay) decays at the end, to
        /// `train.final_lr_ratio`.
        decay_share: f64 = float(DECAY_SHARE, Within(0.0, 1.0)), "0.2", uses(&["wsd"]), schedule();
        /// Form of that decay: half a cosine, a line, or one minus a root.
        decay_shape: DecayShape = choice(&SHAPES, DecayShape::Cosine), "0.2", uses(&["wsd"]), schedule();
        /// First learning rate of `train.schedule = "one-cycle"`, as a share of `train.lr`; `train.warmup` is the
        /// number of steps to the peak.
        start_lr_ratio: f64 = float(START_RATIO, Within(0.0, 1.0)), "0.2", uses(&["one-cycle"]), schedule();
    }
}

/// Reads the formula and its numbers.
pub(super) fn read(r: &mut Reader) -> ScheduleKind {
    let keys = ScheduleKeys::read(r);
    r.refuse_others(&ScheduleKeys::TABLE, ("train.schedule", name_of(&KINDS, &keys.schedule)), |schedules| {
        (format!("it belongs to train.schedule = {}", quoted(schedules, ", ")), "remove it".to_owned())
    });
    match keys.schedule {
        ScheduleKind::Exponential { .. } => ScheduleKind::Exponential { gamma: keys.gamma },
        ScheduleKind::RangeTest { .. } => ScheduleKind::RangeTest { last: keys.range_test_lr },
        ScheduleKind::CosineRestarts { .. } => ScheduleKind::CosineRestarts { cycles: keys.cycles },
        ScheduleKind::Polynomial { .. } => ScheduleKind::Polynomial { power: keys.power },
        ScheduleKind::Wsd { .. } => ScheduleKind::Wsd { share: keys.decay_share, shape: keys.decay_shape },
        ScheduleKind::OneCycle { .. } => ScheduleKind::OneCycle { start: keys.start_lr_ratio },
        kind => kind,
    }
}

impl Reader {
    /// The length of the warm-up.
    pub(super) fn warmup(&mut self, key: &'static str) -> Warmup {
        let default = Warmup::Steps(0);
        let steps = Shape::Integer(0, Some(MAX_STEPS));
        self.shape(key, Shape::Either(vec![steps, Shape::Number(Below(0.0, 1.0))]));
        self.read(Spec {
            key,
            textual: false,
            wanted: "a whole number of steps, or a fraction of all steps from 0.0 to below 1.0".into(),
            example: "0.06".into(),
            otherwise: Otherwise::Default(default),
            read: &|value| match value {
                Value::Integer(_) => as_integer(value).filter(|steps| *steps <= MAX_STEPS).map(Warmup::Steps),
                _ => as_float(value).filter(|share| Below(0.0, 1.0).contains(*share)).map(Warmup::Fraction),
            },
            render: &|warmup| match warmup {
                Warmup::Steps(steps) => steps.to_string(),
                Warmup::Fraction(share) => format!("{share:?}"),
            },
        })
        .unwrap_or(default)
    }
}

/// Adds what contradicts itself or has no effect.
pub(crate) fn check(r: &mut Reader, t: &TrainSettings) {
    let is_range_test = matches!(t.schedule, ScheduleKind::RangeTest { .. });
    let needs_end = !matches!(
        t.schedule,
        ScheduleKind::NoDecay | ScheduleKind::Noam | ScheduleKind::RelativeStep | ScheduleKind::Exponential { .. }
    );
    let end_is_known = t.epochs.is_some() || t.steps.is_some() || t.decay_steps.is_some();
    if !end_is_known && t.minutes.is_some() {
        let fix = "set train.epochs or train.steps as well, or train.schedule = \"constant\" and train.warmup in steps";
        if needs_end {
            let reason = "this schedule needs the number of steps, which train.minutes does not determine";
            r.contradiction(&["train.schedule", "train.minutes", "train.epochs", "train.steps"], reason, fix);
        } else if matches!(t.warmup, Warmup::Fraction(_)) {
            let reason = "a fraction of an unknown number of steps: train.minutes does not determine the number";
            r.contradiction(&["train.warmup", "train.minutes", "train.epochs", "train.steps"], reason, fix);
        }
    }
    let (key, end) = match t.decay_steps {
        Some(steps) => ("train.decay_steps", Some(steps)),
        None => ("train.steps", t.steps),
    };
    if let (Warmup::Steps(warmup), Some(steps)) = (t.warmup, end)
        && warmup >= steps
    {
        let what = if key == "train.steps" { "run" } else { "schedule" };
        let reason = format!("`train.warmup` = {warmup} lasts as long as the {what} of `{key}` = {steps} or longer");
        r.contradiction(&["train.warmup", key], reason, "shorten the warm-up");
    }
    if is_range_test && !matches!(t.warmup, Warmup::Steps(0) | Warmup::Fraction(0.0)) {
        let reason = "a range test grows from `train.lr` and has no warm-up";
        r.contradiction(&["train.warmup", "train.schedule"], reason, "set train.warmup = 0");
    }
    if matches!(t.schedule, ScheduleKind::LinearWithMin | ScheduleKind::CosineWithMin)
        && !r.is_explicit("train.final_lr_ratio")
    {
        let reason = "the schedule ends at a smallest rate, which is not given";
        r.contradiction(&["train.schedule", "train.final_lr_ratio"], reason, "set train.final_lr_ratio, such as 0.1");
    }
    if !matches!(t.schedule, ScheduleKind::Linear | ScheduleKind::Cosine) {
        let why = "it is for train.schedule = \"linear\" and \"cosine\"";
        r.without_effect("train.decay_endpoint", "train.schedule", why, "remove it");
    }
    if t.schedule == ScheduleKind::Noam && matches!(t.warmup, Warmup::Steps(0) | Warmup::Fraction(0.0)) {
        let reason = "the \"noam\" schedule is defined by its warm-up, which is 0";
        r.contradiction(&["train.schedule", "train.warmup"], reason, "set train.warmup, e.g. 100");
    }
    if let ScheduleKind::OneCycle { .. } = t.schedule
        && matches!(t.warmup, Warmup::Steps(0) | Warmup::Fraction(0.0))
    {
        let reason = "one cycle rises over its warm-up, which is 0";
        r.contradiction(&["train.schedule", "train.warmup"], reason, "set train.warmup, e.g. 0.3");
    }
    if t.schedule == ScheduleKind::NoDecay {
        r.without_effect(
            "train.final_lr_ratio",
            "train.schedule",
            "train.schedule = \"constant\" does not fall",
            "remove it",
        );
    }
}
