//! Directories of other programs: each is named as what it is, with what to do, wherever it is opened.

use model_center::data::Format;
use model_center::formats::{
    DirectoryKind, KnownDirectory, ModelCaches, Pretrained, Weights, is_ranked, ranked_to_directory,
};
use std::fs;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A directory with empty files of these names, and the kind that they tell.
const KINDS: [(&[&str], DirectoryKind, &str); 13] = [
    (&["__0_0.distcp", "__1_0.distcp"], DirectoryKind::WithoutList, "copy .metadata too"),
    (&[".metadata", "__0_0.distcp"], DirectoryKind::Distributed, "--config DIR"),
    (&[".metadata", "__0_0.distcp", "common.pt", "metadata.json"], DirectoryKind::MegatronCore, "AutoBridge"),
    (&["shard-00001-model-00001-of-00001.safetensors"], DirectoryKind::Sharded, "--config DIR"),
    (&["pytorch_model_fsdp_0", "trainer_state.json"], DirectoryKind::WithDistributed, "pytorch_model_fsdp_0 OUT"),
    (&["state.json", "dataset_info.json", "data-00000-of-00001.arrow"], DirectoryKind::DataSet, "data.train"),
    (&["dataset_dict.json", "train"], DirectoryKind::DataSets, "data.train"),
    (&["_CHECKPOINT_METADATA", "manifest.ocdbt"], DirectoryKind::Orbax, "safetensors.flax"),
    (&["saved_model.pb", "variables"], DirectoryKind::TensorFlow, "from_tf=True"),
    (&["params.json", "consolidated.00.pth"], DirectoryKind::Meta, "convert_llama_weights_to_hf.py"),
    (&["weights.npz"], DirectoryKind::Npz, "save_file"),
    (&["model.onnx"], DirectoryKind::Onnx, "exported"),
    (&["latest", "global_step4"], DirectoryKind::Ranked, "docs/import.md"),
];

#[test]
fn a_directory_without_a_model_is_named_by_its_files() {
    for (names, kind, fix) in KINDS {
        let directory = tempfile::tempdir().unwrap();
        names.iter().for_each(|name| fs::write(directory.path().join(name), "").unwrap());
        let known = KnownDirectory::of(directory.path()).unwrap();
        assert_eq!(known.kind, kind, "{names:?}");
        let shown = directory.path().to_str().unwrap();
        let resolved = Pretrained::resolve(shown, None, &ModelCaches::default()).unwrap_err().to_string();
        let (data, settings) = (known.no_data().to_string(), known.no_settings().to_string());
        for (message, what) in [(&resolved, fix), (&data, known.what()), (&settings, fix)] {
            assert!(message.contains(known.what()) && message.contains(what), "{kind:?}: {message}");
        }
        // A model's own files are another matter.
        fs::write(directory.path().join("config.json"), "{}").unwrap();
        assert!(Pretrained::resolve(shown, None, &ModelCaches::default()).is_ok());
    }
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(KnownDirectory::of(empty.path()), None);
}

#[test]
fn the_same_is_said_where_weights_data_and_checkpoints_are_opened() {
    let saved = golden("records/saved");
    let error = Weights::open(&saved).unwrap_err().to_string();
    assert!(error.contains("this is a data set (save_to_disk of datasets), not a model directory"), "{error}");
    let error = Format::of(&golden("distributed/llama")).unwrap_err().to_string();
    assert!(error.contains("a checkpoint of torch.distributed.checkpoint"), "{error}");
    let error = Format::of(&golden("records/dictionary")).unwrap_err().to_string();
    assert!(error.contains("with train_sft") && error.contains("dictionary/train_sft"), "{error}");
    // A run of Megatron core, whose newest checkpoint is not one of files of ranks.
    let (run, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(run.path().join("latest_checkpointed_iteration.txt"), "10").unwrap();
    let iteration = run.path().join("iter_0000010");
    fs::create_dir(&iteration).unwrap();
    for name in [".metadata", "metadata.json", "common.pt"] {
        fs::write(iteration.join(name), "").unwrap();
    }
    assert!(is_ranked(run.path()));
    let error = ranked_to_directory(run.path(), out.path(), &Default::default()).unwrap_err().to_string();
    assert!(error.contains("iter_0000010: this is a checkpoint of Megatron core (torch_dist)"), "{error}");
}

#[test]
fn the_newest_whole_checkpoint_of_a_runs_steps_is_named() {
    let run = tempfile::tempdir().unwrap();
    for (step, name) in [("step-9", ".metadata"), ("step-10", ".metadata"), ("step-11", "__0_0.distcp")] {
        fs::create_dir(run.path().join(step)).unwrap();
        fs::write(run.path().join(step).join(name), "").unwrap();
    }
    let known = KnownDirectory::of(run.path()).unwrap();
    assert_eq!((known.kind, known.checkpoint()), (DirectoryKind::Steps, Some(run.path().join("step-10"))));
    let error = known.no_settings().to_string();
    assert!(error.contains("step-10 OUT --config DIR"), "{error}");
}
