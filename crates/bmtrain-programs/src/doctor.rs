//! The doctor program: what a run would find on this machine, and the fix for each thing that is missing.

mod check;
mod host;
mod processors;

use self::check::Check;

use crate::cli::terminal;
use bmtrain_core::cpu::{Caches, InstructionSet, Processors};
use bmtrain_core::cuda::{CudaOptions, Installed, Library, Survey, survey};
use bmtrain_core::limits::{Limit, limits};
use bmtrain_dist::inspect::process as memory;
use bmtrain_dist::launch::{cpu_options, cuda_options};
use clap::Parser;
use model_center_base::Result;
use model_center_recipe::run::ExitStatus;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Print what this machine has for training: this build, shared memory, disk, port, launcher and variables, processors
/// and the threads on them, limits, CUDA devices and libraries, kept kernels. Each line is marked: ✓ well, ! less than
/// could be, ✗ a run would suffer from it, with a fix. Without a CUDA device everything runs on processors.
///
/// Example: bmtrain doctor
#[derive(Debug, Clone, Parser)]
#[command(name = "doctor", version)]
pub struct Options {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// Where runs would write: room and speed of its disk are measured with a file of 32 MiB, which is removed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,
}

/// Disk space of compiled kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Kept {
    files: usize,
    bytes: u64,
}

/// Run the program.
pub fn run(options: &Options) -> Result<ExitStatus> {
    let cuda = cuda_options();
    let found = survey(&cuda);
    let mut checks = host::checks(&options.directory);
    checks.extend(machine(&found, &cuda)?);
    let text = match options.json {
        true => as_json(&checks, &found, &cuda).to_string(),
        false => check::as_text(&checks),
    };
    terminal::print(text.trim_end())?;
    Ok(ExitStatus::Done)
}

/// Processors, limits, devices and libraries.
fn machine(found: &Survey, cuda: &CudaOptions) -> Result<Vec<Check>> {
    let mut checks: Vec<Check> = Vec::new();
    let mut well = |name: &str, value: String| checks.push(Check::well(name, value));
    for (name, value) in processors::as_text(Processors::of_this_process(), &available_memory()) {
        well(name, value);
    }
    well("instructions", instructions()?);
    let limits = limits(None);
    if limits.is_empty() {
        well("limits", "none".into());
    }
    for limit in limits {
        checks.push(match limit.left() {
            Some(0) => Check::wrong("limit", limit.to_string(), "raise it: docs/limits.md"),
            _ => Check::well("limit", limit.to_string()),
        });
    }
    checks.push(match cfg!(feature = "mpi") {
        true => Check::well("MPI", "built in"),
        false => Check::less("MPI", "not built in", "build with --features mpi for several hosts without GPUs"),
    });
    let has_driver = found.driver.is_some();
    checks.push(match found.driver {
        Some((major, minor)) => Check::well("driver", format!("for CUDA {major}.{minor}")),
        None => Check::less("driver", "none", "install NVIDIA's driver to use a GPU; nothing else is needed to build"),
    });
    match &found.devices {
        Ok(devices) if devices.is_empty() => checks.push(Check::less("devices", "none", "")),
        Ok(devices) => checks.extend(devices.iter().enumerate().map(|(number, device)| {
            let name = format!("cuda:{number}");
            match device.problem() {
                None => Check::well(&name, describe(device)),
                Some(problem) => Check::wrong(&name, describe(device), problem),
            }
        })),
        Err(reason) => checks.push(Check::less("devices", format!("none: {reason}"), "")),
    }
    for Library { name, state } in &found.libraries {
        checks.push(match state {
            Ok(present) => {
                let why: String = present.why.iter().map(|why| format!("; {why}")).collect();
                let value = format!("{} at {}{why}", present.version, present.path.display());
                match &present.problem {
                    None => Check::well(name, value),
                    Some(problem) => Check::wrong(name, value, problem),
                }
            }
            Err(reason) if has_driver => Check::wrong(name, "missing", reason),
            Err(reason) => Check::less(name, format!("missing: {reason}"), ""),
        });
    }
    checks.push(Check::well("kernels", kernels(cuda)));
    checks.push(Check::well("so", conclusion(found)));
    Ok(checks)
}

fn available_memory() -> String {
    let gibibytes = |bytes: u64| format!("{:.1} GiB of memory available", bytes as f64 / f64::from(1 << 30));
    memory::available_bytes().map_or_else(|| "memory unknown".into(), gibibytes)
}

/// The instruction sets of the processor, and the one that programs use.
fn instructions() -> Result<String> {
    let sets: Vec<&str> = InstructionSet::available().map(InstructionSet::name).collect();
    let used = cpu_options(1)?.instruction_set;
    let Caches { l2, l3 } = Caches::of_this_machine();
    let cache = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let (l2, l3) = (cache(l2), cache(l3));
    Ok(format!("{}; {used} is used (BMTRAIN_CPU names another); caches L2 {l2} a core, L3 {l3}", sets.join(", ")))
}

fn describe(device: &Installed) -> String {
    let Installed { name, capability: (major, minor), multiprocessors, memory_bytes } = device;
    let memory = memory_bytes.map_or(String::new(), |bytes| format!(", {:.1} GiB", bytes as f64 / f64::from(1 << 30)));
    format!("{name}, capability {major}.{minor}, {multiprocessors} multiprocessors{memory}")
}

fn kernels(cuda: &CudaOptions) -> String {
    match (&cuda.compiled, &cuda.cache) {
        (Some(directory), _) => format!("taken as they are from {} (BMTRAIN_CUDA_KERNELS)", directory.display()),
        (None, Some(directory)) => {
            let Kept { files, bytes } = kept(directory);
            format!(
                "{files} modules compiled so far, {:.1} MiB in {}",
                bytes as f64 / f64::from(1 << 20),
                directory.display()
            )
        }
        (None, None) => "compiled at every start: neither BMTRAIN_CACHE nor HOME is set".into(),
    }
}

fn kept(directory: &Path) -> Kept {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| entry.metadata().ok().filter(std::fs::Metadata::is_file));
    sizes.fold(Kept::default(), |kept, file| Kept { files: kept.files + 1, bytes: kept.bytes + file.len() })
}

/// Device that `auto` resolves to.
fn conclusion(found: &Survey) -> String {
    let usable = |device: &&Installed| device.problem().is_none();
    let count = found.devices.as_ref().map_or(0, |devices| devices.iter().filter(usable).count());
    let missing: Vec<&str> = found
        .libraries
        .iter()
        // Ranks that share a host can do without it.
        .filter(|library| library.state.is_err() && library.name != "NCCL")
        .map(|library| library.name)
        .collect();
    match (count, missing.is_empty()) {
        (0, _) => "device auto runs on processors".into(),
        (_, false) => format!("there is a CUDA device, but it cannot be used without {}", missing.join(" and ")),
        (1, true) => "device auto runs on cuda:0".into(),
        (count, true) => format!("device auto runs on CUDA devices, up to {count} ranks on this host"),
    }
}

fn as_limit(limit: &Limit) -> Value {
    json!({ "what": limit.what, "most": limit.most, "used": limit.used, "place": limit.place })
}

fn as_json(checks: &[Check], found: &Survey, cuda: &CudaOptions) -> Value {
    let device = |device: &Installed| {
        json!({
            "name": device.name,
            "capability": [device.capability.0, device.capability.1],
            "multiprocessors": device.multiprocessors,
            "memory_bytes": device.memory_bytes,
        })
    };
    let library = |library: &Library| match &library.state {
        Ok(present) => json!({
            "name": library.name,
            "path": present.path,
            "version": present.version,
            "why": present.why,
            "problem": present.problem,
        }),
        Err(reason) => json!({ "name": library.name, "missing": reason }),
    };
    let kept = cuda.cache.as_deref().map(kept).unwrap_or_default();
    let found_here = Processors::of_this_process();
    let mut object = json!({
        "processors": found_here.count(),
        "instruction_sets": InstructionSet::available().map(InstructionSet::name).collect::<Vec<_>>(),
        "available_memory_bytes": memory::available_bytes(),
        "limits": limits(None).iter().map(as_limit).collect::<Vec<Value>>(),
        "mpi": cfg!(feature = "mpi"),
        "driver": found.driver.map(|(major, minor)| [major, minor]),
        "devices": match &found.devices {
            Ok(devices) => Value::Array(devices.iter().map(device).collect()),
            Err(reason) => json!({ "missing": reason }),
        },
        "libraries": found.libraries.iter().map(library).collect::<Vec<Value>>(),
        "kernels": { "compiled": cuda.compiled, "cache": cuda.cache, "files": kept.files, "bytes": kept.bytes },
        "auto": conclusion(found),
        "version": env!("CARGO_PKG_VERSION"),
        "checks": check::as_json(checks),
    });
    if let (Value::Object(all), Value::Object(more)) = (&mut object, processors::as_json(found_here)) {
        all.extend(more);
    }
    object
}
