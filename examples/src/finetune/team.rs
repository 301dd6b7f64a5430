//! The ranks that train together, as the training loop sees them: who writes, and what all have to know.

use bmtrain_core::comm::{Collective, Communicator};
use bmtrain_core::{Device, Lane, Segment, Tensor};
use model_center::Result;
use std::sync::Arc;

/// One rank's view of the team.
#[derive(Debug, Clone)]
pub struct Team {
    ranks: Arc<dyn Communicator>,
    device: Device,
}

impl Team {
    /// The team of a communicator, exchanging small numbers through this rank's device.
    pub fn new(ranks: Arc<dyn Communicator>, device: &Device) -> Self {
        Team { ranks, device: device.clone() }
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.ranks.rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.ranks.size()
    }

    /// Whether this rank writes files and speaks for all.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The numbers of every rank, in the order of the ranks; all give equally many. Waits for the others.
    ///
    /// # Errors
    /// A failing exchange.
    pub fn gather(&self, numbers: &[f32]) -> Result<Vec<Vec<f32>>> {
        if self.size() == 1 {
            return Ok(vec![numbers.to_vec()]);
        }
        let len = numbers.len();
        let own = Tensor::from_slice(&self.device, [len], numbers, Segment::Workspace)?;
        let all = [self.size() * len];
        let mut all = Tensor::full(&self.device, all, bmtrain_core::DType::F32, 0.0, Segment::Workspace)?;
        let collective = Collective::AllGather { send: own.view()?, recv: all.view_mut()? };
        self.ranks.launch(self.device.backend(), collective, Lane::Compute)?;
        Ok(all.to_vec::<f32>()?.chunks(len.max(1)).map(<[f32]>::to_vec).collect())
    }
}
