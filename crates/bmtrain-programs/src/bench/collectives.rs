//! `bench collectives`: every collective and a message between two ranks, over a range of sizes.
//!
//! Its options, and how its ranks start: as threads, processes, ranks of MPI or with a device each. What a rank then
//! does is in `measure.rs`.

use super::figures::names;
use super::measure::{NAMES, dtype, measure};
use crate::cli::comm::Comm;
use crate::cli::program;
use crate::cli::terminal;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::{Device, DeviceChoice};
use bmtrain_dist::RankGroup;
use bmtrain_dist::launch::{Connection, DistributedOptions, Launch, ProcessGroup, cpu_options, run_group};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use model_center_base::{Error, Result};
use model_center_recipe::run::ExitStatus;
use std::process::Child;
use std::sync::Arc;

/// Most repetitions: their times are kept, and a mistyped number does not run for a week.
const MAX_BYTES: u64 = 1_000_000;

/// Measure collectives between ranks: threads with --ranks, processes with --processes or as a launcher started them.
///
/// Example: bmtrain bench collectives --ranks 4 --only all_reduce --size 64MiB
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Number of ranks; by default the launcher's, or 2.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Let each of --ranks be a process.
    #[arg(long)]
    pub processes: bool,
    /// How the ranks of a launcher communicate.
    #[arg(long, value_enum, default_value = "auto")]
    pub comm: Comm,
    /// What the values are on: cpu, cuda for a CUDA device each, which communicate by NCCL, or auto.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
    /// Measure groups of ranks, all at the same time: of this many consecutive ranks, or tensor, data or pipeline, the
    /// groups of the mesh that --tensor and --pipeline set. By default one group of all.
    #[arg(long, value_name = "N|tensor|data|pipeline", value_parser = group)]
    pub group: Option<Group>,
    /// Tensor-parallel ranks of the mesh.
    #[arg(long, value_name = "T", requires = "group", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub tensor: Option<usize>,
    /// Pipeline stages of the mesh.
    #[arg(long, value_name = "P", requires = "group", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub pipeline: Option<usize>,
    /// Operations whose name has this in it.
    #[arg(long, value_name = "NAME", default_value = "", value_parser = part_of_a_name)]
    pub only: String,
    /// Sizes, e.g. 4KiB,1MiB; of all parts together for gather, scatter and all-to-all. Without it 4KiB to 64MiB, times
    /// four.
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', value_parser = bytes)]
    pub size: Vec<usize>,
    /// Dtype.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: Precision,
    /// Untimed repetitions for each operation and size.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = repetitions(0))]
    pub warm_up: usize,
    /// Timed repetitions.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = repetitions(1))]
    pub repeat: usize,
    /// Bytes that are moved at a time, through memory that ranks share.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub chunk: Option<usize>,
    /// A line of JSON for each figure instead of columns.
    #[arg(long)]
    pub json: bool,
    /// Set by --processes for those it starts: rank, number of ranks, name of the job.
    #[arg(long, hide = true, value_name = "RANK,RANKS,JOB", value_delimiter = ',')]
    pub member: Vec<String>,
}

/// Dtypes that can be measured.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Precision {
    /// Single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// Half precision.
    F16,
}

/// Ranks that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// This many consecutive ranks.
    Consecutive(usize),
    /// A group of the mesh.
    Mesh(RankGroup),
}

fn group(text: &str) -> std::result::Result<Group, String> {
    match (text, text.parse()) {
        (_, Ok(size)) => Ok(Group::Consecutive(size)),
        ("tensor", _) => Ok(Group::Mesh(RankGroup::Tensor)),
        ("data", _) => Ok(Group::Mesh(RankGroup::TensorZero)),
        ("pipeline", _) => Ok(Group::Mesh(RankGroup::Pipe)),
        _ => Err("expected a number of ranks, tensor, data or pipeline".into()),
    }
}

/// A number of bytes: `65536`, `64KiB`, `1MiB`, `1GiB`.
fn bytes(text: &str) -> std::result::Result<usize, String> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let (digits, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift))).unwrap_or((text, 0));
    let number = digits.trim().parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text}: expected bytes, such as 65536, 64KiB or 1MiB"))
}

/// A number of repetitions, with its minimum.
fn repetitions(least: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=MAX_BYTES)
}

/// Parses a part of the name of an operation.
fn part_of_a_name(text: &str) -> std::result::Result<String, String> {
    match NAMES.iter().any(|name| name.contains(text)) {
        true => Ok(text.to_owned()),
        false => Err(format!("no operation has this in its name; there are {}", NAMES.join(", "))),
    }
}

/// Measure and print.
///
/// # Errors
/// Mistakes on the command line; one rank; ranks on processors of several hosts without MPI; a failing device; a lost
/// rank.
pub fn run(options: &Options) -> Result<ExitStatus> {
    let mut host = HostOptions::default();
    host.chunk = options.chunk.unwrap_or(host.chunk);
    if let [rank, ranks, job] = options.member.as_slice() {
        let number = |text: &String| text.parse::<usize>().map_err(|_| misuse("--member", text));
        return member(options, HostRank::join(HostGroup::place(job), number(rank)?, number(ranks)?, host)?);
    }
    if options.processes {
        if options.device != DeviceChoice::Cpu {
            let reason = "processes that this program starts measure processors";
            return Err(Error::argument(
                "--device",
                reason,
                "leave out --processes and start the program with torchrun",
            ));
        }
        if options.comm == Comm::Mpi {
            let reason = "processes that this program starts share memory";
            let op = "--comm mpi";
            return Err(Error::argument(op, reason, "leave out --processes and start the program with mpirun"));
        }
        return processes(options, several(options.ranks.unwrap_or(2))?, host);
    }
    let launch = Launch::detect(options.ranks, &|name| std::env::var(name).ok())?;
    if options.device != DeviceChoice::Cpu {
        return on_devices(options, launch);
    }
    launch.require_processors(options.comm.connection())?;
    if launch.connection(options.comm.connection())? == Connection::Mpi {
        return under_mpi(options, &launch);
    }
    if options.ranks.is_none() && launch.world > 1 {
        let place = HostGroup::place(launch.job()?);
        return member(options, HostRank::join(place, launch.rank, launch.world, host)?);
    }
    let ranks = several(options.ranks.unwrap_or(2))?;
    let group = HostGroup::threads(ranks, host)?.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Communicator>);
    title(options, ranks, "threads", Some(host.chunk))?;
    let done = run_group(group.collect(), |_, ranks| {
        let options = options.clone();
        move || measure(&options, &ranks, &Device::cpu(1)?)
    });
    done.map(|_| ExitStatus::Done).map_err(|failed| failed.error)
}

fn several(ranks: usize) -> Result<usize> {
    if ranks < 2 {
        return Err(misuse("--ranks", &format!("{ranks}: a collective needs at least two ranks")));
    }
    Ok(ranks)
}

fn misuse(place: &str, reason: &str) -> Error {
    Error::argument(place, reason, "give a number of ranks above 1")
}

/// This process is one of several ranks.
fn member(options: &Options, rank: HostRank) -> Result<ExitStatus> {
    if rank.rank() == 0 {
        title(options, rank.size(), "processes", Some(options.chunk.unwrap_or(HostOptions::default().chunk)))?;
    }
    let rank: Arc<dyn Communicator> = Arc::new(rank);
    measure(options, &rank, &Device::cpu(1)?).map(|()| ExitStatus::Done)
}

/// This process is a rank of MPI, on one host or on several.
fn under_mpi(options: &Options, launch: &Launch) -> Result<ExitStatus> {
    several(launch.world)?;
    if options.chunk.is_some() {
        let reason = "the pieces that MPI carries have a size of their own";
        return Err(Error::argument("--chunk", reason, "leave it out, or measure ranks of one host with --comm host"));
    }
    let options = options.clone();
    let asked = DistributedOptions { connection: Some(Connection::Mpi), ..DistributedOptions::default() };
    ProcessGroup::join(launch.clone(), asked)?.run(move |ranks| {
        if ranks.rank() == 0 {
            title(&options, ranks.size(), "processes of MPI", None)?;
        }
        measure(&options, &ranks, &Device::cpu(1)?).map(|()| ExitStatus::Done)
    })
}

/// Ranks with a device each: threads, or processes that a launcher started, on one host or on several.
fn on_devices(options: &Options, launch: Launch) -> Result<ExitStatus> {
    if options.chunk.is_some() {
        let reason = "devices communicate in pieces of another size";
        return Err(Error::argument("--chunk", reason, "leave it out, or measure --device cpu"));
    }
    let launch =
        if launch.world > 1 { launch } else { Launch::detect(Some(several(options.ranks.unwrap_or(2))?), &|_| None)? };
    let asked = DistributedOptions { connection: options.comm.connection(), ..DistributedOptions::default() };
    let group = ProcessGroup::join(launch, asked)?;
    let (options, of_rank) = (options.clone(), group.clone());
    group.run(move |ranks| {
        let opened = of_rank.open_device(options.device, ranks.rank(), cpu_options(1)?)?;
        let ranks = of_rank.communicator(&opened, ranks)?;
        if ranks.rank() == 0 {
            title(&options, ranks.size(), &format!("ranks, the first on {}", opened.backend.name()), None)?;
        }
        measure(&options, &ranks, &Device::new(opened.backend)).map(|()| ExitStatus::Done)
    })
}

/// Start a process for each of the other ranks.
fn processes(options: &Options, ranks: usize, host: HostOptions) -> Result<ExitStatus> {
    let job = format!("bench-{}", std::process::id());
    let refused = |error| Error::file("start", "this program", error, "see that it is still there and may be run");
    let start = |rank: usize| -> Result<Child> {
        let mut command = program::again().map_err(refused)?;
        command.arg("--member").arg(format!("{rank},{ranks},{job}"));
        command.spawn().map_err(refused)
    };
    let children = (1..ranks).map(start).collect::<Result<Vec<_>>>()?;
    let measured = HostRank::join(HostGroup::place(&job), 0, ranks, host)
        .map_err(Error::from)
        .and_then(|rank| member(options, rank));
    for mut child in children {
        child.wait().map_err(refused)?;
    }
    measured
}

/// Title of the measurement, and the names of the columns; nothing above lines of JSON.
fn title(options: &Options, ranks: usize, kind: &str, chunk: Option<usize>) -> Result<()> {
    if options.json {
        return Ok(());
    }
    let Options { warm_up, repeat, .. } = options;
    let dtype = dtype(options.dtype);
    let chunks = chunk.map_or_else(String::new, |chunk| format!(", chunks of {} KiB", chunk >> 10));
    terminal::print(&format!("{ranks} {kind}, {dtype}{chunks}, {repeat} times after {warm_up}"))?;
    terminal::print(&names())
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_have_units_and_nonsense_is_refused() {
        let good = [("65536", 65536), ("64KiB", 65536), ("1MiB", 1 << 20), ("2GiB", 2 << 30), ("7B", 7)];
        assert!(good.into_iter().all(|(text, size)| bytes(text) == Ok(size)));
        for text in ["", "KiB", "0", "0MiB", "-1", "1.5MiB", "1kb", "99999999999999999999", "99999999999999GiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
