//! Variables of each launcher, one function for each; the innermost launcher is asked first.
//!
//! A function answers `None` if its launcher did not start this process, and an error if the variables contradict
//! themselves or are set by half. Called by [`Launch::detect`](super::Launch::detect).

use super::variables::{Variables, wrong};
use super::{Launch, Launcher, lsf, slurm};
use crate::error::{Error, Result};
use std::net::IpAddr;

/// The variables of a launcher that hold the four numbers, to name them in errors.
struct Names {
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const TORCH: Names =
    Names { rank: "RANK", world: "WORLD_SIZE", local_rank: "LOCAL_RANK", local_size: "LOCAL_WORLD_SIZE" };
const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    world: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
const SLURM: Names = Names {
    rank: "SLURM_PROCID",
    world: "SLURM_STEP_NUM_TASKS",
    local_rank: "SLURM_LOCALID",
    local_size: "SLURM_STEP_TASKS_PER_NODE",
};
const MPICH: Names =
    Names { rank: "PMI_RANK", world: "PMI_SIZE", local_rank: "MPI_LOCALRANKID", local_size: "MPI_LOCALNRANKS" };

/// The innermost launcher that started this process: an agent of torchrun may itself be a task of Slurm, and `mpirun`
/// starts its daemons with `srun`, so that ranks inherit the numbers of their daemon. Outer ones are passed over.
pub(super) fn innermost(variables: &Variables<'_>) -> Result<Option<Launch>> {
    let asked = [torchrun, open_mpi, mpich, slurm_step, lsf::task, indexed_job, kubeflow, plain];
    for ask in asked {
        if let Some(found) = ask(variables)? {
            agrees_with_plain(variables, &found)?;
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// torchrun: complete, but its agent listens on the master's port, so the store takes the next one.
fn torchrun(variables: &Variables<'_>) -> Result<Option<Launch>> {
    let Some(run) = variables.text("TORCHELASTIC_RUN_ID") else { return Ok(None) };
    let ranks = four(variables, &TORCH, "TORCHELASTIC_RUN_ID", "torchrun")?;
    let master = variables.port("MASTER_PORT")?;
    let taken = variables.text("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let port = match master {
        Some(u16::MAX) if taken => {
            let reason =
                "torchrun's agent listens there, and the port after it, which this job would use, does not exist";
            return Err(Error::launch("MASTER_PORT=65535", reason, "give torchrun a lower --master-port"));
        }
        Some(port) if taken => Some(port + 1),
        port => port,
    };
    // By default the run id is the text `none` or random; the port tells jobs apart in the first case.
    let restart = variables.text("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
    let job = Launcher::Torchrun.job([run, master.map(|port| port.to_string()).unwrap_or_default(), restart]);
    let nodes = variables.number("GROUP_WORLD_SIZE")?.unwrap_or_else(|| hosts_at_least(&ranks));
    let address = variables.text("MASTER_ADDR");
    Ok(Some(Launch { launcher: Launcher::Torchrun, nodes, address, port, job, ..ranks }))
}

/// OpenMPI's mpirun. It names no master, because MPI needs none.
fn open_mpi(variables: &Variables<'_>) -> Result<Option<Launch>> {
    let Some(because) = variables.first(&[OPEN_MPI.rank, OPEN_MPI.world]) else { return Ok(None) };
    let ranks = four(variables, &OPEN_MPI, because.0, "mpirun")?;
    let job = variables.first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]).map(|(_, text)| text);
    with_master(variables, Launcher::OpenMpi, ranks, job)
}

/// MPICH and what is made of it. Under `srun --mpi=pmi2` Slurm sets the same numbers, and more variables.
fn mpich(variables: &Variables<'_>) -> Result<Option<Launch>> {
    let Some(because) = variables.first(&[MPICH.rank, MPICH.world]) else { return Ok(None) };
    let local = [MPICH.local_rank, "PMI_LOCAL_RANK"];
    if variables.first(&local).is_none() && in_slurm_step(variables) {
        return Ok(None);
    }
    let names = if variables.has("PMI_LOCAL_RANK") && !variables.has(MPICH.local_rank) {
        Names { local_rank: "PMI_LOCAL_RANK", local_size: "PMI_LOCAL_SIZE", ..MPICH }
    } else {
        MPICH
    };
    let ranks = four(variables, &names, because.0, "MPICH")?;
    with_master(variables, Launcher::Mpich, ranks, None)
}

/// Whether `srun` started this process. The shell of `salloc` and the script of `sbatch` carry the variables of an
/// allocation, in a script even a rank of 0, but they are no tasks; interactive shells are steps with reserved numbers.
fn in_slurm_step(variables: &Variables<'_>) -> bool {
    let step = variables.text("SLURM_STEP_ID").and_then(|text| text.parse::<u64>().ok());
    step.is_some_and(|step| step < 0xffff_fff0) && variables.has(SLURM.rank)
}

/// Tasks of one `srun`.
fn slurm_step(variables: &Variables<'_>) -> Result<Option<Launch>> {
    if !in_slurm_step(variables) {
        return Ok(None);
    }
    let need = |name| variables.need(name, "SLURM_STEP_ID", "srun");
    let world_name = if variables.has(SLURM.world) { SLURM.world } else { "SLURM_NTASKS" };
    let (rank, world, local_rank) = (need(SLURM.rank)?, need(world_name)?, need(SLURM.local_rank)?);
    let tasks = variables.first(&[SLURM.local_size, "SLURM_TASKS_PER_NODE"]);
    let (tasks_name, text) = tasks.unwrap_or((SLURM.local_size, world.to_string()));
    let tasks = slurm::tasks_per_node(&text).map_err(|reason| wrong(tasks_name, &text, reason))?;
    if tasks.iter().sum::<usize>() != world {
        return Err(wrong(tasks_name, &text, format!("these are not {world_name}={world} tasks together")));
    }
    let node = variables.number("SLURM_NODEID")?.unwrap_or(0);
    let Some(&local_size) = tasks.get(node) else {
        return Err(wrong("SLURM_NODEID", &node.to_string(), format!("{tasks_name}={text} has {} nodes", tasks.len())));
    };
    let ranks = Launch { rank, world, local_rank, local_size, nodes: tasks.len(), ..Launch::alone() };
    ranks.check(&Names { world: world_name, local_size: tasks_name, ..SLURM })?;
    let list = variables.first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]);
    let first_host = list.map(|(name, text)| {
        let hosts = slurm::hosts(&text).map_err(|reason| wrong(name, &text, reason))?;
        Ok::<_, Error>(hosts.into_iter().next())
    });
    let address = variables.text("MASTER_ADDR").or(first_host.transpose()?.flatten());
    let id = |name: &str| variables.text(name).and_then(|text| text.parse::<u64>().ok());
    let (job_id, step) = (id("SLURM_JOB_ID").or(id("SLURM_JOBID")), id("SLURM_STEP_ID").unwrap_or(0));
    let derived = job_id.map(|job| slurm::port_of_step(job, step));
    let port = variables.port("MASTER_PORT")?.or(derived);
    let restart = variables.text("SLURM_RESTART_COUNT").unwrap_or_default();
    let job = job_id.and_then(|job| Launcher::Slurm.job([job.to_string(), step.to_string(), restart]));
    Ok(Some(Launch { launcher: Launcher::Slurm, address, port, job, ..ranks }))
}

/// A pod of a Kubernetes Job with `completionMode: Indexed`, which numbers its pods and sets nothing else: the job's
/// manifest sets the number of ranks. An index without it is of a job whose pods do not work together.
fn indexed_job(variables: &Variables<'_>) -> Result<Option<Launch>> {
    let index = "JOB_COMPLETION_INDEX";
    let others = [TORCH.rank, TORCH.local_rank, TORCH.local_size];
    if !variables.has(index) || !variables.has(TORCH.world) || variables.first(&others).is_some() {
        return Ok(None);
    }
    let need = |name| variables.need(name, index, "a Kubernetes Indexed Job");
    let (rank, world) = (need(index)?, need(TORCH.world)?);
    let (address, port) = (variables.text("MASTER_ADDR"), variables.port("MASTER_PORT")?);
    let launcher = Launcher::Kubernetes;
    // The name of the first pod tells jobs apart, a port is the same in many.
    let parts = [address.clone().unwrap_or_default(), port.map(|port| port.to_string()).unwrap_or_default()];
    let job = launcher.job(parts);
    let found = Launch { launcher, rank, world, nodes: world, address, port, job, ..Launch::alone() };
    found.check(&Names { rank: index, ..TORCH })?;
    Ok(Some(found))
}

/// One process in each pod of a Kubeflow job: ranks of the pod, none within it.
fn kubeflow(variables: &Variables<'_>) -> Result<Option<Launch>> {
    if variables.has(TORCH.local_rank) || variables.has(TORCH.local_size) {
        return Ok(None);
    }
    let pods = variables.first(&["PET_NODE_RANK", "PET_NNODES"]);
    let address = variables.first(&["MASTER_ADDR", "PET_MASTER_ADDR"]).map(|(_, text)| text);
    let outside = address.as_deref().is_some_and(|address| !is_loopback(address));
    let ranked = variables.first(&[TORCH.rank, TORCH.world]);
    let in_a_pod = outside || variables.has("KUBERNETES_SERVICE_HOST");
    if pods.is_none() && !(ranked.is_some() && in_a_pod) {
        return Ok(None);
    }
    if let Some(text) = variables.text("PET_NPROC_PER_NODE")
        && text.parse::<usize>().is_ok_and(|processes| processes != 1)
    {
        let fix = "let torchrun start them: torchrun --no-python PROGRAM ...";
        return Err(Error::launch(format!("PET_NPROC_PER_NODE={text}"), "this process is one, not several", fix));
    }
    let names = if ranked.is_some() { TORCH } else { Names { rank: "PET_NODE_RANK", world: "PET_NNODES", ..TORCH } };
    let because = ranked.or(pods).map_or("RANK", |(name, _)| name);
    let need = |name| variables.need(name, because, "Kubeflow");
    let (rank, world) = (need(names.rank)?, need(names.world)?);
    let port = variables.port("MASTER_PORT")?.or(variables.port("PET_MASTER_PORT")?);
    let job = Launcher::Kubeflow.job(port.map(|port| port.to_string()));
    let launcher = Launcher::Kubeflow;
    let found = Launch { launcher, rank, world, nodes: world, address, port, job, ..Launch::alone() };
    found.check(&names)?;
    Ok(Some(found))
}

/// Variables set by hand. Without a variable about hosts, and with no master elsewhere, all ranks are on this one.
fn plain(variables: &Variables<'_>) -> Result<Option<Launch>> {
    let Some((because, _)) = variables.first(&[TORCH.rank, TORCH.world, TORCH.local_rank, TORCH.local_size]) else {
        return Ok(None);
    };
    let need = |name| variables.need(name, because, "a launch by hand");
    let (rank, world) = (need(TORCH.rank)?, need(TORCH.world)?);
    let address = variables.text("MASTER_ADDR");
    let here = address.as_deref().is_none_or(is_loopback);
    let local_rank = variables.number(TORCH.local_rank)?;
    let local_size = variables.number(TORCH.local_size)?;
    let (local_rank, local_size) = match (local_rank, local_size) {
        (Some(local_rank), Some(local_size)) => (local_rank, local_size),
        (None, None) => (rank, world),
        (Some(local_rank), None) if here && local_rank == rank => (local_rank, world),
        (None, Some(local_size)) if local_size == world => (rank, world),
        (Some(_), None) => (need(TORCH.local_rank)?, need(TORCH.local_size)?),
        (None, Some(local_size)) => (need(TORCH.local_rank)?, local_size),
    };
    let ranks = Launch { rank, world, local_rank, local_size, ..Launch::alone() };
    ranks.check(&TORCH)?;
    with_master(variables, Launcher::Plain, ranks, None)
}

/// Numbers that the user exported beside a launcher's have to be the same, or one of the two is stale.
fn agrees_with_plain(variables: &Variables<'_>, found: &Launch) -> Result<()> {
    if matches!(found.launcher, Launcher::Torchrun | Launcher::Kubeflow | Launcher::Plain) {
        return Ok(());
    }
    let both = [(TORCH.rank, found.rank), (TORCH.world, found.world), (TORCH.local_rank, found.local_rank)];
    for (name, expected) in both {
        if let Some(number) = variables.number(name)?
            && number != expected
        {
            let reason = format!("{} specifies {expected}", found.launcher.name());
            let fix = "unset RANK, WORLD_SIZE and LOCAL_RANK: the launcher's own variables are enough";
            return Err(Error::launch(format!("{name}={number}"), reason, fix));
        }
    }
    Ok(())
}

/// The four numbers of a launcher that sets them all.
fn four(variables: &Variables<'_>, names: &Names, because: &str, launcher: &str) -> Result<Launch> {
    let need = |name| variables.need(name, because, launcher);
    let found = Launch {
        rank: need(names.rank)?,
        world: need(names.world)?,
        local_rank: need(names.local_rank)?,
        local_size: need(names.local_size)?,
        ..Launch::alone()
    };
    found.check(names)?;
    Ok(found)
}

/// The launch of ranks with the master that the user may have set, whose port tells jobs apart where nothing else does.
fn with_master(
    variables: &Variables<'_>,
    launcher: Launcher,
    ranks: Launch,
    job: Option<String>,
) -> Result<Option<Launch>> {
    let (address, port) = (variables.text("MASTER_ADDR"), variables.port("MASTER_PORT")?);
    let job = launcher.job(job.or(port.map(|port| port.to_string())));
    Ok(Some(Launch { launcher, nodes: hosts_at_least(&ranks), address, port, job, ..ranks }))
}

/// Hosts, from this host's share: 1 is certain, more is a guess that is never below 2.
fn hosts_at_least(found: &Launch) -> usize {
    found.world.div_ceil(found.local_size)
}

/// Whether an address means this host, as far as its text tells.
pub(super) fn is_loopback(address: &str) -> bool {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl Launch {
    /// Numbers that contradict each other are refused by the names of their variables.
    fn check(&self, names: &Names) -> Result<()> {
        let inside = |name: &str, number: usize, bound_name: &str, bound: usize| {
            if number < bound {
                return Ok(());
            }
            let reason = format!("with {bound_name}={bound} the numbers go from 0 to {}", bound.saturating_sub(1));
            Err(wrong(name, &number.to_string(), reason))
        };
        if self.world == 0 || self.local_size == 0 {
            let name = if self.world == 0 { names.world } else { names.local_size };
            return Err(wrong(name, "0", "this process is one of them, so there is at least one"));
        }
        inside(names.rank, self.rank, names.world, self.world)?;
        inside(names.local_rank, self.local_rank, names.local_size, self.local_size)?;
        if self.local_size > self.world {
            let reason = format!("more ranks on one host than {}={} in all", names.world, self.world);
            return Err(wrong(names.local_size, &self.local_size.to_string(), reason));
        }
        Ok(())
    }
}
