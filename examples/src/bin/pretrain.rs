//! Pretraining on token files: `crates/model-center/src/cli/pretrain.rs`.

model_center::program!(model_center::cli::pretrain, model_center::model::Registry::default());
