//! How the ranks of a run on processors exchange data: through memory they share, or by MPI.
//!
//! Defines [`Connection`] and [`Launch::connection`], which the programs ask before they read any data.

use super::{Launch, Launcher};
use crate::error::{Error, Result};

/// What connects the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Connection {
    /// Memory that the ranks of one host share.
    Host,
    /// MPI, on one host or on several. Programs have it with the feature `mpi`.
    Mpi,
}

impl Launch {
    /// How the ranks of this launch are connected: as `asked`, else through shared memory on one host and by MPI on several.
    ///
    /// # Errors
    /// Several hosts, or MPI is asked for, and nobody started MPI processes; a build without the feature `mpi`.
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
        }
    }

    /// For ranks that exchange data through memory they share.
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
        Err(Error::launch("several hosts", reason, format!("on processors they need mpirun{build}; {one_host}")))
    }
}
