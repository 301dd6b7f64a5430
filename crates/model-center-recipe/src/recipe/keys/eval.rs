//! `[eval]`: how a run is evaluated.

use super::data::DataSettings;
use super::{MAX_SAMPLES, MAX_STEPS};
use crate::recipe::engine::kinds::{Range, quote};
use crate::recipe::engine::layers::Value;
use crate::recipe::engine::reader::{Otherwise, Reader, Spec};
use crate::recipe::engine::schema::Shape;
use crate::recipe::engine::table::settings;
use model_center_base::file::printable;
use model_center_data::metrics::{LabelKind, LabelSetCounts, Metric};

settings! {
    /// `[eval]`: how it is judged.
    #[derive(Debug, Clone, PartialEq)]
    pub struct EvalSettings in "eval" (r, data: &DataSettings, micro_batch_size: usize) then checked(data) {
        /// Interval of evaluations. There is always one before the first step and one at the end; without `data.eval`
        /// (`data.valid` of `pretrain`) there is none at all.
        pub every: Interval = interval(default_interval(data), ("end", Interval::End)), "0.1",
            default("`\"1 epoch\"`, for `pretrain` `\"1000 steps\"`"), foreign(switched_off);
        /// Metric that decides which weights are best.
        pub metric: EvalMetric = metric(default_metric(data)), "0.1", follows("data.task");
        /// Samples of one forward pass of an evaluation.
        pub batch_size: usize = integer(micro_batch_size, 1..=MAX_SAMPLES), "0.1", follows("train.micro_batch_size");
        /// Probability above which a label counts as predicted, of task `multi-label-classification`.
        pub threshold: f32 = single(f64::from(LabelSetCounts::THRESHOLD), Range::Below(0.0, 1.0)), "0.2";
    }
}

settings! {
    pub(crate) const PRETRAINING in "eval" {
        /// Training batches that an evaluation of task `pretrain` has samples for.
        iterations, "0.2";
    }
}

impl EvalSettings {
    /// Adds what has no effect.
    fn checked(self, r: &mut Reader, data: &DataSettings) -> Self {
        if data.source.task().label_kind() != LabelKind::LabelSets {
            let why = "it is for task multi-label-classification";
            r.without_effect("eval.threshold", "data.task", why, "remove it");
        }
        if !data.source.has_eval() {
            let (key_of_data, why, fix) = match (data.source.directory(), data.source.eval_key()) {
                (Some(_), _) => {
                    let why = format!("task {} names no file to evaluate on", data.source.task().name());
                    ("data.task", why, "remove it".to_owned())
                }
                (None, key) => (key, format!("there is no {key}"), format!("set {key}, or remove it")),
            };
            for key in ["eval.every", "eval.metric", "eval.batch_size", "eval.threshold", "data.eval_limit"] {
                r.without_effect(key, key_of_data, &why, &fix);
            }
        }
        self
    }
}

/// Words by which users switch evaluation off: that is done by the data, not by the interval.
fn switched_off(text: &str) -> Option<(String, String)> {
    const WORDS: [&str; 10] = ["never", "none", "no", "off", "false", "disable", "disabled", "null", "0", "-1"];
    // As many steps or epochs.
    let word = text.trim().strip_suffix("steps").or_else(|| text.trim().strip_suffix("epochs")).unwrap_or(text).trim();
    if !WORDS.iter().any(|known| word.eq_ignore_ascii_case(known)) {
        return None;
    }
    let reason = format!("`eval.every` is an interval, and \"{}\" does not switch evaluation off", printable(text, 40));
    let fix = "remove data.eval (data.valid of task pretrain) and the keys of [eval] to train without evaluation; \
               every = \"end\" evaluates before the first step and after the last one alone";
    Some((reason, fix.to_owned()))
}

fn default_interval(data: &DataSettings) -> Interval {
    if data.source.pretraining().is_some() { Interval::Steps(1000) } else { Interval::Epochs(1.0) }
}

fn default_metric(data: &DataSettings) -> EvalMetric {
    match (data.source.task().metrics(), data.source.task().label_kind()) {
        (Some(metrics), _) => EvalMetric::Metric(metrics.first().copied().unwrap_or(Metric::Accuracy)),
        (None, LabelKind::Tokens | LabelKind::Pairs | LabelKind::Embeddings) => EvalMetric::Loss,
        (None, kind) => EvalMetric::Metric(kind.usual_metric()),
    }
}

/// Metric of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalMetric {
    /// The mean loss; smaller is better.
    Loss,
    /// A metric.
    Metric(Metric),
}

impl EvalMetric {
    /// The name in recipes and in `metrics.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            EvalMetric::Loss => "loss",
            EvalMetric::Metric(metric) => metric.name(),
        }
    }

    /// Whether a larger figure is better.
    pub fn larger_is_better(self) -> bool {
        match self {
            EvalMetric::Loss => false,
            EvalMetric::Metric(metric) => metric.larger_is_better(),
        }
    }
}

/// Interval between events, written `"200 steps"`, `"0.5 epochs"` or `"end"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Interval {
    /// Every this number of optimizer steps.
    Steps(u64),
    /// Every this number of passes over the data; fractions are rounded to whole steps, at least one.
    Epochs(f64),
    /// Only at the end.
    End,
    /// Never.
    Never,
}

impl Interval {
    /// In optimizer steps; `None` for only at the end, or never.
    pub fn in_steps(self, steps_per_epoch: u64) -> Option<u64> {
        match self {
            Interval::Steps(steps) => Some(steps.max(1)),
            Interval::Epochs(epochs) => Some(((epochs * steps_per_epoch as f64).round() as u64).max(1)),
            Interval::End | Interval::Never => None,
        }
    }
}

impl Reader {
    pub(super) fn metric(&mut self, key: &'static str, default: EvalMetric) -> EvalMetric {
        let own = self.own.tasks.iter().flat_map(|task| task.metrics().unwrap_or_default());
        let own = own.filter(|metric| matches!(metric, Metric::Own(_))).copied();
        let metrics = Metric::all().chain(own).map(EvalMetric::Metric);
        let mut choices: Vec<(&str, EvalMetric)> = Vec::new();
        for metric in std::iter::once(EvalMetric::Loss).chain(metrics) {
            // Tasks may share a metric.
            if choices.iter().all(|(name, _)| *name != metric.name()) {
                choices.push((metric.name(), metric));
            }
        }
        self.choice(key, &choices, default)
    }

    /// An interval; `none` is the value for none.
    pub(super) fn interval(&mut self, key: &'static str, default: Interval, none: (&str, Interval)) -> Interval {
        let plural = |number: String, one: &str| {
            let ending = if number == "1" { "" } else { "s" };
            quote(&format!("{number} {one}{ending}"))
        };
        self.shape(key, Shape::Pattern(format!("^([0-9]+ steps?|[0-9.eE+-]+ epochs?|{})$", none.0)));
        self.read(Spec {
            key,
            textual: true,
            wanted: format!("a string such as \"200 steps\", \"0.5 epochs\" or {}", quote(none.0)),
            example: "\"200 steps\"".into(),
            otherwise: Otherwise::Default(default),
            read: &|value| {
                let Value::Text(text) = value else { return None };
                let parts: Vec<&str> = text.split_whitespace().collect();
                match parts.as_slice() {
                    [only] if *only == none.0 => Some(none.1),
                    [n, "step" | "steps"] => {
                        n.parse().ok().filter(|steps| (1..=MAX_STEPS).contains(steps)).map(Interval::Steps)
                    }
                    [x, "epoch" | "epochs"] => {
                        x.parse().ok().filter(|epochs| Range::Above(0.0).contains(*epochs)).map(Interval::Epochs)
                    }
                    _ => None,
                }
            },
            render: &|interval| match interval {
                Interval::Steps(steps) => plural(steps.to_string(), "step"),
                Interval::Epochs(epochs) => plural(epochs.to_string(), "epoch"),
                Interval::End | Interval::Never => quote(none.0),
            },
        })
        .unwrap_or(default)
    }
}
