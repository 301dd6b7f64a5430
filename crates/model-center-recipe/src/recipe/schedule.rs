//! The course of the learning rate: its keys, and what they must agree on.

use super::keys::MOST_STEPS;
use super::kinds::{Range, as_float, as_integer};
use super::layers::Value;
use super::reader::{Otherwise, Reader, Spec};
use super::schema::Shape;
use super::settings::{SaveWhich, Settings};
use bmtrain_dist::optim::{DecayShape, ScheduleKind, Warmup};

/// What BMTrain's exponential schedule multiplies by at each step.
const DEFAULT_GAMMA: f64 = 0.95;
/// Where a learning-rate range test ends.
const LAST_LR: f64 = 1.0;
/// The share of the steps over which "wsd" decays.
const DECAY_SHARE: f64 = 0.1;
/// The first rate of one cycle: PyTorch's `div_factor` is 25.
const START_RATIO: f64 = 0.04;

/// Reads the formula and its numbers.
pub(super) fn read(r: &mut Reader) -> ScheduleKind {
    let kinds = [
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
    let kind = r.choice("train.schedule", &kinds, ScheduleKind::Linear);
    let gamma = r.float("train.gamma", DEFAULT_GAMMA, Range::Within(0.0, 1.0));
    let last = r.float("train.range_test_lr", LAST_LR, Range::Above(0.0));
    let cycles = r.integer("train.cycles", 1, 1..=MOST_STEPS);
    let power = r.float("train.power", 1.0, Range::Above(0.0));
    let share = r.float("train.decay_share", DECAY_SHARE, Range::Within(0.0, 1.0));
    let shapes = [("cosine", DecayShape::Cosine), ("linear", DecayShape::Linear), ("root", DecayShape::Root)];
    let shape = r.choice("train.decay_shape", &shapes, DecayShape::Cosine);
    let start = r.float("train.start_lr_ratio", START_RATIO, Range::Within(0.0, 1.0));
    let read = match kind {
        ScheduleKind::Exponential { .. } => ScheduleKind::Exponential { gamma },
        ScheduleKind::RangeTest { .. } => ScheduleKind::RangeTest { last },
        ScheduleKind::CosineRestarts { .. } => ScheduleKind::CosineRestarts { cycles },
        ScheduleKind::Polynomial { .. } => ScheduleKind::Polynomial { power },
        ScheduleKind::Wsd { .. } => ScheduleKind::Wsd { share, shape },
        ScheduleKind::OneCycle { .. } => ScheduleKind::OneCycle { start },
        kind => kind,
    };
    let chosen = kinds.iter().find(|(_, known)| *known == kind).map(|(name, _)| *name);
    for (key, name) in [
        ("train.gamma", "exponential"),
        ("train.range_test_lr", "range-test"),
        ("train.cycles", "cosine-restarts"),
        ("train.power", "polynomial"),
        ("train.decay_share", "wsd"),
        ("train.decay_shape", "wsd"),
        ("train.start_lr_ratio", "one-cycle"),
    ] {
        if chosen != Some(name) {
            let why = format!("it belongs to train.schedule = \"{name}\"");
            r.without_effect(key, "train.schedule", &why, "remove it");
        }
    }
    read
}

/// Reads the length of the warm-up.
pub(super) fn read_warmup(r: &mut Reader) -> Warmup {
    let default = Warmup::Steps(0);
    let steps = Shape::Integer(0, Some(MOST_STEPS));
    r.shape("train.warmup", Shape::Either(vec![steps, Shape::Number(Range::Below(0.0, 1.0))]));
    r.read(Spec {
        key: "train.warmup",
        textual: false,
        wanted: "a whole number of steps, or a fraction of all steps from 0.0 to below 1.0".into(),
        example: "0.06".into(),
        otherwise: Otherwise::Default(default),
        read: &|value| match value {
            Value::Integer(_) => as_integer(value).filter(|steps| *steps <= MOST_STEPS).map(Warmup::Steps),
            _ => as_float(value).filter(|share| Range::Below(0.0, 1.0).contains(*share)).map(Warmup::Fraction),
        },
        render: &|warmup| match warmup {
            Warmup::Steps(steps) => steps.to_string(),
            Warmup::Fraction(share) => format!("{share:?}"),
        },
    })
    .unwrap_or(default)
}

/// Adds what contradicts itself or has no effect.
pub(super) fn check(r: &mut Reader, s: &Settings) {
    let t = &s.train;
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
    if is_range_test && s.save.which != SaveWhich::None {
        let reason = "the weights of a range test are of no use: it ends at a rate that is too high";
        r.contradiction(&["train.schedule", "save.which"], reason, "set save.which = \"none\"");
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
