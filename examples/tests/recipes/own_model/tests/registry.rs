//! A family of another crate in the registry that programs use: opened, trained, saved, and refused where it must
//! be.

mod tiny;
mod training;

use bmtrain_core::{Ctx, Device};
use bmtrain_dist::block::Recompute;
use model_center::model::{Batch, Head, HeadInit, Labels, OpenMode, OpenOptions, Registry, TextModel};
use own_model::TABLES;
use std::path::Path;
use training::train;

/// A directory with a random model.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    tiny::write(directory.path(), Head::Classifier { outputs: 3 });
    directory
}

fn batch() -> Batch {
    Batch {
        attention_mask: Some(vec![1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0]),
        labels: Some(Labels::Classes(vec![0, 1, 2])),
        ..Batch::new(4, vec![1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 0, 0])
    }
}

fn logits(model: &dyn TextModel, device: &Device) -> Vec<f32> {
    let scores = model.forward(&batch(), None, &mut Ctx::inference(device)).unwrap();
    scores.logits.unwrap().value().to_vec().unwrap()
}

fn edit(directory: &Path, from: &str, to: &str) {
    let path = directory.join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn a_registry_with_the_family_opens_its_directories_and_one_without_says_what_it_knows() {
    let directory = directory();
    let device = Device::cpu(1).unwrap();
    let opened = Registry::new(TABLES).open(directory.path(), &OpenOptions::new(&device)).unwrap();
    assert_eq!(logits(&*opened.model, &device).len(), 3 * 3);
    let error = Registry::default().open(directory.path(), &OpenOptions::new(&device)).err().unwrap().to_string();
    assert!(error.contains("unknown model family \"toy\"") && error.contains("supported are: bert"), "{error}");
}

#[test]
fn training_lowers_the_loss_and_a_saved_model_gives_the_same_bits() {
    let directory = directory();
    let (opened, losses) = train(Registry::new(TABLES), directory.path(), &batch(), 60).unwrap();
    assert!(losses[59] < 0.5 * losses[0], "{losses:?}");
    let saved = tempfile::tempdir().unwrap();
    opened.model.save(saved.path(), &tiny::F32).unwrap();
    let device = Device::cpu(1).unwrap();
    let again = Registry::new(TABLES).open(saved.path(), &OpenOptions::new(&device)).unwrap();
    let trained = logits(&*opened.model, opened.model.parameters().flats()[0].device());
    assert_eq!(trained, logits(&*again.model, &device));
}

#[test]
fn a_head_begins_anew_on_request_alone() {
    let directory = directory();
    let device = Device::cpu(1).unwrap();
    let open = |head_values| {
        let options = OpenOptions { head_values, seed: 9, ..OpenOptions::new(&device) };
        Registry::new(TABLES).open(directory.path(), &options).unwrap()
    };
    let (kept, random) = (open(HeadInit::DirectoryOrRandom), open(HeadInit::Random));
    assert!(kept.initialized.is_empty());
    assert_eq!(random.initialized, ["cls_projection.weight"]);
    assert_eq!(random.unused, ["score.weight"]);
    assert_ne!(logits(&*kept.model, &device), logits(&*random.model, &device));
}

#[test]
fn checkpointing_changes_no_bit_of_the_gradients() {
    let directory = directory();
    let gradients = |recompute| {
        let device = Device::cpu(1).unwrap();
        let options = OpenOptions { recompute, ..OpenOptions::new(&device) };
        let opened = Registry::new(TABLES).open(directory.path(), &options).unwrap();
        let mut cx = Ctx::training(&device, Default::default());
        let loss = opened.model.forward(&batch(), None, &mut cx).unwrap().loss.unwrap();
        bmtrain_dist::OptimManager::new(&device, Default::default()).unwrap().backward(&loss, 1.0, &mut cx).unwrap();
        let read = |param: &bmtrain_dist::Param| param.grad().unwrap().unwrap().to_vec::<f32>().unwrap();
        opened.model.parameters().iter().map(read).collect::<Vec<_>>()
    };
    assert_eq!(gradients(Recompute::Keep), gradients(Recompute::Checkpoint));
}

#[test]
fn a_directory_that_does_not_fit_is_refused_before_weights_are_read() {
    let device = Device::cpu(1).unwrap();
    let open = |directory: &Path| {
        let options = OpenOptions { mode: OpenMode::Check, ..OpenOptions::new(&device) };
        Registry::new(TABLES).open(directory, &options).err().unwrap().to_string()
    };
    let directory_1 = directory();
    edit(directory_1.path(), "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    let error = open(directory_1.path());
    assert!(error.contains("toy.layer.2.query.weight"), "{error}");
    let directory_2 = directory();
    edit(directory_2.path(), "\"num_attention_heads\": 2", "\"num_attention_heads\": 3");
    let error = open(directory_2.path());
    assert!(
        error.contains("field num_attention_heads") && error.contains("8 is not divisible by num_attention_heads 3"),
        "{error}"
    );
}
