//! Prints how fast ranks of one machine exchange data: every collective, from 4 KiB to 64 MiB of f32.
//!
//! `cargo run --release --example collectives_bench -p bmtrain-core -- [--ranks N] [--kind threads|processes]
//! [--repeat R] [--chunk KIB] [--only PART_OF_A_NAME] [--size KIB]`
//!
//! Each figure is the median over the repetitions of the slowest rank's time between a barrier and the end of its lane,
//! beside the best: neighbours on the machine make it longer, never shorter.
//! `size` is what NCCL's tests call so: the bytes of all parts together for gather, scatter and all-to-all, of one rank's
//! data otherwise. Algorithm bandwidth is size over time; bus bandwidth is what a link of each rank would have to carry:
//! `2(W-1)/W` of it for an all-reduce, `(W-1)/W` for gather, scatter and all-to-all, all of it otherwise.

use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Collective, Communicator, Reduction};
use bmtrain_core::{DType, Device, Lane, Segment, Storage};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Instant;

/// Errors of this program are printed, whatever their type.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const NAMES: [&str; 6] = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send/recv"];

#[derive(Debug, Clone)]
struct Settings {
    ranks: usize,
    processes: bool,
    repeat: usize,
    chunk: usize,
    only: String,
    size: Option<usize>,
    /// Of a process that was started by another one: its rank, and where ranks meet.
    part: Option<(usize, PathBuf)>,
}

fn main() -> Outcome<()> {
    let settings = settings()?;
    let options = HostOptions { chunk: settings.chunk, ..HostOptions::default() };
    if let Some((rank, place)) = &settings.part {
        return measure(&HostRank::join(place.as_path(), *rank, settings.ranks, options)?, &settings);
    }
    let kind = if settings.processes { "processes" } else { "threads" };
    println!("{} {kind}, chunks of {} KiB, median of {}", settings.ranks, settings.chunk >> 10, settings.repeat);
    println!("{:<15} {:>10} {:>13} {:>13} {:>12} {:>12}", "", "size", "median", "best", "algorithm", "bus");
    if settings.processes { as_processes(&settings, options) } else { as_threads(&settings, options) }
}

fn as_threads(settings: &Settings, options: HostOptions) -> Outcome<()> {
    let ranks = HostGroup::threads(settings.ranks, options)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || measure(&rank, settings))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a rank panicked")?)
    })
}

fn as_processes(settings: &Settings, options: HostOptions) -> Outcome<()> {
    let place = HostGroup::place(&format!("bench-{}", std::process::id()));
    let start = |rank: usize| -> Outcome<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args().skip(1)).args(["--rank", &rank.to_string()]).arg("--place").arg(&place);
        Ok(command.spawn()?)
    };
    let children = (1..settings.ranks).map(start).collect::<Outcome<Vec<_>>>()?;
    let measured = HostRank::join(place.as_path(), 0, settings.ranks, options)
        .map_err(Into::into)
        .and_then(|rank| measure(&rank, settings));
    for mut child in children {
        child.wait()?;
    }
    measured
}

fn measure(rank: &HostRank, settings: &Settings) -> Outcome<()> {
    let device = Device::cpu(1)?;
    let world = settings.ranks;
    let sizes: Vec<usize> = match settings.size {
        Some(size) => vec![size],
        None => (12..=26).step_by(2).map(|power| 1 << power).collect(),
    };
    for name in NAMES.into_iter().filter(|name| name.contains(&settings.only)) {
        for bytes in &sizes {
            // As many elements as every rank can get an equal part of.
            let (elements, lane) = ((bytes / 4 / world).max(1) * world, Lane::Zero);
            let gathers = name == "all_gather";
            let new = |len: usize| Storage::zeros(&device, len, DType::F32, Segment::Gradients);
            let (send, recv) = (new(elements)?, new(elements)?);
            device.sync()?;
            let part = elements / world;
            let mut times = Vec::new();
            for round in 0..=settings.repeat {
                let own = rank.rank();
                let collective = match name {
                    "all_gather" | "reduce_scatter" => {
                        let (from, to) = if gathers { (part, elements) } else { (elements, part) };
                        let (send, recv) = (send.view_on(0..from, lane)?, recv.view_mut_on(0..to, lane)?);
                        match gathers {
                            true => Collective::AllGather { send, recv },
                            false => Collective::ReduceScatter { send, recv, by: Reduction::Sum },
                        }
                    }
                    "all_reduce" => {
                        Collective::AllReduce { data: recv.view_mut_on(0..elements, lane)?, by: Reduction::Sum }
                    }
                    "broadcast" => Collective::Broadcast { data: recv.view_mut_on(0..elements, lane)?, root: 0 },
                    "all_to_all" => Collective::AllToAll {
                        send: send.view_on(0..elements, lane)?,
                        recv: recv.view_mut_on(0..elements, lane)?,
                    },
                    _ if own == 0 => Collective::Send { data: send.view_on(0..elements, lane)?, to: 1 },
                    _ => Collective::Recv { data: recv.view_mut_on(0..elements, lane)?, from: 0 },
                };
                rank.barrier()?;
                let begin = Instant::now();
                if name != "send/recv" || own < 2 {
                    rank.launch(device.backend(), collective, lane)?;
                    device.sync()?;
                }
                // The first round takes memory from the system.
                if round > 0 {
                    times.push(begin.elapsed().as_secs_f32());
                }
            }
            let slowest = slowest(rank, &device, &times)?;
            if rank.rank() == 0 {
                print(name, elements * 4, world, &slowest);
            }
        }
    }
    Ok(())
}

/// The times of the slowest rank in seconds, ascending.
fn slowest(rank: &HostRank, device: &Device, times: &[f32]) -> Outcome<Vec<f32>> {
    let all = Storage::zeros(device, times.len(), DType::F32, Segment::Data)?;
    device.backend().upload(bytemuck::cast_slice(times), all.view_mut(0..times.len())?, Lane::Compute)?;
    let data = all.view_mut(0..times.len())?;
    rank.launch(device.backend(), Collective::AllReduce { data, by: Reduction::Max }, Lane::Compute)?;
    let mut times = all.tensor(0, [times.len()])?.to_vec::<f32>()?;
    times.sort_by(f32::total_cmp);
    Ok(times)
}

fn print(name: &str, bytes: usize, world: usize, times: &[f32]) {
    let (median, best) = (f64::from(times[times.len() / 2]), f64::from(times[0]));
    let (world, algorithm) = (world as f64, bytes as f64 / median);
    let carried = match name {
        "all_reduce" => 2.0 * (world - 1.0) / world,
        "all_gather" | "reduce_scatter" | "all_to_all" => (world - 1.0) / world,
        _ => 1.0,
    };
    let size = match bytes >> 20 {
        0 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1048576.0),
    };
    let times = [median, best].map(|time| format!("{:.1} us", time * 1e6));
    let rates = [algorithm, algorithm * carried].map(|rate| format!("{:.2} GB/s", rate / 1e9));
    println!("{name:<15} {size:>10} {:>13} {:>13} {:>12} {:>12}", times[0], times[1], rates[0], rates[1]);
}

fn settings() -> Outcome<Settings> {
    let mut settings = Settings {
        ranks: 2,
        processes: false,
        repeat: 20,
        chunk: HostOptions::default().chunk,
        only: String::new(),
        size: None,
        part: None,
    };
    let (mut rank, mut place) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--ranks" => settings.ranks = value.parse()?,
            "--kind" => {
                settings.processes = match value.as_str() {
                    "threads" => false,
                    "processes" => true,
                    other => return Err(format!("--kind {other}: there are threads and processes").into()),
                }
            }
            "--repeat" => settings.repeat = value.parse::<usize>()?.max(1),
            "--chunk" => settings.chunk = value.parse::<usize>()? << 10,
            "--only" => settings.only = value,
            "--size" => settings.size = Some(value.parse::<usize>()? << 10),
            "--rank" => rank = Some(value.parse()?),
            "--place" => place = Some(PathBuf::from(value)),
            other => return Err(format!("{other}: see the top of this program for what there is").into()),
        }
    }
    settings.part = rank.zip(place);
    if settings.ranks < 2 {
        return Err("one rank has nobody to exchange anything with: --ranks 2".into());
    }
    Ok(settings)
}
