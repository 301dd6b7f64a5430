//! Recipes from the command lines and configurations of other systems.
//!
//! [`megatron`] reads commands of Megatron-LM, [`cpm`] commands of CPM-Pretrain, which add its shell variables,
//! [`deepspeed`] a configuration of DeepSpeed, and [`model_center`] commands of ModelCenter's examples. Each gives a
//! [`Sheet`]: the lines of a recipe with what each was made from, and every other setting with the reason why it has
//! none. A setting that cannot be kept is an error, unless [`ImportOptions::leave`] names it.
//!
//! - `shell`: the command of a script as words; `flags`: words against a table; `sheet`: the recipe in the making.
//! - `keys`: the names of recipe keys; `batch`: the batch equation.
//!
//! Nothing is run and no file is read. Called by the program `import`.

mod batch;
mod deepspeed;
mod flags;
mod keys;
mod megatron;
mod model_center;
mod sheet;
mod shell;

pub use deepspeed::deepspeed;
pub use flags::{Flag, Role, Takes};
pub use megatron::{cpm, megatron};
pub use model_center::model_center;
pub use sheet::{Line, Note, NoteKind, Sheet};

/// What the user adds to a command or configuration.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Ranks of the run, where the source does not tell.
    pub ranks: Option<u64>,
    /// Settings that are passed over although they are refused or unknown.
    pub leave: Vec<String>,
    /// `key=value` settings of the recipe, which come last.
    pub sets: Vec<String>,
}

/// The flags that `import megatron` and `import cpm` know.
pub fn megatron_flags() -> &'static [Flag] {
    megatron::MEGATRON
}

/// The flags that `import modelcenter` knows.
pub fn model_center_flags() -> &'static [Flag] {
    model_center::MODEL_CENTER
}

/// The keys that `import deepspeed` knows, as paths.
pub fn deepspeed_keys() -> Vec<&'static str> {
    deepspeed::known_keys()
}
