//! Summary of a run in a list of runs, and the events in it.
//!
//! Defines [`Summary`], which is built record by record, and [`Event`].

use model_center_recipe::run::tensorboard::number;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The most events that are kept; of more, the first.
const MAX_EVENTS: usize = 1000;
/// The most sample texts that are kept, and the characters of each.
const MAX_SAMPLES: usize = 200;
/// The most characters of a sample text that are kept.
const MAX_SAMPLE_CHARS: usize = 2000;
/// A loss of more than this many times the mean of recent ones is a spike.
const SPIKE: f64 = 2.0;
/// Weight of a new loss in the mean of recent ones, and records before the first spike.
const RECENT: f64 = 0.05;
const WARM: u64 = 20;

/// Something that happened, at a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// `start`, `resume`, `save`, `skip`, `spike`, `best` or `end`.
    pub kind: String,
    /// Steps done by then.
    pub step: u64,
    /// Seconds of training by then, all processes of the run together.
    pub seconds: f64,
    /// Seconds since 1970, of starts and resumes.
    pub unix_seconds: Option<f64>,
    /// Description of the event.
    pub text: String,
}

/// The records of a run in short.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Records read.
    pub records: u64,
    /// The first record.
    pub start: Option<Value>,
    /// The last record, if the run ended.
    pub end: Option<Value>,
    /// Its reason.
    pub end_reason: Option<String>,
    /// Seconds since 1970 at the start of the last process.
    pub last_start: Option<f64>,
    /// Steps, passes over the data, samples and tokens done.
    pub step: u64,
    /// Passes over the data done.
    pub epoch: f64,
    /// Samples seen.
    pub samples: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Seconds of all processes of the run together.
    pub seconds: f64,
    /// Seconds of these in earlier processes.
    seconds_before: f64,
    /// The first training loss, and the last one.
    pub first_loss: Option<f64>,
    /// The last training loss.
    pub loss: Option<f64>,
    /// Mean of recent losses.
    pub mean_loss: Option<f64>,
    /// The last gradient norm, and the largest one.
    pub grad_norm: Option<f64>,
    /// The largest gradient norm.
    pub max_grad_norm: Option<f64>,
    /// Tokens per second of the last record.
    pub tokens_per_s: Option<f64>,
    /// The largest of them, over records.
    pub max_tokens_per_s: Option<f64>,
    /// Share of the peak, of the last record.
    pub peak_share: Option<f64>,
    /// Metrics of the evaluation before the first step, of the last one, and of the best one.
    pub first_eval: Option<EvalSummary>,
    /// Metrics of the last evaluation.
    pub last_eval: Option<EvalSummary>,
    /// Metrics of the best evaluation.
    pub best_eval: Option<EvalSummary>,
    /// Metrics of the test sets.
    pub test: Option<EvalSummary>,
    /// Sample texts, of each step and prompt; of many, the first and the last.
    pub texts: Vec<SampleText>,
    /// Seconds of training steps by phase, of records that have them.
    pub phases: BTreeMap<String, f64>,
    /// Seconds of evaluations.
    pub eval_seconds: f64,
    /// The most resident memory, bytes.
    pub peak_rss_bytes: u64,
    /// Steps that changed nothing because their gradients were not finite.
    pub skipped: u64,
    /// Number of times that the run was resumed.
    pub resumes: u64,
    /// Events, in order.
    pub events: Vec<Event>,
    /// Events that are not kept.
    pub more_events: u64,
}

/// A completion of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleText {
    /// Steps done before it.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The text, its first 2000 characters.
    pub text: String,
}

/// The metrics of an evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalSummary {
    /// Steps done before it.
    pub step: u64,
    /// Name and value; values that are not finite are left out.
    pub metrics: BTreeMap<String, f64>,
}

impl Summary {
    /// Counts a record; returns its position on the axes of steps, tokens and seconds.
    pub fn add(&mut self, record: &Value) -> (u64, u64, f64) {
        self.records += 1;
        let kind = record.get("kind").and_then(Value::as_str).unwrap_or_default();
        let empty = Map::new();
        let time = record.get("time").and_then(Value::as_object).unwrap_or(&empty);
        if let Some(step) = record.get("step").and_then(Value::as_u64) {
            self.step = step;
        }
        for (name, value) in [("samples", &mut self.samples), ("tokens", &mut self.tokens)] {
            // The samples of an evaluation are not trained on.
            if matches!(kind, "step" | "end") {
                *value = record.get(name).and_then(Value::as_u64).unwrap_or(*value);
            }
        }
        self.epoch = record.get("epoch").and_then(Value::as_f64).unwrap_or(self.epoch);
        let peak = time.get("peak_rss_bytes").and_then(Value::as_u64).unwrap_or(0);
        self.peak_rss_bytes = self.peak_rss_bytes.max(peak);
        if let Some(seconds) = time.get("seconds").and_then(Value::as_f64) {
            self.seconds = self.seconds_before + seconds;
        }
        match kind {
            "start" | "resume" => self.add_start(kind, record, time),
            "step" => self.add_step(record, time),
            "eval" | "test" => self.add_eval(kind, record, time),
            "sample" => self.add_sample(record),
            "end" => self.add_end(record),
            _ => {}
        }
        (self.step, self.tokens, self.seconds)
    }

    fn add_start(&mut self, kind: &str, record: &Value, time: &Map<String, Value>) {
        let text = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default();
        self.last_start = time.get("unix_seconds").and_then(Value::as_f64);
        (self.end, self.end_reason) = (None, None);
        if kind == "start" {
            self.start = Some(record.clone());
            let ranks = time.get("ranks").and_then(Value::as_u64).unwrap_or(1);
            return self.event("start", format!("{ranks} ranks, version {}", text("version")));
        }
        self.seconds_before = self.seconds;
        self.resumes += 1;
        let changed = match text("changed") {
            "" => String::new(),
            changed => format!("; changed: {changed}"),
        };
        self.event("resume", format!("from {}{changed}", text("checkpoint")));
    }

    fn add_step(&mut self, record: &Value, time: &Map<String, Value>) {
        let finite = |value: Option<&Value>| value.and_then(number).filter(|value| value.is_finite());
        let loss = finite(record.get("loss"));
        if let (Some(loss), Some(mean)) = (loss, self.mean_loss)
            && self.records > WARM
            && loss > SPIKE * mean
            && mean > 0.0
        {
            self.event("spike", format!("loss {loss:.4}, and {mean:.4} in the mean before"));
        }
        self.loss = loss;
        self.first_loss = self.first_loss.or(loss);
        if let Some(loss) = loss {
            let mean = self.mean_loss.unwrap_or(loss);
            self.mean_loss = Some(mean + RECENT * (loss - mean));
        }
        let larger = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        self.grad_norm = finite(record.get("grad_norm"));
        self.max_grad_norm = larger(self.max_grad_norm, self.grad_norm);
        self.tokens_per_s = finite(time.get("tokens_per_s"));
        self.max_tokens_per_s = larger(self.max_tokens_per_s, self.tokens_per_s);
        self.peak_share = finite(time.get("peak_share"));
        for (name, value) in time {
            if let (Some(phase), Some(seconds)) = (name.strip_suffix("_seconds"), value.as_f64()) {
                *self.phases.entry(phase.to_owned()).or_default() += seconds;
            }
        }
        if record.get("skipped").and_then(Value::as_bool) == Some(true) {
            self.skipped += 1;
            self.event("skip", "gradients were not finite: the weights did not change".to_owned());
        }
        if let Some(seconds) = time.get("save_seconds").and_then(Value::as_f64) {
            self.event("save", format!("a checkpoint; training waited {seconds:.2} s"));
        }
    }

    fn add_eval(&mut self, kind: &str, record: &Value, time: &Map<String, Value>) {
        self.eval_seconds += time.get("eval_seconds").and_then(Value::as_f64).unwrap_or(0.0);
        let values = record.get("metrics").and_then(Value::as_object).into_iter().flatten();
        let metrics = values.filter_map(|(name, value)| Some((name.clone(), number(value)?)));
        let metrics: BTreeMap<String, f64> = metrics.filter(|(_, value)| value.is_finite()).collect();
        let eval = EvalSummary { step: self.step, metrics };
        if kind == "test" {
            self.test = Some(eval);
            return;
        }
        if record.get("best").and_then(Value::as_bool) == Some(true) {
            self.best_eval = Some(eval.clone());
            self.event("best", eval.text());
        }
        if self.step == 0 {
            self.first_eval = Some(eval.clone());
        }
        self.last_eval = Some(eval);
    }

    fn add_sample(&mut self, record: &Value) {
        let text = |name: &str| -> String {
            let text = record.get(name).and_then(Value::as_str).unwrap_or_default();
            text.chars().take(MAX_SAMPLE_CHARS).collect()
        };
        let sample = SampleText { step: self.step, prompt: text("prompt"), text: text("text") };
        if self.texts.len() >= MAX_SAMPLES {
            // The first ones show where the run began, so the middle goes.
            self.texts.remove(MAX_SAMPLES / 2);
        }
        self.texts.push(sample);
    }

    fn add_end(&mut self, record: &Value) {
        let reason = record.get("reason").and_then(Value::as_str).unwrap_or_default();
        self.end = Some(record.clone());
        self.end_reason = Some(reason.to_owned());
        self.event("end", reason.to_owned());
    }

    fn event(&mut self, kind: &str, text: String) {
        if self.events.len() >= MAX_EVENTS {
            self.more_events += 1;
            return;
        }
        let unix_seconds = self.last_start.filter(|_| matches!(kind, "start" | "resume"));
        self.events.push(Event { kind: kind.to_owned(), step: self.step, seconds: self.seconds, unix_seconds, text });
    }

    /// A member of the first record.
    pub fn started(&self, name: &str) -> Option<&Value> {
        self.start.as_ref()?.get(name)
    }

    /// A member of the time of the last record.
    pub fn end_time(&self, name: &str) -> Option<&Value> {
        self.end.as_ref()?.get("time")?.get(name)
    }
}

impl EvalSummary {
    /// On a line.
    pub fn text(&self) -> String {
        let values: Vec<String> = self.metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
        values.join(", ")
    }
}
