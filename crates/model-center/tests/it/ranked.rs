//! Checkpoints of Megatron-LM and DeepSpeed: the models of the goldens in every layout become directories with the bits
//! of the models again, and so the logits that transformers computed for them.

use crate::goldens::{directory, inputs};
use bmtrain_core::{Ctx, Device};
use model_center::Error;
use model_center::formats::{
    PickleFile, RankedOptions, SafetensorsFile, TensorEntry, TensorSource, is_ranked, ranked_to_directory,
};
use model_center::model::{OpenOptions, Registry};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ranked").join(name)
}

/// The tensors of a model by name, with their bits.
fn tensors(directory: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u32>)> {
    let file = SafetensorsFile::open(&directory.join("model.safetensors")).unwrap();
    let read = |entry: &TensorEntry| {
        let mut values = vec![0.0; entry.elements().unwrap()];
        file.read_f32(&entry.name, &mut values).unwrap();
        (entry.name.clone(), (entry.shape.clone(), values.into_iter().map(f32::to_bits).collect()))
    };
    file.tensors().iter().map(read).collect()
}

/// The loss over the inputs of a golden, which is a function of every logit.
fn loss(directory: &Path, (model, head): (&str, &str)) -> u32 {
    let device = Device::cpu(1).unwrap();
    let opened = Registry::default().open(directory, &OpenOptions::new(&device)).unwrap();
    assert!(opened.initialized.is_empty() && opened.unused.is_empty(), "{:?}", opened.initialized);
    let loss = opened.model.loss(&inputs(model, head), &mut Ctx::inference(&device)).unwrap().unwrap();
    loss.value().item().unwrap().to_bits()
}

fn options() -> RankedOptions {
    RankedOptions { vocabulary: Some(97), heads: Some(4), ..RankedOptions::default() }
}

const GPT2: (&str, &str) = ("gpt2_a", "lm");

#[test]
fn every_layout_gives_the_model_bit_for_bit() {
    for name in ["gpt2_2019", "gpt2_v1", "gpt2_v2", "gpt2_zero2", "gpt2_layers"] {
        let out = tempfile::tempdir().unwrap();
        assert!(is_ranked(&checkpoint(name)), "{name}");
        let report = ranked_to_directory(&checkpoint(name), out.path(), &options()).unwrap();
        assert_eq!((report.ranks, report.family, report.padding), (2, "gpt2", 15), "{name}");
        let golden = directory(GPT2.0, GPT2.1);
        assert_eq!(tensors(out.path()), tensors(&golden), "{name}");
        assert_eq!(loss(out.path(), GPT2), loss(&golden, GPT2), "{name}");
    }
}

#[test]
fn bert_with_residuals_after_norms_is_hugging_faces() {
    let out = tempfile::tempdir().unwrap();
    let asked = RankedOptions { vocabulary: Some(101), ..RankedOptions::default() };
    let report = ranked_to_directory(&checkpoint("bert_v2"), out.path(), &asked).unwrap();
    assert_eq!((report.family, report.padding, report.left.len()), ("bert", 11, 0));
    let bert = ("bert_a", "pretraining");
    let golden = directory(bert.0, bert.1);
    assert_eq!(tensors(out.path()), tensors(&golden));
    assert_eq!(loss(out.path(), bert), loss(&golden, bert));
}

#[test]
fn bert_with_norms_before_its_layers_is_hugging_faces_megatron_bert() {
    let (out, bert) = (tempfile::tempdir().unwrap(), ("megatron_bert_a", "pretraining"));
    let asked = RankedOptions { vocabulary: Some(89), ..RankedOptions::default() };
    let report = ranked_to_directory(&checkpoint("megatron_bert_v2"), out.path(), &asked).unwrap();
    assert_eq!((report.family, report.padding, report.left.len()), ("megatron-bert", 7, 0));
    let golden = directory(bert.0, bert.1);
    assert_eq!(tensors(out.path()), tensors(&golden));
    assert_eq!(loss(out.path(), bert), loss(&golden, bert));
}

#[test]
fn zero_3_of_a_model_of_transformers_needs_its_configuration_alone() {
    let (out, golden) = (tempfile::tempdir().unwrap(), directory(GPT2.0, GPT2.1));
    let error = ranked_to_directory(&checkpoint("gpt2_zero3"), out.path(), &RankedOptions::default()).unwrap_err();
    assert!(error.to_string().contains("--config"), "{error}");
    let asked = RankedOptions { config: Some(golden.clone()), ..RankedOptions::default() };
    let report = ranked_to_directory(&checkpoint("gpt2_zero3"), out.path(), &asked).unwrap();
    assert_eq!((report.ranks, report.family), (1, "own"));
    assert_eq!(tensors(out.path()), tensors(&golden));
    assert_eq!(loss(out.path(), GPT2), loss(&golden, GPT2));
}

/// A copy of a checkpoint that a test changes.
fn copy(name: &str) -> tempfile::TempDir {
    fn copy_all(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let target = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy_all(&entry.path(), &target),
                false => fs::copy(entry.path(), target).map(drop).unwrap(),
            }
        }
    }
    let to = tempfile::tempdir().unwrap();
    copy_all(&checkpoint(name), to.path());
    to
}

#[track_caller]
fn refused(directory: &Path, asked: &RankedOptions, words: &str) {
    let out = tempfile::tempdir().unwrap();
    let error = ranked_to_directory(directory, out.path(), asked).unwrap_err();
    assert!(matches!(error, Error::Model { .. }), "{error:?}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(!out.path().join("config.json").exists());
}

#[test]
fn missing_ranks_and_unknown_sizes_are_named() {
    let lost = copy("gpt2_2019");
    fs::remove_dir_all(lost.path().join("iter_0000500/mp_rank_00")).unwrap();
    refused(lost.path(), &options(), "the file of tensor-parallel rank 0, stage 0");
    let lost = copy("gpt2_zero2");
    fs::remove_file(lost.path().join("global_step7/zero_pp_rank_0_mp_rank_01_optim_states.pt")).unwrap();
    refused(lost.path(), &options(), "data rank 0, tensor-parallel rank 1");
    let lost = copy("gpt2_layers");
    fs::remove_file(lost.path().join("global_step4/layer_02-model_01-model_states.pt")).unwrap();
    refused(lost.path(), &options(), "layer 2, tensor-parallel rank 1");
    let heads = RankedOptions { heads: None, ..options() };
    refused(&checkpoint("gpt2_2019"), &heads, "--heads");
    refused(&checkpoint("gpt2_2019"), &RankedOptions { heads: Some(3), ..options() }, "heads");
    refused(&checkpoint("gpt2_2019"), &RankedOptions { vocabulary: Some(500), ..options() }, "112 rows");
    // Half of a rank's file belongs to another checkpoint.
    let mixed = copy("gpt2_v1");
    fs::copy(
        checkpoint("bert_v2/iter_0000003/mp_rank_01/model_optim_rng.pt"),
        mixed.path().join("release/mp_rank_01/model_optim_rng.pt"),
    )
    .unwrap();
    refused(mixed.path(), &options(), "rank 1 differs");
}

#[test]
fn the_tracker_cannot_lead_out_of_its_directory() {
    for text in ["../elsewhere", "", "-1", "iter/..", "1e3"] {
        let run = copy("gpt2_2019");
        fs::write(run.path().join("latest_checkpointed_iteration.txt"), text).unwrap();
        refused(run.path(), &options(), "latest_checkpointed_iteration.txt");
        fs::write(run.path().join("latest"), text).unwrap();
        refused(run.path(), &options(), "latest");
    }
    let run = copy("gpt2_2019");
    fs::write(run.path().join("latest_checkpointed_iteration.txt"), "501").unwrap();
    refused(run.path(), &options(), "names iter_0000501, which is not there");
}

#[test]
fn damaged_files_are_refused_and_never_a_panic() {
    let path = "iter_0000020/mp_rank_01_001/model_optim_rng.pt";
    let bytes = fs::read(checkpoint("gpt2_v2").join(path)).unwrap();
    let run = copy("gpt2_v2");
    for step in 0..60 {
        let mut damaged = bytes.clone();
        let at = step * (bytes.len() / 60);
        damaged[at] ^= 0x15;
        damaged.truncate(if step % 3 == 0 { at.max(1) } else { damaged.len() });
        fs::write(run.path().join(path), damaged).unwrap();
        let out = tempfile::tempdir().unwrap();
        // A changed bit of a value is a value.
        let _ = ranked_to_directory(run.path(), out.path(), &options());
    }
}

#[test]
fn arguments_and_versions_are_data() {
    let path = checkpoint("gpt2_v2").join("iter_0000020/mp_rank_00_000/model_optim_rng.pt");
    let file = PickleFile::open_tree(&path, &|key| ["args", "checkpoint_version"].contains(&key)).unwrap();
    use model_center::formats::pickle::Scalar;
    assert_eq!(file.scalar("checkpoint_version"), Some(&Scalar::Float(2.0)));
    assert_eq!(file.scalar("args.num_layers"), Some(&Scalar::Whole(2)));
    assert_eq!(file.scalar("args.openai_gelu"), Some(&Scalar::Truth(true)));
    assert_eq!(file.scalar("args.save"), Some(&Scalar::Text("checkpoints".into())));
    assert!(file.tensors().is_empty() && file.others().contains(&"model".to_owned()));
}

#[test]
fn checkpoints_that_deepspeed_wrote_have_the_weights_that_it_gathers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/deepspeed");
    let config = tempfile::tempdir().unwrap();
    fs::write(config.path().join("config.json"), "{}").unwrap();
    for name in ["zero1", "zero2_frozen", "zero3", "zero3_frozen", "universal2", "universal3"] {
        let out = tempfile::tempdir().unwrap();
        let asked = RankedOptions {
            config: Some(config.path().to_owned()),
            dtype: Some(bmtrain_core::dtype::DType::F32),
            ..RankedOptions::default()
        };
        ranked_to_directory(&root.join(name), out.path(), &asked).unwrap();
        let expected = SafetensorsFile::open(&root.join(name).join("expected.safetensors")).unwrap();
        let read = |entry: &TensorEntry| {
            let mut values = vec![0.0; entry.elements().unwrap()];
            expected.read_f32(&entry.name, &mut values).unwrap();
            (entry.name.clone(), (entry.shape.clone(), values.into_iter().map(f32::to_bits).collect()))
        };
        assert_eq!(tensors(out.path()), expected.tensors().iter().map(read).collect::<BTreeMap<_, _>>(), "{name}");
    }
}
