//! Directories of Hugging Face and of ModelCenter under tensor parallelism: each rank reads its ranges, and one rank
//! writes the full model, a parameter at a time.

use super::ranks::on_ranks;
use crate::goldens::directories::{files, open};
use crate::goldens::directory;
use crate::hf_ranks::Counted;
use bmtrain_core::{DType, Device};
use bmtrain_dist::RankGroups;
use bmtrain_dist::param::{Param, TensorGroup, WholeReader};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use model_center::formats::{DirectoryLayout, SafetensorsFile, StoredDtype, Weights, parameters};
use model_center::model::{OpenMode, OpenOptions, SaveOptions};
use std::cell::Cell;
use std::sync::Arc;

fn options(groups: &RankGroups, level: ZeroLevel, device: &Device) -> OpenOptions {
    let tensor = TensorGroup { vocabulary_multiple: 8, ..TensorGroup::default() };
    let sharding = Sharding { ranks: Arc::clone(groups.data()), level, sum: GradientSum::Fast, prefetch: true };
    OpenOptions { tensor, sharding, ..OpenOptions::new(device) }.on_groups(groups)
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
            on_ranks(of_ranks.0, of_ranks.1, |groups| {
                let (device, first) = (Device::cpu(1).unwrap(), groups.mesh().rank() == 0);
                let model = open(&golden, &options(&groups, of_ranks.2, &device)).unwrap().model;
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

#[test]
fn any_model_is_saved_to_one_file_and_loaded_from_it_in_every_layout() {
    let golden = directory("gpt2_a", "lm");
    let to = tempfile::tempdir().unwrap();
    let path = |name: &str| to.path().join(name);
    let device = Device::cpu(1).unwrap();
    let alone = open(&golden, &OpenOptions::new(&device)).unwrap().model;
    parameters::save(&*alone, &path("alone")).unwrap();
    let layouts = [(2, 2, ZeroLevel::Zero), (2, 1, ZeroLevel::Three), (4, 4, ZeroLevel::Zero), (4, 2, ZeroLevel::Two)];
    for (number, layout) in layouts.into_iter().enumerate() {
        on_ranks(layout.0, layout.1, |groups| {
            let device = Device::cpu(1).unwrap();
            let here = path(&number.to_string());
            let model = open(&golden, &options(&groups, layout.2, &device)).unwrap().model;
            parameters::save(&*model, &here).unwrap();
            // All values become zero and come back.
            let values = |param: &Param| param.read().unwrap();
            let saved: Vec<Vec<f32>> = model.parameters().iter().map(values).collect();
            let zero = |param: &Param| param.load(&vec![0.0; param.spec().shape.elements()]);
            model.parameters().iter().try_for_each(zero).unwrap();
            parameters::load(&*model, &path("alone")).unwrap();
            assert!(model.parameters().iter().map(values).collect::<Vec<_>>() == saved, "{layout:?}");
        });
        assert!(
            std::fs::read(path(&number.to_string())).unwrap() == std::fs::read(path("alone")).unwrap(),
            "{layout:?}"
        );
    }
    // A 16-bit model's own dtype.
    let half = open(&golden, &OpenOptions { dtype: DType::BF16, ..OpenOptions::new(&device) }).unwrap().model;
    parameters::save(&*half, &path("half")).unwrap();
    let file = SafetensorsFile::open(&path("half")).unwrap();
    assert!(file.tensors().iter().all(|entry| entry.dtype == StoredDtype::BF16));
    parameters::load(&*alone, &path("half")).unwrap();
    let pairs = || alone.parameters().iter().zip(half.parameters());
    assert!(pairs().all(|(full, half)| full.read().unwrap() == half.read().unwrap()));
}

#[test]
fn a_file_that_cannot_be_written_or_does_not_fit_is_an_error_on_all_ranks() {
    let golden = directory("gpt2_a", "lm");
    let to = tempfile::tempdir().unwrap();
    let path = |name: &str| to.path().join(name);
    let other = open(&directory("bert_a", "mlm"), &OpenOptions::new(&Device::cpu(1).unwrap())).unwrap().model;
    parameters::save(&*other, &path("other")).unwrap();
    let own = open(&golden, &OpenOptions::new(&Device::cpu(1).unwrap())).unwrap().model;
    parameters::save(&*own, &path("own")).unwrap();
    std::fs::write(path("text"), "a text that is not a safetensors file").unwrap();
    on_ranks(4, 2, |groups| {
        let device = Device::cpu(1).unwrap();
        let number = groups.mesh().rank();
        let model = open(&golden, &options(&groups, ZeroLevel::One, &device)).unwrap().model;
        let before: Vec<_> = model.parameters().iter().map(|param| param.read().unwrap()).collect();
        let error = parameters::save(&*model, &path("nowhere/file")).unwrap_err().to_string();
        assert_eq!(error.contains("another rank could not use the file"), number != 0, "{error}");
        let error = parameters::load(&*model, &path("other")).unwrap_err().to_string();
        assert!(error.contains("it lacks parameters of the model: "), "{error}");
        // A file that one rank alone can read.
        let file = if number == 3 { "own" } else { "text" };
        let error = parameters::load(&*model, &path(file)).unwrap_err().to_string();
        assert_eq!(error.contains("another rank could not use the file"), number == 3, "{error}");
        let after: Vec<_> = model.parameters().iter().map(|param| param.read().unwrap()).collect();
        assert!(before == after);
    });
}

#[test]
fn a_tensor_parallel_rank_reads_the_elements_it_stores_and_no_others() {
    let golden = directory("bert_a", "mlm");
    on_ranks(2, 2, |groups| {
        let device = Device::cpu(1).unwrap();
        let options = OpenOptions { mode: OpenMode::WithoutValues, ..options(&groups, ZeroLevel::Zero, &device) };
        let opened = open(&golden, &options).unwrap();
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
