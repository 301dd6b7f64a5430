//! The programs of BMTrain for Rust as functions, over `model-center`'s crates. The binary `bmtrain` has all of them; a
//! crate with models of its own calls these functions with a registry that has them.
//!
//! [`cli`] has the command lines of what trains and uses models, the other modules what is beside: tools around
//! models, checkpoints and builds, the server, reports of runs. Features leave them out of a build.
#![forbid(unsafe_code)]

#[cfg(feature = "tools")]
pub mod bench;
#[cfg(feature = "tools")]
pub mod ckpt;
pub mod cli;
pub mod cluster;
#[cfg(feature = "tools")]
pub mod convert;
#[cfg(feature = "corpus")]
pub mod corpus;
#[cfg(feature = "tools")]
pub mod doctor;
#[cfg(feature = "hub")]
pub mod fetch;
#[cfg(any(feature = "runs", feature = "serve"))]
// Each of the two servers uses a part of it.
#[cfg_attr(not(all(feature = "runs", feature = "serve")), allow(dead_code, unused_imports))]
mod http;
#[cfg(feature = "import")]
pub mod import;
#[cfg(feature = "tools")]
pub mod profile;
#[cfg(feature = "runs")]
pub mod runs;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "tools")]
pub mod simulate;
#[cfg(feature = "tools")]
pub mod tokenizer;

pub use model_center_base::{Error, Result};

/// The crates that [`program!`] names.
pub use {bmtrain_core, bmtrain_dist};

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
