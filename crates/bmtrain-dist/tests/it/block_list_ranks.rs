//! Block lists on two ranks under ZeRO-2 and 3: several streams, hidden states with gradient, inputs without, blocks in
//! several places, parameters outside of the blocks that use them. Both ranks do the same, so that the sum of their
//! gradients is exactly twice the gradient of one rank alone.

use crate::ranks;
use crate::streams;

use bmtrain_core::Var;
use bmtrain_core::comm::host::HostOptions;
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Block, Builder, Result, TransformerBlockList};
use ranks::on_ranks;
use std::sync::Arc;
use streams::{Case, Setting, Streams, Way, cases, pairs, repeated, rooted};

/// Whether the loss reads the last block's output, and the hidden states that it reads.
const LOOKS: [(bool, &[usize]); 4] = [(true, &[]), (true, &[0, 1, 2, 3]), (false, &[2]), (false, &[1, 3])];

fn compare<B>(make: impl Fn(&Builder, BlockOptions) -> Result<TransformerBlockList<B>> + Sync, what: &str)
where
    B: Block<Carry = Streams, Shared = Var, Cache = ()> + 'static,
{
    let cases: Vec<Case> = LOOKS.iter().flat_map(|(last, hidden)| cases(*last, hidden)).collect();
    let alone = Setting::new(Recompute::Keep, Sharding::solo(), &make);
    let expected: Vec<_> = cases.iter().map(|case| alone.pass(Way::List, case)).collect();
    // Not all of it is nothing.
    assert!(expected.iter().any(|outcome| outcome.gradients.iter().all(|(_, grad)| !grad.is_empty())));
    on_ranks(2, HostOptions::default(), |comm| {
        let ranks: Arc<dyn bmtrain_core::comm::Communicator> = Arc::new(comm);
        for (level, recompute, prefetch) in [
            (ZeroLevel::Three, Recompute::Keep, true),
            (ZeroLevel::Three, Recompute::Checkpoint, false),
            (ZeroLevel::Two, Recompute::Checkpoint, true),
            (ZeroLevel::Three, Recompute::Every(2), true),
            (ZeroLevel::Three, Recompute::Every(3), false),
            (ZeroLevel::Two, Recompute::Every(3), true),
        ] {
            let sharding = Sharding { ranks: Arc::clone(&ranks), level, sum: GradientSum::Fast, prefetch };
            let shared = Setting::new(recompute, sharding, &make);
            for (case, expected) in cases.iter().zip(&expected) {
                let got = shared.pass(Way::List, case);
                assert!(got == *expected, "{what} {level:?} {recompute:?} {case:?}");
                let whole: Vec<bool> = shared.parameters.flats().iter().map(|flat| flat.is_gathered()).collect();
                assert!(!whole.contains(&true), "{what} {level:?} {case:?}: still whole: {whole:?}");
            }
        }
    });
}

#[test]
fn gradients_are_those_of_one_rank_whatever_is_wanted_frozen_and_looked_at() {
    compare(pairs, "pairs");
}

#[test]
fn gradients_of_blocks_in_two_places_are_those_of_one_rank() {
    compare(repeated, "repeated");
}

#[test]
fn gradients_of_a_parameter_outside_of_its_blocks_are_those_of_one_rank() {
    compare(rooted, "rooted");
}
