//! A model that is cut over ranks is written as one folder, and no rank ever holds more of it than a block.
#![allow(clippy::unwrap_used)]

use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::{DType, Device, Segment};
use bmtrain_dist::param::WholeReader;
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::hf::FolderLayout;
use model_center::model::{OpenOptions, Registry, SaveOptions};
use std::path::Path;
use std::sync::Arc;

#[test]
fn saving_a_model_of_several_ranks_gathers_one_block_at_a_time_and_gives_the_same_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bert_a/nsp");
    let written = tempfile::tempdir().unwrap();
    let options = SaveOptions { dtype: DType::F32, companions: None, layout: FolderLayout::HuggingFace };
    let alone = Registry::default().open(&folder, &OpenOptions::new(&Device::cpu(1).unwrap())).unwrap();
    alone.model.save(&written.path().join("alone"), &options).unwrap();
    let group = HostGroup::threads(2, HostOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for (number, rank) in group.into_iter().enumerate() {
            let (folder, to) = (&folder, written.path().join("shared"));
            scope.spawn(move || {
                let device = Device::cpu(1).unwrap();
                let sharding =
                    Sharding { ranks: Arc::new(rank), level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true };
                let options = OpenOptions { sharding, ..OpenOptions::new(&device) };
                let model = Registry::default().open(folder, &options).unwrap().model;
                let gathered = || {
                    let segments = device.memory().segments;
                    segments.iter().find(|(known, _)| *known == Segment::Gathered).map_or(0, |(_, usage)| usage.peak)
                };
                assert_eq!(gathered(), 0, "loading gathers nothing");
                if number == 0 {
                    model
                        .save(
                            &to,
                            &SaveOptions { dtype: DType::F32, companions: None, layout: FolderLayout::HuggingFace },
                        )
                        .unwrap();
                } else {
                    let mut reader = WholeReader::default();
                    model.parameters().iter().try_for_each(|param| reader.pass(param)).unwrap();
                }
                let flats = model.parameters().flats();
                let bytes = |len: usize| len * DType::F32.size();
                let largest = flats.iter().map(|flat| bytes(flat.layout().gathered_len())).max().unwrap();
                let all: usize = flats.iter().map(|flat| bytes(flat.layout().gathered_len())).sum();
                assert!(gathered() <= largest && largest < all / 2, "{} of {largest}, {all} in all", gathered());
            });
        }
    });
    let file = |name: &str| std::fs::read(written.path().join(name).join("model.safetensors")).unwrap();
    assert!(file("alone") == file("shared"));
}
