//! Adapters beside quantized models on several ranks.

use super::{LLAMA, Models, losses};
use crate::tensor_parallel::ranks::on_ranks;
use bmtrain_core::Device;
use bmtrain_dist::RankGroups;
use bmtrain_dist::param::TensorGroup;
use bmtrain_dist::shard::{Sharding, ZeroLevel};
use model_center::model::{OpenOptions, Registry, WeightForm};
use std::sync::Arc;

#[test]
fn ranks_train_beside_blocks_as_one_rank_does() {
    for dora in [false, true] {
        ranks_train_as_one(&Models::with(LLAMA, &["all-linear"], dora));
    }
}

fn ranks_train_as_one(models: &Models) {
    let run = |groups: &RankGroups, level: ZeroLevel, sequence: bool| {
        let device = Device::cpu(1).unwrap();
        let sharding = Sharding { ranks: Arc::clone(groups.data()), level, ..Sharding::solo() };
        let tensor = TensorGroup { sequence, vocabulary_multiple: 8, ..TensorGroup::default() };
        let options = OpenOptions { sharding, tensor, ..models.options(&device, WeightForm::Nf4) };
        let opened = Registry::default().open(&models.own(), &options.on_groups(groups)).unwrap();
        losses(&opened, &device, groups)
    };
    let alone = run(&RankGroups::solo(), ZeroLevel::Zero, false);
    let close = |ours: &[f32], what: &str| {
        for (ours, alone) in ours.iter().zip(&alone) {
            assert!((ours - alone).abs() <= 1e-5 * alone, "{what}: {ours} for {alone}");
        }
    };
    for level in [ZeroLevel::Two, ZeroLevel::Three] {
        let ranks = on_ranks(2, 1, |groups| run(&groups, level, false));
        let sums: Vec<f32> = ranks[0].iter().zip(&ranks[1]).map(|(a, b)| a + b).collect();
        close(&sums, &format!("{level:?}"));
    }
    for sequence in [false, true] {
        for losses in on_ranks(2, 2, |groups| run(&groups, ZeroLevel::Zero, sequence)) {
            close(&losses, &format!("tensor ranks, tokens sharded {sequence}"));
        }
    }
}

#[test]
fn tensor_ranks_that_split_blocks_are_refused_with_the_layer() {
    let models = Models::new(LLAMA, &["all-linear"]);
    let errors = on_ranks(4, 4, |groups| {
        let device = Device::cpu(1).unwrap();
        let options = models.options(&device, WeightForm::Nf4).on_groups(&groups);
        Registry::default().open(&models.own(), &options).err().map(|error| error.to_string())
    });
    for error in errors.into_iter().flatten() {
        assert!(error.contains("_out.weight"), "{error}");
        assert!(error.contains("inside a NF4 block of 64"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
