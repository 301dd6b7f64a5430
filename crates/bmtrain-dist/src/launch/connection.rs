//! How the ranks of a run exchange data: through memory they share, by MPI, or from device to device by NCCL.
//!
//! Defines [`Connection`], [`Exchange`] and [`RankDevice`]; the programs ask [`Launch::connection`] or [`Launch::exchange`] before
//! they read any data.

use super::{Launch, Launcher};
use crate::error::{Error, Result};
use bmtrain_core::DeviceChoice;

/// What connects the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Connection {
    /// Memory that the ranks of one host share.
    Host,
    /// MPI, on one host or on several. Programs have it with the feature `mpi`.
    Mpi,
    /// NCCL, between CUDA devices, over one of the others.
    Nccl,
}

/// What a rank computes on, as far as its exchange with others goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RankDevice {
    /// Processors.
    Processors,
    /// A CUDA device of its own.
    Cuda,
    /// A CUDA device, of this number, that all ranks of the host use.
    SharedCuda(usize),
}

/// How the ranks of a launch exchange data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Exchange {
    /// What connects the ranks' hosts: [`Connection::Host`] or [`Connection::Mpi`]. Whatever carries the values, ranks come
    /// together, wait at barriers and hear of lost ranks by this.
    pub hosts: Connection,
    /// Values go from device to device by NCCL; otherwise they take the way of the hosts, from CUDA devices too.
    pub by_nccl: bool,
}

impl RankDevice {
    /// What a choice came to: `cuda` is the number of the device that was opened, if it is one, and `local_size` the ranks of
    /// this host.
    pub fn of(choice: DeviceChoice, cuda: Option<usize>, local_size: usize) -> Self {
        match (choice, cuda) {
            (_, None) => RankDevice::Processors,
            (DeviceChoice::CudaDevice(_), Some(number)) if local_size > 1 => RankDevice::SharedCuda(number),
            (_, Some(_)) => RankDevice::Cuda,
        }
    }
}

impl Launch {
    /// How the ranks of this launch, which compute on `device`, exchange data: as `asked`, else by NCCL where every rank has a
    /// CUDA device of its own, and by what connects the hosts everywhere else.
    ///
    /// # Errors
    /// NCCL is asked for and ranks compute on processors or share a device; what [`Launch::connection`] refuses for the hosts.
    pub fn exchange(&self, asked: Option<Connection>, device: RankDevice) -> Result<Exchange> {
        if let (RankDevice::SharedCuda(number), true) = (device, self.ranks_in_process() > 1) {
            let reason = format!(
                "{} ranks of one process would share cuda:{number}: what one of them waits for would hold up the others",
                self.world
            );
            let fix =
                "start them as processes (torchrun, mpirun), or choose the device cuda, which gives each rank its own";
            return Err(Error::launch("ranks", reason, fix));
        }
        let wanted = match (asked, device) {
            (Some(Connection::Nccl), RankDevice::Processors) => {
                let reason = "it connects CUDA devices, and this rank computes on processors";
                let fix = "choose the device cuda, or leave NCCL out";
                return Err(Error::launch("NCCL", reason, fix));
            }
            (Some(Connection::Nccl), RankDevice::SharedCuda(number)) => {
                let ranks = self.local_size;
                let reason =
                    format!("it needs a device for each rank, and the {ranks} ranks of this host share cuda:{number}");
                let fix = "choose the device cuda, which gives each rank its own, or leave NCCL out: then they exchange \
                           through the host";
                return Err(Error::launch("NCCL", reason, fix));
            }
            (Some(Connection::Nccl) | None, RankDevice::Cuda) => true,
            (Some(Connection::Host | Connection::Mpi) | None, _) => false,
        };
        let hosts = self.connection(asked.filter(|asked| *asked != Connection::Nccl))?;
        Ok(Exchange { hosts, by_nccl: wanted && self.world > 1 })
    }

    /// How the hosts of the ranks of this launch are connected: as `asked`, else through shared memory on one host and by MPI on
    /// several.
    ///
    /// # Errors
    /// Several hosts, or MPI is asked for, and nobody started MPI processes; a build without the feature `mpi`; NCCL, which
    /// connects devices.
    pub fn connection(&self, asked: Option<Connection>) -> Result<Connection> {
        let is_built = cfg!(feature = "mpi");
        // Tasks of `srun` are processes of MPI if Slurm was told so; MPI itself counts the ranks when it starts.
        let is_started = matches!(self.launcher, Launcher::OpenMpi | Launcher::Mpich | Launcher::Slurm);
        match asked {
            None if self.nodes > 1 && is_built && is_started => Ok(Connection::Mpi),
            Some(Connection::Mpi) if is_built && is_started => Ok(Connection::Mpi),
            None | Some(Connection::Host) => self.require_one_host().map(|()| Connection::Host),
            Some(Connection::Mpi) if !is_built => {
                let reason = "this program was built without the feature `mpi`";
                Err(Error::launch("MPI", reason, "build it with `--features mpi`"))
            }
            Some(Connection::Mpi) => {
                let reason = format!("{} does not start processes of MPI", self.launcher.name());
                Err(Error::launch("MPI", reason, "start the program with mpirun"))
            }
            Some(Connection::Nccl) => {
                let reason = "it connects CUDA devices, and this program computes on processors";
                Err(Error::launch("NCCL", reason, "leave it out"))
            }
        }
    }

    /// For ranks that exchange data through memory they share, or meet there.
    ///
    /// # Errors
    /// Ranks on several hosts: between them, processors talk by MPI only.
    pub fn require_one_host(&self) -> Result<()> {
        if self.nodes <= 1 {
            return Ok(());
        }
        let reason = format!("{} started {} ranks on {} hosts", self.launcher.name(), self.world, self.nodes);
        let build = if cfg!(feature = "mpi") { "" } else { " and a build with `--features mpi`" };
        let one_host = match self.launcher {
            Launcher::Kubeflow => "if all ranks are on one host, set LOCAL_RANK and LOCAL_WORLD_SIZE",
            _ => "or start all ranks on one host",
        };
        Err(Error::launch("several hosts", reason, format!("between hosts they need mpirun{build}; {one_host}")))
    }
}
