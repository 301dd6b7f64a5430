//! The plan program: a recipe and a number of ranks in; memory of a rank by class, disk space and a verdict out.
//!
//! [`count`] runs the steps of the finetune program where nothing is allocated, [`outside`] estimates what the pool does not
//! see, [`disk`] what files take, [`verdict`] compares with the machine and looks for what would help, [`show`] prints.

pub mod count;
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
use clap::Parser;
use model_center::model::Registry;
use model_center::recipe::Resolved;
use model_center::run::{ExitStatus, memory};
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
    /// Memory of the machine that is planned for, in GiB; by default what this one has available now.
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,
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
/// Mistakes in the recipe, the data or the model folder; ranks that do not fit the batch. That a run does not fit is a
/// result and no error.
pub fn run(options: &Options, registry: Registry<'static>) -> Result<ExitStatus> {
    let resolved = options.settings.resolve(&[])?;
    let resolved = on_ranks(resolved, options.ranks);
    let layout = layout(options, &resolved)?;
    let available = available(options)?;
    waiting::note_reading(&resolved);
    let job = setup::prepare(&resolved, registry, &model_places())?;
    opened::remarks(&job.notes, &job.unused).iter().for_each(|line| terminal::note(line));
    // Before anything is counted: what the finetune program holds at this point too.
    let resident = memory::resident_bytes().unwrap_or(0);
    let subject = Subject { job: &job, registry, resident, options };
    let planned = subject.plan(resolved, layout)?;
    let verdict = verdict::judge(&subject, &planned, available)?;
    let levels = if options.all_levels { all_levels(&subject, layout)? } else { Vec::new() };
    let shown = match options.json {
        true => show::json(&planned, &verdict, &levels)?,
        false => show::text(&subject, &planned, &verdict, &levels),
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
}

/// What is planned: everything but the settings that decide about memory.
#[derive(Debug)]
pub struct Subject<'a> {
    /// Data and facts about the model.
    pub job: &'a setup::Job,
    /// The families of models.
    pub registry: Registry<'static>,
    /// Resident memory of a process that has read the data, bytes.
    pub resident: u64,
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
    /// What files take.
    pub disk: disk::Disk,
}

impl Planned {
    /// Memory of one machine, bytes: the pools of its ranks and what is outside of them.
    pub fn machine_bytes(&self) -> u64 {
        let ranks = self.layout.local_ranks as u64;
        self.outside.process_bytes()
            + ranks * (self.counted.needs.memory.touched.peak as u64 + self.outside.rank_bytes())
    }
}

impl Subject<'_> {
    /// Count a run with these settings.
    ///
    /// # Errors
    /// Ranks that do not fit the batch; whatever the training step refuses.
    pub fn plan(&self, resolved: Resolved, layout: Layout) -> Result<Planned> {
        let resolved = on_ranks(resolved, layout.ranks);
        setup::check_ranks(&resolved, layout.ranks)?;
        let counted = count::count(self.job, &resolved, self.registry, layout.ranks)?;
        let disk = disk::estimate(self.job, &resolved, &counted);
        let outside = outside::estimate(self, &resolved, layout, (&counted, &disk));
        Ok(Planned { resolved, layout, counted, outside, disk })
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
    Ok(Layout { ranks, local_ranks })
}

fn available(options: &Options) -> Result<Option<u64>> {
    match options.memory {
        None => Ok(memory::available_bytes()),
        Some(gib) if gib.is_finite() && gib > 0.0 => Ok(Some((gib * (1u64 << 30) as f64) as u64)),
        Some(gib) => Err(Error::recipe("--memory", format!("{gib} GiB of memory"), "give a number above 0")),
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
