//! Blocks that appear in a list more than once, as in a model that uses the same weights in every layer: one gradient,
//! one reduction for each micro-batch, and no gather too many, at every level.

use crate::ranks::{Rank, Setting, on_ranks, run};
use bmtrain_core::comm::Communicator;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use std::sync::Arc;

const LEVELS: [ZeroLevel; 4] = [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three];
/// Neighbours, comings back, and one block for all places.
const ORDERS: [&[usize]; 3] = [&[0, 0, 1, 2, 1, 0], &[0, 1, 0, 1], &[0, 0, 0]];

fn setting(order: &'static [usize]) -> Setting {
    Setting { order, blocks: 1 + order.iter().max().unwrap(), steps: 3, ..Setting::default() }
}

#[test]
fn sharing_the_work_changes_no_bit() {
    for order in ORDERS {
        let alone = run(&setting(order));
        assert_eq!(run(&Setting { recompute: Recompute::Checkpoint, ..setting(order) }), alone, "{order:?}");
        for level in LEVELS {
            for ranks in [2, 4] {
                let shared = Setting { ranks, level, ..setting(order) };
                assert_eq!(run(&shared), alone, "{shared:?}");
            }
            for recompute in [Recompute::Keep, Recompute::Checkpoint] {
                for prefetch in [false, true] {
                    let shared = Setting { ranks: 2, level, recompute, prefetch, ..setting(order) };
                    assert_eq!(run(&shared), alone, "{shared:?}");
                }
            }
        }
    }
}

#[test]
fn a_place_of_its_own_samples_random_numbers_of_its_own() {
    // Were dropout addressed by the block, two places would drop the same; then this order and its reverse would agree
    // in the first loss no less, so look at one place against two.
    let once = run(&setting(&[0]));
    let twice = run(&setting(&[0, 0]));
    assert_ne!(once.losses[0], twice.losses[0]);
}

/// Calls of each collective in one micro-batch of each rank, and the most blocks that were whole.
fn calls(setting: &Setting) -> (usize, usize, usize) {
    let seen = on_ranks(setting.ranks, setting.options, |comm| {
        let comm = Arc::new(comm);
        let mut rank = Rank::new(comm.clone(), setting).unwrap();
        rank.micro_batch(0, comm.rank(), setting.ranks, 1.0).unwrap();
        rank.device.sync().unwrap();
        let traffic = comm.traffic();
        let calls = |name: &str| traffic.iter().find(|(known, _)| *known == name).map_or(0, |(_, t)| t.calls as usize);
        (calls("all_gather"), calls("reduce_scatter"), rank.model.parameters.most_gathered_blocks())
    });
    assert!(seen.iter().all(|other| *other == seen[0]));
    seen[0]
}

#[test]
fn gradients_are_exchanged_once_and_neighbours_are_gathered_once() {
    let base = Setting { ranks: 2, level: ZeroLevel::Three, sum: GradientSum::Fast, ..Setting::default() };
    for recompute in [Recompute::Keep, Recompute::Checkpoint] {
        for prefetch in [false, true] {
            for (order, runs) in [(ORDERS[0], 5), (ORDERS[1], 4), (ORDERS[2], 1)] {
                let blocks = 1 + order.iter().max().unwrap();
                let setting = Setting { order, blocks, recompute, prefetch, ..base.clone() };
                let (gathers, reductions, whole) = calls(&setting);
                // The table, then each run of equal neighbours there and back.
                assert_eq!(gathers, 1 + 2 * runs, "{setting:?}");
                assert_eq!(reductions, 1 + blocks, "{setting:?}: each block once, and the table");
                assert_eq!(whole, if prefetch { blocks.min(2) } else { 1 }, "{setting:?}");
            }
        }
    }
}
