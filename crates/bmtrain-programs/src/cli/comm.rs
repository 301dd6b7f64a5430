//! Communication between ranks, as an option of a command line.

use bmtrain_dist::launch::Connection;

/// Communication between ranks.
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
    /// The connection that is asked for; `None` for auto.
    pub fn connection(self) -> Option<Connection> {
        match self {
            Comm::Auto => None,
            Comm::Host => Some(Connection::Host),
            Comm::Mpi => Some(Connection::Mpi),
            Comm::Nccl => Some(Connection::Nccl),
        }
    }
}
