//! A group of one rank: what it sends is what it gets.

use super::{Collective, Communicator};
use crate::backend::Backend;
use crate::error::Result;
use crate::lane::Lane;
use std::sync::Arc;

/// The only rank of its group.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl Communicator for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn launch(&self, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> Result<()> {
        collective.check(0, 1)?;
        match collective {
            Collective::AllGather { send, recv }
            | Collective::ReduceScatter { send, recv, .. }
            | Collective::AllToAll { send, recv } => backend.copy(send, recv, on),
            Collective::AllReduce { .. } | Collective::Reduce { .. } | Collective::Broadcast { .. } => Ok(()),
            // The check refused them: there are no other ranks.
            Collective::Send { .. } | Collective::Recv { .. } => Ok(()),
        }
    }

    fn split(&self, _colour: usize, _key: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Solo))
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self, reason: &str) {
        tracing::debug!(reason, "the only rank gives up");
    }
}
