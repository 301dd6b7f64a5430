//! Directories of Hugging Face and of ModelCenter under tensor parallelism: each rank reads its ranges, and one rank
//! writes the full model, a parameter at a time.

use crate::goldens::directories::open;
use crate::goldens::directory;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::{DType, Device};
use bmtrain_dist::param::{TensorGroup, WholeReader};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Mesh, RankGroup};
use model_center::formats::{DirectoryLayout, TensorEntry, TensorSource, Weights};
use model_center::model::{OpenOptions, SaveOptions};
use std::cell::Cell;
use std::path::Path;

fn options(rank: &HostRank, (world, tensor, level): (usize, usize, ZeroLevel), device: &Device) -> OpenOptions {
    let mesh = Mesh::new(rank.rank(), world, 1, tensor).unwrap();
    let group = |kind| {
        let (colour, key) = mesh.colour_and_key(kind);
        rank.split(colour, key).unwrap()
    };
    let tensor = TensorGroup { ranks: group(RankGroup::Tensor), vocabulary_multiple: 8 };
    let sharding = Sharding { ranks: group(RankGroup::TensorZero), level, sum: GradientSum::Fast, prefetch: true };
    OpenOptions { mesh, tensor, sharding, ..OpenOptions::new(device) }
}

fn on_threads(world: usize, body: impl Fn(HostRank) + Sync) {
    let ranks = HostGroup::threads(world, HostOptions::default()).unwrap();
    std::thread::scope(|scope| ranks.into_iter().for_each(|rank| drop(scope.spawn(|| body(rank)))));
}

/// All files of a directory.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn a_model_of_tensor_parallel_ranks_is_written_as_the_directory_of_one_rank() {
    let (hugging_face, model_center) = (DirectoryLayout::HuggingFace, DirectoryLayout::ModelCenter);
    for (model, head, layout) in [
        ("bert_a", "mlm", hugging_face),
        ("bert_a", "mlm", model_center),
        ("gpt2_a", "lm", hugging_face),
        ("gpt2_a", "lm", model_center),
        ("gptj_a", "lm", hugging_face),
        ("bloom_a", "untied", hugging_face),
    ] {
        let golden = directory(model, head);
        let save = SaveOptions { dtype: DType::F32, companions: Some(&golden), layout };
        let to = tempfile::tempdir().unwrap();
        let alone = open(&golden, &OpenOptions::new(&Device::cpu(1).unwrap())).unwrap();
        alone.model.save(&to.path().join("alone"), &save).unwrap();
        let expected = files(&to.path().join("alone"));
        for (number, of_ranks) in [(2, 2, ZeroLevel::Zero), (4, 2, ZeroLevel::Three)].into_iter().enumerate() {
            let to = to.path().join(number.to_string());
            on_threads(of_ranks.0, |rank| {
                let (device, first) = (Device::cpu(1).unwrap(), rank.rank() == 0);
                let model = open(&golden, &options(&rank, of_ranks, &device)).unwrap().model;
                if first {
                    model.save(&to, &save).unwrap();
                } else {
                    let mut reader = WholeReader::default();
                    model.parameters().iter().try_for_each(|param| reader.pass(param)).unwrap();
                }
            });
            assert!(files(&to) == expected, "{model} {head} {layout:?} from {of_ranks:?}");
        }
    }
}

/// Weights that count the elements that are read of them.
struct Counted {
    weights: Weights,
    elements: Cell<usize>,
}

impl TensorSource for Counted {
    fn place(&self) -> String {
        self.weights.place()
    }

    fn entries(&self) -> Vec<&TensorEntry> {
        self.weights.entries()
    }

    fn read_f32(&self, name: &str, out: &mut [f32]) -> model_center::Result<()> {
        self.elements.set(self.elements.get() + out.len());
        self.weights.read_f32(name, out)
    }

    fn read_f32_at(&self, name: &str, first: usize, out: &mut [f32]) -> model_center::Result<()> {
        self.elements.set(self.elements.get() + out.len());
        self.weights.read_f32_at(name, first, out)
    }

    fn read_raw_at(&self, name: &str, offset: u64, out: &mut [u8]) -> model_center::Result<()> {
        self.weights.read_raw_at(name, offset, out)
    }

    fn reads_parts(&self, name: &str) -> bool {
        self.weights.reads_parts(name)
    }
}

#[test]
fn a_tensor_parallel_rank_reads_the_elements_it_stores_and_no_others() {
    let golden = directory("bert_a", "mlm");
    on_threads(2, |rank| {
        let device = Device::cpu(1).unwrap();
        let layout = (2, 2, ZeroLevel::Zero);
        let opened = open(&golden, &OpenOptions { leave_values: true, ..options(&rank, layout, &device) }).unwrap();
        let (parameters, stored) = (opened.model.parameters(), Cell::new(0));
        let source = Counted { weights: Weights::open(&golden).unwrap(), elements: Cell::new(0) };
        let read = opened.plan.load_parts(&source, |name, read| {
            let param = parameters.get(name).unwrap();
            let runs = param.local_part().runs(param.spec().shape);
            stored.set(stored.get() + runs.iter().map(|(.., len)| len).sum::<usize>());
            param.load_part(read)
        });
        read.unwrap();
        assert_eq!(source.elements.get(), stored.get());
        assert!(stored.get() < parameters.count() * 6 / 10, "{} of {}", stored.get(), parameters.count());
    });
}
