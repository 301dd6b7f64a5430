//! `[parallel]`: how the ranks of a run divide the work.
//!
//! Defines [`Parallel`] and the rules of its keys.
//! Whether ranks and model can be divided so is checked by `model_center_train::check_layout` once both are known.

use crate::Result;
use crate::recipe::engine::kinds::{as_integer, quote};
use crate::recipe::engine::layers::Value;
use crate::recipe::engine::reader::{Otherwise, Reader, Spec};
use crate::recipe::engine::schema::Shape;
use crate::recipe::engine::table::settings;
use bmtrain_dist::Mesh;
use bmtrain_dist::pipeline::{PartitionRule, ScheduleKind};
use bmtrain_dist::shard::ZeroLevel;

/// The key of [`Parallel::partition`].
pub(crate) const PARTITION: &str = "parallel.partition";
/// More ranks than any machine room has.
const MAX_RANKS: u64 = 1 << 16;
/// More blocks than any model has.
pub(super) const MAX_BLOCKS: usize = 1 << 16;

settings! {
    /// `[parallel]`: how several ranks share the work. One rank alone takes no notice of it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Parallel in "parallel", uncounted (r) then with_chunks() {
        /// ZeRO level: what is sharded over the data-parallel ranks, `docs/sharding.md`.
        pub zero: ZeroLevel = zero_level(), "0.1";
        /// Gather the parameters of the next block while one computes.
        pub prefetch: bool = flag(true), "0.1";
        /// Tensor-parallel ranks: each has some of the heads, columns and tokens of every layer, and all of them see
        /// the same samples. Divides the number of ranks; the others are data-parallel.
        pub tensor: usize = integer(1, 1..=MAX_RANKS), "0.2";
        /// Shard the sequences between the layers of tensor-parallel ranks.
        pub sequence: bool = flag(false), "0.2";
        /// Pipeline stages: each has some of the blocks, and every micro-batch passes through all. Divides the number
        /// of ranks.
        pub pipeline: usize = integer(1, 1..=MAX_RANKS), "0.2";
        /// Model chunks of each pipeline stage, with `interleaved` and `zb-v`.
        pub virtual_stages: usize = virtual_stages(), "0.2";
        /// Order in which a pipeline stage runs its micro-batches, `docs/parallelism.md`.
        pub schedule: ScheduleKind = choice(&SCHEDULES, ScheduleKind::OneForwardOneBackward), "0.2";
        /// Blocks of the model chunks of a pipeline: with about the same number of parameters, the same number of
        /// blocks, about the same time as the run measures it at its start, or these numbers.
        pub partition: StagePartition = partition(), "0.2";
    }
}

/// Division of a model's blocks among the model chunks of a pipeline.
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
    (fewest, if schedule == ScheduleKind::Interleaved { MAX_BLOCKS } else { fewest })
}

impl Parallel {
    /// The fewest chunks that the schedule runs, where no number is set.
    fn with_chunks(self, _: &mut Reader) -> Self {
        let fewest = self.schedule.default_chunks();
        Parallel { virtual_stages: if self.virtual_stages == 0 { fewest } else { self.virtual_stages }, ..self }
    }

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

    /// Number of `ranks` ranks that see different samples; 1 where they are too few for one copy of the model.
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

impl Reader {
    fn zero_level(&mut self, key: &'static str) -> ZeroLevel {
        ZeroLevel::from_number(self.integer(key, 3, 0..=3)).unwrap_or(ZeroLevel::Three)
    }

    /// 0 where the schedule decides.
    fn virtual_stages(&mut self, key: &'static str) -> usize {
        let absent = "not set: the fewest that the schedule runs";
        self.optional_integer(key, absent, 1..=MAX_BLOCKS as u64, 2).unwrap_or(0)
    }

    fn partition(&mut self, key: &'static str) -> StagePartition {
        let default = StagePartition::Rule(PartitionRule::Parameters);
        let rules = ["parameters", "blocks", "time"].map(str::to_owned).to_vec();
        let counts_shape = Shape::List(Shape::Integer(1, None).into());
        self.shape(key, Shape::Either(vec![Shape::Choice(rules), counts_shape]));
        self.read(Spec {
            key,
            textual: false,
            wanted: "\"parameters\", \"blocks\", \"time\", or a list of the number of blocks of each model chunk"
                .into(),
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
}

/// As TOML.
pub(crate) fn rendered(partition: &StagePartition) -> String {
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
    !counts.is_empty() && counts.iter().all(|count| (1..=MAX_BLOCKS).contains(count))
}

/// The number of blocks of each of `chunks` model chunks, which a recipe lists that
/// [`to_toml`](crate::recipe::Resolved::to_toml) wrote; `None` of any other text.
pub fn recorded_partition(text: &str, chunks: usize) -> Option<Vec<usize>> {
    let recipe: toml::Table = toml::from_str(text).ok()?;
    let items = recipe.get("parallel")?.get("partition")?.as_array()?;
    let count = |item: &toml::Value| item.as_integer().and_then(|n| usize::try_from(n).ok());
    let counts: Vec<usize> = items.iter().map(count).collect::<Option<_>>()?;
    (counts.len() == chunks && are_counts(&counts)).then_some(counts)
}

/// Adds what contradicts itself or has no effect.
pub(crate) fn check(r: &mut Reader, p: &Parallel) {
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
