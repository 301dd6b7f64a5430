//! The time of collectives over rings of ranks.

use super::communication::ring_share;
use super::machine::Machine;
use crate::Result;
use bmtrain_dist::mesh::RankGroup;
use model_center_train::formula::ParallelLayout;

/// A group of ranks and the slowest part of the ring through them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ring {
    ranks: usize,
    /// Seconds of latency of one round.
    latency: f64,
    /// Bytes per second.
    bandwidth: f64,
}

impl Ring {
    /// The ring of a layout's groups of a kind. Between hosts it has the network's share of every member on a host;
    /// inside a host the bandwidth of the links there.
    ///
    /// # Errors
    /// A layout that divides no ranks.
    pub fn of(layout: &ParallelLayout, kind: RankGroup, machine: &Machine) -> Result<Self> {
        let (ranks, hosts) = layout.spread(kind, machine.ranks_per_host)?;
        let (inside, between) = (machine.inside, machine.between);
        if hosts == 1 {
            let latency = (ranks as f64 - 1.0) * inside.latency();
            return Ok(Ring { ranks, latency, bandwidth: inside.bandwidth() });
        }
        let members = (ranks / hosts).max(1) as f64;
        let latency = (hosts as f64 - 1.0) * between.latency() + (ranks - hosts) as f64 * inside.latency();
        Ok(Ring { ranks, latency, bandwidth: (members * between.bandwidth()).min(inside.bandwidth()) })
    }

    /// Seconds of an all-gather or a reduce-scatter whose full size is `bytes`.
    pub fn half(&self, bytes: f64) -> f64 {
        if self.ranks == 1 { 0.0 } else { self.latency + ring_share(self.ranks) * bytes / self.bandwidth }
    }

    /// Seconds of an all-reduce of `bytes`.
    pub fn all_reduce(&self, bytes: f64) -> f64 {
        2.0 * self.half(bytes)
    }

    /// Network of these ranks whose links take no time.
    #[must_use]
    pub fn free(self) -> Self {
        Ring { latency: 0.0, bandwidth: f64::INFINITY, ..self }
    }
}
