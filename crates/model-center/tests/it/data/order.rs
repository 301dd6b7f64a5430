//! Permutations of samples.

use bmtrain_dist::bmtrain_core::philox::Key;
use model_center::data::Permutation;

fn order(seed: u64, epoch: u32, items: u64) -> Vec<u64> {
    let order = Permutation::new(Key::new(seed, "test"), [epoch, 0, 0], items);
    (0..items).map(|index| order.at(index).unwrap()).collect()
}

#[test]
fn every_size_gives_a_bijection() {
    let large = [1000, 1023, 1024, 1025, 4097, 65_535, 65_536, 65_537, 100_003];
    for items in (0..300).chain(large) {
        let mut seen = order(items, 3, items);
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..items), "{items}");
    }
}

#[test]
fn huge_sets_work_without_memory() {
    let order = Permutation::new(Key::new(1, "test"), [0, 0, 0], u64::MAX);
    assert_eq!(order.len(), 1 << 48);
    let items: std::collections::HashSet<u64> = (0..1000).map(|index| order.at(index).unwrap()).collect();
    assert_eq!(items.len(), 1000);
    assert!(items.iter().all(|item| *item < 1 << 48));
    assert_eq!(order.at(1 << 48), None);
}

/// Orders are part of what a resumed run must reproduce, so these values may never change.
#[test]
fn orders_are_frozen() {
    assert_eq!(order(0, 0, 10), FROZEN_SEED_0);
    assert_eq!(order(7, 2, 10), FROZEN_SEED_7);
}
const FROZEN_SEED_0: [u64; 10] = [6, 8, 2, 5, 0, 4, 7, 3, 1, 9];
const FROZEN_SEED_7: [u64; 10] = [7, 4, 5, 6, 9, 8, 0, 2, 1, 3];

#[test]
fn seeds_and_epochs_give_unrelated_orders() {
    let base = order(1, 0, 1000);
    for other in [order(2, 0, 1000), order(1, 1, 1000)] {
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{same} fixed places; about one is expected");
    }
}

/// Over 24,000 orders every item must be at every place, and every pair of neighbours occur, about equally
/// often.
#[test]
fn places_and_neighbours_are_uniform() {
    const ORDERS: u64 = 24_000;
    for items in 2_u64..=9 {
        let n = items as usize;
        let mut places = vec![0_f64; n * n];
        let mut neighbours = vec![0_f64; n * n];
        for seed in 0..ORDERS {
            let order = order(seed, 0, items);
            for (place, item) in order.iter().enumerate() {
                places[place * n + *item as usize] += 1.0;
            }
            for pair in order.windows(2) {
                neighbours[pair[0] as usize * n + pair[1] as usize] += 1.0;
            }
        }
        let chi_square = |counts: &[f64], expected: f64| {
            counts.iter().map(|count| (count - expected).powi(2) / expected).sum::<f64>()
        };
        // Mean of chi-square = degrees of freedom f, deviation sqrt(2 f); five deviations allow no visible bias.
        let bound = |freedom: f64| freedom + 5.0 * (2.0 * freedom).sqrt();
        let places = chi_square(&places, ORDERS as f64 / n as f64);
        assert!(places < bound(((n - 1) * (n - 1)) as f64), "{items} items: {places}");
        let off_diagonal: Vec<f64> = (0..n * n).filter(|at| at / n != at % n).map(|at| neighbours[at]).collect();
        let expected = ORDERS as f64 / n as f64;
        let neighbours = chi_square(&off_diagonal, expected);
        // Neighbour counts are slightly dependent; n (n - 1) cells bound the freedom from above.
        assert!(neighbours < bound((n * (n - 1)) as f64), "{items} items: {neighbours}");
    }
}
