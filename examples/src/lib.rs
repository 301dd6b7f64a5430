//! The programs of BMTrain for Rust as functions.
//!
//! A crate with models of its own builds the same programs around its own registry: its binary is a `main` that calls
//! [`finetune::main`], [`forward::main`], [`generate::main`], [`plan::main`] or [`convert::main`] with a
//! [`Registry`](model_center::model::Registry) of both tables. They are here rather than in `model-center` because a
//! program takes what a library should leave alone: the command line, the terminal, signals, the exit code.

pub mod bench;
pub mod ckpt;
pub mod convert;
pub mod doctor;
#[cfg(feature = "hub")]
pub mod fetch;
pub mod generate;
#[cfg(feature = "testing")]
pub mod gpu_check;
pub mod profile;
pub mod step;
pub mod tokenizer;

pub use model_center::cli::{
    comm, device, finetune, forward, limits, opened, places, plan, program, settings, terminal, trace,
};
