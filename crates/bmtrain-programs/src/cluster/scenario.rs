//! Runs to simulate, as a TOML file lists them: one machine, defaults, and a table for each run with the figure that
//! was published for it, where there is one.

use super::machine::Machine;
use super::step::{StepReport, simulate};
use crate::{Error, Result};
use bmtrain_dist::pipeline::{Link, ScheduleKind};
use bmtrain_dist::shard::ZeroLevel;
use model_center_base::file::read_text;
use model_center_train::formula::{ParallelLayout, TransformerSizes, families::sizes_of};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The longest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// More runs than any table has.
const MAX_RUNS: usize = 1000;

/// A machine and the runs on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Name of the file that it was read from.
    pub place: String,
    /// The machine.
    pub machine: Machine,
    /// The runs, in the order of the file.
    pub runs: Vec<Run>,
}

/// A run to simulate.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its name in the table.
    pub name: String,
    /// The model.
    pub sizes: TransformerSizes,
    /// Layout of the ranks that share it.
    pub layout: ParallelLayout,
    /// The figure that was published for it.
    pub published: Option<Published>,
}

/// A published figure.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Its value.
    pub value: f64,
    /// Quantity of the figure.
    pub of: Quantity,
}

/// Quantity of a published figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Seconds of a step.
    StepSeconds,
    /// Sequences of all ranks per second.
    SequencesPerSecond,
    /// 10^12 floating-point operations of the model per rank and second.
    ModelTflops,
    /// Teraflops of the hardware, with recomputation.
    HardwareTflops,
    /// Operations of the model per rank and second over the first run's in the file.
    Scaling,
}

impl Quantity {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::StepSeconds => "s a step",
            Quantity::SequencesPerSecond => "sequences/s",
            Quantity::ModelTflops => "TFLOP/s a rank",
            Quantity::HardwareTflops => "TFLOP/s a rank, with recomputation",
            Quantity::Scaling => "of the first run's TFLOP/s a rank",
        }
    }

    /// The simulated value; `first` is the report of the first run in the file.
    pub fn of(self, report: &StepReport, first: &StepReport) -> f64 {
        match self {
            Quantity::StepSeconds => report.step,
            Quantity::SequencesPerSecond => report.sequences_per_second,
            Quantity::ModelTflops => report.model_flops / 1e12,
            Quantity::HardwareTflops => report.hardware_flops / 1e12,
            Quantity::Scaling => report.model_flops / first.model_flops,
        }
    }
}

impl Scenario {
    /// Read a file.
    ///
    /// # Errors
    /// A file that cannot be read or is not such a TOML file; keys that are unknown or missing; numbers that make no
    /// run.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&read_text(path, MAX_BYTES)?, &path.display().to_string())
    }

    /// Read from text; `place` names it in errors.
    ///
    /// # Errors
    /// As [`Scenario::read`].
    pub fn parse(text: &str, place: &str) -> Result<Self> {
        let raw: RawScenario = toml::from_str(text).map_err(|error| malformed(place, &error))?;
        if raw.run.is_empty() || raw.run.len() > MAX_RUNS {
            let reason = format!("{} tables [[run]]", raw.run.len());
            return Err(Error::argument(place, reason, format!("give 1 to {MAX_RUNS}")));
        }
        let machine = raw.machine.resolve(place)?;
        let runs = raw.run.into_iter().enumerate().map(|(number, run)| {
            let place = format!("{place}, run {}", number + 1);
            let mut all = raw.defaults.clone();
            all.extend(run);
            let run: RawRun = all.try_into().map_err(|error| malformed(&place, &error))?;
            run.resolve(&place)
        });
        Ok(Scenario { place: place.to_owned(), machine, runs: runs.collect::<Result<_>>()? })
    }

    /// The step of a run.
    ///
    /// # Errors
    /// As [`simulate`].
    pub fn simulate(&self, run: &Run) -> Result<StepReport> {
        simulate(&run.sizes, &run.layout, &self.machine, &format!("{}, run {}", self.place, run.name))
    }
}

fn malformed(place: &str, error: &toml::de::Error) -> Error {
    let reason = error.message().trim().to_owned();
    let place = match error.span() {
        Some(span) => format!("{place}, byte {}", span.start),
        None => place.to_owned(),
    };
    Error::argument(place, reason, "see examples/simulate for the keys")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    machine: RawMachine,
    #[serde(default)]
    defaults: toml::Table,
    #[serde(default)]
    run: Vec<toml::Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMachine {
    name: String,
    flops: f64,
    efficiency: f64,
    ranks_per_host: usize,
    inside: RawLink,
    between: RawLink,
    #[serde(default = "infinite")]
    optimizer_bandwidth: f64,
}

fn infinite() -> f64 {
    f64::INFINITY
}

/// Seconds, and bytes per second.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    latency: f64,
    bandwidth: f64,
}

impl RawMachine {
    fn resolve(self, place: &str) -> Result<Machine> {
        let RawMachine { name, flops, efficiency, ranks_per_host, inside, between, optimizer_bandwidth } = self;
        let link = |name: &str, link: RawLink| {
            Link::new(link.latency, link.bandwidth).map_err(|error| {
                Error::argument(format!("{place}, machine.{name}"), error.to_string(), "correct the numbers")
            })
        };
        let (inside, between) = (link("inside", inside)?, link("between", between)?);
        let machine = Machine { name, flops, efficiency, ranks_per_host, inside, between, optimizer_bandwidth };
        machine.validate(place)?;
        Ok(machine)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRun {
    name: String,
    /// A directory with a `config.json`, in place of the sizes.
    config: Option<PathBuf>,
    #[serde(default)]
    layers: usize,
    #[serde(default)]
    width: usize,
    #[serde(default)]
    heads: usize,
    kv_heads: Option<usize>,
    feed_forward: Option<usize>,
    #[serde(default)]
    gated: bool,
    #[serde(default)]
    vocabulary: usize,
    #[serde(default = "yes")]
    tied: bool,
    length: usize,
    #[serde(default = "one")]
    tensor: usize,
    #[serde(default = "one")]
    pipeline: usize,
    #[serde(default = "one")]
    data: usize,
    #[serde(default)]
    zero: u64,
    schedule: Option<String>,
    chunks: Option<usize>,
    micro_batch: usize,
    #[serde(default = "one")]
    micro_batches: usize,
    #[serde(default)]
    recompute: bool,
    #[serde(default = "yes")]
    overlap: bool,
    #[serde(default)]
    overlap_tensor: bool,
    #[serde(default = "two")]
    value_bytes: usize,
    #[serde(default = "two")]
    gradient_bytes: usize,
    published: Option<Published>,
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}

fn two() -> usize {
    2
}

impl RawRun {
    fn resolve(self, place: &str) -> Result<Run> {
        let argument = |name: &str, reason: String, fix: &str| Error::argument(format!("{place}, {name}"), reason, fix);
        let zero = ZeroLevel::from_number(self.zero)
            .ok_or_else(|| argument("zero", format!("a ZeRO level of {}", self.zero), "give a number from 0 to 3"))?;
        let schedule = match &self.schedule {
            Some(name) => name.parse()?,
            None => ScheduleKind::OneForwardOneBackward,
        };
        if !(1..=8).contains(&self.value_bytes) || !(1..=8).contains(&self.gradient_bytes) {
            let reason = format!("values of {} and gradients of {} bytes", self.value_bytes, self.gradient_bytes);
            return Err(argument("value_bytes", reason, "give numbers from 1 to 8"));
        }
        if self.published.is_some_and(|published| !published.value.is_finite()) {
            return Err(argument("published", "a value that is not a finite number".into(), "correct it"));
        }
        let sizes = self.sizes()?;
        let layout = ParallelLayout {
            tensor: self.tensor,
            pipeline: self.pipeline,
            data: self.data,
            zero,
            schedule,
            chunks: self.chunks.unwrap_or(schedule.default_chunks()),
            length: self.length,
            micro_batch: self.micro_batch,
            micro_batches: self.micro_batches,
            recompute: self.recompute,
            overlap: self.overlap,
            overlap_tensor: self.overlap_tensor,
            value_bytes: self.value_bytes,
            gradient_bytes: self.gradient_bytes,
        };
        sizes.validate(place)?;
        layout.schedule(&sizes, place)?;
        Ok(Run { name: self.name, sizes, layout, published: self.published })
    }

    fn sizes(&self) -> Result<TransformerSizes> {
        if let Some(directory) = &self.config {
            return sizes_of(directory);
        }
        let RawRun { layers, width, heads, vocabulary, length, .. } = *self;
        let gpt2 = TransformerSizes::gpt2(layers, width, heads, vocabulary, length);
        Ok(TransformerSizes {
            kv_heads: self.kv_heads.unwrap_or(heads),
            feed_forward: self.feed_forward.unwrap_or(gpt2.feed_forward),
            gated: self.gated,
            tied: self.tied,
            positions: if self.gated { 0 } else { length },
            ..gpt2
        })
    }
}
