//! Models loaded from golden directories and saved again: the directory of a trained model, and ranks that share it.
// Each of the tests needs a part of it.
#![allow(missing_docs, dead_code, clippy::unwrap_used)]

use super::{directory, inputs};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, DType, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::Recompute;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::{WholeReader, widen};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::formats::{
    DirectoryLayout, SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource,
};
use model_center::model::{Batch, OpenOptions, OpenedModel, Registry, SaveOptions, TextModel};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

pub const F32: SaveOptions<'static> =
    SaveOptions { dtype: DType::F32, companions: None, layout: DirectoryLayout::HuggingFace };

/// All files of a directory, in the order of their names.
pub fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect();
    files.sort();
    files
}

pub fn open(directory: &Path, options: &OpenOptions) -> Result<OpenedModel, String> {
    Registry::default().open(directory, options).map_err(|error| error.to_string())
}

pub fn opened(device: &Device, directory: &Path) -> Box<dyn TextModel> {
    open(directory, &OpenOptions::new(device)).unwrap().model
}

pub fn logits(device: &Device, model: &dyn TextModel, batch: &Batch) -> Vec<f32> {
    let output = model.forward(batch, None, &mut Ctx::inference(device)).unwrap();
    let sides = output.span_logits().into_iter().flatten();
    output.logits.iter().chain(sides).flat_map(|logits| widen(logits.value()).unwrap()).collect()
}

/// The norm of the difference, relative to the norm of the expected values.
pub fn relative_error(ours: &[f32], expected: &[f32]) -> f32 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
    norm(&mut ours.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// Steps of training, with the dropout of the configuration.
pub fn train(device: &Device, model: &dyn TextModel, batch: &Batch, ranks: usize, steps: u32) -> Vec<f32> {
    let mut optim = OptimManager::new(device, Clip { order: NormOrder::Two, max_norm: 1.0 }).unwrap();
    let groups = ParamGroup::by_decay(model.parameters(), 0.01);
    optim.add(Box::new(Adam::new(groups, AdamOptions::default()).unwrap()), 1e-3);
    let step = |step: u32| {
        let mut cx = Ctx::training(device, Randomness { seed: 3, step, micro_batch: 0 });
        let loss = model.loss(batch, &mut cx).unwrap().unwrap();
        optim.backward_last(&loss, 1.0 / ranks as f32, &mut cx).unwrap();
        optim.step().unwrap();
        loss.value().item().unwrap()
    };
    (0..steps).map(step).collect()
}

/// All tensors of a file as they are stored.
pub fn tensors(directory: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let file = SafetensorsFile::open(&directory.join("model.safetensors")).unwrap();
    let read = |entry: &TensorEntry| {
        let mut values = vec![0.0; entry.shape.iter().product()];
        file.read_f32(&entry.name, &mut values).unwrap();
        (entry.name.clone(), (entry.shape.clone(), values))
    };
    file.tensors().iter().map(read).collect()
}

pub fn write(path: &Path, tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) {
    let entry = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| {
        TensorEntry::new(name.clone(), StoredDtype::F32, shape.clone())
    };
    let entries: Vec<TensorEntry> = tensors.iter().map(entry).collect();
    let mut writer = SafetensorsWriter::create(path, &entries).unwrap();
    for (name, (_, values)) in tensors {
        writer.write_f32(name, values).unwrap();
    }
    writer.finish().unwrap();
}

/// A golden directory with other tensors and other fields of its configuration.
pub fn changed(
    (model, head): (&str, &str),
    fields: &[(&str, Value)],
    change: impl FnOnce(&mut BTreeMap<String, (Vec<usize>, Vec<f32>)>),
) -> TempDir {
    let (golden, to) = (directory(model, head), tempfile::tempdir().unwrap());
    let mut values = tensors(&golden);
    change(&mut values);
    write(&to.path().join("model.safetensors"), &values);
    let text = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    for (name, value) in fields {
        config[name] = value.clone();
    }
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
}

/// Where trained directories go: for `scripts/claims/parity.sh` a directory of its own, which transformers reads then.
fn exports() -> (Option<TempDir>, PathBuf) {
    match std::env::var_os("BMTRAIN_EXPORTS") {
        Some(directory) => (None, PathBuf::from(directory)),
        None => {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().to_owned();
            (Some(directory), path)
        }
    }
}

/// Tensors of a directory that are not trained.
fn untrained(model: &dyn TextModel) -> Vec<String> {
    let frozen = model.parameters().iter().filter(|param| !param.is_trainable());
    let pieces = frozen.flat_map(|param| {
        let shape = param.spec().shape;
        model.names().pieces(param.name(), shape.dims(), true).unwrap()
    });
    pieces.map(|piece| piece.name).collect()
}

/// A saved trained model is loaded again bit for bit, with its whole configuration.
pub fn check_export(model: &str, head: &str) {
    let (_kept, exports) = exports();
    let (device, golden, batch) = (Device::cpu(1).unwrap(), directory(model, head), inputs(model, head));
    let trained = opened(&device, &golden);
    train(&device, &*trained, &batch, 1, 3);
    let to = exports.join(format!("{model}_{head}"));
    trained.check_save(&F32).unwrap();
    trained.save(&to, &F32).unwrap();
    let again = opened(&device, &to);
    for (a, b) in trained.parameters().iter().zip(again.parameters()) {
        assert_eq!(a.name(), b.name());
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(a.read().unwrap()), bits(b.read().unwrap()), "{}", a.name());
    }
    let (before, after) = (tensors(&golden), tensors(&to));
    assert!(before.keys().eq(after.keys()), "{model} {head}: {:?}", after.keys());
    let kept = untrained(&*trained);
    for (name, (shape, values)) in &before {
        assert_eq!(after[name].0, *shape, "{name}");
        assert_eq!(after[name].1 == *values, kept.contains(name), "{name}");
    }
    let result = logits(&device, &*again, &batch);
    let entries = BTreeMap::from([("logits".to_owned(), (vec![result.len()], result))]);
    write(&to.join("ours.safetensors"), &entries);
    std::fs::copy(golden.join("inputs.safetensors"), to.join("inputs.safetensors")).unwrap();
    let fields = |directory: &Path| {
        let text = std::fs::read_to_string(directory.join("config.json")).unwrap();
        serde_json::from_str::<serde_json::Map<String, Value>>(&text).unwrap()
    };
    let (before, after) = (fields(&golden), fields(&to));
    let changes = ["transformers_version", "dtype", "torch_dtype"];
    for (name, value) in before.iter().filter(|(name, _)| !changes.contains(&name.as_str())) {
        assert_eq!(Some(value), after.get(name).or(Some(&Value::Null)), "{model} {head} {name}");
    }
}

/// A model written as ModelCenter has it is read back whole, with its head, though such a directory names neither class
/// nor family.
pub fn check_model_center(model: &str, head: &str) {
    let (device, batch, to) = (Device::cpu(1).unwrap(), inputs(model, head), tempfile::tempdir().unwrap());
    let options = SaveOptions { layout: DirectoryLayout::ModelCenter, ..F32 };
    let ours = opened(&device, &directory(model, head));
    ours.check_save(&options).unwrap();
    ours.save(to.path(), &options).unwrap();
    assert!(to.path().join("pytorch_model.pt").exists());
    let family = model.split_once('_').map(|(family, _)| family.to_owned());
    let again = open(to.path(), &OpenOptions { family, ..OpenOptions::new(&device) }).unwrap();
    assert!(again.initialized.is_empty() && again.unused.is_empty(), "{model} {head}");
    assert_eq!(logits(&device, &*ours, &batch), logits(&device, &*again.model, &batch), "{model} {head}");
}

/// Two ranks that share a model under ZeRO-3 train and write what one does, with blocks recomputed and dropout.
pub fn check_two_ranks(model: &str, head: &str) {
    let golden = directory(model, head);
    let batch = inputs(model, head);
    let written = tempfile::tempdir().unwrap();
    let device = Device::cpu(1).unwrap();
    let options = |device: &Device| OpenOptions {
        hidden_dropout: Some(0.1),
        attention_dropout: Some(0.1),
        recompute: Recompute::Checkpoint,
        ..OpenOptions::new(device)
    };
    let alone = open(&golden, &options(&device)).unwrap().model;
    let losses = train(&device, &*alone, &batch, 1, 4);
    assert!(losses[0] != losses[1] && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    alone.save(&written.path().join("alone"), &F32).unwrap();
    let group = HostGroup::threads(2, HostOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for rank in group {
            let (golden, batch, losses, to) = (&golden, &batch, &losses, written.path().join("shared"));
            let options = &options;
            scope.spawn(move || {
                let (device, ranks) = (Device::cpu(1).unwrap(), Arc::new(rank));
                let is_first = ranks.rank() == 0;
                let sharding = Sharding { ranks, level: ZeroLevel::Three, sum: GradientSum::Fast, prefetch: true };
                let options = OpenOptions { sharding, ..options(&device) };
                let model = open(golden, &options).unwrap().model;
                // Both ranks with the same rows: half of each gradient, twice.
                assert_eq!(train(&device, &*model, batch, 2, 4), *losses);
                match is_first {
                    true => model.save(&to, &F32).unwrap(),
                    false => {
                        let mut reader = WholeReader::default();
                        model.parameters().iter().try_for_each(|param| reader.pass(param)).unwrap();
                    }
                }
            });
        }
    });
    let file = |name: &str| std::fs::read(written.path().join(name).join("model.safetensors")).unwrap();
    assert!(file("alone") == file("shared"), "{head}");
}
