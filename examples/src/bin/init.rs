//! A recipe for one's own data and model: `crates/model-center/src/starter`.

model_center::program!(model_center::cli::init, model_center::model::Registry::default());
