//! The block on one rank and on several.

use bmtrain_dist::bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_dist::bmtrain_core::comm::{Communicator, Solo};
use bmtrain_dist::launch::run_group;
use own_block::{Trained, layout, train};
use std::sync::Arc;

const STEPS: usize = 60;

fn shared(ranks: usize) -> Vec<Trained> {
    let group = HostGroup::threads(ranks, HostOptions::default()).unwrap();
    let group = group.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Communicator>).collect();
    run_group(group, |_, rank| move || train(rank, STEPS)).unwrap()
}

/// Stages x tensor-parallel x data-parallel ranks.
fn of_layout(stages: usize, tensor: usize, data: usize) -> Vec<layout::Run> {
    let group = HostGroup::threads(stages * tensor * data, HostOptions::default()).unwrap();
    let group = group.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Communicator>).collect();
    run_group(group, |_, rank| move || layout::train(rank, stages, tensor, STEPS)).unwrap()
}

#[test]
fn two_tensor_parallel_ranks_on_two_stages_train_as_one_rank() {
    let (expected, fingerprint) = layout::train(Arc::new(Solo), 1, 1, STEPS).unwrap();
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let (first, last) = (mean(&expected[..4]), mean(&expected[expected.len() - 4..]));
    assert!(last < 0.2 * first, "the loss falls: {first} to {last}");
    // Stages alone change no bit.
    for (losses, found) in of_layout(2, 1, 1) {
        assert_eq!((&losses, &found), (&expected, &fingerprint));
    }
    let tensor = of_layout(1, 2, 1);
    let both = of_layout(2, 2, 1);
    assert_eq!(both, [&tensor[..], &tensor[..]].concat(), "stages change no bit of tensor-parallel ranks");
    // Sums over two ranks have other terms in f32, and Adam's steps carry that on.
    for (loss, expected) in both[0].0.iter().zip(&expected) {
        assert!((loss - expected).abs() <= 1e-5 * first, "{loss}, on one rank {expected}");
    }
    // And with data-parallel ranks: the losses of each are every second one.
    let all = of_layout(2, 2, 2);
    for (number, expected) in expected.iter().enumerate() {
        // Ranks 0 and 2 are the first tensor-parallel ranks of the two data-parallel ones.
        let loss = all[2 * (number % 2)].0[number / 2];
        assert!((loss - expected).abs() <= 1e-5 * first, "{loss}, on one rank {expected}");
    }
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
