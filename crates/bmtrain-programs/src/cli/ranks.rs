//! The ranks of a program that are threads of its process: `--ranks`, `--tensor` and `--pipeline`.
//!
//! Called by the programs `evaluate`, `forward` and `generate`; training takes them from a launcher and a recipe.

use crate::cli::terminal;
use crate::{Error, Result};
use bmtrain_core::comm::Communicator;
use bmtrain_core::cpu::{CpuOptions, Pinning, Placement};
use bmtrain_core::{Device, DeviceChoice};
use bmtrain_dist::launch::{Launcher, ProcessGroup, cpu_options, threads_per_rank};
use bmtrain_dist::param::Parameters;
use bmtrain_dist::pipeline::{PartitionRule, Pipeline, Schedule, ScheduleKind};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Launch, RankGroups};
use model_center_models::{Division, OpenOptions, OpenedModel, StageOptions};
use model_center_recipe::nearest;
use std::sync::Arc;

/// The most ranks that `--ranks` starts.
const MAX_RANKS: usize = 1024;

/// Ranks of a program that share one copy of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelRanks {
    /// Tensor-parallel ranks of each stage.
    pub tensor: usize,
    /// Pipeline stages.
    pub pipeline: usize,
}

impl ModelRanks {
    /// Ranks of one copy of the model.
    pub fn count(self) -> usize {
        self.tensor.saturating_mul(self.pipeline)
    }
}

/// The launch of `ranks` ranks, by default of those that share one copy of the model.
///
/// # Errors
/// Numbers out of range; a launcher that started several processes.
pub fn launch(ranks: Option<usize>, shared: ModelRanks) -> Result<Launch> {
    let (ModelRanks { tensor, pipeline }, count) = (shared, shared.count());
    for (option, number, what) in
        [("--tensor", tensor, "tensor-parallel ranks"), ("--pipeline", pipeline, "pipeline stages")]
    {
        if !(1..=MAX_RANKS).contains(&number) {
            let fix = format!("use a number from 1 to {MAX_RANKS}");
            return Err(Error::argument(option, format!("{number} {what}"), fix));
        }
    }
    if count > MAX_RANKS {
        let reason = format!("{pipeline} pipeline stages of {tensor} tensor-parallel ranks are {count} ranks");
        return Err(Error::argument("--pipeline", reason, format!("use {MAX_RANKS} ranks at most")));
    }
    let asked = ranks.or((count > 1).then_some(count));
    let launch = Launch::detect(asked, &|name| std::env::var(name).ok())?;
    if launch.world > 1 && launch.launcher != Launcher::Threads {
        let reason =
            format!("{} started {} processes, and one writes the output", launch.launcher.name(), launch.world);
        return Err(Error::argument("ranks", reason, "start it once, with --ranks"));
    }
    Ok(launch)
}

/// Whether the tensor-parallel ranks and the stages divide all ranks and the model, whose parameters may be a sketch.
///
/// # Errors
/// [`Error::Argument`] with all that does not divide and the nearest numbers that would.
pub fn check(world: usize, shared: ModelRanks, parameters: &Parameters) -> Result<()> {
    let division = Division::of(parameters);
    let ModelRanks { tensor, pipeline } = shared;
    if pipeline > division.blocks {
        let reason = format!("{} blocks cannot be divided over {pipeline} pipeline stages", division.blocks);
        return Err(Error::argument("--pipeline", reason, format!("use --pipeline {} at most", division.blocks)));
    }
    if pipeline > 1 && !world.is_multiple_of(shared.count()) {
        let reason =
            format!("{world} ranks cannot be divided into {pipeline} pipeline stages x {tensor} tensor-parallel ranks");
        let fix = format!("use a multiple of {} as --ranks, or leave it out", shared.count());
        return Err(Error::argument("--pipeline", reason, fix));
    }
    let of_stage = world / pipeline;
    let mut undivided = division.undivided(tensor);
    if !of_stage.is_multiple_of(tensor) {
        undivided.insert(0, format!("{of_stage} ranks"));
    }
    if undivided.is_empty() {
        return Ok(());
    }
    // Without --ranks the number of ranks follows --tensor.
    let are_all = of_stage == tensor;
    let fits = |ranks: usize| division.undivided(ranks).is_empty() && (are_all || of_stage.is_multiple_of(ranks));
    let fix = match nearest(tensor, if are_all { 2 * tensor } else { of_stage }, fits).as_str() {
        "" => "leave --tensor out".to_owned(),
        near => format!("use --tensor {near}"),
    };
    let reason = format!("{} cannot be divided over {tensor} tensor-parallel ranks", undivided.join(" and "));
    Err(Error::argument("--tensor", reason, fix))
}

/// The options of a model on a rank of these groups. Data-parallel ranks share the weights (ZeRO-3); in a pipeline each
/// has the weights of its stage, as a tied embedding on two stages cannot be sharded so.
pub fn on_groups(open: OpenOptions, groups: &RankGroups) -> Result<OpenOptions> {
    let mesh = groups.mesh();
    let level = if mesh.pipeline_size() == 1 { ZeroLevel::Three } else { ZeroLevel::Zero };
    let sharding = match mesh.data_size() {
        1 => Sharding::solo(),
        _ => Sharding { ranks: Arc::clone(groups.data()), level, sum: GradientSum::Fast, prefetch: true },
    };
    let stages = match mesh.pipeline_size() {
        1 => None,
        stages => {
            let ranks = Arc::clone(groups.pipe());
            let schedule = Schedule::new(ScheduleKind::ForwardOnly, stages, 1, 1).map_err(Error::from)?;
            Some(StageOptions { ranks, schedule, partition: PartitionRule::default() })
        }
    };
    Ok(OpenOptions { sharding, stages, ..open }.on_groups(groups))
}

/// A program's rank: its groups, its device, its part of the model and, over stages, the pipeline.
pub struct RankModel {
    /// The groups of the rank.
    pub groups: RankGroups,
    /// Its device.
    pub device: Device,
    /// Its part of the model.
    pub opened: OpenedModel,
    /// The pipeline, if there are several stages.
    pub pipeline: Option<Pipeline>,
}

impl RankModel {
    /// Opens a rank's device and model. `threads` counts all ranks; `open` opens the model with these options on
    /// this device, after they were completed for the groups. The first rank reports that a device is not used.
    ///
    /// # Errors
    /// A device that cannot be used; what `open` returns.
    pub fn open(
        (group, ranks): (&ProcessGroup, Arc<dyn Communicator>),
        (choice, threads): (DeviceChoice, usize),
        shared: ModelRanks,
        options: impl FnOnce(&Device) -> OpenOptions,
        open: impl FnOnce(&OpenOptions) -> Result<OpenedModel>,
    ) -> Result<Self> {
        let (launch, index) = (group.launch(), ranks.rank());
        let placement = Placement { pinning: Pinning::Nodes, index, ranks: launch.ranks_in_process() };
        let cpu = CpuOptions { placement, ..cpu_options(threads_per_rank(threads, launch.local_size))? };
        let opened = group.open_device(choice, index, cpu)?;
        opened.note.iter().filter(|_| index == 0).for_each(|note| terminal::note(note));
        let groups = RankGroups::split(group.communicator(&opened, ranks)?, shared.pipeline, shared.tensor)?;
        let device = Device::new(opened.backend);
        let open_options = on_groups(options(&device), &groups)?;
        let opened = open(&open_options)?;
        let pipeline = open_options
            .stages
            .map(|StageOptions { schedule, .. }| Pipeline::new(&device, opened.model.parameters().stages(), schedule));
        Ok(RankModel { pipeline: pipeline.transpose()?, groups, device, opened })
    }
}
