//! A model that is cut over ranks is written as one directory, and no rank ever holds more of it than a block, nor
//! reads more of a file than its share.

use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::{DType, Device, Segment};
use bmtrain_dist::param::WholeReader;
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::Result;
use model_center::formats::{DirectoryLayout, TensorEntry, TensorSource, Weights};
use model_center::model::{OpenMode, OpenOptions, Registry, SaveOptions};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn golden(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(directory)
}

/// Weights that count the elements that are read of them.
pub struct Counted {
    pub weights: Weights,
    pub elements: Cell<usize>,
}

impl TensorSource for Counted {
    fn place(&self) -> String {
        self.weights.place()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.weights.entries()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<()> {
        self.elements.set(self.elements.get() + out.len());
        self.weights.read_f32(name, out)
    }

    fn read_f32_at(&self, name: &str, first: usize, out: &mut [f32]) -> Result<()> {
        self.elements.set(self.elements.get() + out.len());
        self.weights.read_f32_at(name, first, out)
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        self.weights.read_raw_at(name, offset, out)
    }

    fn reads_parts(&self, name: &str) -> bool {
        self.weights.reads_parts(name)
    }
}

/// Elements that each of two ranks reads of a directory under ZeRO-3, and all elements of the model; the values equal a
/// one-rank model's.
fn read_by_two(directory: &Path) -> ([usize; 2], usize) {
    let open = |sharding: Sharding, mode: OpenMode| {
        let device = Device::cpu(1).unwrap();
        let options = OpenOptions { sharding, mode, ..OpenOptions::new(&device) };
        Registry::default().open(directory, &options).unwrap()
    };
    let alone = open(Sharding::solo(), OpenMode::Load);
    let values: Vec<Vec<f32>> = alone.model.parameters().iter().map(|param| param.read().unwrap()).collect();
    let mut read = [0; 2];
    let group = HostGroup::threads(2, HostOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for (rank, count) in group.into_iter().zip(&mut read) {
            let (open, values) = (&open, &values);
            scope.spawn(move || {
                let sharding =
                    Sharding { ranks: Arc::new(rank), level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true };
                let opened = open(sharding, OpenMode::WithoutValues);
                let parameters = opened.model.parameters();
                let source = Counted { weights: Weights::open(directory).unwrap(), elements: Cell::new(0) };
                let load = opened.plan.load_parts(&source, |name, read| parameters.get(name).unwrap().load_part(read));
                load.unwrap();
                *count = source.elements.get();
                for (param, values) in parameters.iter().zip(values) {
                    assert_eq!(&param.read().unwrap(), values, "{}", param.name());
                }
            });
        }
    });
    (read, values.iter().map(Vec::len).sum())
}

#[test]
fn under_zero_3_a_rank_reads_its_share_of_the_file() {
    let (read, all) = read_by_two(&golden("bert_a/nsp"));
    assert_eq!(read[0] + read[1], all, "every value is read once");
    assert!(read.iter().all(|count| *count < all * 6 / 10), "{read:?} of {all}");
    // GPT-2 stores its matrices the other way round: one that is cut is read whole by both, others by the rank that has
    // them.
    let (read, all) = read_by_two(&golden("gpt2_a/lm"));
    assert!(read[0] + read[1] > all && read.iter().all(|count| *count < all), "{read:?} of {all}");
}

#[test]
fn saving_a_model_of_several_ranks_gathers_one_block_at_a_time_and_gives_the_same_file() {
    let directory = golden("bert_a/nsp");
    let written = tempfile::tempdir().unwrap();
    let options = SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace };
    let alone = Registry::default().open(&directory, &OpenOptions::new(&Device::cpu(1).unwrap())).unwrap();
    alone.model.save(&written.path().join("alone"), &options).unwrap();
    let group = HostGroup::threads(2, HostOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for (number, rank) in group.into_iter().enumerate() {
            let (directory, to) = (&directory, written.path().join("shared"));
            scope.spawn(move || {
                let device = Device::cpu(1).unwrap();
                let sharding =
                    Sharding { ranks: Arc::new(rank), level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true };
                let options = OpenOptions { sharding, ..OpenOptions::new(&device) };
                let model = Registry::default().open(directory, &options).unwrap().model;
                let gathered = || {
                    let segments = device.memory().segments;
                    segments.iter().find(|(known, _)| *known == Segment::Gathered).map_or(0, |(_, usage)| usage.peak)
                };
                assert_eq!(gathered(), 0, "loading gathers nothing");
                if number == 0 {
                    model
                        .save(
                            &to,
                            &SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace },
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
