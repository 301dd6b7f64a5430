//! Checkpoints of torch.distributed.checkpoint: the tensors that PyTorch and FSDP2 wrote, bit for bit, and what is
//! wrong with files from outside.

use crate::goldens::{directory, inputs};
use crate::mutants::{Random, replace};
use bmtrain_core::{Ctx, Device};
use model_center::config::{ConfigOverrides, ConfigSource};
use model_center::formats::{DistributedWeights, PickleFile, SafetensorsFile, TensorSource, Weights, is_distributed};
use model_center::model::{OpenOptions, Registry};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/distributed").join(name)
}

/// Every tensor with its type, shape and bytes.
fn tensors(source: &dyn TensorSource) -> Vec<(String, String, Vec<usize>, Vec<u8>)> {
    let read = |entry: &&model_center::formats::TensorEntry| {
        let mut bytes = vec![0; entry.bytes().unwrap()];
        source.read_raw_at(&entry.name, 0, &mut bytes).unwrap();
        (entry.name.clone(), format!("{:?}", entry.dtype), entry.shape.clone(), bytes)
    };
    source.entries().iter().map(read).collect()
}

#[test]
fn every_tensor_is_what_pytorch_divided() {
    let llama = SafetensorsFile::open(&directory("llama_a", "lm").join("model.safetensors")).unwrap();
    let mixed = SafetensorsFile::open(&golden("mixed.safetensors")).unwrap();
    for (name, expected, left) in [
        ("llama", &llama, &[("app.optim", 6), ("step", 0)][..]),
        ("llama_sharded", &llama, &[]),
        ("mixed", &mixed, &[("state", 2)]),
    ] {
        assert!(is_distributed(&golden(name)), "{name}");
        let found = DistributedWeights::open(&golden(name)).unwrap();
        assert!(tensors(&found) == tensors(expected), "{name}");
        let others: Vec<(&str, usize)> = found.left().iter().map(|(keys, count)| (keys.as_str(), *count)).collect();
        assert_eq!(others, left, "{name}");
    }
    assert_eq!(
        Weights::open(&golden("llama")).unwrap().notes(),
        ["left out of the checkpoint: 6 tensors under app.optim, values under step"]
    );
}

#[test]
fn any_range_is_read_from_the_parts_that_have_it() {
    let (found, whole) = (DistributedWeights::open(&golden("mixed")).unwrap(), golden("mixed.safetensors"));
    let whole = SafetensorsFile::open(&whole).unwrap();
    for entry in found.entries().into_iter().filter(|entry| entry.is_float()) {
        let elements = entry.elements().unwrap();
        for (first, last) in (0..elements).flat_map(|first| [(first, first + 1), (first, elements)]) {
            let [mut ours, mut theirs] = [vec![0.0; last - first], vec![0.0; last - first]];
            found.read_f32_at(&entry.name, first, &mut ours).unwrap();
            whole.read_f32_at(&entry.name, first, &mut theirs).unwrap();
            assert_eq!(ours, theirs, "{} {first}..{last}", entry.name);
        }
        let mut odd = vec![0; entry.bytes().unwrap() - 1];
        found.read_raw_at(&entry.name, 1, &mut odd).unwrap();
        assert_eq!(odd, whole.read_raw(&entry.name).unwrap()[1..]);
    }
    let error = found.read_f32_at("grid", 30, &mut [0.0; 6]).unwrap_err().to_string();
    assert!(error.contains("tensor grid") && error.contains("6 elements from 30 on"), "{error}");
}

#[test]
fn a_model_opens_from_its_parts_beside_a_configuration() {
    let device = Device::cpu(1).unwrap();
    let model = directory("llama_a", "lm");
    let config = ConfigSource::open(&model, ConfigOverrides::default()).unwrap();
    let parts = OpenOptions { config: Some(Arc::new(config)), ..OpenOptions::new(&device) };
    let loss = |directory: &Path, options: &OpenOptions| {
        let opened = Registry::default().open(directory, options).unwrap();
        assert!(opened.initialized.is_empty() && opened.unused.is_empty(), "{:?}", opened.initialized);
        let loss = opened.model.loss(&inputs("llama_a", "lm"), &mut Ctx::inference(&device)).unwrap().unwrap();
        loss.value().item().unwrap().to_bits()
    };
    let expected = loss(&model, &OpenOptions::new(&device));
    for name in ["llama", "llama_sharded"] {
        assert_eq!(loss(&golden(name), &parts), expected, "{name}");
    }
}

#[test]
fn a_part_of_a_tensor_in_a_file_of_its_own_is_named() {
    let error = PickleFile::open(&golden("dtensor.pt")).unwrap_err().to_string();
    assert!(error.contains("torch.distributed.tensor.DTensor") && error.contains("full_state_dict"), "{error}");
}

fn copy(name: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(name)).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

#[test]
fn files_that_contradict_their_list_are_refused() {
    let refused = |change: &dyn Fn(&Path), reason: &str| {
        let copied = copy("mixed");
        change(copied.path());
        let error = DistributedWeights::open(copied.path()).expect_err(reason).to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    };
    let swap = |directory: &Path, from: &[u8], to: &[u8]| {
        let path = directory.join(".metadata");
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes.splice(at..at + from.len(), to.iter().copied());
        replace(&path, &bytes);
    };
    refused(&|at| fs::remove_file(at.join("__2_0.distcp")).unwrap(), "__2_0.distcp");
    refused(
        &|at| {
            let whole = fs::read(at.join("__1_0.distcp")).unwrap();
            replace(&at.join("__1_0.distcp"), &whole[..whole.len() / 2]);
        },
        "its part at",
    );
    // A file outside of the directory, another class, another dtype, and Megatron core's container.
    refused(&|at| swap(at, b"__0_0.distcp", b"../../hosts0"), "hosts0");
    refused(
        &|at| swap(at, b"TensorStorageMetadata", b"TensorStorageMetadatb"),
        "in the place of a TensorStorageMetadata",
    );
    refused(&|at| swap(at, b"bfloat16", b"bfloat17"), "torch.bfloat17");
    refused(&|at| fs::write(at.join("common.pt"), "").unwrap(), "Megatron core (torch_dist)");
    let note = |text: &'static str| move |at: &Path| fs::write(at.join("metadata.json"), text).unwrap();
    refused(&note(r#"{"sharded_backend": "torch_dist"}"#), "Megatron core (torch_dist)");
    // A file of the same name that a user has put there.
    let noted = copy("mixed");
    note(r#"{"author": "me"}"#)(noted.path());
    DistributedWeights::open(noted.path()).unwrap();
    let sharded = copy("llama_sharded");
    fs::remove_file(sharded.path().join("shard-00002-model-00001-of-00001.safetensors")).unwrap();
    // Headers have no whole sizes: what is missing at the end of a tensor shows in the model alone.
    let cut = DistributedWeights::open(sharded.path()).unwrap();
    let whole = SafetensorsFile::open(&directory("llama_a", "lm").join("model.safetensors")).unwrap();
    assert!(cut.entries().iter().any(|entry| whole.entry(&entry.name).unwrap().shape != entry.shape));
}

#[test]
fn damaged_lists_and_parts_never_panic() {
    let mut random = Random(5);
    let copied = copy("mixed");
    for name in [".metadata", "__0_0.distcp", "__2_0.distcp"] {
        let whole = fs::read(golden("mixed").join(name)).unwrap();
        for _ in 0..150 {
            let mut mutant = whole.clone();
            match random.below(3) {
                0 => mutant.truncate(random.below(whole.len())),
                _ => {
                    for _ in 0..=random.below(3) {
                        let at = random.below(mutant.len());
                        mutant[at] = random.next() as u8;
                    }
                }
            }
            replace(&copied.path().join(name), &mutant);
            if let Ok(weights) = DistributedWeights::open(copied.path()) {
                for entry in weights.entries().into_iter().filter(|entry| entry.is_float()) {
                    // What is damaged in the values shows nowhere.
                    let _ = weights.read_f32(&entry.name, &mut vec![0.0; entry.elements().unwrap().min(1 << 16)]);
                }
            }
        }
        replace(&copied.path().join(name), &whole);
    }
}
