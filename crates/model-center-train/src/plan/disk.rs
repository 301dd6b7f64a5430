//! Disk space of a run: its models and its checkpoints.

use super::count::Counted;
use crate::train::{
    Setup,
    kept::{kept_checkpoints, saved_state},
};
use bmtrain_core::DType;
use model_center_formats::directory::COMPANION_FILES;
use model_center_recipe::{Resolved, SaveWhich};

/// Bytes of a file that tell about one tensor: its name, type, shape and place.
const ENTRY_BYTES: u64 = 160;

/// Disk space, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// A saved model with its tokenizer.
    pub model: u64,
    /// Models that a run leaves.
    pub models: u64,
    /// A checkpoint of all ranks: parameters and, unless it is left out, optimizer state.
    pub checkpoint: u64,
    /// The most checkpoints that are kept; 0 where none is saved.
    pub kept: u64,
}

impl Disk {
    /// The most at once: a new model or checkpoint is complete before an old one goes.
    pub fn most(&self) -> u64 {
        self.most_models() * self.model + self.most_checkpoints() * self.checkpoint
    }

    /// Models that are there at once, a new one among them.
    pub fn most_models(&self) -> u64 {
        if self.models == 0 { 0 } else { self.models + 1 }
    }

    /// The same of checkpoints.
    pub fn most_checkpoints(&self) -> u64 {
        if self.kept == 0 { 0 } else { self.kept + 1 }
    }
}

/// Disk space of a run.
pub fn estimate(setup: &Setup, resolved: &Resolved, counted: &Counted) -> Disk {
    let sizes = counted.parameters;
    let saved = if resolved.save.merged { setup.parameters } else { setup.saved_values() };
    let entries = sizes.tensors * ENTRY_BYTES;
    let companions = COMPANION_FILES.iter().filter_map(|name| setup.start.directory.join(name).metadata().ok());
    let tokenizer: u64 = companions.map(|file| file.len()).sum();
    let kinds = saved_state(resolved).1 + 1;
    let averages = if resolved.train.average.is_some() { 4.0 } else { 0.0 };
    let states = resolved.train.optimizer.kept(DType::F32).0 + averages;
    let state = match resolved.checkpoint.optimizer_state {
        true => (states * sizes.trained as f64) as u64 + 4 * sizes.masters,
        false => 0,
    };
    Disk {
        model: saved as u64 * resolved.save.dtype.size() as u64 + entries + tokenizer,
        models: match resolved.save.which {
            SaveWhich::Both => 2,
            SaveWhich::Best | SaveWhich::Last => 1,
            SaveWhich::None => 0,
        },
        checkpoint: sizes.bytes + state + kinds * entries,
        kept: kept_checkpoints(resolved),
    }
}
