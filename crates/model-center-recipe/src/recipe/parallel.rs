//! `[parallel]`: how the ranks of a run divide the work.
//!
//! Defines [`Parallel`] with the reading of its keys, called by `keys.rs`, and their rules, called by `rules.rs`.
//! Whether ranks and model can be divided so is checked by `model_center_train::check_layout` once both are known.

use super::kinds::{as_integer, quote};
use super::layers::Value;
use super::reader::{Otherwise, Reader, Spec};
use super::schema::Shape;
use crate::Result;
use bmtrain_dist::Mesh;
use bmtrain_dist::pipeline::{PartitionRule, ScheduleKind};
use bmtrain_dist::shard::ZeroLevel;

/// The key of [`Parallel::partition`].
pub(super) const PARTITION: &str = "parallel.partition";
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
    pub partition: StagePartition,
}

/// How the blocks of a model are divided among the model chunks of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StagePartition {
    /// By what is known without running the model.
    Rule(PartitionRule),
    /// By the times of its blocks, which a run measures before it opens the model. The numbers of blocks that it
    /// chooses replace this value in its recipe, with which it is resumed.
    Time,
}

impl StagePartition {
    /// The rule of a model that is opened. Times are not measured here: by parameters in their place.
    pub fn rule(&self) -> PartitionRule {
        match self {
            StagePartition::Rule(rule) => rule.clone(),
            StagePartition::Time => PartitionRule::Parameters,
        }
    }

    /// The given number of blocks of each model chunk; `None` where a rule decides.
    pub fn given(&self) -> Option<&[usize]> {
        match self {
            StagePartition::Rule(PartitionRule::Given(counts)) => Some(counts),
            StagePartition::Rule(_) | StagePartition::Time => None,
        }
    }
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

    /// Model chunks of all pipeline stages.
    pub fn chunks(&self) -> usize {
        self.pipeline * self.virtual_stages
    }

    /// Whether a run measures its blocks to divide them among its stages.
    pub fn is_timed(&self) -> bool {
        self.pipeline > 1 && self.partition == StagePartition::Time
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

fn read_partition(r: &mut Reader) -> StagePartition {
    let default = StagePartition::Rule(PartitionRule::Parameters);
    let rules = ["parameters", "blocks", "time"].map(str::to_owned).to_vec();
    let counts_shape = Shape::List(Shape::Integer(1, None).into());
    r.shape(PARTITION, Shape::Either(vec![Shape::Choice(rules), counts_shape]));
    r.read(Spec {
        key: PARTITION,
        textual: false,
        wanted: "\"parameters\", \"blocks\", \"time\", or a list of the number of blocks of each model chunk".into(),
        example: quote("blocks"),
        otherwise: Otherwise::Default(default.clone()),
        read: &|value| match value {
            Value::Text(text) if text == "parameters" => Some(StagePartition::Rule(PartitionRule::Parameters)),
            Value::Text(text) if text == "blocks" => Some(StagePartition::Rule(PartitionRule::Count)),
            Value::Text(text) if text == "time" => Some(StagePartition::Time),
            value => counts(value),
        },
        render: &rendered,
    })
    .unwrap_or(default)
}

/// As TOML.
pub(super) fn rendered(partition: &StagePartition) -> String {
    match partition {
        StagePartition::Rule(PartitionRule::Parameters) => quote("parameters"),
        StagePartition::Rule(PartitionRule::Count) => quote("blocks"),
        StagePartition::Rule(PartitionRule::Given(counts)) => format!("{counts:?}"),
        StagePartition::Rule(PartitionRule::Time(_)) | StagePartition::Time => quote("time"),
    }
}

/// A list of numbers of blocks.
fn counts(value: &Value) -> Option<StagePartition> {
    let Value::Array(items) = value else { return None };
    let count = |item: &Value| as_integer(item).and_then(|n| usize::try_from(n).ok());
    let counts: Vec<usize> = items.iter().map(count).collect::<Option<_>>()?;
    are_counts(&counts).then_some(StagePartition::Rule(PartitionRule::Given(counts)))
}

fn are_counts(counts: &[usize]) -> bool {
    !counts.is_empty() && counts.iter().all(|count| (1..=MOST_BLOCKS).contains(count))
}

/// The number of blocks of each of `chunks` model chunks, which a recipe lists that
/// [`to_toml`](super::Resolved::to_toml) wrote; `None` of any other text.
pub fn recorded_partition(text: &str, chunks: usize) -> Option<Vec<usize>> {
    let recipe: toml::Table = toml::from_str(text).ok()?;
    let items = recipe.get("parallel")?.get("partition")?.as_array()?;
    let count = |item: &toml::Value| item.as_integer().and_then(|n| usize::try_from(n).ok());
    let counts: Vec<usize> = items.iter().map(count).collect::<Option<_>>()?;
    (counts.len() == chunks && are_counts(&counts)).then_some(counts)
}

/// Adds what contradicts itself or has no effect.
pub(super) fn check(r: &mut Reader, p: &Parallel) {
    if p.tensor == 1 {
        let fix = "set parallel.tensor, or remove it";
        r.without_effect("parallel.sequence", "parallel.tensor", "parallel.tensor is 1", fix);
    }
    if p.pipeline == 1 {
        for key in ["parallel.virtual_stages", "parallel.schedule", PARTITION] {
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
    if let Some(counts) = p.partition.given()
        && counts.len() != p.chunks()
    {
        let (given, stages) = (counts.len(), p.pipeline);
        let reason = format!("`parallel.partition` has {given} numbers for {stages} stages x {chunks} model chunks");
        let keys = [PARTITION, "parallel.pipeline", "parallel.virtual_stages"];
        r.contradiction(&keys, reason, format!("give {} numbers", p.chunks()));
    }
}
