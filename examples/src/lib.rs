//! The programs of BMTrain for Rust as functions.
//!
//! A crate with models of its own builds the same programs around its own registry: its binary is a `main` that calls
//! [`finetune::main`], [`forward::main`], [`generate::main`], [`plan::main`] or [`convert::main`] with a
//! [`Registry`](model_center::model::Registry) of both tables. They are here rather than in `model-center` because a
//! program takes what a library should leave alone: the command line, the terminal, signals, the exit code.

#[cfg(feature = "tools")]
pub mod bench;
#[cfg(feature = "tools")]
pub mod ckpt;
#[cfg(feature = "tools")]
pub mod convert;
#[cfg(feature = "tools")]
pub mod doctor;
#[cfg(feature = "hub")]
pub mod fetch;
#[cfg(feature = "tools")]
pub mod generate;
#[cfg(feature = "testing")]
pub mod gpu_check;
#[cfg(feature = "tools")]
pub mod profile;
#[cfg(feature = "tools")]
pub mod step;
#[cfg(feature = "tools")]
pub mod tokenizer;

pub use model_center::cli::{
    comm, device, finetune, forward, limits, opened, places, plan, program, settings, terminal, trace,
};
