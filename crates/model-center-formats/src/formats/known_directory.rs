//! Directories of other programs, recognised by the names of their files.
//!
//! Defines [`DirectoryKind`] and [`KnownDirectory`]: the one place that tells a checkpoint of a framework from a data
//! set and from a model, and what to do with each. Called where a model, a checkpoint or data are opened and are not
//! there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::distributed::{is_distributed, is_megatron_core};
use super::ranked::is_ranked;
use super::saved_data::{SavedKind, saved_kind};
use super::weights::WeightsName;
use crate::{Error, Result};
use model_center_base::file::printable;

/// The file by which a training run's directory is known, and where its model is.
pub const RUN_FILE: &str = "run.json";
/// The subdirectory of a run that holds its model.
pub const RUN_MODEL: &str = "model";
/// Names that are looked at: a directory of a million files is none of these.
const MAX_NAME: usize = 1 << 14;

/// Kinds of directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryKind {
    /// `.metadata` and `.distcp` files of `torch.distributed.checkpoint`.
    Distributed,
    /// Such files without their list.
    WithoutList,
    /// Safetensors of `torch.distributed.checkpoint`, a part of each tensor in each.
    Sharded,
    /// A run of accelerate or transformers with the model's distributed checkpoint in a directory of it.
    WithDistributed,
    /// Such checkpoints of torchtitan, one for each of some steps.
    Steps,
    /// PyTorch's distributed checkpoint as Megatron core writes it.
    MegatronCore,
    /// Checkpoints of Megatron-LM or DeepSpeed, one file for each rank.
    Ranked,
    /// A data set of `save_to_disk`.
    DataSet,
    /// Several of them, one for each split.
    DataSets,
    /// A checkpoint of Orbax, for JAX.
    Orbax,
    /// A model or checkpoint of TensorFlow.
    TensorFlow,
    /// Meta's own files of a Llama.
    Meta,
    /// A checkpoint of NeMo.
    Nemo,
    /// Arrays of NumPy in an archive, such as MLX wrote.
    Npz,
    /// A model of ONNX.
    Onnx,
    /// Shards of MosaicML's streaming data.
    Streaming,
}

use DirectoryKind::{
    DataSet, DataSets, Distributed, MegatronCore, Meta, Nemo, Npz, Onnx, Orbax, Ranked, Sharded, Steps, Streaming,
    TensorFlow, WithDistributed, WithoutList,
};

/// Directory of accelerate, in a run's directory, with a model's distributed checkpoint.
const ACCELERATE: &str = "pytorch_model_fsdp_0";

/// A directory of a known kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownDirectory {
    path: PathBuf,
    /// Kind of the directory.
    pub kind: DirectoryKind,
}

impl KnownDirectory {
    /// The known directory at a path, if its files tell.
    pub fn of(path: &Path) -> Option<KnownDirectory> {
        let names = names_of(path)?;
        let has = |name: &str| names.contains(name);
        let ends = |end: &str| names.iter().any(|name| name.ends_with(end));
        let begins = |start: &str| names.iter().any(|name| name.starts_with(start));
        let saved = saved_kind(path);
        let rules = [
            (MegatronCore, has(".metadata") && is_megatron_core(path)),
            (Distributed, has(".metadata")),
            (WithoutList, ends(".distcp")),
            (Sharded, is_distributed(path)),
            (WithDistributed, has(ACCELERATE)),
            (Steps, newest_step(path, &names).is_some()),
            (DataSets, saved == Some(SavedKind::Dictionary)),
            (DataSet, saved == Some(SavedKind::Set)),
            (Orbax, has("_CHECKPOINT_METADATA") || has("manifest.ocdbt") || begins("ocdbt.process_")),
            (TensorFlow, has("saved_model.pb") || ends(".ckpt.index") || (has("checkpoint") && ends(".index"))),
            (Nemo, ends(".nemo") || has("model_config.yaml") || (has("context") && has("weights"))),
            (Meta, has("params.json") && begins("consolidated.")),
            (Onnx, ends(".onnx")),
            (Npz, ends(".npz")),
            (Streaming, has("index.json") && (ends(".mds") || ends(".mds.zstd"))),
            (Ranked, is_ranked(path)),
        ];
        let found = rules.into_iter().find(|(_, is_it)| *is_it);
        found.map(|(kind, _)| KnownDirectory { path: path.to_owned(), kind })
    }

    /// The checkpoint in it whose model `convert` makes, if there is one: itself, or a directory of it.
    pub fn checkpoint(&self) -> Option<PathBuf> {
        match self.kind {
            Distributed | Sharded | Ranked => Some(self.path.clone()),
            WithDistributed => Some(self.path.join(ACCELERATE)),
            Steps => newest_step(&self.path, &names_of(&self.path)?),
            _ => None,
        }
    }

    /// Name of the kind, for messages.
    pub fn what(&self) -> &'static str {
        match self.kind {
            Distributed => "a checkpoint of torch.distributed.checkpoint (.metadata and .distcp files)",
            WithoutList => "a checkpoint of torch.distributed.checkpoint without its list of tensors, .metadata",
            Sharded => "a checkpoint of torch.distributed.checkpoint whose safetensors were not consolidated",
            WithDistributed => "the directory of a run whose model is a checkpoint of torch.distributed.checkpoint",
            Steps => "the directory of a run's checkpoints of torch.distributed.checkpoint, one for each of some steps",
            MegatronCore => "a checkpoint of Megatron core (torch_dist)",
            Ranked => "a checkpoint of Megatron-LM or DeepSpeed, or a run's directory of them",
            DataSet => "a data set (save_to_disk of datasets)",
            DataSets => "a dictionary of data sets (save_to_disk of datasets)",
            Orbax => "a checkpoint of Orbax, for JAX",
            TensorFlow => "a model or checkpoint of TensorFlow",
            Meta => "a Llama in Meta's own files",
            Nemo => "a checkpoint of NeMo",
            Npz => "a directory with arrays of NumPy in an archive (.npz)",
            Onnx => "a model of ONNX",
            Streaming => "a data set of MosaicML's streaming (.mds)",
        }
    }

    /// Way to its model here.
    fn model_fix(&self) -> String {
        let shown = printable(&self.path.display().to_string(), 200);
        match self.kind {
            Distributed | Sharded => {
                format!("bmtrain convert {shown} OUT --config DIR, with the model's config.json and tokenizer in DIR")
            }
            WithoutList => {
                "copy .metadata too: its name begins with a dot, and a pattern such as `cp DIR/*` leaves it out".into()
            }
            WithDistributed | Steps => {
                let inner = self.checkpoint().map(|inner| printable(&inner.display().to_string(), 200));
                let inner = inner.unwrap_or(shown);
                format!("bmtrain convert {inner} OUT --config DIR, with the directory of the model's config.json")
            }
            Ranked => format!("bmtrain convert {shown} OUT, and give OUT; docs/import.md has the options"),
            MegatronCore => super::distributed::MEGATRON_CORE_FIX.into(),
            DataSet | DataSets | Streaming => "give the directory of a model; data are named in data.train".into(),
            Orbax => "load it in JAX there, and write its arrays under Hugging Face's names with save_file of \
                      safetensors.flax"
                .into(),
            TensorFlow => "load it in transformers 4 there (from_tf=True), and call save_pretrained".into(),
            Meta => "convert it in Python: convert_llama_weights_to_hf.py of transformers".into(),
            Nemo => {
                "export it to Hugging Face's files there: NeMo's export_ckpt, or AutoBridge of Megatron Bridge".into()
            }
            Npz => {
                "write its arrays with save_file of the Python package safetensors, under Hugging Face's names".into()
            }
            Onnx => "give the directory of the model that it was exported from".into(),
        }
    }

    /// The error where a model is asked for.
    pub fn no_model(&self) -> Error {
        let fix = self.model_fix();
        Error::model(self.path.display().to_string(), format!("this is {}, not a model directory", self.what()), fix)
    }

    /// The error where settings are asked for.
    pub fn no_settings(&self) -> Error {
        let reason = format!("this is {}, not a command or a configuration", self.what());
        Error::model(self.path.display().to_string(), reason, self.model_fix())
    }

    /// The error where data are asked for.
    pub fn no_data(&self) -> Error {
        let fix = match self.kind {
            Streaming => "write JSON lines of its samples: for sample in StreamingDataset(local=DIR): …".to_owned(),
            _ => "name a file of records, or a directory of save_to_disk of datasets".to_owned(),
        };
        Error::data(self.path.display().to_string(), format!("this is {}", self.what()), fix)
    }
}

/// The names in a directory.
fn names_of(path: &Path) -> Option<BTreeSet<String>> {
    let entries = std::fs::read_dir(path).ok()?.take(MAX_NAME).flatten();
    Some(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// The checkpoint of the last step, `step-1000`, that was written to its end.
fn newest_step(path: &Path, names: &BTreeSet<String>) -> Option<PathBuf> {
    let step = |name: &String| Some((name.strip_prefix("step-")?.parse::<u64>().ok()?, path.join(name)));
    let found = names.iter().filter_map(step).filter(|(_, checkpoint)| is_distributed(checkpoint));
    found.max_by_key(|(step, _)| *step).map(|(_, checkpoint)| checkpoint)
}

/// Whether a directory has a model's configuration and weights.
pub fn has_model(directory: &Path) -> bool {
    directory.join("config.json").is_file() && !matches!(WeightsName::of(directory), Ok(None))
}

/// Refuses a directory that is known to be something else than a model, or another one beside; one without any known
/// files passes.
///
/// # Errors
/// [`Error::Model`] with what it is. A model beside an adapter is ambiguous: transformers opens the model with the
/// adapter on top, so that a merged model has the update twice.
pub fn refuse_other_than_model(path: &Path) -> Result<()> {
    let refused = |reason: &str, fix: &str| Err(Error::model(path.display().to_string(), reason, fix));
    if path.join("adapter_config.json").is_file() {
        let fix = "move adapter_config.json and the adapter's weights to a directory of their own, or away if they \
                   were merged into the model";
        return match has_model(path) {
            true => refused("it has the weights of a model, and the adapter of adapter_config.json beside them", fix),
            false => Ok(()),
        };
    }
    // A model's own files are another matter.
    if path.join("config.json").is_file() {
        return Ok(());
    }
    if let Some(known) = KnownDirectory::of(path) {
        return Err(known.no_model());
    }
    let model = path.join(RUN_MODEL);
    match path.join(RUN_FILE).is_file() && model.is_dir() {
        true => refused(
            "this is the directory of a run, not a model directory",
            &format!("give {}", printable(&model.display().to_string(), 200)),
        ),
        false => Ok(()),
    }
}
