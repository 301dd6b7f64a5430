//! Start of this process, of the ranks in one process, and the meeting point of ranks.
//!
//! [`Launch::detect`] turns the command line's `--ranks` and a launcher's variables into one answer: which rank this
//! is, of how many, on how many hosts. [`init_distributed`] joins the ranks. [`Launch::connection`] and
//! [`Launch::transport`] specify how they are connected, [`run_ranks`] runs several ranks as threads, [`store`] is
//! the rendezvous of several processes. Called by the programs; `docs/launch.md` shows each launcher.

mod connection;
mod cores;
mod cuda_environment;
mod distributed;
mod launchers;
mod lsf;
mod ranks;
mod report;
mod slurm;
pub mod store;
mod variables;

pub use connection::{Connection, RankDevice, Transport};
pub use cores::{cpu_options, cpu_options_of_rank};
pub use cuda_environment::cuda_options;
pub use distributed::{DistributedOptions, ProcessGroup, RankFailure, init_distributed};
pub use ranks::{GRACE, RankError, run_group, run_ranks, run_ranks_within};
pub use store::{Store, StoreOptions, Token};

use crate::error::{Error, Result};
use std::net::{IpAddr, Ipv4Addr};
use variables::{Variables, wrong};

/// Launcher of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// None: there is one rank.
    Alone,
    /// `--ranks N`: this process runs N ranks as threads.
    Threads,
    /// torchrun, PyTorch's launcher.
    Torchrun,
    /// OpenMPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec`, or one of its descendants.
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// LSF's `blaunch`.
    Lsf,
    /// A Kubeflow job with one process in each pod.
    Kubeflow,
    /// A Kubernetes Job with `completionMode: Indexed` and one process in each pod.
    Kubernetes,
    /// `RANK` and `WORLD_SIZE`, set by hand.
    Plain,
}

impl Launcher {
    /// Name of the launcher.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// Name of the launcher, and the first part of the names of its jobs.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Launcher::Alone => ("no launcher", "alone"),
            Launcher::Threads => ("--ranks", "threads"),
            Launcher::Torchrun => ("torchrun", "torchrun"),
            Launcher::OpenMpi => ("mpirun", "mpirun"),
            Launcher::Mpich => ("MPICH", "mpich"),
            Launcher::Slurm => ("srun", "slurm"),
            Launcher::Lsf => ("blaunch", "lsf"),
            Launcher::Kubeflow => ("Kubeflow", "kubeflow"),
            Launcher::Kubernetes => ("a Kubernetes Indexed Job", "kubernetes"),
            Launcher::Plain => ("a launch by hand", "plain"),
        }
    }

    /// A job's name from what tells it from others on the same host, the same for all ranks; `None` if nothing does.
    fn job(self, parts: impl IntoIterator<Item = String>) -> Option<String> {
        let mut all = vec![self.names().1.to_owned()];
        all.extend(parts.into_iter().filter(|part| !part.is_empty()));
        (all.len() > 1).then(|| job_name(&all))
    }
}

/// Launch of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Launcher of the process.
    pub launcher: Launcher,
    /// This process's rank; with `--ranks` the first of its ranks, see [`Launch::of_thread`].
    pub rank: usize,
    /// Number of ranks, W.
    pub world: usize,
    /// This rank's local rank: its number on its host.
    pub local_rank: usize,
    /// Ranks on this host.
    pub local_size: usize,
    /// Hosts. Where the launcher does not specify it, 1 is certain, and more is a guess from this host's share.
    pub nodes: usize,
    /// Host of rank 0 as the launcher names it.
    pub address: Option<String>,
    /// Port on which the ranks meet, the same for all of them.
    pub port: Option<u16>,
    job: Option<String>,
    secret: Option<String>,
    bind: Option<IpAddr>,
}

impl Launch {
    /// Ask `--ranks` (`ranks`), then the variables of torchrun, OpenMPI, MPICH, Slurm, LSF, Kubernetes Indexed Jobs and
    /// Kubeflow, then plain `RANK` and `WORLD_SIZE`; if none is set there is one rank. The innermost launcher counts:
    /// an `mpirun` inside a Slurm job is OpenMPI.
    ///
    /// `variables` looks a variable up, usually in the environment. Beside the launchers' own these are read:
    /// `BMTRAIN_STORE_PORT` and `BMTRAIN_STORE_BIND` (where the ranks meet), `BMTRAIN_JOB` (a name for the job, where a
    /// launcher gives none) and `BMTRAIN_TOKEN` (a secret that every rank has to know).
    pub fn detect(ranks: Option<usize>, variables: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let variables = Variables::new(variables);
        let found = launchers::innermost(&variables)?;
        let bind = match variables.text("BMTRAIN_STORE_BIND") {
            Some(text) => Some(text.parse().map_err(|_| wrong("BMTRAIN_STORE_BIND", &text, "this is not an address"))?),
            None => None,
        };
        let mut launch = match (ranks, found) {
            (Some(ranks), found) => Launch::threads(ranks, found.as_ref())?,
            (None, Some(found)) => found,
            (None, None) => Launch::alone(),
        };
        launch.port = variables.port("BMTRAIN_STORE_PORT")?.or(launch.port);
        launch.job = variables.text("BMTRAIN_JOB").map(|name| job_name(&[name])).or(launch.job);
        launch.secret = variables.text("BMTRAIN_TOKEN");
        launch.bind = bind;
        Ok(launch)
    }

    /// [`Launch::detect`] with the variables of this process's environment.
    pub fn from_env(ranks: Option<usize>) -> Result<Self> {
        Launch::detect(ranks, &|name| std::env::var(name).ok())
    }

    /// One rank, without a launcher.
    pub fn alone() -> Self {
        Launch {
            launcher: Launcher::Alone,
            rank: 0,
            world: 1,
            local_rank: 0,
            local_size: 1,
            nodes: 1,
            address: None,
            port: None,
            job: None,
            secret: None,
            bind: None,
        }
    }

    fn threads(ranks: usize, found: Option<&Launch>) -> Result<Self> {
        if ranks == 0 || ranks > slurm::MAX_RANKS {
            let reason = format!("a process has 1 to {} ranks", slurm::MAX_RANKS);
            return Err(Error::launch(format!("--ranks {ranks}"), reason, "use at most one rank per core"));
        }
        if let Some(found) = found.filter(|found| found.world > 1) {
            let reason = format!("{} has already started {} ranks", found.launcher.name(), found.world);
            let fix = "drop --ranks, or start without the launcher";
            return Err(Error::launch(format!("--ranks {ranks}"), reason, fix));
        }
        Ok(Launch { launcher: Launcher::Threads, world: ranks, local_size: ranks, ..Launch::alone() })
    }

    /// This launch as seen by thread `rank` of this process.
    pub fn of_thread(&self, rank: usize) -> Self {
        match self.launcher {
            Launcher::Threads => Launch { rank, local_rank: rank, ..self.clone() },
            _ => self.clone(),
        }
    }

    /// Number of ranks that this process runs as threads: 1 but for `--ranks`.
    pub fn ranks_in_process(&self) -> usize {
        if self.launcher == Launcher::Threads { self.world } else { 1 }
    }

    /// A name for this job, the same for all its ranks and different for other jobs on the host: letters, digits, dots,
    /// dashes and underscores, at most 80. For what the processes of a host share by name.
    ///
    /// # Errors
    /// A launcher that sets nothing of the kind, without `MASTER_PORT` and `BMTRAIN_JOB`; ranks in one process, which
    /// need no name.
    pub fn job(&self) -> Result<&str> {
        self.job.as_deref().ok_or_else(|| match self.launcher {
            Launcher::Alone | Launcher::Threads => {
                let reason = "the ranks of one process share memory without a name";
                Error::launch("job name", reason, "set BMTRAIN_JOB if one is wanted all the same")
            }
            launcher => {
                let reason = format!("{} sets nothing that tells this job from others on this host", launcher.name());
                let fix = "set MASTER_PORT to a free port or BMTRAIN_JOB to a name, the same for all ranks";
                Error::launch("job name", reason, fix)
            }
        })
    }

    /// Secret that lets a process into this job, made from the job's name and, if it is set, `BMTRAIN_TOKEN`. Without
    /// the latter it keeps strays apart, but a process that guesses the name of the job can make it.
    pub fn token(&self) -> Result<Token> {
        Ok(Token::derive(self.job()?, self.secret.as_deref().unwrap_or_default()))
    }

    /// Options of the store at which the processes of this job meet. On one host that is its loopback; on several, rank
    /// 0 listens at the master's address, or at `BMTRAIN_STORE_BIND`. `recipe` is the hash of what the ranks are to do.
    pub fn store(&self, recipe: [u8; 32]) -> Result<StoreOptions> {
        let token = self.token()?;
        let port = self.port.unwrap_or_else(|| port_of(self.job.as_deref().unwrap_or_default()));
        let mut options = StoreOptions::new(self.rank, self.world, port, token, recipe);
        options.own_host = cores::host_name();
        if self.nodes > 1 {
            options.host = self.address.clone().ok_or_else(|| {
                let reason = format!("{} does not specify the address of rank 0", self.launcher.name());
                Error::launch("MASTER_ADDR is missing", reason, "set it to the host of rank 0, the same for all ranks")
            })?;
        }
        let is_kubeflow = self.launcher == Launcher::Kubeflow && self.nodes > 1;
        if is_kubeflow && self.rank == 0 && launchers::is_loopback(&options.host) {
            // The master's pod may be told that the master is itself; the others are told its name.
            options.host = cores::host_name();
        }
        options.bind = self.bind.or((self.nodes <= 1).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        if let Some(bind) = self.bind.filter(|bind| self.nodes <= 1 && !bind.is_unspecified()) {
            options.host = bind.to_string();
        }
        // Tests of programs do not wait for as long.
        #[cfg(feature = "testing")]
        if let Some(seconds) = std::env::var("BMTRAIN_TEST_PATIENCE").ok().and_then(|text| text.parse().ok()) {
            options.patience = std::time::Duration::from_secs(seconds);
        }
        Ok(options)
    }
}

/// Threads for each rank when a host's cores are divided evenly; at least one, also where ranks outnumber cores.
pub fn threads_per_rank(cores: usize, local_size: usize) -> usize {
    (cores / local_size.max(1)).max(1)
}

/// One name from parts, harmless as a file name. What had to be changed or cut is told apart by a hash.
fn job_name(parts: &[String]) -> String {
    let raw = parts.join("-");
    let harmless = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
    let name: String = raw.chars().map(harmless).take(60).collect();
    if name == raw {
        return name;
    }
    let hash = blake3::hash(raw.as_bytes()).to_hex();
    format!("{name}-{}", &hash.as_str()[..16])
}

/// A port from a job's name, where none is given.
fn port_of(job: &str) -> u16 {
    let hash = blake3::hash(job.as_bytes());
    let [first, second, ..] = hash.as_bytes();
    20_000 + u16::from_le_bytes([*first, *second]) % 20_000
}
