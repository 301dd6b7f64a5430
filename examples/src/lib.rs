//! The programs of BMTrain for Rust as functions.
//!
//! A crate with models of its own builds the same programs around its own registry: its binary is a `main` that calls
//! [`finetune::main`], [`forward::main`], [`generate::main`], [`plan::main`] or [`convert::main`] with a
//! [`Registry`](model_center::model::Registry) of both tables. They are here rather than in `model-center` because a
//! program takes what a library should leave alone: the command line, the terminal, signals, the exit code.

pub mod bench;
pub mod ckpt;
pub mod comm;
pub mod convert;
pub mod device;
pub mod doctor;
#[cfg(feature = "hub")]
pub mod fetch;
pub mod finetune;
pub mod forward;
pub mod generate;
#[cfg(feature = "testing")]
pub mod gpu_check;
pub mod limits;
pub mod opened;
pub mod places;
pub mod plan;
mod plan_report;
pub mod profile;
mod program;
pub mod settings;
pub mod step;
pub mod terminal;
pub mod tokenizer;
pub mod trace;
