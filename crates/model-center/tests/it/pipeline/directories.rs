//! Directories and files of a model on several pipeline stages are written as one rank writes them, byte by byte.

use super::{Rank, Run, on_mesh};
use crate::goldens::directories::{F32, files, open};
use crate::goldens::directory;
use bmtrain_core::{DType, Device};
use bmtrain_dist::param::Param;
use bmtrain_dist::shard::ZeroLevel;
use model_center::formats::{DirectoryLayout, parameters};
use model_center::model::{OpenOptions, SaveOptions};

/// Stages, tensor-parallel and data-parallel ranks, ZeRO level.
const LAYOUTS: [(usize, usize, usize, ZeroLevel); 4] =
    [(2, 1, 1, ZeroLevel::Zero), (2, 2, 1, ZeroLevel::Zero), (2, 1, 2, ZeroLevel::One), (2, 2, 2, ZeroLevel::One)];

fn run(golden: (&'static str, &'static str), (stages, tensor, data, level): (usize, usize, usize, ZeroLevel)) -> Run {
    Run { golden, stages, tensor, data, level, ..Run::default() }
}

fn values(rank: &Rank) -> Vec<Vec<f32>> {
    rank.model.parameters().iter().map(|param: &Param| param.read().unwrap()).collect()
}

#[test]
fn a_model_on_stages_is_written_as_the_directory_of_one_rank() {
    let (hugging_face, model_center) = (DirectoryLayout::HuggingFace, DirectoryLayout::ModelCenter);
    for (golden, layout) in [
        (("gpt2_a", "lm"), hugging_face),
        (("gpt2_a", "lm"), model_center),
        (("bert_a", "mlm"), hugging_face),
        (("llama_a", "untied"), hugging_face),
        (("t5_a", "lm"), hugging_face),
        (("t5_a", "lm"), model_center),
    ] {
        let from = directory(golden.0, golden.1);
        let save = SaveOptions { dtype: DType::F32, companions: Some(&from), layout };
        let to = tempfile::tempdir().unwrap();
        on_mesh(&Run { golden, ..Run::default() }, |rank| rank.model.save(&to.path().join("alone"), &save).unwrap());
        let expected = files(&to.path().join("alone"));
        // Two tensor-parallel ranks do not divide the feed-forward layers of the others.
        let is_divisible = ["gpt2_a", "bert_a"].contains(&golden.0);
        let layouts = LAYOUTS.into_iter().filter(|(_, tensor, ..)| *tensor == 1 || is_divisible);
        for (number, layout) in layouts.enumerate() {
            let to = to.path().join(number.to_string());
            on_mesh(&run(golden, layout), |rank| match rank.mesh.rank() {
                0 => rank.model.save(&to, &save).unwrap(),
                _ => rank.model.pass_save().unwrap(),
            });
            assert!(files(&to) == expected, "{golden:?} from {layout:?}");
        }
    }
}

#[test]
fn the_first_of_all_ranks_writes() {
    let to = tempfile::tempdir().unwrap();
    let errors = on_mesh(&run(("gpt2_a", "lm"), LAYOUTS[0]), |rank| {
        rank.model.save(&to.path().join(rank.mesh.rank().to_string()), &F32).err().map(|error| error.to_string())
    });
    let error = errors[1].as_ref().unwrap();
    assert!(error.contains("the first of all ranks reads parameters"), "{error}");
}

#[test]
fn any_model_is_saved_to_one_file_and_loaded_from_it_on_stages() {
    let golden = ("gpt2_a", "lm");
    let to = tempfile::tempdir().unwrap();
    let path = |name: &str| to.path().join(name);
    let device = Device::cpu(1).unwrap();
    let alone = open(&directory(golden.0, golden.1), &OpenOptions::new(&device)).unwrap().model;
    parameters::save(&*alone, &path("alone")).unwrap();
    let other = open(&directory("bert_a", "mlm"), &OpenOptions::new(&device)).unwrap().model;
    parameters::save(&*other, &path("other")).unwrap();
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        on_mesh(&run(golden, layout), |rank| {
            let here = path(&number.to_string());
            parameters::save(&*rank.model, &here).unwrap();
            let saved = values(&rank);
            // All values become zero and come back.
            let zero = |param: &Param| param.load(&vec![0.0; param.spec().shape.elements()]);
            rank.model.parameters().iter().try_for_each(zero).unwrap();
            parameters::load(&*rank.model, &path("alone")).unwrap();
            assert!(values(&rank) == saved, "{layout:?}");
            // One error on all stages, and nothing is changed.
            let error = parameters::load(&*rank.model, &path("other")).unwrap_err().to_string();
            assert!(error.contains("it lacks parameters of the model: "), "{error}");
            let error = parameters::save(&*rank.model, &path("nowhere/file")).unwrap_err().to_string();
            assert_eq!(error.contains("another rank could not use the file"), rank.mesh.rank() != 0, "{error}");
            assert!(values(&rank) == saved, "{layout:?}");
        });
        let (staged, alone) = (std::fs::read(path(&number.to_string())), std::fs::read(path("alone")));
        assert!(staged.unwrap() == alone.unwrap(), "{layout:?}");
    }
}
