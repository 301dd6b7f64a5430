//! Recipes from the command lines and configurations of other systems.
//!
//! [`megatron`] reads commands of Megatron-LM, [`cpm`] commands of CPM-Pretrain, which add its shell variables,
//! [`deepspeed`] a configuration of DeepSpeed, [`model_center`] commands of ModelCenter's examples,
//! [`distributed_finetuning`] commands of the program of this name, [`axolotl`] and [`llama_factory`] their YAML files.
//! Each gives a [`Sheet`]: the lines of a recipe with what each was made from, and every other setting with the reason
//! why it has none; generation and export of "Distributed finetuning" become [`Commands`] in the same way. A setting
//! that cannot be kept is an error, unless [`ImportOptions::leave`] names it.
//!
//! - `shell`: the command of a script as words; `flags`: words against a table; `sheet`: the recipe in the making.
//! - `account`: settings without a line, noted or refused; `checkpoint`: what training begins with; `ranks`: ranks by
//!   the launcher; `batch`: the batch equation.
//! - `keys`: the names of recipe keys; `numbers`: numbers of other systems; `yaml`: configurations in YAML.
//!
//! Nothing is run, and no file is read but tokenizers of this machine, in which special tokens are looked up; of a
//! checkpoint that the settings name, the names of its files are looked at. Called by the program `import`.

mod account;
mod batch;
mod checkpoint;
mod deepspeed;
mod distributed_finetuning;
mod flags;
mod megatron;
mod model_center;
mod numbers;
mod ranks;
mod sheet;
mod shell;
mod yaml;

pub use deepspeed::deepspeed;
pub use distributed_finetuning::distributed_finetuning;
pub use flags::{Flag, Role, Takes};
pub use megatron::{cpm, megatron};
pub use model_center::model_center;
pub(crate) use sheet::inline_tables;
pub use sheet::{Commands, Line, Note, NoteKind, Sheet, Translated};
pub use yaml::{YamlKey, axolotl, axolotl_keys, llama_factory, llama_factory_keys};

use model_center_formats::ModelCaches;

/// Additions of the user to a command or configuration.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Ranks of the run, where the source does not tell.
    pub ranks: Option<u64>,
    /// Settings that are passed over although they are refused or unknown.
    pub leave: Vec<String>,
    /// `key=value` settings of the recipe, which come last.
    pub sets: Vec<String>,
    /// Directories to look in for models that are named as on the hub, for what depends on their tokenizers.
    pub places: ModelCaches,
}

/// The flags that `bmtrain import megatron` and `bmtrain import cpm` know.
pub fn megatron_flags() -> &'static [Flag] {
    megatron::MEGATRON
}

/// The flags that `import modelcenter` knows.
pub fn model_center_flags() -> &'static [Flag] {
    model_center::MODEL_CENTER
}

/// The flags that `import distributed-finetuning` knows.
pub fn distributed_finetuning_flags() -> &'static [Flag] {
    distributed_finetuning::FLAGS
}

/// The keys that `bmtrain import deepspeed` knows, as paths.
pub fn deepspeed_keys() -> Vec<&'static str> {
    deepspeed::known_keys()
}
