//! Communication of the ranks of a run: through memory they share, by MPI, or from device to device by NCCL, whose
//! ranks on several hosts are connected by TCP.
//!
//! Defines [`Connection`], [`Transport`] and [`RankDevice`]; the programs ask [`Launch::connection`] or
//! [`Launch::transport`] before they read any data.

use super::{Launch, Launcher, cores};
use crate::error::{Error, Result};

/// Connection of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Connection {
    /// Memory that the ranks of one host share.
    Host,
    /// MPI, on one host or on several. Programs have it with the feature `mpi`.
    Mpi,
    /// TCP, between hosts, for control messages alone: NCCL carries the values.
    Tcp,
    /// NCCL, between CUDA devices, over one of the others.
    Nccl,
}

/// Devices of the ranks of a run, as far as communication is concerned. They all come to the same one: see
/// [`RankDevice::of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RankDevice {
    /// Processors.
    Processors,
    /// A CUDA device of its own for each rank.
    Cuda,
    /// CUDA devices; at least one is shared, by these two ranks.
    SharedCuda([usize; 2]),
}

/// Communication of the ranks of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Transport {
    /// Connection of the ranks' hosts: [`Connection::Host`], [`Connection::Mpi`] or [`Connection::Tcp`]. Whatever
    /// carries the values, ranks come together, wait at barriers and hear of lost ranks by this.
    pub hosts: Connection,
    /// Values go from device to device by NCCL; otherwise they take the way of the hosts, from CUDA devices too.
    pub by_nccl: bool,
}

impl RankDevice {
    /// This rank's card for the others: for a CUDA device its place in this host
    /// ([`CudaBackend::pci_bus_id`](bmtrain_core::cuda::CudaBackend::pci_bus_id)), none for processors. The number of a
    /// device is not enough: ranks that each see one device of the host all call it the first.
    pub fn card(pci_bus_id: Option<&str>) -> String {
        match pci_bus_id {
            None => PROCESSORS.into(),
            Some(id) => format!("{id} of {}", cores::host()),
        }
    }

    /// Device of all ranks, from the cards of all in the order of the ranks.
    pub fn of(cards: &[String]) -> Result<Self> {
        let is_cuda = |card: &String| card != PROCESSORS;
        let Some(first) = cards.first().map(is_cuda) else { return Ok(RankDevice::Processors) };
        if let Some(other) = cards.iter().position(|card| is_cuda(card) != first) {
            let kind = |is_cuda| if is_cuda { "a CUDA device" } else { PROCESSORS };
            let reason = format!("rank 0 computes on {}, rank {other} on {}", kind(first), kind(!first));
            return Err(Error::launch("ranks", reason, "choose device cuda or cpu, so that all have the same"));
        }
        if !first {
            return Ok(RankDevice::Processors);
        }
        let twice = cards.iter().enumerate().find_map(|(rank, card)| {
            let before = cards[..rank].iter().position(|other| other == card)?;
            Some([before, rank])
        });
        Ok(twice.map_or(RankDevice::Cuda, RankDevice::SharedCuda))
    }
}

/// The card of a rank without a CUDA device.
const PROCESSORS: &str = "processors";

impl Launch {
    /// Transport between the ranks of this launch, which compute on `device`: as `asked`, else NCCL where every rank
    /// has a CUDA device of its own, and the connection of the hosts everywhere else.
    pub fn transport(&self, asked: Option<Connection>, device: RankDevice) -> Result<Transport> {
        if let (RankDevice::SharedCuda([one, other]), true) = (device, self.ranks_in_process() > 1) {
            let reason = format!(
                "ranks {one} and {other} of one process would share a CUDA device, and each could block \
                 the other"
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
            (Some(Connection::Nccl), RankDevice::SharedCuda([one, other])) => {
                let reason = format!("it needs a device for each rank, and ranks {one} and {other} share one");
                let fix = "choose the device cuda, which gives each rank its own, or leave NCCL out to communicate \
                           through the host";
                return Err(Error::launch("NCCL", reason, fix));
            }
            (Some(Connection::Nccl | Connection::Tcp) | None, RankDevice::Cuda) => true,
            (Some(Connection::Host | Connection::Mpi | Connection::Tcp) | None, _) => false,
        };
        let hosts = self.connection(asked.filter(|asked| *asked != Connection::Nccl))?;
        let by_nccl = wanted && self.world > 1;
        if hosts == Connection::Tcp && !by_nccl && self.world > 1 {
            return Err(self.needs_mpi(match device {
                RankDevice::SharedCuda([one, other]) => format!("ranks {one} and {other} share a CUDA device"),
                _ => "the ranks compute on processors".into(),
            }));
        }
        Ok(Transport { hosts, by_nccl })
    }

    /// For ranks that are going to compute on processors: refuse hosts whose connection is for devices alone, before
    /// anything is read.
    pub fn require_processors(&self, asked: Option<Connection>) -> Result<()> {
        match self.connection(asked.filter(|asked| *asked != Connection::Nccl))? {
            Connection::Tcp => Err(self.needs_mpi("the ranks compute on processors".into())),
            _ => Ok(()),
        }
    }

    /// The refusal of values between hosts without NCCL and MPI.
    fn needs_mpi(&self, reason: String) -> Error {
        let build = if cfg!(feature = "mpi") { "" } else { " and a build with `--features mpi`" };
        let reason = format!("{reason}; {} started {} ranks on {} hosts", self.launcher.name(), self.world, self.nodes);
        let fix = format!(
            "between hosts give each rank a CUDA device of its own (NCCL), or use mpirun{build} for processors"
        );
        Error::launch("several hosts", reason, fix)
    }

    /// Connection of the hosts of this launch's ranks: as `asked`, else through shared memory on one host; on several
    /// by MPI, which needs the feature `mpi` and a launcher that starts its processes, else by TCP, which needs the
    /// address of rank 0 and is for ranks with CUDA devices ([`Launch::transport`]).
    pub fn connection(&self, asked: Option<Connection>) -> Result<Connection> {
        let is_built = cfg!(feature = "mpi");
        // Tasks of `srun` are processes of MPI if Slurm was told so; MPI itself counts the ranks when it starts.
        let is_started = matches!(self.launcher, Launcher::OpenMpi | Launcher::Mpich | Launcher::Slurm);
        match asked {
            None if self.nodes > 1 && is_built && is_started => Ok(Connection::Mpi),
            Some(Connection::Mpi) if is_built && is_started => Ok(Connection::Mpi),
            Some(Connection::Tcp) => Ok(Connection::Tcp),
            None if self.nodes > 1 && self.address.is_some() => Ok(Connection::Tcp),
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

    /// For ranks that communicate through shared memory, or meet there.
    pub fn require_one_host(&self) -> Result<()> {
        if self.nodes <= 1 {
            return Ok(());
        }
        let reason = format!("{} started {} ranks on {} hosts", self.launcher.name(), self.world, self.nodes);
        let build = if cfg!(feature = "mpi") { "" } else { " and a build with `--features mpi`" };
        let nccl = match self.address {
            Some(_) => "leave the choice of how they communicate to the program",
            None => "set MASTER_ADDR and MASTER_PORT to rank 0's host and a free port there",
        };
        let one_host = match self.launcher {
            Launcher::Kubeflow => "if all ranks are on one host, set LOCAL_RANK and LOCAL_WORLD_SIZE",
            _ => "or start all ranks on one host",
        };
        let fix = format!("with CUDA devices {nccl}; on processors they need mpirun{build}; {one_host}");
        Err(Error::launch("several hosts", reason, fix))
    }
}
