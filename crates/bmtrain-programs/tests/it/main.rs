//! The integration tests of this crate, one module per topic. One program, because linking costs more than most tests.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

#[path = "../fixture/mod.rs"]
mod fixture;

mod adapters;
mod averages;
mod bad_input;
mod bench;
mod ckpt;
mod cluster;
mod convert;
mod corpus;
mod distill;
mod docs;
mod doctor;
mod embedding;
mod evaluate;
mod finetune;
mod forward;
mod frozen;
mod generate;
mod generate_gguf;
mod hosts;
mod import;
mod init;
mod kills;
mod launch_scripts;
mod mistakes;
mod models_page;
mod multi_label;
mod objectives;
mod one_program;
mod packing;
mod pipeline;
mod plan;
mod predict;
mod preference;
mod pretrain;
mod pretrain_files;
mod ranks;
mod readme;
mod recipe_files;
mod recipes;
mod resume;
mod run_reports;
mod runs;
mod serve;
mod sft;
mod simulate;
mod stages;
mod step_path;
mod superglue;
mod tensor;
mod tokenizer;
mod verbalizer;
