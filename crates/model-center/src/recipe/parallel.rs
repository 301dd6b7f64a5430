//! `[parallel]`: how the ranks of a run divide the work.
//!
//! Defines [`Parallel`] with the reading of its keys, called by `keys.rs`, and their rules, called by `rules.rs`.
//! Whether ranks and model can be divided so is checked by [`crate::train::check_layout`] once both are known.

use super::kinds::{as_integer, quote};
use super::layers::Value;
use super::reader::{Otherwise, Reader, Spec};
use crate::Result;
use bmtrain_dist::Mesh;
use bmtrain_dist::shard::ZeroLevel;
use std::fmt;

/// More ranks than any machine room has.
const MOST_RANKS: u64 = 1 << 16;
/// More blocks than any model has.
const MOST_BLOCKS: usize = 1 << 16;

/// `[parallel]`: how several ranks share the work. One rank alone takes no notice of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parallel {
    /// What is sharded over the data-parallel ranks.
    pub zero: ZeroLevel,
    /// Gather the next block while one computes.
    pub prefetch: bool,
    /// Tensor-parallel ranks, which share one copy of every layer's weights and see the same samples.
    pub tensor: usize,
    /// Whether tensor-parallel ranks shard the sequences between their layers.
    pub sequence: bool,
    /// Pipeline stages.
    pub pipeline: usize,
    /// Model chunks of each pipeline stage.
    pub virtual_stages: usize,
    /// In which order a stage runs its micro-batches.
    pub schedule: PipelineSchedule,
    /// Which blocks a stage has.
    pub partition: Partition,
}

/// The order in which a pipeline stage runs its micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes.
    GPipe,
    /// One forward and one backward pass in turn.
    OneForwardOneBackward,
    /// The same over several model chunks of each stage.
    Interleaved,
    /// Weight gradients apart from input gradients, with one model chunk.
    ZeroBubble,
    /// The same with two model chunks; the second one runs back through the stages.
    ZeroBubbleV,
}

/// The schedules with their names in recipes.
const SCHEDULES: [(&str, PipelineSchedule); 5] = [
    ("gpipe", PipelineSchedule::GPipe),
    ("1f1b", PipelineSchedule::OneForwardOneBackward),
    ("interleaved", PipelineSchedule::Interleaved),
    ("zb-1p", PipelineSchedule::ZeroBubble),
    ("zb-v", PipelineSchedule::ZeroBubbleV),
];

impl PipelineSchedule {
    /// The name in recipes.
    pub fn name(self) -> &'static str {
        SCHEDULES.iter().find(|(_, schedule)| *schedule == self).map_or("", |(name, _)| name)
    }

    /// The model chunks of a stage that it can run, from fewest to most.
    pub fn chunks(self) -> (usize, usize) {
        match self {
            Self::GPipe | Self::OneForwardOneBackward | Self::ZeroBubble => (1, 1),
            Self::Interleaved => (2, MOST_BLOCKS),
            Self::ZeroBubbleV => (2, 2),
        }
    }
}

/// How the blocks of a model are divided over the model chunks of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Partition {
    /// So that each has about the same number of parameters.
    Parameters,
    /// So that each has the same number of blocks, or one less.
    Blocks,
    /// These numbers of blocks, in the order of the chunks in the model.
    Counts(Vec<usize>),
}

impl fmt::Display for Partition {
    /// As TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partition::Parameters => f.write_str("\"parameters\""),
            Partition::Blocks => f.write_str("\"blocks\""),
            Partition::Counts(counts) => write!(f, "{counts:?}"),
        }
    }
}

impl Parallel {
    /// Ranks that hold one copy of the model together.
    pub fn ranks_of_copy(&self) -> usize {
        self.tensor * self.pipeline
    }

    /// Of `ranks` ranks the number that see different samples; 1 where they are too few for one copy of the model.
    pub fn data_ranks(&self, ranks: usize) -> usize {
        (ranks / self.ranks_of_copy()).max(1)
    }

    /// The position of rank `rank` of `ranks`.
    ///
    /// # Errors
    /// Ranks that are no multiple of [`Parallel::ranks_of_copy`].
    pub fn mesh(&self, rank: usize, ranks: usize) -> Result<Mesh> {
        Ok(Mesh::new(rank, ranks, self.pipeline, self.tensor)?)
    }
}

/// Reads the keys.
pub(super) fn read(r: &mut Reader) -> Parallel {
    let zero = ZeroLevel::from_number(r.integer("parallel.zero", 3, 0..=3)).unwrap_or(ZeroLevel::Three);
    let prefetch = r.flag("parallel.prefetch", true);
    let tensor = r.integer("parallel.tensor", 1, 1..=MOST_RANKS) as usize;
    let sequence = r.flag("parallel.sequence", false);
    let pipeline = r.integer("parallel.pipeline", 1, 1..=MOST_RANKS) as usize;
    let absent = "not set: the fewest that the schedule runs";
    let chunks = r.optional_integer("parallel.virtual_stages", absent, 1..=MOST_BLOCKS as u64, 2);
    let schedule = r.choice("parallel.schedule", &SCHEDULES, PipelineSchedule::OneForwardOneBackward);
    let virtual_stages = chunks.map_or(schedule.chunks().0, |chunks| chunks as usize);
    Parallel { zero, prefetch, tensor, sequence, pipeline, virtual_stages, schedule, partition: read_partition(r) }
}

fn read_partition(r: &mut Reader) -> Partition {
    r.read(Spec {
        key: "parallel.partition",
        textual: false,
        wanted: "\"parameters\", \"blocks\", or a list of the number of blocks of each model chunk".into(),
        example: quote("blocks"),
        otherwise: Otherwise::Default(Partition::Parameters),
        read: &|value| match value {
            Value::Text(text) if text == "parameters" => Some(Partition::Parameters),
            Value::Text(text) if text == "blocks" => Some(Partition::Blocks),
            value => counts(value),
        },
        render: &Partition::to_string,
    })
    .unwrap_or(Partition::Parameters)
}

/// A list of numbers of blocks.
fn counts(value: &Value) -> Option<Partition> {
    let Value::Array(items) = value else { return None };
    let count = |item: &Value| as_integer(item).and_then(|n| usize::try_from(n).ok());
    let counts: Vec<usize> = items.iter().map(count).collect::<Option<_>>()?;
    let are_counts = !counts.is_empty() && counts.iter().all(|count| (1..=MOST_BLOCKS).contains(count));
    are_counts.then_some(Partition::Counts(counts))
}

/// Adds what contradicts itself, has no effect, or is not available in this build.
pub(super) fn check(r: &mut Reader, p: &Parallel) {
    if p.tensor == 1 {
        let fix = "set parallel.tensor, or remove it";
        r.without_effect("parallel.sequence", "parallel.tensor", "parallel.tensor is 1", fix);
    }
    if p.pipeline == 1 {
        for key in ["parallel.virtual_stages", "parallel.schedule", "parallel.partition"] {
            let fix = "set parallel.pipeline, or remove it";
            r.without_effect(key, "parallel.pipeline", "parallel.pipeline is 1", fix);
        }
    } else {
        check_stages(r, p);
    }
    refuse_unbuilt(r, p);
}

fn check_stages(r: &mut Reader, p: &Parallel) {
    let (name, chunks) = (p.schedule.name(), p.virtual_stages);
    let (fewest, most) = p.schedule.chunks();
    if !(fewest..=most).contains(&chunks) {
        let runs = if fewest == most { fewest.to_string() } else { format!("at least {fewest}") };
        let reason = format!("`parallel.schedule` = \"{name}\" runs {runs} model chunks of a stage, and not {chunks}");
        let fix = format!("set parallel.virtual_stages = {}", chunks.clamp(fewest, most));
        r.contradiction(&["parallel.virtual_stages", "parallel.schedule"], reason, fix);
    }
    if let Partition::Counts(counts) = &p.partition
        && counts.len() != p.pipeline * chunks
    {
        let (given, stages) = (counts.len(), p.pipeline);
        let reason = format!("`parallel.partition` has {given} numbers for {stages} stages x {chunks} model chunks");
        let keys = ["parallel.partition", "parallel.pipeline", "parallel.virtual_stages"];
        r.contradiction(&keys, reason, format!("give {} numbers", stages * chunks));
    }
}

/// Refuses what the keys can set and this version does not run.
fn refuse_unbuilt(r: &mut Reader, p: &Parallel) {
    if p.sequence && p.tensor > 1 {
        let reason = "`parallel.sequence` = true: sequences are not sharded over tensor-parallel ranks in this version";
        r.contradiction(&["parallel.sequence"], reason, "set parallel.sequence = false");
    }
    if p.pipeline > 1 {
        let reason = format!("`parallel.pipeline` = {}: there is no pipeline in this version", p.pipeline);
        r.contradiction(&["parallel.pipeline"], reason, "set parallel.pipeline = 1, or use parallel.tensor");
    }
}
