//! The programs of BMTrain for Rust that are not in `model_center::cli`: tools around models, checkpoints and builds,
//! as functions that the binaries call. A crate with models of its own calls `convert::main` and
//! `ckpt::main` with a [`Registry`](model_center::model::Registry) that has them.

#[cfg(feature = "tools")]
pub mod bench;
#[cfg(feature = "tools")]
pub mod ckpt;
#[cfg(feature = "tools")]
pub mod convert;
#[cfg(feature = "tools")]
pub mod corpus;
#[cfg(feature = "tools")]
pub mod doctor;
#[cfg(feature = "hub")]
pub mod fetch;
#[cfg(feature = "testing")]
pub mod gpu_check;
#[cfg(feature = "tools")]
pub mod import;
#[cfg(feature = "tools")]
pub mod profile;
#[cfg(feature = "tools")]
pub mod simulate;
#[cfg(feature = "tools")]
pub mod step;
#[cfg(feature = "tools")]
pub mod tokenizer;

pub use model_center::cli::{
    comm, device, evaluate, finetune, forward, generate, limits, opened, places, plan, pretrain, program, serve,
    settings, terminal, trace,
};
