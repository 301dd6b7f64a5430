//! Checkpoints of vocabularies with padding, over several tensor-parallel ranks and on one.

use super::*;

#[test]
fn padding_of_the_vocabulary_is_in_no_checkpoint_and_stays_zero() {
    // 97 tokens, all of them on the first rank.
    let job = Job { vocabulary_multiple: 128, ..gpt2_job() };
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    on_ranks(Layout::new(2, 2, ZeroLevel::Zero), |groups| {
        let mut rank = Rank::new(&job, &groups, ZeroLevel::Zero, Training::default());
        rank.train(&job, 0..1);
        rank.save(&store, 1);
        let mut again = Rank::new(&job, &groups, ZeroLevel::Zero, Training { seed: 4, ..Training::default() });
        again.restore(&store);
        let values = |rank: &Rank| rank.model.parameters().iter().map(|p| p.read().unwrap()).collect::<Vec<_>>();
        assert_eq!(values(&rank), values(&again));
        assert_eq!(rank.train(&job, 1..3), again.train(&job, 1..3));
        assert_eq!(rank.optim.fingerprint().unwrap(), again.optim.fingerprint().unwrap());
    });
    let checkpoint = newest(&store);
    let table = checkpoint.tensors().iter().find(|tensor| tensor.shape.first() == Some(&97)).unwrap();
    assert!(checkpoint.manifest().files[1].pieces.iter().all(|piece| piece.spec.name != table.name));
}

/// A run on one rank goes on with padding where it was saved without, and the other way round, with the same bits.
#[test]
fn one_rank_continues_with_or_without_padding() {
    let courses = |pads: [bool; 2], offload: bool| {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let courses = on_ranks(Layout::new(1, 1, ZeroLevel::Zero), |groups| {
            let [first, second] = pads.map(|pads_one_rank| Job { pads_one_rank, ..gpt2_job() });
            let training = |seed| Training { seed, offload, ..Training::default() };
            let mut rank = Rank::new(&first, &groups, ZeroLevel::Zero, training(11));
            rank.train(&first, 0..2);
            rank.save(&store, 2);
            let mut again = Rank::new(&second, &groups, ZeroLevel::Zero, training(4));
            again.restore(&store);
            (again.train(&second, 2..5), again.optim.fingerprint().unwrap())
        });
        (courses, newest(&store).digest().unwrap())
    };
    for offload in [false, true] {
        let plain = courses([false, false], offload);
        for pads in [[true, true], [true, false], [false, true]] {
            assert_eq!(courses(pads, offload), plain, "{pads:?}, offload {offload}");
        }
    }
}
