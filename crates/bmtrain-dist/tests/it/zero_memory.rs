//! Memory of a rank under ZeRO-3, and cost of frozen blocks: measured by the rank's pool and by its communicator.

use crate::ranks::{Rank, Setting, on_ranks, peak};
use bmtrain_core::{DType, Segment};
use bmtrain_dist::shard::{GradientSum, ZeroLevel};
use std::sync::Arc;

const SETTING: fn() -> Setting = || Setting {
    ranks: 4,
    level: ZeroLevel::Three,
    sum: GradientSum::Fast,
    blocks: 12,
    size: 64,
    ..Setting::default()
};

/// Bytes of one storage, cut into shards or whole.
fn bytes(elements: usize, dtype: DType) -> usize {
    elements * dtype.size()
}

#[test]
fn a_rank_holds_its_shards_and_two_blocks() {
    let mut most = 0.0f64;
    for (dtype, sum) in
        [(DType::F32, GradientSum::Fast), (DType::F32, GradientSum::Elastic), (DType::BF16, GradientSum::Fast)]
    {
        let setting = Setting { dtype, sum, ..SETTING() };
        let shares = on_ranks(setting.ranks, setting.options, |comm| {
            let rank_number = bmtrain_core::comm::Communicator::rank(&comm);
            let mut rank = Rank::new(Arc::new(comm), &setting).unwrap();
            for step in 0..3 {
                for index in (rank_number..setting.micro_batches * 2).step_by(setting.ranks) {
                    rank.micro_batch(step, index, setting.micro_batches * 2, 1.0).unwrap();
                }
                rank.optim.step().unwrap();
            }
            let report = rank.device.memory();
            let flats = rank.model.parameters.flats();
            let shard: usize = flats.iter().map(|flat| flat.layout().shard_len()).sum();
            let of = |in_block: bool| {
                let whole = flats.iter().filter(move |flat| (flat.layout().spans().len() > 1) == in_block);
                whole.map(|flat| flat.layout().gathered_len())
            };
            let (block, roots) = (of(true).max().unwrap(), of(false).sum::<usize>());
            // Gradients have the type of the storage's gradients, f32 here; moments and masters are f32.
            let grad = DType::F32;
            let masters = if dtype == DType::F32 { 0 } else { bytes(shard, DType::F32) };
            let shards = bytes(shard, dtype) + masters + 2 * bytes(shard, DType::F32) + bytes(shard, grad);
            let tree = match sum {
                GradientSum::Fast => 0,
                // Eight micro-batches: at most four sums instead of the one counted above.
                GradientSum::Elastic => 3 * bytes(shard, grad),
            };
            let blocks = 2 * bytes(block, dtype) + 2 * bytes(block, grad);
            let bound = shards + blocks + bytes(roots, dtype) + bytes(roots, grad) + tree;
            let segments = [Segment::Parameters, Segment::Gathered, Segment::Gradients, Segment::Optimizer];
            let measured: usize = segments.into_iter().map(|segment| peak(&report, segment)).sum();
            assert!(
                measured as f64 <= 1.05 * bound as f64,
                "{dtype} {sum:?} rank {rank_number}: {measured} bytes, bound {bound}"
            );
            let gathered = peak(&report, Segment::Gathered);
            assert!(gathered <= 2 * bytes(block, dtype) + bytes(roots, dtype) + 4096, "{gathered} bytes gathered");
            measured as f64 / bound as f64
        });
        most = shares.into_iter().fold(most, f64::max);
    }
    println!("figure: {most:.3}");
}

#[test]
fn no_rank_ever_holds_the_whole_model() {
    let setting = SETTING();
    on_ranks(setting.ranks, setting.options, |comm| {
        let rank = Rank::new(Arc::new(comm), &setting).unwrap();
        let whole: usize =
            rank.model.parameters.iter().map(|param| bytes(param.spec().shape.elements(), DType::F32)).sum();
        let born = rank.device.memory().total.peak;
        assert!(born < whole / 3, "{born} bytes after initialization for a model of {whole}");
    });
}

/// Bytes as the pool counts them.
fn taken(elements: usize, dtype: DType) -> usize {
    bytes(elements, dtype).next_multiple_of(512)
}

#[test]
fn sums_are_one_shard_when_fast_and_few_when_elastic() {
    for (sum, micro_batches) in [
        (GradientSum::Fast, 16),
        (GradientSum::Elastic, 2),
        (GradientSum::Elastic, 4),
        (GradientSum::Elastic, 10),
        (GradientSum::Elastic, 16),
        (GradientSum::Elastic, 32),
    ] {
        let setting = Setting { ranks: 2, level: ZeroLevel::Three, sum, micro_batches, ..Setting::default() };
        let most = on_ranks(setting.ranks, setting.options, |comm| {
            let number = bmtrain_core::comm::Communicator::rank(&comm);
            let mut rank = Rank::new(Arc::new(comm), &setting).unwrap();
            let shards: usize =
                rank.model.parameters.flats().iter().map(|flat| taken(flat.layout().shard_len(), DType::F32)).sum();
            let mut most = 0;
            for index in (number..micro_batches).step_by(setting.ranks) {
                rank.micro_batch(0, index, micro_batches, 1.0).unwrap();
                // Between micro-batches nothing but sums is left of the gradients.
                let report = rank.device.memory();
                let (_, gradients) = report.segments.iter().find(|(name, _)| *name == Segment::Gradients).unwrap();
                assert!(gradients.now.is_multiple_of(shards), "{sum:?}: {} of {shards} bytes", gradients.now);
                most = most.max(gradients.now / shards);
            }
            rank.optim.step().unwrap();
            most
        });
        let bound = match sum {
            GradientSum::Fast => 1,
            GradientSum::Elastic => 1 + micro_batches.next_power_of_two().ilog2() as usize,
        };
        assert!(most.iter().all(|&most| most <= bound), "{sum:?}, {micro_batches} micro-batches: {most:?} shards");
        // Elastic sums are a tree: two pairs alone need two sums.
        assert!(sum == GradientSum::Fast || micro_batches < 10 || most[0] > 2, "{micro_batches}: {most:?}");
    }
}

#[test]
fn frozen_blocks_make_no_gradient_and_send_none() {
    let setting = Setting { ranks: 2, ..SETTING() };
    let sent = |frozen: usize| {
        let seen = on_ranks(setting.ranks, setting.options, |comm| {
            let comm = Arc::new(comm);
            let number = bmtrain_core::comm::Communicator::rank(&*comm);
            let mut rank = Rank::new(comm.clone(), &setting).unwrap();
            // The table stays trained, so that every block's input needs a gradient.
            for param in rank.model.parameters.iter() {
                let block = param.name().split('.').nth(1).and_then(|number| number.parse::<usize>().ok());
                param.set_trainable(block.is_none_or(|block| block >= frozen));
            }
            rank.micro_batch(0, number, 2, 1.0).unwrap();
            rank.optim.step().unwrap();
            rank.device.sync().unwrap();
            let traffic = comm.traffic();
            let (_, sent) = traffic.iter().find(|(name, _)| *name == "reduce_scatter").unwrap();
            let flats = rank.model.parameters.flats();
            let table = flats.iter().find(|flat| flat.layout().spans().len() == 1).unwrap().layout().clone();
            ((sent.calls, sent.bytes), peak(&rank.device.memory(), Segment::Gradients), table)
        });
        assert_eq!(seen[0].0, seen[1].0);
        seen[0].clone()
    };
    let ((all_calls, _), all_bytes, _) = sent(0);
    assert_eq!(all_calls, 13, "twelve blocks and the table");
    let ((few_calls, _), few_bytes, _) = sent(11);
    assert_eq!(few_calls, 2, "one block and the table");
    let ((no_calls, no_sent), no_bytes, table) = sent(12);
    assert_eq!(no_calls, 1, "the table alone");
    assert!(no_bytes < few_bytes && few_bytes < all_bytes, "{no_bytes} {few_bytes} {all_bytes}");
    // To the byte: what the table alone sends, and its gradients as embedding and as head, before the shard arrives.
    assert_eq!(no_sent as usize, bytes(table.gathered_len(), DType::F32));
    assert_eq!(no_bytes, 2 * taken(table.gathered_len(), DType::F32));
}
