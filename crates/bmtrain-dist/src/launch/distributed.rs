//! Joining the ranks of a job: threads of this process, processes of one host, of MPI, or of several hosts over TCP,
//! with NCCL between CUDA devices.
//!
//! Defines [`init_distributed`], the counterpart of `torch.distributed.init_process_group`, and [`ProcessGroup`], which
//! runs the work of this process's ranks. Called by training, generation and the benchmarks of collectives.

use super::cuda_environment::cuda_options;
use super::{Connection, Launch, RankDevice, Store, StoreOptions, run_group};
use crate::ControlGroup;
use crate::error::{Error, Result};
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank, Meeting};
use bmtrain_core::comm::nccl::{NcclOptions, NcclRank};
use bmtrain_core::comm::tcp::{TcpOptions, TcpRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::cpu::CpuOptions;
use bmtrain_core::cuda::nccl_paths;
use bmtrain_core::device_spec::Opened;
use bmtrain_core::{Device, DeviceChoice, DeviceRequest};
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The deadline of a collective over NCCL. In the first step kernels that are not cached are compiled, in a minute or
/// so, by one rank later than by another. A lost rank is noticed without a deadline.
const NCCL_DEADLINE: Duration = Duration::from_secs(300);

/// Options of the start of a job's ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DistributedOptions {
    /// Ranks to run as threads of this process; `None`: as a launcher (torchrun, Slurm, mpirun, `RANK` and
    /// `WORLD_SIZE`) started them.
    pub ranks: Option<usize>,
    /// Transport of the ranks; `None`: NCCL where each rank has a CUDA device of its own, else shared memory on one
    /// host and MPI on several.
    pub connection: Option<Connection>,
    /// Wait of ranks for each other in one collective; `None`: 30 seconds. On hosts that TCP connects also how long
    /// ranks may take to come together; `None`: 5 minutes.
    pub deadline: Option<Duration>,
}

/// The error of a rank's work, as the other ranks and the launcher learn of it.
pub trait RankFailure: From<Error> + From<bmtrain_core::Error> + Display + Send + 'static {
    /// The exit code of this rank.
    fn exit_code(&self) -> u8;

    /// The error as this rank reports it on standard error.
    fn report(&self) -> String;
}

/// The ranks of this process: one, or several as threads.
#[derive(Debug, Clone)]
pub struct ProcessGroup {
    launch: Launch,
    options: DistributedOptions,
    meeting: Option<Meeting>,
    /// Until this rank joins the others.
    store: Arc<Mutex<Option<Store>>>,
}

/// Detect the launch from the environment and announce this process to the other ranks.
pub fn init_distributed(options: DistributedOptions) -> Result<ProcessGroup> {
    ProcessGroup::join(Launch::from_env(options.ranks)?, options)
}

impl ProcessGroup {
    /// Announce this process: to the others of this host that share memory with it, or to rank 0, where TCP connects
    /// the hosts. Ranks that are threads, and ranks of MPI, whose launcher ends all processes when one has failed, have
    /// nothing to announce.
    ///
    /// # Errors
    /// A launch without a name for the job; a rank of this number that is there already; over TCP no rank 0 before the
    /// deadline, or one of another job, version or number of ranks.
    pub fn join(launch: Launch, options: DistributedOptions) -> Result<Self> {
        let mut group = ProcessGroup::detached(launch, options);
        if group.launch.world > 1 && group.launch.ranks_in_process() == 1 {
            match group.hosts()? {
                Connection::Host => group.meeting = Some(group.meet()?),
                Connection::Tcp => group.store = Arc::new(Mutex::new(Some(group.come()?))),
                Connection::Mpi | Connection::Nccl => {}
            }
        }
        Ok(group)
    }

    /// The ranks of this process without announcing them: for checks that communicate with no other rank.
    pub fn detached(launch: Launch, options: DistributedOptions) -> Self {
        ProcessGroup { launch, options, meeting: None, store: Arc::default() }
    }

    /// Launch of this process.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Connection of the ranks' hosts. NCCL runs on top of one of the others.
    pub fn hosts(&self) -> Result<Connection> {
        self.launch.connection(self.options.connection.filter(|asked| *asked != Connection::Nccl))
    }

    /// Refuse a device that cannot be used between the hosts of this launch, before anything is read.
    ///
    /// # Errors
    /// Processors on several hosts without MPI; a connection that is not there.
    pub fn check_device(&self, choice: DeviceChoice) -> Result<()> {
        match choice {
            DeviceChoice::Cpu => self.launch.require_processors(self.options.connection),
            _ => self.hosts().map(drop),
        }
    }

    /// Tell the ranks that wait for this one that it ends before it has joined them.
    pub fn abandon(&self, exit_code: u8, reason: &str) {
        let reason = reason.lines().next().unwrap_or_default();
        if let Some(meeting) = &self.meeting {
            meeting.abandon(exit_code, reason);
        }
        if let Some(store) = self.store.lock().unwrap_or_else(PoisonError::into_inner).take() {
            store.abandon(exit_code, reason);
        }
    }

    /// Run `work` once for each rank of this process, with its communicator; returns the result of the first.
    pub fn run<T, E, F>(&self, work: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: RankFailure,
        F: Fn(Arc<dyn Communicator>) -> Result<T, E> + Clone + Send + 'static,
    {
        let hosts = self.hosts()?;
        if hosts == Connection::Mpi {
            return run_under_mpi(&self.launch, work);
        }
        let defaults = HostOptions::default();
        let options = HostOptions { deadline: self.options.deadline.unwrap_or(defaults.deadline), ..defaults };
        let (threads, world) = (self.launch.ranks_in_process(), self.launch.world);
        if threads > 1 {
            let ranks = HostGroup::threads(threads, options)?;
            let ranks = ranks.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Communicator>).collect();
            let results = run_group(ranks, |_, rank| {
                let work = work.clone();
                move || work(rank)
            });
            let first = results.map_err(|failed| failed.error)?.into_iter().next();
            return first.ok_or_else(|| Error::launch("ranks", "there are none", "start one at least").into());
        }
        let _track = tracing::debug_span!("rank", rank = self.launch.rank).entered();
        if world <= 1 {
            return work(Arc::new(Solo));
        }
        if hosts == Connection::Tcp {
            let rank = Arc::new(self.join_hosts(options.deadline)?);
            let ended = work(Arc::clone(&rank) as Arc<dyn Communicator>);
            return ended.inspect_err(|error| rank.abort_with(error.exit_code(), &error.to_string()));
        }
        let meeting = self.meeting.clone().map_or_else(|| self.meet(), Ok)?;
        let rank = Arc::new(HostRank::join(meeting, self.launch.rank, world, options)?);
        let ended = work(Arc::clone(&rank) as Arc<dyn Communicator>);
        ended.inspect_err(|error| rank.abort_with(error.exit_code(), &error.to_string()))
    }

    /// The communicator of this rank's tensors: NCCL where each rank has a CUDA device of its own, else `ranks`, which
    /// it joined by.
    pub fn communicator(&self, opened: &Opened, ranks: Arc<dyn Communicator>) -> Result<Arc<dyn Communicator>> {
        let card = RankDevice::card(opened.device.as_ref().map(|device| device.pci_bus_id()));
        let cards = match ranks.size() {
            1 => vec![card],
            _ => ControlGroup::new(Arc::clone(&ranks), &Device::cpu(1)?).gather_texts(&card)?,
        };
        let transport = self.launch.transport(self.options.connection, RankDevice::of(&cards)?)?;
        match (&opened.device, transport.by_nccl) {
            (Some(backend), true) => {
                let libraries = nccl_paths(&cuda_options());
                // Pipeline stages connect theirs: most groups have no messages.
                let options = NcclOptions { deadline: NCCL_DEADLINE, libraries, messages: false };
                Ok(Arc::new(NcclRank::join(Arc::clone(backend), ranks, options)?))
            }
            _ => Ok(ranks),
        }
    }

    /// Open the device of the rank that is `rank` in this process, with these settings of its CPU backend. The calling
    /// thread is pinned as they state.
    pub fn open_device(&self, choice: DeviceChoice, rank: usize, cpu: CpuOptions) -> Result<Opened> {
        let launch = &self.launch;
        let local_rank = if launch.ranks_in_process() > 1 { rank } else { launch.local_rank };
        let request = DeviceRequest { local_rank, local_size: launch.local_size, cpu, cuda: cuda_options() };
        Ok(choice.open(&request)?)
    }

    fn meet(&self) -> Result<Meeting> {
        let Launch { rank, world, .. } = self.launch;
        Ok(Meeting::enter(HostGroup::place(self.launch.job()?), rank, world)?)
    }

    /// Come to rank 0's store, which rank 0 opens, without waiting for the other ranks.
    fn come(&self) -> Result<Store> {
        // What the ranks are to do they compare when they have joined.
        let mut options = self.launch.store([0; 32])?;
        options.deadline = self.options.deadline.unwrap_or(options.deadline);
        Store::enter(&options)
    }

    /// Join the ranks of all hosts over TCP, with this deadline for each call.
    fn join_hosts(&self, deadline: Duration) -> Result<TcpRank> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner).take();
        let store = store.map_or_else(|| self.come(), Ok)?;
        let links = store.into_links(self.options.deadline.unwrap_or(StoreOptions::DEADLINE))?;
        Ok(TcpRank::join(links, TcpOptions { deadline })?)
    }
}

/// Run the work of this process as a rank of MPI.
#[cfg(feature = "mpi")]
fn run_under_mpi<T, E: RankFailure>(
    launch: &Launch,
    work: impl Fn(Arc<dyn Communicator>) -> Result<T, E>,
) -> Result<T, E> {
    use bmtrain_core::comm::mpi::{MpiOptions, MpiRank};
    use std::io::Write;
    let rank = Arc::new(MpiRank::join(MpiOptions::default())?);
    if (rank.rank(), rank.size()) != (launch.rank, launch.world) {
        let reason = format!(
            "{} sets rank {} of {}, but the MPI of this program reports rank {} of {}",
            launch.launcher.name(),
            launch.rank,
            launch.world,
            rank.rank(),
            rank.size()
        );
        let fix = "start it with the mpirun of the MPI it was built with, or with `srun --mpi=pmix`";
        return Err(Error::launch("MPI", reason, fix).into());
    }
    work(Arc::clone(&rank) as Arc<dyn Communicator>).map_err(|error| {
        rank.abort_with(error.exit_code(), &error.to_string());
        // MPI ends the process, so the error is reported before.
        let _ = writeln!(std::io::stderr(), "{}", error.report());
        rank.end_job(error.exit_code())
    })
}

/// [`Launch::connection`] refuses MPI without the feature.
#[cfg(not(feature = "mpi"))]
fn run_under_mpi<T, E: RankFailure>(
    launch: &Launch,
    _: impl Fn(Arc<dyn Communicator>) -> Result<T, E>,
) -> Result<T, E> {
    launch.connection(Some(Connection::Mpi))?;
    Err(Error::launch("MPI", "this build has no MPI", "build with the feature mpi").into())
}
