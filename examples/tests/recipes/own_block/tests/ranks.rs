//! The block on one rank and on two.

use bmtrain_dist::bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_dist::bmtrain_core::comm::{Communicator, Solo};
use bmtrain_dist::launch::run_group;
use own_block::{Trained, train};
use std::sync::Arc;

const STEPS: usize = 60;

fn shared(ranks: usize) -> Vec<Trained> {
    let group = HostGroup::threads(ranks, HostOptions::default()).unwrap();
    let group = group.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Communicator>).collect();
    run_group(group, |_, rank| move || train(rank, STEPS)).unwrap()
}

#[test]
fn two_ranks_under_zero_3_train_as_one_does_to_the_last_bit() {
    let alone = train(Arc::new(Solo), STEPS).unwrap();
    let of_step = |step: usize| alone.losses[4 * step..4 * (step + 1)].iter().map(|(_, loss)| loss).sum::<f32>() / 4.0;
    assert!(of_step(STEPS - 1) < 0.2 * of_step(0), "the loss falls: {} to {}", of_step(0), of_step(STEPS - 1));
    let both = shared(2);
    let mut losses: Vec<(usize, f32)> = both.iter().flat_map(|rank| rank.losses.clone()).collect();
    losses.sort_by_key(|(number, _)| *number);
    assert_eq!(losses, alone.losses);
    for rank in &both {
        assert_eq!(rank.losses.len(), alone.losses.len() / 2, "each rank does half of the work");
        assert_eq!(rank.fingerprint, alone.fingerprint);
    }
}
