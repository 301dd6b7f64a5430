//! Requirements of a run on the host besides processors: this build, shared memory, open files, a disk, a port, and
//! what a launcher and the environment set.

use super::check::Check;
use bmtrain_dist::Launch;
use bmtrain_dist::launch::Launcher;
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Instant;

const MIB: u64 = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
/// Less shared memory than this does not hold the messages of several ranks.
const SHARED: u64 = 256 * MIB;
/// Fewer open files than a corpus of many files, or many ranks, need.
const FILES: u64 = 1024;
/// Less room than a checkpoint of a small model.
const ROOM: u64 = 2048 * MIB;
/// Bytes written to time a disk.
const WRITTEN: usize = 32 << 20;
/// Slower disks make checkpoints long.
const SLOW: f64 = 50e6;
/// The port of launchers where none is set.
const PORT: u16 = 29500;
/// Variables that decide where and how a run runs.
const VARIABLES: [&str; 35] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "LSB_JOBID",
    "JOB_COMPLETION_INDEX",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_SOCKET_IFNAME",
    "NCCL_DEBUG",
    "OMP_NUM_THREADS",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "BMTRAIN_CPU",
    "BMTRAIN_CACHE",
    "BMTRAIN_CUDA_GRAPHS",
    "BMTRAIN_CUDA_KERNELS",
    "BMTRAIN_CUDA_LIB_DIR",
    "BMTRAIN_CUDA_KERNEL_EPILOGUES",
    "BMTRAIN_CUDA_TIMED_PRODUCTS",
    "BMTRAIN_CUDA_WARPGROUP_ATTENTION",
    "BMTRAIN_CUDA_WIDE_KEYS",
    "BMTRAIN_CUDA_WIDE_QUERIES",
    "BMTRAIN_JOB",
    "BMTRAIN_STORE_BIND",
    "BMTRAIN_STORE_PORT",
    "RUST_LOG",
];

/// All of it; `directory` is where runs would write.
pub(super) fn checks(directory: &Path) -> Vec<Check> {
    let mut checks = vec![build(), shared_memory(Path::new("/dev/shm")), open_files()];
    checks.extend(disk(directory));
    checks.push(port());
    checks.push(launcher(&|name| std::env::var(name).ok()));
    checks.push(variables(&|name| std::env::var(name).ok()));
    checks
}

fn build() -> Check {
    let features = [
        ("mpi", cfg!(feature = "mpi")),
        ("hub", cfg!(feature = "hub")),
        ("parquet", cfg!(feature = "parquet")),
        ("testing", cfg!(feature = "testing")),
    ];
    let on: Vec<&str> = features.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect();
    let on = if on.is_empty() { "no further features".to_owned() } else { format!("features {}", on.join(", ")) };
    let (version, arch, os) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, std::env::consts::OS);
    let value = format!("{version} for {arch} {os}, {on}");
    match cfg!(debug_assertions) {
        true => Check::less("version", format!("{value}, debug build"), "build with --release: training is far faster"),
        false => Check::well("version", value),
    }
}

/// Bytes that a file system has left for this user.
fn room(path: &Path) -> Option<u64> {
    let found = statvfs(path).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn shared_memory(place: &Path) -> Check {
    let name = "shared memory";
    match room(place) {
        None => {
            let fix = "mount a tmpfs there; without it, processes of a host meet in the temporary directory";
            Check::less(name, format!("there is no {}", place.display()), fix)
        }
        Some(left) if left < SHARED => {
            let value = format!("{} has {} MiB left", place.display(), left / MIB);
            let fix = "give the container more (docker run --shm-size 1g), or remove what earlier jobs left there";
            Check::wrong(name, value, fix)
        }
        Some(left) => Check::well(name, format!("{:.1} GiB left in {}", left as f64 / GIB, place.display())),
    }
}

fn open_files() -> Check {
    let limit = getrlimit(Resource::Nofile);
    match limit.current {
        Some(most) if most < FILES => {
            let hard = limit.maximum.map_or_else(|| "any number".to_owned(), |most| most.to_string());
            let value = format!("at most {most} of a process; up to {hard} may be asked for");
            Check::less("open files", value, "ulimit -n 4096, before many corpora or ranks")
        }
        Some(most) => Check::well("open files", format!("at most {most} of a process")),
        None => Check::well("open files", "no limit"),
    }
}

/// Room and speed of the disk that runs write to.
fn disk(directory: &Path) -> Vec<Check> {
    let shown = directory.display();
    let mut checks = Vec::new();
    match room(directory) {
        None => return vec![Check::wrong("disk", format!("{shown} cannot be read"), "give --directory another one")],
        Some(left) if left < ROOM => {
            let value = format!("{:.1} GiB left in {shown}", left as f64 / GIB);
            checks.push(Check::wrong("disk", value, "free some: `plan` tells what the checkpoints of a run take"));
        }
        Some(left) => checks.push(Check::well("disk", format!("{:.1} GiB left in {shown}", left as f64 / GIB))),
    }
    match written(directory) {
        Ok(speed) if speed < SLOW => {
            let value = format!("{:.0} MB/s written to {shown}", speed / 1e6);
            checks.push(Check::less(
                "disk speed",
                value,
                "put output.dir on a faster disk: checkpoints are written often",
            ));
        }
        Ok(speed) => checks.push(Check::well("disk speed", format!("{:.0} MB/s written to {shown}", speed / 1e6))),
        Err(error) => {
            let value = format!("{shown} cannot be written to: {error}");
            checks.push(Check::less("disk speed", value, "give --directory the place of your runs"));
        }
    }
    checks
}

/// Bytes a second that reach the disk. The file is removed again.
fn written(directory: &Path) -> std::io::Result<f64> {
    let path: PathBuf = directory.join(format!(".bmtrain-doctor-{}", std::process::id()));
    let measure = || {
        let mut file = std::fs::File::options().write(true).create_new(true).open(&path)?;
        let bytes: Vec<u8> = (0..WRITTEN).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let begin = Instant::now();
        file.write_all(&bytes)?;
        file.sync_all()?;
        Ok(WRITTEN as f64 / begin.elapsed().as_secs_f64().max(1e-6))
    };
    let speed = measure();
    // Where it was not made, there is nothing to remove.
    let _ = std::fs::remove_file(&path);
    speed
}

/// Whether ranks could meet at the port that is set, or at the usual one.
fn port() -> Check {
    let set = std::env::var("MASTER_PORT").ok().and_then(|text| text.parse::<u16>().ok());
    let port = set.unwrap_or(PORT);
    let origin = if set.is_some() { "MASTER_PORT" } else { "the usual one; MASTER_PORT sets another" };
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => Check::well("port", format!("{port} is free ({origin})")),
        Err(error) => {
            let value = format!("{port} cannot be listened on ({origin}): {error}");
            Check::less("port", value, "set MASTER_PORT to a free port, if ranks of several hosts are to meet")
        }
    }
}

/// Check of the launcher's variables.
fn launcher(variable: &dyn Fn(&str) -> Option<String>) -> Check {
    match Launch::detect(None, variable) {
        Ok(launch) if launch.launcher == Launcher::Alone => {
            Check::well("launcher", "none: one rank, or --ranks N for threads of one process")
        }
        Ok(launch) => {
            let (name, rank, world) = (launch.launcher.name(), launch.rank, launch.world);
            Check::well("launcher", format!("{name}: rank {rank} of {world}, {} on this host", launch.local_size))
        }
        Err(error) => Check::wrong("launcher", error.to_string(), "set all variables of one launcher, or none"),
    }
}

/// Names and values of the variables that are set.
fn variables(variable: &dyn Fn(&str) -> Option<String>) -> Check {
    let set: Vec<String> = VARIABLES.iter().filter_map(|name| Some(format!("{name}={}", variable(name)?))).collect();
    Check::well("variables", if set.is_empty() { "none is set".to_owned() } else { set.join(" ") })
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn a_disk_is_measured_and_nothing_stays_on_it() {
        let directory = tempfile::tempdir().unwrap();
        let checks = disk(directory.path());
        assert!(checks.iter().any(|check| check.name == "disk speed" && check.value.contains("MB/s")), "{checks:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let none = disk(&directory.path().join("none"));
        assert_eq!((none.len(), none[0].state), (1, State::Wrong));
    }

    #[test]
    fn faults_come_with_a_fix() {
        let none = shared_memory(Path::new("/no/such/place"));
        assert!(none.state == State::Less && none.fix.is_some(), "{none:?}");
        let half = |name: &str| (name == "RANK").then(|| "1".to_owned());
        let wrong = launcher(&half);
        assert!(wrong.state == State::Wrong && wrong.value.contains("WORLD_SIZE"), "{wrong:?}");
        let slurm = |name: &str| (name == "SLURM_JOB_ID").then(|| "7".to_owned());
        assert_eq!(variables(&slurm).value, "SLURM_JOB_ID=7");
        assert_eq!(launcher(&|_| None).state, State::Well);
    }
}
