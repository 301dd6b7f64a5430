//! The programs of BMTrain for Rust as functions, so that a crate with models of its own builds the same programs
//! around its own registry.

pub mod bench;
pub mod ckpt;
pub mod convert;
pub mod cuda;
pub mod device;
pub mod doctor;
#[cfg(feature = "hub")]
pub mod fetch;
pub mod finetune;
pub mod forward;
pub mod gpu_check;
pub mod places;
pub mod plan;
pub mod settings;
pub mod step;
pub mod terminal;
