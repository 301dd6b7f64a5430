//! Rank threads and the groups of their mesh.

use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_dist::RankGroups;
use std::sync::Arc;

/// Run on `world` rank threads, `tensor` of them to a tensor group; what they return in the order of the ranks.
pub fn on_ranks<T: Send>(world: usize, tensor: usize, body: impl Fn(RankGroups) -> T + Sync) -> Vec<T> {
    on_stages(world, 1, tensor, body)
}

/// The same, in this number of pipeline stages.
pub fn on_stages<T: Send>(world: usize, stages: usize, tensor: usize, body: impl Fn(RankGroups) -> T + Sync) -> Vec<T> {
    if world == 1 {
        return vec![body(RankGroups::solo())];
    }
    let ranks = HostGroup::threads(world, HostOptions::default()).unwrap();
    let start = &|rank: HostRank| body(RankGroups::split(Arc::new(rank), stages, tensor).unwrap());
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || start(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
