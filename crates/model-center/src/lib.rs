//! Transformer models, Hugging Face interchange, tokenizers, data sets, metrics, fine-tuning and generation.
//!
//! A [`Registry`](model::Registry) opens a model directory as a [`TextModel`](model::TextModel), which runs on one rank
//! as on many. [`train::finetune`] trains it as a [`recipe`] specifies, [`generate::TextGenerator`] generates text. A
//! model family is one file below [`model`], a line in the registry and a golden test. Kernels, CUDA and communication
//! belong to `bmtrain-core`, sharding and optimizers to `bmtrain-dist`; the crates between are re-exported here, each
//! module under one path.
//!
//! A model from a configuration, trained for a few steps:
//!
//! ```
//! use model_center::config::{Gpt2Config, TextConfig};
//! use model_center::model::{Head, gpt2::Gpt2};
//! use model_center::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu(1)?;
//! let text = TextConfig { vocab_size: 50, dim_model: 24, num_heads: 2, dim_head: 12, num_layers: 2,
//!     ..Gpt2Config::default().text };
//! let config = Gpt2Config { text, ..Gpt2Config::default() };
//! let head = Head::CausalLm { tied: true };
//! let model = Gpt2::new(&device, config, head, BlockOptions::default(), BuilderOptions::default())?;
//!
//! let mut optim = OptimManager::new(&device, Clip::default())?;
//! optim.add(Box::new(Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?), 1e-2);
//!
//! // Two sequences of four tokens; labels are the tokens themselves.
//! let batch = Batch::next_tokens(4, vec![3, 1, 4, 1, 5, 9, 2, 6], None);
//! let mut losses = Vec::new();
//! for step in 0..10 {
//!     let mut cx = Ctx::training(&device, Randomness { seed: 7, step, micro_batch: 0 });
//!     let Some(loss) = model.forward(&batch, None, &mut cx)?.loss else { break };
//!     optim.backward(&loss, 1.0, &mut cx)?;
//!     optim.step()?;
//!     losses.push(loss.value().item()?);
//! }
//! // At first all 50 tokens are equally likely.
//! assert!((losses[0] - 50f32.ln()).abs() < 0.1 && losses[9] < 0.5 * losses[0]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod prelude;

/// Configurations of models: their parts, and each family's.
pub mod config {
    pub use model_center_formats::config::*;
    pub use model_center_models::model::family::configs::*;
}

/// Pretraining corpora: raw text to token files, and token files to samples.
pub mod corpus {
    pub use bmtrain_corpus::*;
    pub use model_center_data::corpus::*;
}

/// File formats of models: safetensors, PyTorch's pickles, GGUF, checkpoints of other systems.
pub mod formats {
    pub use model_center_formats::directory::{
        COMPANION_FILES, DirectoryLayout, ModelDirectory, RankedReport, gguf_to_directory, ranked_to_directory,
    };
    pub use model_center_formats::formats::*;
}

#[cfg(feature = "cli")]
pub use bmtrain_programs::{cli, program, runs, serve};
pub use model_center_base::{batch, error, file, stop_flag, units};
pub use model_center_data::{data, metrics, pretraining};
pub use model_center_formats::{directory, model_config, rotary, tokenizer};
pub use model_center_import::{import, starter};
pub use model_center_models::{adapter, contrastive, distillation, generate, layer, model, preference};
pub use model_center_recipe::{recipe, run};
pub use model_center_train::{evaluate, formula, inference, plan, predict, train};

/// The crates below, so that a program needs this one only.
pub use {bmtrain_core, bmtrain_dist};

pub use error::{Error, Result};

/// The example of the README is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
