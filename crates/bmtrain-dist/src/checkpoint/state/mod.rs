//! The training state in checkpoints: parameters, optimizer state, schedules, loss scale, frozen parameters.
//!
//! [`Snapshot`] copies the part of this rank while training goes on, [`TrainingState`] has no tensors, [`Saver`] saves
//! on all ranks together in the background, and [`restore`] reads with any number of ranks and any ZeRO level.
//!
//! A rank saves the elements that it counts in the norm of all gradients ([`Param::counted`]), so every element is
//! saved once however the model is sharded: data-parallel ranks save their shards, and what tensor-parallel ranks have
//! alike is saved by the first of them. A checkpoint holds elements of full parameters, without padding, and every
//! rank reads the elements that it stores: the layout is not part of a checkpoint.

mod restore;
mod runs;
mod saver;
mod snapshot;
mod training_state;

pub use restore::{load_averages, load_parameters, restore, restore_without_optimizer_state};
pub use saver::{SaveEvent, Saver};
pub use snapshot::Snapshot;
pub use training_state::{OptimizerState, TrainingState};

use super::disk::Kind;
use crate::optim::{KeptForm, MASTER};
use crate::param::Param;

/// The kind under which a tensor of an optimizer's state is saved.
fn kind_of(tensor: &str) -> Kind {
    match tensor {
        "m" => Kind::MomentM,
        "v" => Kind::MomentV,
        MASTER => Kind::Master,
        other => Kind::Other(other.to_owned()),
    }
}

/// The whole shape of what is kept for a parameter.
fn kept_shape(param: &Param, form: &KeptForm) -> Vec<u64> {
    form.shape(&param.spec().shape).into_iter().map(|size| size as u64).collect()
}
