//! Configurations in YAML, of trainers around transformers.
//!
//! [`axolotl`] and [`llama_factory`] translate; `tree` reads YAML, and `settings` looks keys up in the table of all
//! that a trainer knows: `axolotl_keys`, `llama_factory_keys`.
//!
//! Both have `trainer`, `optimizer` and `intervals` from the Trainer of transformers, `lora` from PEFT and `pairs` from
//! TRL; `only` is for parts of models, `resumed` for a checkpoint that a run goes on from, and `sets` writes data sets.

mod axolotl;
mod axolotl_data;
mod axolotl_forms;
mod axolotl_keys;
mod axolotl_tokens;
mod intervals;
mod llama_factory;
mod llama_factory_keys;
mod lora;
mod only;
mod optimizer;
mod pairs;
mod resumed;
mod sets;
mod settings;
mod trainer;
mod tree;

pub use axolotl::axolotl;
pub use llama_factory::llama_factory;

use super::flags::Role;

/// A key of a trainer.
#[derive(Debug, Clone, Copy)]
pub struct YamlKey {
    /// Its name, without what is in it.
    pub name: &'static str,
    /// Its role.
    pub role: Role,
}

const fn read(name: &'static str) -> YamlKey {
    YamlKey { name, role: Role::Read }
}

const fn unused(name: &'static str, why: &'static str) -> YamlKey {
    YamlKey { name, role: Role::Unused(why) }
}

const fn refused(name: &'static str, why: &'static str) -> YamlKey {
    YamlKey { name, role: Role::Refused(why) }
}

/// The keys that `import axolotl` knows.
pub fn axolotl_keys() -> &'static [YamlKey] {
    axolotl_keys::KEYS
}

/// The keys that `import llama-factory` knows.
pub fn llama_factory_keys() -> &'static [YamlKey] {
    llama_factory_keys::KEYS
}

const TRACKER: &str = "runs are read from their own files: `bmtrain runs serve`, `bmtrain runs report`, TensorBoard";
const KERNELS: &str = "the backend has one kernel of each kind, and attention never keeps its probabilities";
const HUB: &str = "nothing is uploaded: the directory `model` of a run is what a hub takes";
const ALWAYS: &str = "it is always so";
const TORCH: &str = "it is for PyTorch";
const THREADS: &str = "records are tokenized in parallel, and batches are formed while steps run";
const QUANTIZED: &str = "a frozen model is held in 4 bits of nf4 alone: adapter.quantize";
const NEEDS_UPDATES: &str = "a model in 4 bits is frozen, and trained by low-rank updates alone";
const PREFERENCES: &str = "of training by preferences, this import reads DPO, IPO, SimPO, ORPO and reward models alone";
const KTO: &str = "records that KTO judges one by one have forms that are not translated";
const KTO_FIX: &str = "write such a recipe by docs/preference.md, with preference.loss = \"kto\"";
const TEMPLATE: &str = "the template in the model's directory is used: put this one there as chat_template.jinja";
const REMOTE_CODE: &str = "no code of a model is run: families are compiled in";
const MULTIMODAL: &str = "models read texts alone";
