//! What training has come to, out to checkpoints and back: parameters, optimizers, schedules, loss scale, what is
//! frozen.
//!
//! | file | defines |
//! |---|---|
//! | `take.rs` | [`Snapshot`]: this rank's part, copied while training goes on |
//! | `state.rs` | [`TrainingState`]: what has no tensors, as it is written into the manifest |
//! | `restore.rs` | [`restore`], [`load_parameters`]: any number of ranks and any ZeRO level read what any other saved |
//! | `saver.rs` | [`Saver`]: all ranks save together in the background |
//!
//! A rank saves the elements that it counts in the norm of all gradients, so every element is saved once whatever is
//! cut; how the model was cut is no part of a checkpoint. [`checkpoint`](crate::checkpoint) is the disk below, which
//! knows nothing of this.

mod restore;
mod saver;
mod state;
mod take;

pub use restore::{load_parameters, restore};
pub use saver::{SaveEvent, Saver};
pub use state::{OptimizerState, TrainingState};
pub use take::Snapshot;

use crate::checkpoint::Kind;

/// The kind under which a tensor of an optimizer's state is saved.
fn kind_of(tensor: &str) -> Kind {
    match tensor {
        "m" => Kind::MomentM,
        "v" => Kind::MomentV,
        "master" => Kind::Master,
        other => Kind::Other(other.to_owned()),
    }
}
