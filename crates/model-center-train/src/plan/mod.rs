//! Sizing a run before anything runs: memory of a rank by class, disk space, and whether it fits the machine.
//!
//! [`count`] runs training steps where nothing is allocated, [`outside`] estimates host memory that the pool does not
//! contain, [`device`] what CUDA devices hold, [`disk`] what files take. [`verdict`] compares with the machine and
//! looks for changes that would fit. The program `plan` prints a [`Plan`].
//!
//! [`layout`] counts the ranks of a layout in three dimensions from `config.json` alone.

pub mod count;
pub mod device;
pub mod disk;
pub mod layout;
pub mod outside;
pub mod verdict;

use crate::train::{self, Setup, recipe_of};
use crate::{Error, Result};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::dry_run::SimulatedRank;
use bmtrain_dist::inspect::process::{self as memory, Resident};
use count::Lengths;
use model_center_models::Registry;
use model_center_recipe::Resolved;
use std::fmt;
use verdict::Verdict;

/// The ZeRO levels of the table of all.
const LEVELS: [u64; 4] = [0, 1, 2, 3];
/// Text for a partition that is not known before the run measures its blocks.
pub const TIMED_PARTITION: &str =
    "blocks are divided by parameters here; the run divides them by the times that it measures at its start";
/// More ranks than any machine room has.
pub const MAX_RANKS: usize = 1 << 16;

/// The machine that is planned for, where it is not this one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Machine {
    /// Host memory in GiB; `None`: what this machine has available.
    pub memory: Option<f64>,
    /// Memory of each CUDA device in GiB; `None`: what the driver of this machine reports.
    pub device_memory: Option<f64>,
}

/// Options of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanOptions {
    /// Ranks that share the work.
    pub ranks: usize,
    /// How many of them run on one machine; `None`: all.
    pub local_ranks: Option<usize>,
    /// Whether each rank is a process even on one machine.
    pub processes: bool,
    /// The machine.
    pub machine: Machine,
    /// Tokens of each sequence; `None`: of the longest of the data.
    pub length: Option<usize>,
    /// Whether to compare ZeRO 0 to 3, with every kind of recomputation.
    pub all_levels: bool,
}

/// A run, what it needs, and whether that fits.
#[derive(Debug)]
pub struct Plan {
    /// The run.
    pub planned: Planned,
    /// The same on sequences as long as the recipe allows; `None` where the data have such, or a length is given.
    pub at_limit: Option<Planned>,
    /// Whether it fits.
    pub verdict: Verdict,
    /// The run on every ZeRO level, if asked for.
    pub levels: Vec<Planned>,
}

/// A recipe with further settings, `key=value`.
pub type Resolve<'a> = &'a dyn Fn(&[String]) -> Result<Resolved>;

/// A recipe on a number of ranks, and the memory there is for it.
#[derive(Debug)]
pub struct Request {
    /// The settings.
    pub resolved: Resolved,
    layout: RankLayout,
    available: Option<u64>,
    device_available: Option<u64>,
}

/// Check what is asked for, before data are read, which takes of the memory that is available. Whether the ranks divide
/// batch and model is checked by [`train::check_layout`].
pub fn check(options: &PlanOptions, resolve: Resolve<'_>) -> Result<Request> {
    let resolved = on_ranks(resolve(&[])?, options.ranks);
    let layout = layout(options, &resolved)?;
    let available = available(options)?;
    let device_available = match layout.on_cuda {
        true => device::available(&options.machine, &resolved, layout.local_ranks)?,
        false => None,
    };
    check_length(options, &resolved)?;
    Ok(Request { resolved, layout, available, device_available })
}

/// Plan a run that [`check`] has accepted, on its data and model. That a run does not fit is a result and no error.
pub fn plan(
    options: &PlanOptions,
    resolve: Resolve<'_>,
    request: Request,
    (setup, registry): (&Setup, Registry<'static>),
) -> Result<Plan> {
    let Request { resolved, layout, available, device_available } = request;
    // Before anything is counted: what a run holds at this point too.
    let resident = memory::resident();
    let resident =
        resident.unwrap_or(Resident { anonymous_bytes: 0, file_bytes: 0, shared_bytes: 0, peak_anonymous_bytes: 0 });
    let planner = Planner { setup, registry, resident, ranks: options.ranks, length: options.length, resolve };
    let at_limit = planner.plan_at_limit(layout)?;
    let planned = planner.plan(resolved, layout)?;
    let verdict = verdict::judge(&planner, &planned, (available, device_available))?;
    let levels = if options.all_levels { planner.all_levels(layout)? } else { Vec::new() };
    Ok(Plan { planned, at_limit, verdict, levels })
}

/// How ranks are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankLayout {
    /// All ranks.
    pub ranks: usize,
    /// The ranks of one machine, which share its memory.
    pub local_ranks: usize,
    /// The ranks of one process.
    pub ranks_in_process: usize,
    /// Whether they compute on CUDA devices.
    pub on_cuda: bool,
}

/// Input of a plan: everything but the settings that decide about memory.
pub struct Planner<'a> {
    /// Data and facts about the model.
    pub setup: &'a Setup,
    /// The families of models.
    pub registry: Registry<'static>,
    /// Resident memory of a process that has read the data.
    pub resident: Resident,
    /// Ranks that were asked for.
    pub ranks: usize,
    /// Tokens of each sequence, if they are given.
    pub length: Option<usize>,
    /// The recipe with changes.
    pub resolve: Resolve<'a>,
}

impl fmt::Debug for Planner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Planner { setup, ranks, length, .. } = self;
        f.debug_struct("Planner").field("setup", setup).field("ranks", ranks).field("length", length).finish()
    }
}

/// A run and what it needs.
#[derive(Debug)]
pub struct Planned {
    /// The settings.
    pub resolved: Resolved,
    /// The ranks.
    pub layout: RankLayout,
    /// Contents of a rank's pool.
    pub counted: count::Counted,
    /// Memory outside of the pool.
    pub outside: outside::Outside,
    /// Memory of each CUDA device; `None` on the CPU.
    pub device: Option<device::DeviceNeed>,
    /// Disk space of files.
    pub disk: disk::Disk,
}

/// The peak of the process that the first rank is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessNeed {
    /// Ranks of the process.
    pub ranks: usize,
    /// Anonymous memory, bytes: heap, stacks, and on the CPU the pools.
    pub anonymous: u64,
    /// Memory shared with all ranks of the machine, bytes: apart from the anonymous.
    pub shared: u64,
    /// Pages of mapped files, bytes: apart from both, and no part of what the machine needs.
    pub mapped: u64,
}

impl Planned {
    /// The peak of the process that the first rank is in.
    pub fn process(&self) -> ProcessNeed {
        let RankLayout { local_ranks, ranks_in_process, .. } = self.layout;
        ProcessNeed {
            ranks: ranks_in_process,
            anonymous: self.outside.process + self.outside.files + ranks_in_process as u64 * self.rank_on_host(),
            shared: local_ranks as u64 * self.outside.exchange,
            mapped: self.outside.mapped,
        }
    }

    /// Host memory of one machine, bytes: of all its processes.
    pub fn machine_bytes(&self) -> u64 {
        let RankLayout { local_ranks, ranks_in_process, .. } = self.layout;
        let processes = (local_ranks / ranks_in_process.max(1)) as u64;
        let ranks = local_ranks as u64 * (self.rank_on_host() + self.outside.exchange);
        processes * self.outside.process + self.outside.files + ranks
    }

    /// Anonymous memory of the host that one rank takes, bytes.
    fn rank_on_host(&self) -> u64 {
        self.outside.rank_bytes() + if self.layout.on_cuda { 0 } else { self.counted.touched }
    }
}

impl Planner<'_> {
    /// Count a run with these settings.
    pub fn plan(&self, resolved: Resolved, layout: RankLayout) -> Result<Planned> {
        let (_, target) = self.longest();
        let lengths = self.length.map(|length| Lengths { length, target: target.unwrap_or(0) });
        self.plan_of(resolved, layout, lengths)
    }

    /// The same with every sequence as long as the recipe allows; `None` where the data have such sequences, or a
    /// length is given.
    fn plan_at_limit(&self, layout: RankLayout) -> Result<Option<Planned>> {
        let resolved = (self.resolve)(&[])?;
        let limits = Lengths { length: resolved.data.max_length, target: resolved.data.target_length };
        let (length, target) = self.longest();
        let is_reached = length >= limits.length && target.is_none_or(|target| target >= limits.target);
        match is_reached || self.length.is_some() {
            true => Ok(None),
            false => self.plan_of(resolved, layout, Some(limits)).map(Some),
        }
    }

    fn plan_of(&self, resolved: Resolved, layout: RankLayout, lengths: Option<Lengths>) -> Result<Planned> {
        let resolved = on_ranks(resolved, layout.ranks);
        train::check_ranks(&resolved, layout.ranks)?;
        let stand = if layout.on_cuda {
            SimulatedRank::first_on_cuda(layout.ranks)
        } else {
            SimulatedRank::first_of(layout.ranks)
        };
        let counted = count::count(self.setup, &resolved, self.registry, (stand, lengths))?;
        let disk = disk::estimate(self.setup, &resolved, &counted);
        let outside = outside::estimate(self, &resolved, layout, (&counted, &disk));
        let device = layout.on_cuda.then(|| device::estimate(&resolved, layout, &counted));
        Ok(Planned { resolved, layout, counted, outside, device, disk })
    }

    /// The same run on every ZeRO level, with blocks kept, recomputed as memory allows, and recomputed.
    fn all_levels(&self, layout: RankLayout) -> Result<Vec<Planned>> {
        let mut all = Vec::new();
        for level in LEVELS {
            for recompute in [Recompute::Keep, Recompute::Auto, Recompute::Checkpoint] {
                let sets = [format!("parallel.zero={level}"), format!("train.recompute={}", recompute_name(recompute))];
                all.push(self.plan((self.resolve)(&sets)?, layout)?);
            }
        }
        Ok(all)
    }

    /// Tokens of the longest sequence and of the longest target that training or evaluation reads.
    pub fn longest(&self) -> (usize, Option<usize>) {
        let all = self.setup.parts().map(count::longest);
        all.fold((0, None), |(length, target), (other, others)| (length.max(other), target.max(others)))
    }
}

/// The recipe with the micro-batch that a run on these ranks has, which may resume the one in the output directory.
pub fn on_ranks(resolved: Resolved, ranks: usize) -> Resolved {
    let begun = recipe_of(&resolved.output.dir);
    resolved.on_ranks(ranks, begun.as_deref())
}

fn layout(options: &PlanOptions, resolved: &Resolved) -> Result<RankLayout> {
    let ranks = options.ranks;
    if !(1..=MAX_RANKS).contains(&ranks) {
        let fix = format!("give a number from 1 to {MAX_RANKS}");
        return Err(Error::argument("--ranks", format!("{ranks} ranks"), fix));
    }
    let local_ranks = options.local_ranks.unwrap_or(ranks);
    if local_ranks == 0 || !ranks.is_multiple_of(local_ranks) {
        let reason = format!("{ranks} ranks cannot be spread evenly with {local_ranks} on each machine");
        return Err(Error::argument("--local-ranks", reason, "give a number that divides --ranks"));
    }
    let are_processes = options.processes || local_ranks < ranks;
    let on_cuda = device::is_on_cuda(&options.machine, resolved, local_ranks)?;
    Ok(RankLayout { ranks, local_ranks, ranks_in_process: if are_processes { 1 } else { local_ranks }, on_cuda })
}

fn available(options: &PlanOptions) -> Result<Option<u64>> {
    match options.machine.memory {
        None => Ok(memory::available_bytes()),
        Some(gib) => gibibytes("--memory", gib).map(Some),
    }
}

/// An amount of memory on the command line, in bytes.
fn gibibytes(place: &str, gib: f64) -> Result<u64> {
    match gib.is_finite() && gib > 0.0 {
        true => Ok((gib * (1u64 << 30) as f64) as u64),
        false => Err(Error::argument(place, format!("{gib} GiB of memory"), "give a number above 0")),
    }
}

fn check_length(options: &PlanOptions, resolved: &Resolved) -> Result<()> {
    let limit = resolved.data.max_length;
    if options.length.is_some() && resolved.data.source.pretraining().is_some() {
        let reason = "every sample of token files has data.sequence_length tokens";
        return Err(Error::argument("--length", reason, "leave it out, and set data.sequence_length"));
    }
    match options.length {
        Some(length) if length == 0 || length > limit => {
            let reason = format!("sequences of {length} tokens, and data.max_length is {limit}");
            Err(Error::argument("--length", reason, format!("give a number from 1 to {limit}, or set data.max_length")))
        }
        _ => Ok(()),
    }
}

/// The value of `train.recompute`.
pub fn recompute_name(recompute: Recompute) -> String {
    let name = match recompute {
        Recompute::Keep => "none",
        Recompute::Checkpoint => "blocks",
        Recompute::Attention => "attention",
        Recompute::Auto => "auto",
        Recompute::Every(blocks) => return blocks.to_string(),
    };
    name.to_owned()
}
