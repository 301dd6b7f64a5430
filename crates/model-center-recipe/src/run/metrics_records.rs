//! The records of `metrics.jsonl`.

use super::machine::Machine;
use super::metrics_log::{Object, Record};
use super::phases::Phases;
use bmtrain_dist::optim::Fingerprint;

/// Numbers that depend on the clock and the machine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timing {
    /// Seconds since the run began.
    pub seconds: f64,
    /// Tokens per second since the record before, padding not counted.
    pub tokens_per_s: f64,
    /// Share of the machine's measured peak, 0 to 1, if that was measured.
    pub peak_share: Option<f64>,
    /// Share of the step that waited for samples, where they are loaded while others train.
    pub data_share: Option<f64>,
    /// Resident memory of the process, bytes.
    pub rss_bytes: u64,
    /// The most it has been, bytes.
    pub peak_rss_bytes: u64,
    /// Seconds by phase of the steps since the record before.
    pub phases: Phases,
}

impl Timing {
    fn json(&self) -> Object {
        let mut time = Object::default();
        time.float("seconds", self.seconds).float("tokens_per_s", self.tokens_per_s);
        if let Some(share) = self.peak_share {
            time.float("peak_share", share);
        }
        if let Some(share) = self.data_share {
            time.float("data_share", share);
        }
        time.integer("rss_bytes", self.rss_bytes).integer("peak_rss_bytes", self.peak_rss_bytes);
        if self.phases.step > 0.0 {
            // Microseconds: the digits beyond would make half of the line.
            let rounded = |seconds: f64| (seconds * 1e6).round() / 1e6;
            time.float("step_seconds", rounded(self.phases.step));
            for (name, seconds) in self.phases.named() {
                time.float(&format!("{name}_seconds"), rounded(seconds));
            }
        }
        time
    }
}

/// The first record: what is run on what.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StartRecord {
    /// Hash of the recipe.
    pub recipe_hash: String,
    /// Version of the program.
    pub version: String,
    /// Numbers in the model.
    pub parameters: u64,
    /// Those that are trained.
    pub trainable: u64,
    /// Samples learnt from.
    pub train_samples: u64,
    /// Fingerprint of the training data.
    pub train_fingerprint: String,
    /// Samples evaluated on; 0 for none.
    pub eval_samples: u64,
    /// Fingerprint of the evaluation data; empty for none.
    pub eval_fingerprint: String,
    /// Optimizer steps of one pass over the data.
    pub steps_per_epoch: u64,
    /// When the run began, seconds since 1970.
    pub unix_seconds: f64,
    /// Threads at work.
    pub threads: u64,
    /// Ranks that share the work.
    pub ranks: u64,
    /// Machine of the first rank.
    pub machine: Machine,
    /// The commit of the repository that the output directory is in.
    pub commit: Option<String>,
}

impl Record for StartRecord {
    fn to_json(&self) -> String {
        let mut time = Object::default();
        time.float("unix_seconds", self.unix_seconds).integer("threads", self.threads);
        time.integer("ranks", self.ranks);
        let Machine { processor, instruction_set, cores, memory_bytes, cuda } = &self.machine;
        let texts = [
            ("processor", processor.as_deref()),
            ("instruction_set", Some(instruction_set.as_str()).filter(|name| !name.is_empty())),
            ("cuda", cuda.as_deref()),
            ("commit", self.commit.as_deref()),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                time.text(name, text);
            }
        }
        let numbers = [("cores", Some(*cores).filter(|cores| *cores > 0)), ("memory_bytes", *memory_bytes)];
        for (name, number) in numbers {
            if let Some(number) = number {
                time.integer(name, number);
            }
        }
        let mut out = Object::default();
        out.text("kind", "start").text("version", &self.version).text("recipe_hash", &self.recipe_hash);
        out.integer("parameters", self.parameters).integer("trainable", self.trainable);
        out.integer("train_samples", self.train_samples).text("train_fingerprint", &self.train_fingerprint);
        out.integer("eval_samples", self.eval_samples).text("eval_fingerprint", &self.eval_fingerprint);
        out.integer("steps_per_epoch", self.steps_per_epoch);
        out.object("time", time).end()
    }
}

/// The run goes on from a checkpoint. What was written before it of later steps is overtaken; see
/// [`without_overtaken`](super::without_overtaken).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResumeRecord {
    /// Steps done by the checkpoint.
    pub step: u64,
    /// The checkpoint's name.
    pub checkpoint: String,
    /// Newer checkpoints that were damaged.
    pub passed_over: u64,
    /// Settings that differ from those the run was begun with.
    pub changed: Vec<String>,
    /// Whether the optimizer began with fresh state.
    pub fresh_optimizer: bool,
    /// Whether the checkpoint's schedule stayed in force in place of the recipe's.
    pub kept_schedule: bool,
    /// When it went on, seconds since 1970.
    pub unix_seconds: f64,
    /// Ranks that share the work from here on.
    pub ranks: u64,
    /// The instruction set from here on, of a run on processors.
    pub instruction_set: Option<String>,
}

impl Record for ResumeRecord {
    fn to_json(&self) -> String {
        let mut time = Object::default();
        time.float("unix_seconds", self.unix_seconds).integer("ranks", self.ranks);
        if let Some(set) = &self.instruction_set {
            time.text("instruction_set", set);
        }
        let mut out = Object::default();
        out.text("kind", "resume").integer("step", self.step).text("checkpoint", &self.checkpoint);
        out.integer("passed_over", self.passed_over).text("changed", &self.changed.join(", "));
        for (name, value) in [("fresh_optimizer", self.fresh_optimizer), ("kept_schedule", self.kept_schedule)] {
            if value {
                out.flag(name, value);
            }
        }
        out.object("time", time).end()
    }
}

/// A number of a record, which is written with the digits that its precision needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A computed one.
    Single(f32),
    /// A statistic.
    Double(f64),
}

impl From<Number> for f64 {
    fn from(number: Number) -> f64 {
        match number {
            Number::Single(value) => value.into(),
            Number::Double(value) => value,
        }
    }
}

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepRecord {
    /// Steps done, this one included.
    pub step: u64,
    /// Passes over the data done, parts included.
    pub epoch: f64,
    /// Mean loss of the step's samples.
    pub loss: f32,
    /// True norm of the gradients, before clipping.
    pub grad_norm: f32,
    /// Learning rate of the step.
    pub lr: f64,
    /// Samples seen since the beginning.
    pub samples: u64,
    /// Tokens seen since the beginning, padding not counted.
    pub tokens: u64,
    /// Stands for the numbers of the step's samples, in their order.
    pub batch: u64,
    /// Further metrics of the objective, with their names.
    pub values: Vec<(&'static str, Number)>,
    /// The step changed nothing, because its gradients were not finite.
    pub skipped: bool,
    /// Clock and machine.
    pub time: Timing,
}

impl Record for StepRecord {
    fn to_json(&self) -> String {
        let mut out = Object::default();
        out.text("kind", "step").integer("step", self.step).float("epoch", self.epoch);
        out.float("loss", self.loss).float("grad_norm", self.grad_norm).float("lr", self.lr);
        out.integer("samples", self.samples).integer("tokens", self.tokens);
        out.text("batch", &format!("{:012x}", self.batch));
        for (name, value) in &self.values {
            match value {
                Number::Single(value) => out.float(name, *value),
                Number::Double(value) => out.float(name, *value),
            };
        }
        if self.skipped {
            out.flag("skipped", true);
        }
        out.object("time", self.time.json()).end()
    }
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EvalRecord {
    /// Steps done before it.
    pub step: u64,
    /// Passes over the data done.
    pub epoch: f64,
    /// Samples evaluated on.
    pub samples: u64,
    /// Name and value of each metric, `loss` among them.
    pub values: Vec<(String, f64)>,
    /// Whether it is the best so far.
    pub is_best: bool,
    /// Seconds since the run began.
    pub seconds: f64,
    /// Seconds it took.
    pub eval_seconds: f64,
}

impl Record for EvalRecord {
    fn to_json(&self) -> String {
        self.json("eval")
    }
}

/// The evaluation of the test sets, at the end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct TestRecord(pub EvalRecord);

impl Record for TestRecord {
    fn to_json(&self) -> String {
        self.0.json("test")
    }
}

impl EvalRecord {
    fn json(&self, kind: &str) -> String {
        let mut time = Object::default();
        time.float("seconds", self.seconds).float("eval_seconds", self.eval_seconds);
        let mut values = Object::default();
        for (name, value) in &self.values {
            values.float(name, *value);
        }
        let mut out = Object::default();
        out.text("kind", kind).integer("step", self.step).float("epoch", self.epoch).integer("samples", self.samples);
        out.object("metrics", values).flag("best", self.is_best);
        out.object("time", time).end()
    }
}

/// A completion of a prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SampleRecord {
    /// Steps done before it.
    pub step: u64,
    /// The prompt, as the recipe has it.
    pub prompt: String,
    /// The model's continuation.
    pub text: String,
    /// Seconds since the run began.
    pub seconds: f64,
}

impl Record for SampleRecord {
    fn to_json(&self) -> String {
        let mut time = Object::default();
        time.float("seconds", self.seconds);
        let mut out = Object::default();
        out.text("kind", "sample").integer("step", self.step).text("prompt", &self.prompt).text("text", &self.text);
        out.object("time", time).end()
    }
}

/// The last record.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EndRecord {
    /// Steps done.
    pub step: u64,
    /// Passes over the data done.
    pub epoch: f64,
    /// Why it ended, [`StopReason::name`](super::StopReason::name).
    pub reason: String,
    /// Metric that picked the best weights, its value and step; `None` without evaluation.
    pub best: Option<(String, f64, u64)>,
    /// Hashes of the last weights and of the optimizer's state: equal where two runs came to the same bits. `None` if
    /// they could not be read.
    pub state: Option<Fingerprint>,
    /// Steps that were skipped in a row before the end, because gradients were not finite.
    pub skipped_at_end: u64,
    /// Samples seen.
    pub samples: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Seconds since the run began.
    pub seconds: f64,
    /// Seconds spent in training steps.
    pub train_seconds: f64,
    /// Seconds spent in evaluation.
    pub eval_seconds: f64,
    /// Seconds spent in saving.
    pub save_seconds: f64,
    /// The most resident memory, bytes.
    pub peak_rss_bytes: u64,
    /// The most resident memory of the process without mapped files and shared memory, bytes; `None` where the system
    /// does not provide it.
    pub peak_anonymous_bytes: Option<u64>,
    /// Bytes held by the pool of the rank that needed most, each figure with its name.
    pub pool: Vec<(String, u64)>,
}

impl Record for EndRecord {
    fn to_json(&self) -> String {
        let mut time = Object::default();
        time.float("seconds", self.seconds).float("train_seconds", self.train_seconds);
        time.float("eval_seconds", self.eval_seconds).float("save_seconds", self.save_seconds);
        time.integer("peak_rss_bytes", self.peak_rss_bytes);
        if let Some(bytes) = self.peak_anonymous_bytes {
            time.integer("peak_anonymous_bytes", bytes);
        }
        for (name, bytes) in &self.pool {
            time.integer(name, *bytes);
        }
        let mut out = Object::default();
        out.text("kind", "end").integer("step", self.step).float("epoch", self.epoch).text("reason", &self.reason);
        if let Some((metric, value, step)) = &self.best {
            let mut best = Object::default();
            best.text("metric", metric).float("value", *value).integer("step", *step);
            out.object("best", best);
        }
        if let Some(fingerprint) = &self.state {
            let mut state = Object::default();
            state.text("weights", &fingerprint.weights).text("optimizer", &fingerprint.optimizer);
            out.object("state", state);
        }
        if self.skipped_at_end > 0 {
            out.integer("skipped_at_end", self.skipped_at_end);
        }
        out.integer("samples", self.samples).integer("tokens", self.tokens);
        out.object("time", time).end()
    }
}
