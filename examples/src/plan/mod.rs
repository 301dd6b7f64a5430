//! The plan program: a recipe and a number of ranks in; memory of a rank by class, disk space and a verdict out.
//!
//! [`count`] runs the steps of the finetune program where nothing is allocated, [`outside`] estimates what the pool
//! does not see, [`device`] what CUDA devices hold, [`disk`] what files take, [`verdict`] compares with the machine and
//! looks for what would help, [`show`] prints.

pub mod count;
pub mod device;
pub mod disk;
pub mod outside;
pub mod show;
pub mod verdict;

use crate::finetune::{recipe_in, setup, waiting};
use crate::opened;
use crate::places::model_places;
use crate::program;
use crate::settings::SettingOptions;
use crate::terminal;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::dry_run::SimulatedRank;
use clap::Parser;
use count::Lengths;
use model_center::model::Registry;
use model_center::recipe::Resolved;
use model_center::run::ExitStatus;
use model_center::run::memory::{self, Resident};
use model_center::{Error, Result};
use std::process::ExitCode;

/// The ZeRO levels of the table of all.
const LEVELS: [u64; 4] = [0, 1, 2, 3];

/// More ranks than any machine room has.
const MAX_RANKS: usize = 1 << 16;

/// Say what a run of finetune will need: memory of each rank by class, and disk. Reads the data and the headers of the
/// weights, and takes no memory for the model.
///
/// Example: plan --recipe examples/recipes/boolq_bert.toml --ranks 2 --set parallel.zero=3
#[derive(Debug, Clone, Parser)]
#[command(name = "plan", version)]
pub struct Options {
    /// The recipe.
    #[command(flatten)]
    pub settings: SettingOptions,
    /// Ranks that share the work.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks: usize,
    /// How many of them run on one machine; by default all.
    #[arg(long, value_name = "N")]
    pub local_ranks: Option<usize>,
    /// Plan for one process per rank, as torchrun, mpirun and Slurm start them; by default the ranks of one machine are
    /// threads of one process, and ranks of several machines are processes.
    #[arg(long)]
    pub processes: bool,
    /// Host memory of the machine that is planned for, in GiB; by default what this one has available now.
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,
    /// Memory of each CUDA device that is planned for, in GiB; by default what the driver of this machine reports.
    #[arg(long, value_name = "GIB")]
    pub device_memory: Option<f64>,
    /// Plan for sequences of this many tokens, at most data.max_length; by default for the longest of the data.
    #[arg(long, value_name = "TOKENS")]
    pub length: Option<usize>,
    /// Compare ZeRO 0 to 3, with blocks kept and recomputed.
    #[arg(long)]
    pub all_levels: bool,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// The program: what a binary's `main` calls, with the families it is to know.
pub fn main(registry: Registry<'static>) -> ExitCode {
    program::main(registry, run)
}

/// Run the program with the models of `registry`.
///
/// # Errors
/// Mistakes in the recipe, the data or the model directory; ranks that do not fit the batch. That a run does not fit is
/// a result and no error.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let resolved = options.settings.resolve(&[])?;
    let resolved = on_ranks(resolved, options.ranks);
    let layout = layout(options, &resolved)?;
    let available = available(options)?;
    let device_available = match layout.on_cuda {
        true => device::available(options, &resolved, layout.local_ranks)?,
        false => None,
    };
    check_length(options, &resolved)?;
    waiting::note_reading(&resolved);
    let job = setup::prepare(&resolved, registry, &model_places())?;
    opened::remarks(&job.notes, &job.unused).iter().for_each(|line| terminal::note(line));
    // Before anything is counted: what the finetune program holds at this point too.
    let resident = memory::resident();
    let resident =
        resident.unwrap_or(Resident { anonymous_bytes: 0, file_bytes: 0, shared_bytes: 0, peak_anonymous_bytes: 0 });
    let subject = Subject { job: &job, registry, resident, options };
    let at_limit = subject.plan_at_limit(layout)?;
    let planned = subject.plan(resolved, layout)?;
    let verdict = verdict::judge(&subject, &planned, (available, device_available))?;
    let levels = if options.all_levels { all_levels(&subject, layout)? } else { Vec::new() };
    let plan = show::Shown { planned: &planned, at_limit: at_limit.as_ref(), verdict: &verdict, levels: &levels };
    let shown = match options.json {
        true => show::json(&plan)?,
        false => show::text(&subject, &plan),
    };
    terminal::print(&shown)?;
    Ok(ExitStatus::Done)
}

/// How ranks are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// All ranks.
    pub ranks: usize,
    /// Those of one machine, which share its memory.
    pub local_ranks: usize,
    /// Those of one process.
    pub ranks_in_process: usize,
    /// Whether they compute on CUDA devices.
    pub on_cuda: bool,
}

/// What is planned: everything but the settings that decide about memory.
#[derive(Debug)]
pub struct Subject<'a> {
    /// Data and facts about the model.
    pub job: &'a setup::Job,
    /// The families of models.
    pub registry: Registry<'static>,
    /// Resident memory of a process that has read the data.
    pub resident: Resident,
    /// The command line.
    pub options: &'a Options,
}

/// A run and what it needs.
#[derive(Debug)]
pub struct Planned {
    /// The settings.
    pub resolved: Resolved,
    /// The ranks.
    pub layout: Layout,
    /// What the pool of a rank holds.
    pub counted: count::Counted,
    /// What the pool does not see.
    pub outside: outside::Outside,
    /// What each CUDA device holds; `None` on the CPU.
    pub device: Option<device::DeviceNeed>,
    /// What files take.
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
        let Layout { local_ranks, ranks_in_process, .. } = self.layout;
        ProcessNeed {
            ranks: ranks_in_process,
            anonymous: self.outside.process + self.outside.files + ranks_in_process as u64 * self.rank_on_host(),
            shared: local_ranks as u64 * self.outside.exchange,
            mapped: self.outside.mapped,
        }
    }

    /// Host memory of one machine, bytes: of all its processes.
    pub fn machine_bytes(&self) -> u64 {
        let Layout { local_ranks, ranks_in_process, .. } = self.layout;
        let processes = (local_ranks / ranks_in_process.max(1)) as u64;
        let ranks = local_ranks as u64 * (self.rank_on_host() + self.outside.exchange);
        processes * self.outside.process + self.outside.files + ranks
    }

    /// Anonymous memory of the host that one rank takes, bytes.
    fn rank_on_host(&self) -> u64 {
        self.outside.rank_bytes() + if self.layout.on_cuda { 0 } else { self.counted.touched }
    }
}

impl Subject<'_> {
    /// Count a run with these settings.
    ///
    /// # Errors
    /// Ranks that do not fit the batch; whatever the training step refuses.
    pub fn plan(&self, resolved: Resolved, layout: Layout) -> Result<Planned> {
        let (_, target) = self.longest();
        let lengths = self.options.length.map(|length| Lengths { length, target: target.unwrap_or(0) });
        self.plan_of(resolved, layout, lengths)
    }

    /// The same with every sequence as long as the recipe allows; `None` where the data have such sequences, or a
    /// length is given.
    fn plan_at_limit(&self, layout: Layout) -> Result<Option<Planned>> {
        let resolved = self.options.settings.resolve(&[])?;
        let limits = Lengths { length: resolved.data.max_length, target: resolved.data.target_length };
        let (length, target) = self.longest();
        let is_reached = length >= limits.length && target.is_none_or(|target| target >= limits.target);
        match is_reached || self.options.length.is_some() {
            true => Ok(None),
            false => self.plan_of(resolved, layout, Some(limits)).map(Some),
        }
    }

    fn plan_of(&self, resolved: Resolved, layout: Layout, lengths: Option<Lengths>) -> Result<Planned> {
        let resolved = on_ranks(resolved, layout.ranks);
        setup::check_ranks(&resolved, layout.ranks)?;
        let stand = if layout.on_cuda {
            SimulatedRank::first_on_cuda(layout.ranks)
        } else {
            SimulatedRank::first_of(layout.ranks)
        };
        let counted = count::count(self.job, &resolved, self.registry, (stand, lengths))?;
        let disk = disk::estimate(self.job, &resolved, &counted);
        let outside = outside::estimate(self, &resolved, layout, (&counted, &disk));
        let device = layout.on_cuda.then(|| device::estimate(&resolved, layout, &counted));
        Ok(Planned { resolved, layout, counted, outside, device, disk })
    }

    /// Tokens of the longest sequence and of the longest target that training or evaluation reads.
    pub(crate) fn longest(&self) -> (usize, Option<usize>) {
        let all = self.job.eval.iter().chain([&self.job.train]).map(|data| count::longest(data));
        all.fold((0, None), |(length, target), (other, others)| (length.max(other), target.max(others)))
    }
}

/// The recipe with the micro-batch that a run on these ranks has, which may resume the one in the output directory.
fn on_ranks(resolved: Resolved, ranks: usize) -> Resolved {
    let begun = recipe_in(&resolved.output.dir);
    resolved.on_ranks(ranks, begun.as_deref())
}

fn layout(options: &Options, resolved: &Resolved) -> Result<Layout> {
    let ranks = options.ranks;
    if !(1..=MAX_RANKS).contains(&ranks) {
        return Err(Error::recipe("--ranks", format!("{ranks} ranks"), format!("give a number from 1 to {MAX_RANKS}")));
    }
    setup::check_ranks(resolved, ranks)?;
    let local_ranks = options.local_ranks.unwrap_or(ranks);
    if local_ranks == 0 || !ranks.is_multiple_of(local_ranks) {
        let reason = format!("{ranks} ranks cannot be spread evenly with {local_ranks} on each machine");
        return Err(Error::recipe("--local-ranks", reason, "give a number that divides --ranks"));
    }
    let are_processes = options.processes || local_ranks < ranks;
    let on_cuda = device::is_on_cuda(options, resolved, local_ranks)?;
    Ok(Layout { ranks, local_ranks, ranks_in_process: if are_processes { 1 } else { local_ranks }, on_cuda })
}

fn available(options: &Options) -> Result<Option<u64>> {
    match options.memory {
        None => Ok(memory::available_bytes()),
        Some(gib) => bytes_of("--memory", gib).map(Some),
    }
}

/// An amount of memory on the command line, in bytes.
fn bytes_of(place: &str, gib: f64) -> Result<u64> {
    match gib.is_finite() && gib > 0.0 {
        true => Ok((gib * (1u64 << 30) as f64) as u64),
        false => Err(Error::recipe(place, format!("{gib} GiB of memory"), "give a number above 0")),
    }
}

fn check_length(options: &Options, resolved: &Resolved) -> Result<()> {
    let limit = resolved.data.max_length;
    match options.length {
        Some(length) if length == 0 || length > limit => {
            let reason = format!("sequences of {length} tokens, and data.max_length is {limit}");
            Err(Error::recipe("--length", reason, format!("give a number from 1 to {limit}, or set data.max_length")))
        }
        _ => Ok(()),
    }
}

/// The same run on every ZeRO level, with blocks kept and recomputed.
fn all_levels(subject: &Subject<'_>, layout: Layout) -> Result<Vec<Planned>> {
    let mut all = Vec::new();
    for level in LEVELS {
        for recompute in [Recompute::Keep, Recompute::Checkpoint] {
            let sets = [format!("parallel.zero={level}"), format!("train.recompute={}", recompute_name(recompute))];
            all.push(subject.plan(subject.options.settings.resolve(&sets)?, layout)?);
        }
    }
    Ok(all)
}

/// The word of `train.recompute`.
pub(crate) fn recompute_name(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::Keep => "none",
        Recompute::Checkpoint => "blocks",
    }
}
