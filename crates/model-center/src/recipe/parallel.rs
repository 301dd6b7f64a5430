//! `[parallel]`: how the ranks of a run divide the work.
//!
//! Defines [`Parallel`] with the reading of its keys, called by `keys.rs`, and their rules, called by `rules.rs`.
//! Whether ranks and model can be divided so is checked by [`crate::train::check_layout`] once both are known.

use super::kinds::{as_integer, quote};
use super::layers::Value;
use super::reader::{Otherwise, Reader, Spec};
use crate::Result;
use bmtrain_dist::Mesh;
use bmtrain_dist::pipeline::{PartitionRule, ScheduleKind};
use bmtrain_dist::shard::ZeroLevel;

/// More ranks than any machine room has.
const MOST_RANKS: u64 = 1 << 16;
/// More blocks than any model has.
pub(super) const MOST_BLOCKS: usize = 1 << 16;

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
    pub schedule: ScheduleKind,
    /// Which blocks a stage has.
    pub partition: PartitionRule,
}

/// The schedules of training, by their names.
const SCHEDULES: [(&str, ScheduleKind); 5] = [
    ("gpipe", ScheduleKind::GPipe),
    ("1f1b", ScheduleKind::OneForwardOneBackward),
    ("interleaved", ScheduleKind::Interleaved),
    ("zb-1p", ScheduleKind::ZeroBubble),
    ("zb-v", ScheduleKind::ZeroBubbleV),
];

/// The model chunks of a stage that a schedule can run, from fewest to most.
fn chunks_of(schedule: ScheduleKind) -> (usize, usize) {
    let fewest = schedule.default_chunks();
    (fewest, if schedule == ScheduleKind::Interleaved { MOST_BLOCKS } else { fewest })
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
    let schedule = r.choice("parallel.schedule", &SCHEDULES, ScheduleKind::OneForwardOneBackward);
    let virtual_stages = chunks.map_or(schedule.default_chunks(), |chunks| chunks as usize);
    Parallel { zero, prefetch, tensor, sequence, pipeline, virtual_stages, schedule, partition: read_partition(r) }
}

fn read_partition(r: &mut Reader) -> PartitionRule {
    r.read(Spec {
        key: "parallel.partition",
        textual: false,
        wanted: "\"parameters\", \"blocks\", or a list of the number of blocks of each model chunk".into(),
        example: quote("blocks"),
        otherwise: Otherwise::Default(PartitionRule::Parameters),
        read: &|value| match value {
            Value::Text(text) if text == "parameters" => Some(PartitionRule::Parameters),
            Value::Text(text) if text == "blocks" => Some(PartitionRule::Count),
            value => counts(value),
        },
        render: &rendered,
    })
    .unwrap_or(PartitionRule::Parameters)
}

/// As TOML.
fn rendered(partition: &PartitionRule) -> String {
    match partition {
        PartitionRule::Parameters => quote("parameters"),
        PartitionRule::Count => quote("blocks"),
        PartitionRule::Given(counts) => format!("{counts:?}"),
        // No recipe has it: times are measured by a run.
        PartitionRule::Time(_) => quote("time"),
    }
}

/// A list of numbers of blocks.
fn counts(value: &Value) -> Option<PartitionRule> {
    let Value::Array(items) = value else { return None };
    let count = |item: &Value| as_integer(item).and_then(|n| usize::try_from(n).ok());
    let counts: Vec<usize> = items.iter().map(count).collect::<Option<_>>()?;
    let are_counts = !counts.is_empty() && counts.iter().all(|count| (1..=MOST_BLOCKS).contains(count));
    are_counts.then_some(PartitionRule::Given(counts))
}

/// Adds what contradicts itself or has no effect.
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
}

fn check_stages(r: &mut Reader, p: &Parallel) {
    let (name, chunks) = (p.schedule.name(), p.virtual_stages);
    let (fewest, most) = chunks_of(p.schedule);
    if !(fewest..=most).contains(&chunks) {
        let runs = if fewest == most { fewest.to_string() } else { format!("at least {fewest}") };
        let reason = format!("`parallel.schedule` = \"{name}\" runs {runs} model chunks of a stage, and not {chunks}");
        let fix = format!("set parallel.virtual_stages = {}", chunks.clamp(fewest, most));
        r.contradiction(&["parallel.virtual_stages", "parallel.schedule"], reason, fix);
    }
    if let PartitionRule::Given(counts) = &p.partition
        && counts.len() != p.pipeline * chunks
    {
        let (given, stages) = (counts.len(), p.pipeline);
        let reason = format!("`parallel.partition` has {given} numbers for {stages} stages x {chunks} model chunks");
        let keys = ["parallel.partition", "parallel.pipeline", "parallel.virtual_stages"];
        r.contradiction(&keys, reason, format!("give {} numbers", stages * chunks));
    }
}
