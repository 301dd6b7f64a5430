//! How the ranks of a run come together: as threads, as processes of one host, or as processes of MPI.
//!
//! Defines [`Comm`], the choice on the command line, and [`run`], which `train` calls with the work of one rank.

use crate::cuda::cuda_options;
use bmtrain_core::Device;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank, Meeting};
use bmtrain_core::comm::nccl::{NcclOptions, NcclRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::cuda::nccl_paths;
use bmtrain_core::device_spec::Opened;
use bmtrain_dist::ControlGroup;
use bmtrain_dist::launch::{Connection, Launch, RankDevice, run_group};
use model_center::run::ExitStatus;
use model_center::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// How ranks exchange data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Comm {
    /// As fits: nccl where each rank has a CUDA device of its own, else host on one host and mpi on several.
    Auto,
    /// Through memory that the ranks of one host share.
    Host,
    /// By MPI.
    Mpi,
    /// From device to device by NCCL.
    Nccl,
}

impl Comm {
    /// What was asked for, if anything was.
    pub fn asked(self) -> Option<Connection> {
        match self {
            Comm::Auto => None,
            Comm::Host => Some(Connection::Host),
            Comm::Mpi => Some(Connection::Mpi),
            Comm::Nccl => Some(Connection::Nccl),
        }
    }

    /// What was asked for to connect the hosts of the ranks, by which they come together in any case.
    pub fn hosts(self) -> Option<Connection> {
        self.asked().filter(|asked| *asked != Connection::Nccl)
    }
}

/// The ranks as they exchange values: from device to device by NCCL where each has a CUDA device of its own, and
/// otherwise as they came together.
///
/// # Errors
/// Ranks that compute on different kinds of devices; what [`Launch::transport`] refuses; no NCCL.
pub fn exchange(
    launch: &Launch,
    comm: Comm,
    opened: &Opened,
    ranks: Arc<dyn Communicator>,
) -> Result<Arc<dyn Communicator>> {
    let card = RankDevice::card(opened.device.as_ref().map(|device| device.pci_bus_id()));
    let cards = match ranks.size() {
        1 => vec![card],
        _ => ControlGroup::new(Arc::clone(&ranks), &Device::cpu(1)?).gather_texts(&card)?,
    };
    let exchange = launch.transport(comm.asked(), RankDevice::of(&cards)?)?;
    match (&opened.device, exchange.by_nccl) {
        (Some(backend), true) => {
            let libraries = nccl_paths(&cuda_options());
            // Kernels that are not kept yet are compiled in the first step, in a minute or so, by one rank later than
            // by another. A lost rank is known without a deadline. There are no messages between two ranks.
            let options = NcclOptions { deadline: Duration::from_secs(300), libraries, messages: false };
            Ok(Arc::new(NcclRank::join(Arc::clone(backend), ranks, options)?))
        }
        _ => Ok(ranks),
    }
}

/// This process as one of several ranks of this host that share memory: other ranks see from now on that it is there,
/// and how it ends. Nothing where ranks are threads or come together by MPI, whose launcher ends all processes when one
/// has failed.
///
/// # Errors
/// A launch without a name; a rank or a world size that contradicts other processes; how the start of the ranks has
/// failed.
pub fn enter(launch: &Launch, comm: Comm) -> Result<Option<Meeting>> {
    if launch.world <= 1 || launch.ranks_in_process() > 1 || launch.connection(comm.hosts())? != Connection::Host {
        return Ok(None);
    }
    Ok(Some(Meeting::enter(HostGroup::place(launch.job()?), launch.rank, launch.world)?))
}

/// Tell the ranks that wait for this one that it ends before it has joined them, unless it ends well.
pub fn tell(meeting: &Meeting, ended: &Result<ExitStatus>) {
    match ended {
        Ok(ExitStatus::Done) => {}
        Ok(status) => meeting.abandon(status.code(), status.meaning()),
        Err(error) => meeting.abandon(ExitStatus::from(error).code(), &in_a_line(error)),
    }
}

/// Tell the other ranks that this one ends because of its command line, so far as its launcher's variables name them.
pub fn tell_misuse(reason: &str) {
    let launch = Launch::detect(None, &|name| std::env::var(name).ok());
    let meeting = launch.map_err(Error::from).and_then(|launch| enter(&launch, Comm::Auto));
    if let Ok(Some(meeting)) = meeting {
        meeting.abandon(ExitStatus::Usage.code(), reason.lines().next().unwrap_or_default());
    }
}

/// An error without place and fix, which its own rank shows.
fn in_a_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Do the work of the ranks of this process: on this thread, on one thread for each of `--ranks`, or as one of the
/// processes of a launcher. What the first of them comes to.
///
/// `meeting` is what [`enter`] gave, if it was called before. `deadline` is how long ranks wait for each other in one
/// exchange; 30 seconds by default.
///
/// # Errors
/// What the work of a rank returns; ranks that do not come together.
pub fn run<F>(
    launch: &Launch,
    comm: Comm,
    deadline: Option<Duration>,
    meeting: Option<Meeting>,
    work: F,
) -> Result<ExitStatus>
where
    F: Fn(Arc<dyn Communicator>) -> Result<ExitStatus> + Clone + Send + 'static,
{
    if launch.connection(comm.hosts())? == Connection::Mpi {
        return under_mpi(launch, work);
    }
    let usual = HostOptions::default();
    let options = HostOptions { deadline: deadline.unwrap_or(usual.deadline), ..usual };
    let here = launch.ranks_in_process();
    if here > 1 {
        let group = HostGroup::threads(here, options)?.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Communicator>);
        let ranks = run_group(group.collect(), |_, ranks| {
            let work = work.clone();
            move || work(ranks)
        });
        let statuses = ranks.map_err(|failed| failed.error)?;
        return Ok(statuses.into_iter().next().unwrap_or(ExitStatus::Done));
    }
    if launch.world > 1 {
        let meeting = match meeting {
            Some(meeting) => meeting,
            None => Meeting::enter(HostGroup::place(launch.job()?), launch.rank, launch.world)?,
        };
        let ranks = Arc::new(HostRank::join(meeting, launch.rank, launch.world, options)?);
        let ended = work(Arc::clone(&ranks) as Arc<dyn Communicator>);
        if let Err(error) = &ended {
            ranks.abort_with(ExitStatus::from(error).code(), &error.to_string());
        }
        return ended;
    }
    work(Arc::new(Solo))
}

/// This process is a rank of MPI.
#[cfg(feature = "mpi")]
fn under_mpi<F>(launch: &Launch, work: F) -> Result<ExitStatus>
where
    F: Fn(Arc<dyn Communicator>) -> Result<ExitStatus>,
{
    use bmtrain_core::comm::mpi::{MpiOptions, MpiRank};
    let ranks = Arc::new(MpiRank::join(MpiOptions::default())?);
    if (ranks.rank(), ranks.size()) != (launch.rank, launch.world) {
        let reason = format!(
            "{} says this is rank {} of {}, the MPI of this program says rank {} of {}",
            launch.launcher.name(),
            launch.rank,
            launch.world,
            ranks.rank(),
            ranks.size()
        );
        let fix = "start it with the mpirun of the MPI it was built with, or with `srun --mpi=pmix`";
        return Err(bmtrain_dist::Error::launch("MPI", reason, fix).into());
    }
    work(Arc::clone(&ranks) as Arc<dyn Communicator>).map_err(|error| {
        let code = ExitStatus::from(&error).code();
        ranks.abort_with(code, &error.to_string());
        // After a failure MPI ends the process, so that nothing waits for a rank that is lost; hence the message first.
        crate::terminal::note(&model_center::run::render_error(&error));
        ranks.end_job(code)
    })
}

/// The launch has refused it.
#[cfg(not(feature = "mpi"))]
fn under_mpi<F>(launch: &Launch, _: F) -> Result<ExitStatus> {
    launch.connection(Some(Connection::Mpi))?;
    Ok(ExitStatus::Done)
}
