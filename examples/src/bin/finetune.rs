//! Fine-tune a model on text. The training step is in `crates/model-center/src/train/step.rs`.

model_center::program!(model_center::cli::finetune, model_center::model::Registry::default());
