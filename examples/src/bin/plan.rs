//! What a fine-tuning run will need, before anything runs: `crates/model-center/src/plan`.

model_center::program!(model_center::cli::plan, model_center::model::Registry::default());
